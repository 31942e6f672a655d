//! [`Problem`]: the answer to a call that is not carried out, as problem details (RFC 9457).

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::AdminBody;
use tower_sluice::LimiterError;

/// A status, and a sentence that names the mistake and the cure.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    /// The methods that the path supports, for a 405.
    allow: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allow: None }
    }

    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        let detail = format!("this call is for {allow} only");
        Self { status: StatusCode::METHOD_NOT_ALLOWED, detail, allow: Some(allow) }
    }

    pub(crate) fn response(&self) -> Response<AdminBody> {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = Response::new(AdminBody::new(body.to_string()));
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(allow) = self.allow {
            fields.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

impl From<LimiterError> for Problem {
    fn from(error: LimiterError) -> Self {
        let status = if error.is_unknown_policy() {
            StatusCode::NOT_FOUND
        } else if error.is_no_key() || error.is_unsupported() {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Self::new(status, format!("{error:#}"))
    }
}
