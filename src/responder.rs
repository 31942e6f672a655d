//! How a rejection looks.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Response, header};

use crate::body::RejectionBody;
use crate::grpc::{self, GrpcStatus, Protocol};
use crate::head::RequestHead;
use crate::headers::{self, WaitFields};
use crate::problem;
use crate::rejection::{Reason, Rejection};
use crate::verdict::PolicyVerdict;

/// What plain HTTP clients find in the body of a rejection.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RejectionFormat {
    /// Problem details in JSON (RFC 9457), with the types that draft-ietf-httpapi-ratelimit-headers-11 asks
    /// to have registered. The default.
    #[default]
    Problem,
    /// The same, with types of your own: this, followed by `#quota-exceeded` or `#temporary-reduced-capacity`.
    ProblemWithTypes(String),
    /// The same, with the type `about:blank`.
    ProblemWithoutType,
    /// One sentence, as plain text.
    Text,
    /// Nothing.
    Empty,
}

/// Makes a response of a rejection.
#[derive(Clone, Default)]
pub(crate) struct Responder {
    pub(crate) format: RejectionFormat,
    /// What plain HTTP requests are answered with, instead.
    pub(crate) custom: Option<Arc<Respond>>,
    /// What gRPC requests are answered with if a limit is exceeded.
    pub(crate) grpc_status: GrpcStatus,
    pub(crate) wait: WaitFields,
}

pub(crate) type Respond = dyn Fn(&Rejection, &RequestHead<'_>) -> Response<RejectionBody> + Send + Sync;

impl Responder {
    /// The response, with the fields that no custom response may leave out.
    pub(crate) fn respond(&self, rejection: &Rejection, head: &RequestHead<'_>) -> Response<RejectionBody> {
        let wait = rejection.retry_after();
        let mut response = match (Protocol::of(head), &self.custom) {
            (Protocol::Http, None) => self.in_http(rejection, wait.map(headers::retry_after).as_ref()),
            (Protocol::Http, Some(respond)) => respond(rejection, head),
            (protocol, _) => in_grpc(rejection, self.grpc_status, protocol).map(RejectionBody::from),
        };
        let fields = response.headers_mut();
        if let Some(wait) = wait {
            // A failed limiter knows no exact wait.
            self.wait.write(fields, wait, rejection.reason() == Reason::LimitExceeded, SystemTime::now);
        }
        // RFC 6585, section 4: a 429 must not be stored, whatever a layer further out adds.
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn in_http(&self, rejection: &Rejection, seconds: Option<&HeaderValue>) -> Response<RejectionBody> {
        let seconds = seconds.and_then(|seconds| seconds.to_str().ok()).unwrap_or_default();
        let (body, content_type) = match &self.format {
            RejectionFormat::Problem => (problem::json(rejection, seconds, Some(problem::DRAFT)), problem::MEDIA_TYPE),
            RejectionFormat::ProblemWithTypes(base) => {
                (problem::json(rejection, seconds, Some(base)), problem::MEDIA_TYPE)
            }
            RejectionFormat::ProblemWithoutType => (problem::json(rejection, seconds, None), problem::MEDIA_TYPE),
            RejectionFormat::Text => {
                let text = rejection.detail_pieces(seconds).concat() + "\n";
                (text.into(), "text/plain; charset=utf-8")
            }
            RejectionFormat::Empty => (Bytes::new(), ""),
        };
        let mut response = Response::new(body.into());
        *response.status_mut() = rejection.status();
        // For all that is put in by default, at once.
        response.headers_mut().reserve(6);
        if !content_type.is_empty() {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        response
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("format", &self.format).field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// The answer to gRPC and gRPC-Web clients.
fn in_grpc(rejection: &Rejection, exceeded: GrpcStatus, protocol: Protocol) -> Response<Bytes> {
    let wait = rejection.retry_after();
    let code = match rejection.reason() {
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
    let violations: Vec<_> = rejection
        .verdict()
        .violated()
        .map(|violated| grpc::Violation { subject: violated.name(), description: violation(violated) })
        .collect();
    grpc::Refusal { code, message: &rejection.detail(), wait, violations: &violations }.response(protocol)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, StatusCode};

    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::decision::Decision;
    use crate::policy::Policy;
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
