//! The CORS layer belongs outside the limit. One test, since the process logs the mistake once.

#[path = "support/log.rs"]
mod log;

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body_util::Full;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::cors::{Any, CorsLayer};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::headers::EXPOSED_HEADERS;
use tower_sluice::{Policy, Quota, RateLimitLayer};

use crate::log::Log;

fn ask<S, B>(service: S, method: &Method) -> Response<B>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
{
    let request = Request::builder()
        .method(method)
        .header("origin", "https://page.example")
        .header("access-control-request-method", "PUT")
        .body(Full::default())
        .unwrap();
    service.oneshot(request).now_or_never().expect("nothing waits").unwrap()
}

#[test]
fn cors_inside_the_limit_is_logged_once() {
    let hello = service_fn(|_: Request<Full<Bytes>>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let cors = || CorsLayer::new().allow_origin(Any).allow_methods(Any).expose_headers(EXPOSED_HEADERS);
    let limit = || RateLimitLayer::new(Policy::new("p", TokenBucket::new(Quota::per_hour(1))));
    let (log, _guard) = Log::start();

    let outside = ServiceBuilder::new().layer(cors()).layer(limit()).service(hello);
    for _ in 0..3 {
        assert_eq!(ask(outside.clone(), &Method::OPTIONS).status(), 200);
    }
    assert_eq!(ask(outside.clone(), &Method::PUT).status(), 200);
    let rejected = ask(outside, &Method::PUT);
    assert_eq!(rejected.status(), 503);
    assert!(rejected.headers().contains_key("access-control-allow-origin"));
    let exposed = rejected.headers()["access-control-expose-headers"].to_str().unwrap();
    for name in ["retry-after", "x-rate-limited-for", "ratelimit", "ratelimit-policy"] {
        assert!(rejected.headers().contains_key(name) && exposed.contains(name), "{name}: {exposed}");
    }
    assert_eq!(log.lines(), [""; 0]);

    let inside = ServiceBuilder::new().layer(limit()).layer(cors()).service(hello);
    // Preflights that arrive at the limit count.
    assert_eq!([(); 3].map(|()| ask(inside.clone(), &Method::OPTIONS).status().as_u16()), [200, 503, 503]);
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("the CORS layer is inside of the rate limit"), "{lines:?}");
}
