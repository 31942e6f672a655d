//! `/auth`: proxies ask over HTTP whether a request may pass.
//!
//! A proxy describes the request in the fields `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`, or calls
//! `/auth` followed by the request's path. It hands the client's other fields on unchanged, so the policies on the
//! path's route see them. Only these names are read, so a proxy that sets them overwrites any values from the client. A
//! query in the call is the client's, since some proxies leave it there.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::IntoResponse;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use serde_json::Value;
use tower_sluice::Verdict;

use super::limits::Limits;

const PATH: &str = "/auth";

/// Answers rejections with 401, for proxies that accept no other status, such as nginx's `auth_request`, which knows
/// two. A client cannot choose the path of the call.
pub(crate) const PATH_WITH_401: &str = "/auth-401";
pub(crate) const PATH_WITH_403: &str = "/auth-403";

const LONGEST_PROBLEM: usize = 1 << 20;

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Whether a call of this path is `/auth`, alone or followed by the path of the client's request.
pub(crate) fn is_path(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Decides on the request that a call describes. A request that must not pass is answered with `status`, if the proxy
/// accepts no other.
pub(crate) async fn decide(limits: &Limits, call: Request, status: Option<StatusCode>) -> Response<Body> {
    let (request, target) = match describe(call) {
        Ok(described) => described,
        Err(problem) => {
            return (status.unwrap_or(StatusCode::BAD_REQUEST), format!("{problem}\n")).into_response();
        }
    };
    let response = limits.decide(request, &target).await;
    match status_of_rejection(&response, status, limits.is_closed()) {
        Some(status) => with_status(response, status).await,
        None => response,
    }
}

/// Changes a response's status, also in its body if that is a problem, because both have to be equal (RFC 9457, section
/// 3.1.2).
async fn with_status(response: Response<Body>, status: StatusCode) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    head.status = status;
    if head.headers.get(CONTENT_TYPE).is_none_or(|kind| kind != "application/problem+json") {
        return Response::from_parts(head, body);
    }
    // A rejection is in memory, and short.
    let body = to_bytes(body, LONGEST_PROBLEM).await.unwrap_or_default();
    let Ok(Value::Object(mut problem)) = serde_json::from_slice(&body) else {
        return Response::from_parts(head, Body::from(body));
    };
    problem.insert("status".to_owned(), status.as_u16().into());
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Body::from(Value::Object(problem).to_string()))
}

/// Returns the status for a response that rejects the request. Proxies take a 5xx for a failing limiter, and some then
/// let the request pass. So if all clients share the limit, or its store fails although the file says `on-failure =
/// "reject"`, the answer is 429, and not 503 as elsewhere. While the service stops, its limits reject nothing, so this
/// does not apply.
fn status_of_rejection(response: &Response<Body>, chosen: Option<StatusCode>, is_closed: bool) -> Option<StatusCode> {
    if response.status().is_client_error() && chosen.is_some() {
        // Even if the call describes no request, because a proxy that uses this path takes any other status for a
        // failing limiter.
        return chosen;
    }
    let verdict = response.extensions().get::<Verdict>().filter(|verdict| !verdict.is_allowed())?;
    let is_by_limit = verdict.violated().next().is_some();
    if is_closed && !is_by_limit {
        return None;
    }
    chosen.or(response.status().is_server_error().then_some(StatusCode::TOO_MANY_REQUESTS))
}

/// Makes the client's request from a proxy's call, with its target as it was written. An error is the response text.
fn describe(call: Request) -> Result<(Request, Vec<u8>), String> {
    let (mut head, _) = call.into_parts();
    // If the call has a path, its query, its method and all its fields are the client's.
    let below = head.uri.path_and_query().and_then(|target| target.as_str().strip_prefix(PATH));
    let target = match below.filter(|rest| rest.starts_with('/')) {
        Some(rest) => rest.as_bytes().to_vec(),
        None => {
            if let Some(method) = only(&head.headers, &METHOD)? {
                let method = Method::from_bytes(method.as_bytes());
                head.method = method.map_err(|_| "X-Forwarded-Method is no method of HTTP".to_owned())?;
            }
            if let Some(host) = only(&head.headers, &FORWARDED_HOST)?.cloned() {
                head.headers.insert(HOST, host);
            }
            let target = only(&head.headers, &URI)?.ok_or_else(|| {
                "X-Forwarded-Uri is missing; let the proxy set it to the path and query of the request, or call /auth \
                 followed by the path"
                    .to_owned()
            })?;
            target.as_bytes().to_vec()
        }
    };
    // A gRPC client would be answered 200 with a gRPC status, which proxies take for an admission.
    head.headers.remove(CONTENT_TYPE);
    Ok((Request::from_parts(head, Body::empty()), target))
}

/// Returns a field's value, if it occurs at most once. Two would mean that the proxy has added its own to the client's.
fn only<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, String> {
    let mut values = fields.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(format!("{name} was sent more than once; let the proxy overwrite what clients send"));
    }
    Ok(value)
}
