//! The CORS layer goes outside of the limit. One test: what is wrong is told once for the process.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body_util::Full;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::cors::{Any, CorsLayer};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::headers::EXPOSED_HEADERS;
use tower_sluice::{Policy, Quota, RateLimitLayer};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
fn a_cors_layer_inside_of_the_limit_is_logged_once() {
    let hello = service_fn(|_: Request<Full<Bytes>>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let cors = || CorsLayer::new().allow_origin(Any).allow_methods(Any).expose_headers(EXPOSED_HEADERS);
    let limit = || RateLimitLayer::new(Policy::new("p", TokenBucket::new(Quota::per_hour(1))));
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);

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
    assert!(log.0.lock().unwrap().is_empty());

    let inside = ServiceBuilder::new().layer(limit()).layer(cors()).service(hello);
    // Preflights that arrive at the limit count.
    assert_eq!([(); 3].map(|()| ask(inside.clone(), &Method::OPTIONS).status().as_u16()), [200, 503, 503]);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("the CORS layer is inside of the rate limit"), "{text}");
}
