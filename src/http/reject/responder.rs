//! `Responder`: makes the response to a rejected request.

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, Method, Response, header};

use super::grpc;
use super::problem::{self, Problem};
use super::rejection::{Reason, Rejection};
use crate::http::body::RejectionBody;
use crate::http::grpc::{GrpcStatus, Protocol};
use crate::http::head::RequestHead;
use crate::http::headers::{Jitter, PreparedFields, ResponseFields, WaitFields, merge_retry_after};

/// The format of the body of a rejection, for plain HTTP clients.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RejectionFormat {
    /// Problem details in JSON (RFC 9457), with the types that draft-ietf-httpapi-ratelimit-headers-11
    /// defines. The default.
    #[default]
    Problem,
    /// The same, with custom types: this prefix, followed by `#quota-exceeded`, `#temporary-reduced-capacity` or
    /// `#abnormal-usage-detected`.
    ProblemWithTypes(String),
    /// The same, with the type `about:blank`.
    ProblemWithoutType,
    /// One sentence, as plain text.
    Text,
    /// An empty body.
    Empty,
}

/// Makes the responses to rejected requests.
pub(crate) struct Responder {
    content: RejectionContent,
    /// The status of gRPC responses if a limit is exceeded.
    pub(crate) grpc_status: GrpcStatus,
    pub(crate) wait: WaitFields,
    /// Lengthens the waits of rejections.
    pub(crate) jitter: Jitter,
    /// Made for the first rejection: the settings above do not change any more. `None` if each response is put together.
    prepared: OnceLock<Option<PreparedFields>>,
}

/// The content of plain HTTP responses.
enum RejectionContent {
    Problem(Problem),
    Text,
    Empty,
    Custom(Arc<Respond>),
}

/// Makes a custom response.
pub(crate) type Respond = dyn Fn(&Rejection, &RequestHead<'_>) -> Response<RejectionBody> + Send + Sync;

impl Default for Responder {
    fn default() -> Self {
        Self {
            content: RejectionContent::from(&RejectionFormat::default()),
            grpc_status: GrpcStatus::default(),
            wait: WaitFields::default(),
            jitter: Jitter::default(),
            prepared: OnceLock::new(),
        }
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

    /// Makes the response to a rejected request, with these fields of the quota. The fields of the wait and
    /// `Cache-Control` are set on custom responses, too.
    #[inline]
    pub(crate) fn respond(
        &self,
        rejection: &mut Rejection,
        head: &RequestHead<'_>,
        quota: Option<ResponseFields>,
    ) -> Response<RejectionBody> {
        // Lengthened once, so that the fields of the wait, the body and gRPC advertise the same one.
        rejection.lengthen(self.jitter);
        let (protocol, is_head) = (Protocol::of(head), *head.method() == Method::HEAD);
        if protocol == Protocol::Http && !is_head {
            if let Some(fields) = self.prepared_fields(rejection, quota.as_ref()) {
                let mut response = self.in_http(rejection, head);
                *response.headers_mut() = fields;
                return response;
            }
        }
        let mut response = match protocol {
            Protocol::Http => self.in_http(rejection, head),
            protocol => grpc::response(rejection, self.grpc_status, protocol).map(RejectionBody::from),
        };
        if let Some(content_type) = self.content.content_type().filter(|_| protocol == Protocol::Http) {
            response.headers_mut().append(header::CONTENT_TYPE, content_type);
        }
        if is_head {
            response = without_content(response);
        }
        let (status, headers) = (response.status(), response.headers_mut());
        match rejection.retry_after() {
            // A failed limiter knows no exact wait.
            Some(guess) if rejection.reason() == Reason::LimiterFailed => {
                merge_retry_after(headers, guess, SystemTime::now);
            }
            Some(wait) => self.wait.write(headers, wait, SystemTime::now),
            None => {}
        }
        // RFC 6585, section 4: a 429 must not be stored, whatever fields an outer layer adds. If the map of a custom
        // response is full, the field is left out: that is no reason to panic.
        let _ = headers.try_insert(header::CACHE_CONTROL, NO_STORE);
        if let Some(quota) = quota {
            quota.write(status, headers);
        }
        response
    }

    /// The fields of a response in plain HTTP, if all of them are prepared but for their numbers.
    #[inline]
    fn prepared_fields(&self, rejection: &Rejection, quota: Option<&ResponseFields>) -> Option<HeaderMap> {
        let (status, wait, quota) = (rejection.status(), rejection.retry_after()?, quota?);
        let prepare = || match &self.content {
            RejectionContent::Custom(_) => None,
            content => PreparedFields::new(content.content_type(), &self.wait, NO_STORE),
        };
        let prepared = self.prepared.get_or_init(prepare).as_ref()?;
        // An exhausted quota is not advertised on redirects, and nothing of it on informational responses.
        let is_error = status.is_client_error() || status.is_server_error();
        let is_exact = rejection.reason() != Reason::LimiterFailed;
        if is_error && is_exact { prepared.filled(&self.wait, wait, quota) } else { None }
    }

    // Inlined, the response of more than a hundred bytes is built in place, not moved.
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
    /// Makes the response of a layer with the default settings, for a handler that asks a limiter itself: in plain HTTP,
    /// gRPC or gRPC-Web, as the request is.
    #[must_use]
    pub fn response(&self, head: &RequestHead<'_>) -> Response<RejectionBody> {
        static DEFAULT: LazyLock<Responder> = LazyLock::new(Responder::default);
        DEFAULT.respond(&mut self.clone(), head, None)
    }
}

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Turns the response to GET into that to HEAD (RFC 9110, section 9.3.2). hyper omits the content by itself in
/// HTTP/1.1, but sends it in HTTP/2, where clients report a protocol error.
fn without_content(response: Response<RejectionBody>) -> Response<RejectionBody> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.content_length() {
        if !parts.headers.contains_key(header::CONTENT_LENGTH) {
            let _ = parts.headers.try_insert(header::CONTENT_LENGTH, length.into());
        }
    }
    Response::from_parts(parts, RejectionBody::from(()))
}
