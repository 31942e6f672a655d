//! The page's files. It needs only these and the calls.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

use super::body::AdminBody;
use super::problem::Problem;

/// Allows nothing from other origins, and no inline script, so a key or a reason cannot become one. The icon is in the
/// page.
const SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                        base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Paths, media types and texts.
const FILES: [(&str, &str, &str); 5] = [
    ("/", "text/html; charset=utf-8", include_str!("admin.html")),
    ("/admin.css", "text/css; charset=utf-8", include_str!("admin.css")),
    ("/admin.js", JAVASCRIPT, include_str!("admin.js")),
    ("/card.js", JAVASCRIPT, include_str!("card.js")),
    ("/words.js", JAVASCRIPT, include_str!("words.js")),
];

/// Returns a file for the page.
pub(crate) fn file(parts: &Parts) -> Result<Response<AdminBody>, Problem> {
    let path = parts.uri.path();
    let Some((_, media_type, text)) = FILES.into_iter().find(|(file, ..)| *file == path) else {
        let detail = "there is no such page; the page is at /, and the calls are below /api/";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed("GET"));
    }
    let mut response = Response::new(AdminBody::new(text));
    *response.headers_mut() = HeaderMap::from_iter(
        [
            (header::CONTENT_TYPE, media_type),
            (header::CONTENT_SECURITY_POLICY, SECURITY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // Another build may have a different page.
            (header::CACHE_CONTROL, "no-cache"),
        ]
        .map(|(name, value)| (name, HeaderValue::from_static(value))),
    );
    Ok(response)
}
