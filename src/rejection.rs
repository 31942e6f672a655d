//! Why a request does not pass, and how that is told.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, header};

use crate::grpc::{self, GrpcStatus, Protocol};
use crate::head::RequestHead;
use crate::headers;
use crate::key::KeyError;
use crate::policy::Policy;
use crate::verdict::{PolicyVerdict, Verdict};

/// Why a request was rejected.
#[derive(Clone, Debug)]
pub struct Rejection {
    reason: Reason,
    status: StatusCode,
    detail: Cow<'static, str>,
    verdict: Verdict,
}

/// The kinds of rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A policy's limit, or the room in its queue, is used up.
    LimitExceeded,
    /// The request lacks what a policy tells clients apart by.
    MissingKey,
    /// The request has it more than once.
    AmbiguousKey,
    /// The server is not set up to tell clients apart. Its operator's fault; see the log.
    Misconfigured,
    /// A limiter could not decide, and its policy denies then.
    LimiterFailed,
}

/// What a client is told to wait when a limiter failed: nothing better is known.
const RETRY_FAILED_AFTER: Duration = Duration::from_secs(1);

impl Rejection {
    pub(crate) fn limit_exceeded(status: StatusCode, verdict: Verdict) -> Self {
        let detail = match longest_wait(&verdict) {
            // In the words of `detail`, which needs no room until it is asked for.
            Some(_) => "".into(),
            None => "The request costs more than is ever admitted at once; do not retry it.".into(),
        };
        Self { reason: Reason::LimitExceeded, status, detail, verdict }
    }

    pub(crate) fn without_key(policy: &Policy, error: KeyError) -> Self {
        let (reason, status, detail) = match error {
            KeyError::Missing { .. } => (Reason::MissingKey, StatusCode::BAD_REQUEST, error.to_string().into()),
            KeyError::Ambiguous { .. } => (Reason::AmbiguousKey, StatusCode::BAD_REQUEST, error.to_string().into()),
            KeyError::Misconfigured { problem } => {
                let detail = format!("rate limit policy `{}`: {problem}", policy.name());
                (Reason::Misconfigured, StatusCode::INTERNAL_SERVER_ERROR, detail.into())
            }
        };
        Self { reason, status, detail, verdict: Verdict::default() }
    }

    pub(crate) fn limiter_failed(policy: &Policy, verdict: Verdict) -> Self {
        let detail = format!("The rate limit `{}` cannot be checked at the moment.", policy.name()).into();
        Self { reason: Reason::LimiterFailed, status: StatusCode::SERVICE_UNAVAILABLE, detail, verdict }
    }

