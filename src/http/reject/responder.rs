//! `Responder`: makes the response to a rejected request.

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, Method, Response, header};

use super::grpc;
use super::problem::{self, Problem};
use super::rejection::Rejection;
use crate::http::body::RejectionBody;
use crate::http::grpc::{GrpcStatus, Protocol};
use crate::http::head::{RequestHead, append_field, set_field};
use crate::http::headers::{Jitter, PreparedFields, ResponseFields, WaitFields, merge_retry_after};

/// A rejection body's format, for plain HTTP clients.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RejectionFormat {
    /// Problem details in JSON (RFC 9457), with the types that draft-ietf-httpapi-ratelimit-headers-11
    /// defines. The default.
    #[default]
    Problem,
    /// [`Problem`](Self::Problem) with custom types: this prefix, followed by `#quota-exceeded`,
    /// `#temporary-reduced-capacity` or `#abnormal-usage-detected`.
    ProblemWithTypes(String),
    /// [`Problem`](Self::Problem) with the type `about:blank`.
    ProblemWithoutType,
    /// One sentence, as plain text.
    Text,
    /// An empty body.
    Empty,
}

/// Makes the responses to rejected requests.
#[derive(Default)]
pub(crate) struct Responder {
    content: RejectionContent,
    /// The status in gRPC responses if a limit is exceeded.
    pub(crate) grpc_status: GrpcStatus,
    pub(crate) wait: WaitFields,
    /// Lengthens rejections' waits.
    pub(crate) jitter: Jitter,
    /// Made for the first rejection, because the settings above do not change any more. `None` if each response is
    /// built separately.
    prepared: OnceLock<Option<PreparedFields>>,
}

/// The content in plain HTTP responses.
enum RejectionContent {
    Problem(Problem),
    Text,
    Empty,
    Custom(Arc<Respond>),
}

