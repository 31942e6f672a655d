//! `/auth`: proxies ask over HTTP whether a request may pass.
//!
//! A proxy describes the request in the fields `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`, or calls
//! `/auth` followed by the path of the request. It hands the client's other fields on as they are, and so the policies
//! of the path's route see them. Only these names are read, so that a proxy that sets them overwrites whatever a client
//! sent.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName};
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Uri};
use serde_json::Value;
use tower_sluice::Verdict;

use super::limits::Limits;
use super::path::normalized;

pub(crate) const PATH: &str = "/auth";

const LONGEST_PROBLEM: usize = 1 << 20;

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Decides on the request that a call describes.
pub(crate) async fn decide(State(limits): State<Arc<Limits>>, call: Request) -> Response<Body> {
    let Described { request, reject_status } = match describe(call) {
        Ok(described) => described,
        Err(problem) => return (StatusCode::BAD_REQUEST, format!("{problem}\n")).into_response(),
    };
    let response = limits.decide(request).await;
    match status_of_rejection(&response, reject_status) {
        Some(status) => with_status(response, status).await,
        None => response,
    }
}

/// Changes the status of a response, also in its body if that is a problem: both have to be the same (RFC 9457, section
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

/// The status of a response that rejects the request. Proxies take a 5xx for a limiter that fails, and some then let
/// the request pass: so a limit that all clients share, which is answered 503 elsewhere, is answered 429.
fn status_of_rejection(response: &Response<Body>, chosen: Option<StatusCode>) -> Option<StatusCode> {
    let verdict = response.extensions().get::<Verdict>().filter(|verdict| !verdict.is_allowed())?;
    let is_by_limit = verdict.violated().next().is_some();
    let by_limit = is_by_limit && response.status().is_server_error();
    chosen.or(by_limit.then_some(StatusCode::TOO_MANY_REQUESTS))
}

struct Described {
    request: Request,
    /// The status of rejections, if the proxy takes no other.
    reject_status: Option<StatusCode>,
}

/// Makes the client's request from a proxy's call. An error is the text of the response.
fn describe(call: Request) -> Result<Described, String> {
    let (mut head, _) = call.into_parts();
    let below = head.uri.path().strip_prefix(PATH).filter(|rest| rest.starts_with('/'));
    // Of a call with a path, the query, the method and all fields are the client's.
    let (uri, reject_status) = match below {
        Some(rest) => (uri_of(&with_query(rest, head.uri.query()))?, None),
        None => {
            if let Some(method) = only(&head.headers, &METHOD)? {
                let method = Method::from_bytes(method.as_bytes());
                head.method = method.map_err(|_| "X-Forwarded-Method is no method of HTTP".to_owned())?;
            }
            if let Some(host) = only(&head.headers, &FORWARDED_HOST)?.and_then(|host| host.parse().ok()) {
                head.headers.insert(HOST, host);
            }
            let sent = only(&head.headers, &URI)?.ok_or_else(|| {
                "X-Forwarded-Uri is missing; let the proxy set it to the path and query of the request, or call /auth \
                 followed by the path"
                    .to_owned()
            })?;
            (uri_of(sent)?, head.uri.query().map(reject_status).transpose()?)
        }
    };
    // A client of gRPC would be answered 200 and a status of gRPC, which proxies take for an admission.
    head.headers.remove(CONTENT_TYPE);
    head.uri = uri;
    Ok(Described { request: Request::from_parts(head, Body::empty()), reject_status })
}

fn with_query(path: &str, query: Option<&str>) -> String {
    query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
}

/// Reads a path and a query, and [normalizes](normalized) the path.
fn uri_of(text: &str) -> Result<Uri, String> {
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    let text = with_query(&normalized(path), query);
    let parsed = text.parse::<PathAndQuery>().ok().filter(|_| path.starts_with('/'));
    parsed.map(Uri::from).ok_or_else(|| "X-Forwarded-Uri is no path with a query, such as /search?q=tea".to_owned())
}

/// Reads the query of `/auth` itself.
fn reject_status(query: &str) -> Result<StatusCode, String> {
    let status = query.strip_prefix("status=").and_then(|status| status.parse().ok());
    let status = status.and_then(|status: u16| StatusCode::from_u16(status).ok());
    // As a server error, a rejection would be taken for a failure of the limiter.
    status.filter(StatusCode::is_client_error).ok_or_else(|| {
        format!(
            "the query {query:?} is unknown; write /auth?status=403 for the status of rejections, from 400 to 499, or no \
             query"
        )
    })
}

/// The value of a field that comes at most once. Two would mean that the proxy has added its own to the client's.
fn only<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = fields.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(format!("{name} was sent more than once; let the proxy overwrite what clients send"));
    }
    value.to_str().map(Some).map_err(|_| format!("{name} is not readable as text"))
}