    /// The kind of rejection.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The status it is answered with.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// One sentence for people. Contains no key and no address.
    #[must_use]
    pub fn detail(&self) -> Cow<'_, str> {
        match self.retry_after() {
            Some(wait) if self.reason == Reason::LimitExceeded => {
                let seconds = headers::retry_after_seconds(wait);
                let plural = if seconds == 1 { "" } else { "s" };
                format!("The limit is used up; retry in {seconds} second{plural}.").into()
            }
            _ => Cow::Borrowed(&self.detail),
        }
    }

    /// The exact wait after which the same request passes, alone on its keys; `None` if no wait is
    /// known to help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::LimitExceeded => longest_wait(&self.verdict),
            Reason::LimiterFailed => Some(RETRY_FAILED_AFTER),
            _ => None,
        }
    }

    /// The decisions that led to it.
    #[must_use]
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        self.verdict
    }

    /// The default answer: problem details in JSON (RFC 9457).
    fn problem(&self) -> Response<Bytes> {
        let mut body = String::with_capacity(256);
        self.write_problem(&mut body).expect("a string takes all that is written");
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        let content_type = http::HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }

    fn write_problem(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let (kind, title) = match self.reason {
            Reason::LimitExceeded if self.status.is_server_error() => CAPACITY,
            Reason::LimitExceeded => QUOTA,
            Reason::LimiterFailed => CAPACITY,
            Reason::MissingKey | Reason::AmbiguousKey => ("about:blank", "Bad Request"),
            Reason::Misconfigured => ("about:blank", "Internal Server Error"),
        };
        write!(out, r#"{{"type":"{kind}","title":"{title}","status":{},"detail":""#, self.status.as_u16())?;
        write_escaped(out, &self.detail())?;
        out.write_char('"')?;
        for (i, violated) in self.verdict.violated().enumerate() {
            out.write_str(if i == 0 { r#","violated-policies":[""# } else { r#"",""# })?;
            write_escaped(out, violated.name())?;
        }
        out.write_str(if self.verdict.is_allowed() { "}" } else { r#""]}"# })
    }
}

impl Rejection {
    /// The answer to gRPC and gRPC-Web clients.
    fn grpc(&self, exceeded: GrpcStatus, protocol: Protocol) -> Response<Bytes> {
        let wait = self.retry_after();
        let code = match self.reason {
            // UNAVAILABLE would say that a retry may help.
            Reason::LimitExceeded if wait.is_none() => grpc::Code::ResourceExhausted,
            Reason::LimitExceeded => exceeded.into(),
            Reason::LimiterFailed => grpc::Code::Unavailable,
            Reason::MissingKey | Reason::AmbiguousKey => grpc::Code::InvalidArgument,
            Reason::Misconfigured => grpc::Code::Internal,
        };
        let violation = |violated: &PolicyVerdict| {
            let (left, limit) = (violated.decision().remaining(), violated.decision().limit());
            format!("{left} of {limit} left")
        };
        let violations: Vec<_> = self
            .verdict
            .violated()
            .map(|violated| grpc::Violation { subject: violated.name(), description: violation(violated) })
            .collect();
        grpc::Refusal { code, message: &self.detail(), wait, violations: &violations }.response(protocol)
    }
}

/// Types of draft-ietf-httpapi-ratelimit-headers-11, section 5: requested, not registered yet.
const QUOTA: (&str, &str) = ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota Exceeded");
const CAPACITY: (&str, &str) =
    ("https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Temporary Reduced Capacity");

/// Writes the inside of a JSON string (RFC 8259, section 7).
fn write_escaped(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    for char in text.chars() {
        match char {
            '"' | '\\' => write!(out, "\\{char}")?,
            '\0'..='\x1f' => write!(out, "\\u{:04x}", u32::from(char))?,
            _ => out.write_char(char)?,
        }
    }
    Ok(())
}

/// The longest wait of all violated policies, `None` if one of them is never satisfied.
fn longest_wait(verdict: &Verdict) -> Option<Duration> {
    verdict
        .violated()
        .map(|violated| violated.decision().retry_after())
        .try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}

/// Makes a response of a rejection.
#[derive(Clone, Default)]
pub(crate) struct Responder {
    /// What plain HTTP requests are answered with, instead of a problem.
    pub(crate) custom: Option<Arc<Respond>>,
    /// What gRPC requests are answered with if a limit is exceeded.
    pub(crate) grpc_status: GrpcStatus,
}

pub(crate) type Respond = dyn Fn(&Rejection, &RequestHead<'_>) -> Response<Bytes> + Send + Sync;

impl Responder {
    /// The response, with the fields that no custom response may leave out.
    pub(crate) fn respond(&self, rejection: &Rejection, head: &RequestHead<'_>) -> Response<Bytes> {
        let mut response = match (Protocol::of(head), &self.custom) {
            (Protocol::Http, None) => rejection.problem(),
            (Protocol::Http, Some(respond)) => respond(rejection, head),
            (protocol, _) => rejection.grpc(self.grpc_status, protocol),
        };
        let fields = response.headers_mut();
        fields.reserve(4);
        if let Some(wait) = rejection.retry_after() {
            headers::insert_retry_after(fields, wait);
            if rejection.reason == Reason::LimitExceeded {
                fields.insert(headers::X_RATE_LIMITED_FOR, headers::rate_limited_for(wait));
            }
        }
        // RFC 6585, section 4: a 429 must not be stored, whatever a layer further out adds.
        fields.insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
        response
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::decision::Decision;
    use crate::quota::Quota;

    /// What a gRPC client is told, and whether it may retry, if the layer was told to say UNAVAILABLE.
    fn told(wait: Option<Duration>) -> [String; 2] {
        let responder = Responder { grpc_status: GrpcStatus::Unavailable, ..Responder::default() };
        let policy = Policy::new("policy", TokenBucket::new(Quota::per_second(1)));
        let verdict = [(&policy, Decision::deny(1, 0, wait))].into_iter().collect();
        let rejection = Rejection::limit_exceeded(StatusCode::TOO_MANY_REQUESTS, verdict);
        let request = Request::builder().header("content-type", "application/grpc").body(()).unwrap();
        let response = responder.respond(&rejection, &RequestHead::from(&request));
        ["grpc-status", "grpc-retry-pushback-ms"].map(|name| response.headers()[name].to_str().unwrap().to_owned())
    }

    #[test]
    fn unavailable_by_choice_but_not_where_no_wait_helps() {
        assert_eq!(told(Some(Duration::from_millis(5))), ["14", "5"]);
        assert_eq!(told(None), ["8", "-1"]);
    }
}
