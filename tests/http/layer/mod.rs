//! `RateLimitLayer`: the service, its responses, keys, policies and failures.

mod failures;
mod keys;
mod policies;
mod responses;
mod service;

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::HeaderKey;
use tower_sluice::{Policy, Quota, RateLimitLayer, Verdict};

type Body = Full<Bytes>;

/// Admits one request per hour and key.
fn one() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1))
}

fn hello() -> impl Service<Request<()>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|_: Request<()>| std::future::ready(Ok(Response::new(Body::from("hello")))))
}

fn request(header: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::builder();
    for (name, value) in header {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap()
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    verdict: Option<Verdict>,
    body: String,
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> Answer {
    let response = layer.clone().layer(hello()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, verdict: parts.extensions.get().cloned(), body }
}

async fn statuses(layer: &RateLimitLayer, requests: impl IntoIterator<Item = Request<()>>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(send(layer, request).await.status.as_u16());
    }
    statuses
}

fn by_key(name: &'static str, limiter: impl tower_sluice::limiter::IntoLimiter) -> Policy {
    Policy::new(name, limiter).key(HeaderKey::from_static("x-api-key"))
}
