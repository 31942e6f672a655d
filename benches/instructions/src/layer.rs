//! The instructions for a request that passes a layer, beside those for an equal request without a layer.

use std::convert::Infallible;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::PeerIp;
use tower_sluice::policy::ShowKey;
use tower_sluice::store::MemoryStore;
use tower_sluice::{Concurrency, Limiter, LimiterExt, Overload, Policy, Quota, RateLimitLayer, RateLimiter};

use crate::decision::clock;
use crate::{Call, Row};

const BARE: &str = "bare service";

pub fn rows() -> Vec<Row> {
    let layer = |name, set_up| Row { name, set_up, warm_up: WARM_UP, counted: COUNTED, beside: Some(BARE) };
    vec![
        Row { beside: None, ..layer(BARE, || repeat(service_fn(hello), StatusCode::OK)) },
        layer("layer: no fields", || admitted(silent([bucket("a", ALL)]))),
        layer("layer: RateLimit and RateLimit-Policy", || admitted(RateLimitLayer::new([bucket("a", ALL)]))),
        layer("layer: fields and the verdict", || {
            admitted(RateLimitLayer::builder([bucket("a", ALL)]).verdict().build())
        }),
        layer("layer: two policies, no fields", || admitted(silent([bucket("a", ALL), bucket("b", ALL)]))),
        layer("layer: two policies, fields", || admitted(RateLimitLayer::new([bucket("a", ALL), bucket("b", ALL)]))),
        layer("layer: rejected, with body and all fields", || {
            repeat(RateLimitLayer::new([bucket("a", ONE)]).layer(service_fn(hello)), StatusCode::TOO_MANY_REQUESTS)
        }),
        layer("layer: rejected, and its key tracked", || {
            let tracked = bucket("a", ONE).track_offenders(ShowKey::hash());
            repeat(RateLimitLayer::new([tracked]).layer(service_fn(hello)), StatusCode::TOO_MANY_REQUESTS)
        }),
        layer("layer: a quota per customer, no fields", || admitted(silent([per_customer()]))),
        layer("layer: a quota per customer, fields", || admitted(RateLimitLayer::new([per_customer()]))),
        layer("layer: charged for failures only, fields", || {
            let failures = bucket("a", ALL).charge_when(|response| response.status().is_server_error());
            admitted(RateLimitLayer::new([failures]))
        }),
        layer("layer: requests in flight, fields", || {
            let in_flight = Policy::new("a", Concurrency::new(100)).key(PeerIp::new());
            admitted(RateLimitLayer::new([in_flight]))
        }),
        layer("layer: overload, while nobody waits", || {
            admitted(RateLimitLayer::new([Policy::new("a", Overload::new()).key(PeerIp::new())]))
        }),
        layer("layer: shed, since the server is overloaded", || {
            repeat(full_overload().layer(service_fn(hello)), StatusCode::SERVICE_UNAVAILABLE)
        }),
        layer("tower: shed by LoadShed and ConcurrencyLimit", || {
            repeat(full_tower(empty_answer), StatusCode::SERVICE_UNAVAILABLE)
        }),
        layer("tower: shed by LoadShed and ConcurrencyLimit, answered as the layer does", || {
            repeat(full_tower(full_answer), StatusCode::SERVICE_UNAVAILABLE)
        }),
    ]
}

/// All units are held, and no request may wait.
fn full_overload() -> RateLimitLayer {
    let overload: Arc<dyn Limiter> = Arc::new(Overload::new().limits(1..=1).max_queue(0));
    let permit = pin!(overload.acquire(&"somebody".into(), 1)).poll(&mut Context::from_waker(Waker::noop()));
    std::mem::forget(permit);
    RateLimitLayer::new([Policy::new("a", overload).key(PeerIp::new())])
}