/// Makes a custom response.
pub(crate) type Respond = dyn Fn(&Rejection, &RequestHead<'_>) -> Response<RejectionBody> + Send + Sync;

impl Default for RejectionContent {
    fn default() -> Self {
        Self::from(&RejectionFormat::default())
    }
}

impl From<&RejectionFormat> for RejectionContent {
    fn from(format: &RejectionFormat) -> Self {
        match format {
            RejectionFormat::Problem => Self::Problem(Problem::new(Some(problem::DRAFT))),
            RejectionFormat::ProblemWithTypes(base) => Self::Problem(Problem::new(Some(base))),
            RejectionFormat::ProblemWithoutType => Self::Problem(Problem::new(None)),
            RejectionFormat::Text => Self::Text,
            RejectionFormat::Empty => Self::Empty,
        }
    }
}

impl Responder {
    pub(crate) fn set_format(&mut self, format: &RejectionFormat) {
        self.content = format.into();
    }

    pub(crate) fn set_custom(&mut self, respond: Arc<Respond>) {
        self.content = RejectionContent::Custom(respond);
    }

    /// Whether rejections by one policy for one reason, with one wait and the same quota fields, get the same response
    /// in plain HTTP.
    pub(crate) const fn is_constant(&self) -> bool {
        !matches!(self.content, RejectionContent::Custom(_)) && self.jitter.is_none()
    }

    /// Makes the response to a rejected request, with these quota fields. Wait fields and `Cache-Control` are set on
    /// custom responses, too.
    #[inline]
    pub(crate) fn respond(
        &self,
        rejection: &mut Rejection,
        head: &RequestHead<'_>,
        quota: Option<ResponseFields>,
    ) -> Response<RejectionBody> {
        // Lengthen the wait once, so that the wait fields, the body and gRPC advertise the same one.
        rejection.lengthen(self.jitter);
        let protocol = Protocol::detect(head);
        let is_head = *head.method() == Method::HEAD;
        let mut response = match protocol {
            Protocol::Http => self.in_http(rejection, head),
            protocol => grpc::response(rejection, self.grpc_status, protocol).map(RejectionBody::from),
        };
        if protocol == Protocol::Http {
            if !is_head && self.fill_prepared(response.headers_mut(), rejection, quota.as_ref()) {
                return response;
            }
            if let Some(content_type) = self.content.content_type() {
                append_field(response.headers_mut(), header::CONTENT_TYPE, content_type);
            }
        }
        if is_head {
            response = without_content(response);
        }
        let status = response.status();
        let headers = response.headers_mut();
        match rejection.retry_after() {
            Some(guess) if !rejection.has_exact_wait() => {
                merge_retry_after(headers, guess, SystemTime::now);
            }
            Some(wait) => self.wait.write(headers, wait, SystemTime::now),
            None => {}
        }
        // RFC 6585, section 4: a 429 must not be stored, even if an outer layer adds other fields. If a custom
        // response's map is full, the field is left out, because that is not a reason to panic.
        set_field(headers, header::CACHE_CONTROL, NO_STORE);
        if let Some(quota) = quota {
            quota.write(status, headers);
        }
        response
    }

    /// Sets all fields on a plain HTTP response. Returns `false` if they are not prepared.
    #[inline]
    fn fill_prepared(&self, fields: &mut HeaderMap, rejection: &Rejection, quota: Option<&ResponseFields>) -> bool {
        let (Some(wait), Some(quota)) = (rejection.retry_after(), quota) else { return false };
        let prepare = || match &self.content {
            RejectionContent::Custom(_) => None,
            content => PreparedFields::new(content.content_type(), &self.wait, NO_STORE),
        };
        // A wait that is not a promise has other fields. All statuses are errors, which have the complete quota fields.
        let prepared = self.prepared.get_or_init(prepare).as_ref().filter(|_| rejection.has_exact_wait());
        prepared.is_some_and(|prepared| prepared.fill(fields, &self.wait, wait, quota))
    }

    // Inlined, so that the response, which has more than a hundred bytes, is built in place, not moved.
    #[inline(always)]
    fn in_http(&self, rejection: &Rejection, head: &RequestHead<'_>) -> Response<RejectionBody> {
        let body = match &self.content {
            RejectionContent::Problem(problem) => problem.json(rejection),
            RejectionContent::Text => problem::sentence(rejection),
            RejectionContent::Empty => Vec::new(),
            RejectionContent::Custom(respond) => return respond(rejection, head),
        };
        let mut response = Response::new(body.into());
        *response.status_mut() = rejection.status();
        response
    }
}

impl RejectionContent {
    fn content_type(&self) -> Option<HeaderValue> {
        match self {
            Self::Problem(_) => Some(HeaderValue::from_static("application/problem+json")),
            Self::Text => Some(HeaderValue::from_static("text/plain; charset=utf-8")),
            Self::Empty | Self::Custom(_) => None,
        }
    }
}

impl Rejection {
    /// Makes the response that a layer with the default settings would make, for a handler that asks a limiter itself.
    /// The response is plain HTTP, gRPC or gRPC-Web, as the request is.
    #[must_use]
    pub fn response(&self, head: &RequestHead<'_>) -> Response<RejectionBody> {
        static DEFAULT: LazyLock<Responder> = LazyLock::new(Responder::default);
        DEFAULT.respond(&mut self.clone(), head, None)
    }
}

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Turns a GET response into a HEAD response (RFC 9110, section 9.3.2). In HTTP/1.1, hyper omits the content by itself,
/// but in HTTP/2 it sends it, and clients report a protocol error.
fn without_content(response: Response<RejectionBody>) -> Response<RejectionBody> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.content_length() {
        if !parts.headers.contains_key(header::CONTENT_LENGTH) {
            set_field(&mut parts.headers, header::CONTENT_LENGTH, length.into());
        }
    }
    Response::from_parts(parts, RejectionBody::from(()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use http::{HeaderName, Request, StatusCode};
    use proptest::prelude::*;

    use super::*;
    use crate::engine::reason::Wait;
    use crate::engine::verdict::{PolicyVerdict, Verdict};
    use crate::http::headers::{Described, PolicyReading, QuotaUnit, RateLimitFields, Writer};
    use crate::util::cases::cases;
    use crate::values::{Decision, Quota, Terms};

    const NAMES: [&str; 2] = ["p", "q"];

    #[derive(Clone, Debug)]
    struct Case {
        waits: Vec<Option<Duration>>,
        is_ban: bool,
        status: u16,
        format: RejectionFormat,
        exact: Option<&'static str>,
        in_millis: bool,
        has_quota: bool,
    }

    fn case() -> impl Strategy<Value = Case> {
        let nanos = prop_oneof![0..5_000_000_000_u64, 0..20_000_000_000_000_u64, 0..4_000_000_000_000_000_u64];
        let waits = prop::collection::vec(prop::option::weighted(0.9, nanos.prop_map(Duration::from_nanos)), 1..=2);
        let format = prop::sample::select(vec![
            RejectionFormat::Problem,
            RejectionFormat::ProblemWithTypes("https://a.example/\"".into()),
            RejectionFormat::ProblemWithoutType,
            RejectionFormat::Text,
            RejectionFormat::Empty,
        ]);
        let status = prop::sample::select(vec![429, 429, 503, 418]);
        let exact = prop::option::of(prop::sample::select(vec!["x-rate-limited-for", "x-wait", "cache-control"]));
        let all = (waits, any::<bool>(), status, format, exact, any::<bool>(), any::<bool>());
        all.prop_map(|(waits, is_ban, status, format, exact, in_millis, has_quota)| Case {
            waits,
            is_ban,
            status,
            format,
            exact,
            in_millis,
            has_quota,
        })
    }

    /// The status, the fields in order, and the body.
    type Rendered = (u16, Vec<(String, String)>, String);

    fn rejection_of(case: &Case) -> Rejection {
        let decisions = case.waits.iter().map(|wait| Decision::reject(60, 0, *wait));
        let verdict =
            Verdict::new(NAMES.iter().zip(decisions).map(|(name, it)| PolicyVerdict::named((*name).into(), it)));
        let status = StatusCode::from_u16(case.status).unwrap();
        let wait = verdict.violated().map(|violated| Wait::of(violated.decision(), false)).max().unwrap();
        if case.is_ban {
            Rejection::banned(status, wait, verdict)
        } else {
            Rejection::limit_exceeded(status, wait, verdict)
        }
    }

    fn rendered(case: &Case) -> Rendered {
        let mut rejection = rejection_of(case);
        let decisions: Vec<_> = rejection.verdict().policies().iter().map(|policy| *policy.decision()).collect();
        let terms = Some(Terms::fixed_window(Quota::per_minute(60)));
        let described = |name| Described { name, terms, unit: QuotaUnit::Requests, is_conditional: false };
        let writer = Writer::new(&RateLimitFields::draft11(), NAMES.into_iter().take(decisions.len()).map(described));
        let writer = Arc::new(writer.unwrap());
        let reading = |(policy, decision)| PolicyReading { policy, decision, quota: None, mark: None };
        let quota = writer.fields(decisions.iter().enumerate().map(reading)).filter(|_| case.has_quota);

        let mut responder = Responder { wait: WaitFields::new().without_exact_wait(), ..Responder::default() };
        responder.set_format(&case.format);
        if let Some(name) = case.exact {
            responder.wait = responder.wait.exact_wait_named(HeaderName::from_static(name));
        }
        if case.in_millis {
            responder.wait = responder.wait.exact_wait_in_millis().retry_after_ms();
        }
        let response = responder.respond(&mut rejection, &RequestHead::from(&Request::new(())), quota);
        let (parts, mut body) = response.into_parts();
        let fields = parts.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        let body = match body.poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(frame)) => frame.into_data().unwrap().to_vec(),
            _ => Vec::new(),
        };
        (parts.status.as_u16(), fields.collect(), String::from_utf8(body).unwrap())
    }

    fn naively_rendered(case: &Case) -> Rendered {
        const LONGEST: u128 = 2_147_483;
        let rejection = rejection_of(case);
        let (Case { status, format, .. }, detail) = (case, rejection.detail());
        let names: Vec<_> = rejection.verdict().violated().map(|it| format!("\"{}\"", it.name())).collect();
        let seconds = |wait: Duration| wait.as_nanos().div_ceil(1_000_000_000).clamp(1, LONGEST);
        let (fragment, title) = match status {
            _ if case.is_ban => ("#abnormal-usage-detected", "Abnormal Usage Detected"),
            503 => ("#temporary-reduced-capacity", "Temporary Reduced Capacity"),
            _ => ("#quota-exceeded", "Quota Exceeded"),
        };
        let usual_title = rejection.status().canonical_reason().unwrap();
        let problem = |kind: &str, title: &str| {
            let names = names.join(",");
            format!(
                r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}","violated-policies":[{names}]}}"#
            )
        };
        let (content_type, body) = match format {
            RejectionFormat::Problem => ("json", problem(&format!("{}{fragment}", problem::DRAFT), title)),
            RejectionFormat::ProblemWithTypes(_) => {
                ("json", problem(&format!("https://a.example/\\\"{fragment}"), title))
            }
            RejectionFormat::ProblemWithoutType => ("json", problem("about:blank", usual_title)),
            RejectionFormat::Text => ("text", format!("{detail}\n")),
            RejectionFormat::Empty => ("", String::new()),
        };
        let mut fields: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: String| match fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, there)) => *there = value,
            None => fields.push((name.to_owned(), value)),
        };
        match content_type {
            "json" => set("content-type", "application/problem+json".to_owned()),
            "text" => set("content-type", "text/plain; charset=utf-8".to_owned()),
            _ => {}
        }
        if let Some(wait) = rejection.retry_after() {
            let (grain, width) = if case.in_millis { (1_000_000, 3) } else { (1_000, 6) };
            let per_second = 1_000_000_000 / grain;
            let grains = wait.as_nanos().div_ceil(grain).max(1);
            let grains = grains.min(LONGEST * per_second);
            set("retry-after", seconds(wait).to_string());
            if let Some(name) = case.exact {
                set(name, format!("{}.{:0width$}", grains / per_second, grains % per_second));
            }
            if case.in_millis {
                set("retry-after-ms", wait.as_nanos().div_ceil(1_000_000).clamp(1, (1 << 31) - 1).to_string());
            }
        }
        set("cache-control", "no-store".to_owned());
        if case.has_quota {
            let decisions = NAMES.iter().zip(rejection.verdict().policies());
            let list = |member: &dyn Fn(&str, Option<Duration>) -> String| {
                let members = decisions.clone().map(|(name, it)| member(name, it.decision().retry_after()));
                members.collect::<Vec<_>>().join(", ")
            };
            set("ratelimit-policy", list(&|name, _| format!("\"{name}\";q=60;w=60")));
            let t = |wait: Option<Duration>| wait.map_or(String::new(), |wait| format!(";t={}", seconds(wait)));
            set("ratelimit", list(&|name, wait| format!("\"{name}\";r=0{}", t(wait))));
        }
        (*status, fields, body)
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Prepared or not, the bytes are the same.
        #[test]
        fn responses_equal_a_naive_renderers(case in case()) {
            prop_assert_eq!(rendered(&case), naively_rendered(&case));
        }
    }
}