/// tower's counterpart, with a response for its error.
fn full_tower(
    answer: fn() -> Response<Full<Bytes>>,
) -> impl Service<Request<()>, Response = Response<Full<Bytes>>, Error = BoxError> {
    let limit = ConcurrencyLimit::new(service_fn(hello), 1);
    let mut holder = limit.clone();
    assert!(holder.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    std::mem::forget(holder);
    LoadShed::new(limit).map_result(move |result: Result<_, BoxError>| Ok(result.unwrap_or_else(|_| answer())))
}

fn empty_answer() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// The layer's answer, built from parts that are made once.
fn full_answer() -> Response<Full<Bytes>> {
    const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
    const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
    const BODY: &str = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
        r#""title":"Temporary Reduced Capacity","status":503,"detail":"The server is overloaded; retry later.","#,
        r#""violated-policies":["a"]}"#,
    );
    let mut response = Response::new(Full::from(BODY));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let fields = response.headers_mut();
    // Not `insert`: with two callers in this program, the compiler would not inline a part of it into the layer.
    fields.append(CONTENT_TYPE, PROBLEM);
    fields.append(CACHE_CONTROL, NO_STORE);
    response
}

/// The diagnostics look at a layer's first 1,000 requests, and at the first 512 from a public address in a process. The
/// counted requests come after these.
const WARM_UP: u64 = 1_200;
const COUNTED: u64 = 2_000;

/// All pass, or one an hour.
const ALL: Quota = Quota::per_second(1).burst(u32::MAX as u64);
const ONE: Quota = Quota::per_hour(1);

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 40_000);

/// A customer's quota, as an authentication layer has put it into the request. All requests carry it, so that rows with
/// and without a quota per customer compare.
#[derive(Clone, Copy)]
struct Plan(Quota);

const PLAN: Plan = Plan(Quota::per_second(2).burst(u32::MAX as u64));

fn bucket(name: &'static str, quota: Quota) -> Policy {
    let limiter: Arc<dyn Limiter> =
        Arc::new(RateLimiter::new(TokenBucket::new(quota), MemoryStore::default().with_clock(clock())));
    Policy::new(name, limiter).key(PeerIp::new())
}

fn per_customer() -> Policy {
    bucket("a", ALL).quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0))
}

fn silent<const N: usize>(policies: [Policy; N]) -> RateLimitLayer {
    RateLimitLayer::builder(policies).fields(RateLimitFields::none()).build()
}

fn admitted(layer: RateLimitLayer) -> Call {
    repeat(layer.layer(service_fn(hello)), StatusCode::OK)
}

async fn hello(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

fn request() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PEER);
    request.extensions_mut().insert(PLAN);
    request
}

/// Makes a request, has it answered, and drops the answer, `times` times.
fn repeat<S, B>(mut service: S, expected: StatusCode) -> Call
where
    S: Service<Request<()>, Response = Response<B>> + 'static,
{
    let mut call = move || {
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        let answer = pin!(service.call(black_box(request()))).poll(&mut context);
        let Poll::Ready(Ok(response)) = answer else { unreachable!("nothing waits here") };
        black_box(response).status()
    };
    // Uses up a burst of one.
    call();
    Box::new(move |times| {
        for _ in 0..times {
            assert_eq!(call(), expected);
        }
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::BodyExt;

    use super::*;

    /// An answer's status, fields and bytes.
    fn answer_of<S, B>(mut service: S) -> (StatusCode, HeaderMap, Bytes)
    where
        S: Service<Request<()>, Response = Response<B>>,
        B: BodyExt<Data = Bytes> + Unpin,
    {
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        let Poll::Ready(Ok(response)) = pin!(service.call(request())).poll(&mut context) else { panic!("no answer") };
        let (head, mut body) = response.into_parts();
        let Poll::Ready(Some(Ok(frame))) = pin!(body.frame()).poll(&mut context) else { panic!("no body") };
        (head.status, head.headers, frame.into_data().unwrap_or_default())
    }

    #[test]
    fn towers_answer_equals_the_layers() {
        let ours = answer_of(full_overload().layer(service_fn(hello)));
        assert_eq!(ours, answer_of(full_tower(full_answer)));
        assert_eq!(ours.0, StatusCode::SERVICE_UNAVAILABLE);
    }
}
