//! What a layer adds to a call, without a server around: time and allocations over the bare service.

use std::convert::Infallible;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::PeerIp;
use tower_sluice::{Policy, Quota, RateLimitLayer};

use crate::Figures;
use crate::machine;
use crate::measure::{Scale, median};
use crate::raw;

/// The rows, in the order in which they are measured.
pub const ROWS: [&str; 9] = [
    "ours, admitted, no fields",
    "ours, admitted, RateLimit-Policy and RateLimit",
    "ours, admitted, fields, and the verdict in the extensions",
    "ours, admitted by two policies, no fields",
    "tower_governor, admitted",
    "tower_governor with headers, admitted",
    "ours, rejected with body and all fields",
    "tower_governor, rejected",
    "tower_governor with headers, rejected",
];

type Call = Box<dyn FnMut(u64)>;

pub fn measure(scale: Scale) -> Figures {
    let mut figures = Figures::default();
    figures.set("pinned", f64::from(machine::pin(0)));
    // (what is measured, the same without a layer, how many calls make a chunk)
    let many = (20_000 / scale.divisor).max(200);
    // A rejection of `tower_governor` asks the processor for its features, which takes long in virtual
    // machines.
    let few = (1_000 / scale.divisor).max(50);
    let silent = |policies| ours(policies, ALL).with_fields(RateLimitFields::none()).layer(service_fn(hello));
    let rows: [(Call, Call, u64); 9] = [
        (calls(silent(1), socket_addr, OK), bare(socket_addr), many),
        (calls(ours(1, ALL).layer(service_fn(hello)), socket_addr, OK), bare(socket_addr), many),
        (calls(ours(1, ALL).with_verdict().layer(service_fn(hello)), socket_addr, OK), bare(socket_addr), many),
        (calls(silent(2), socket_addr, OK), bare(socket_addr), many),
        (calls(theirs(ALL), connect_info, OK), bare(connect_info), many),
        (calls(theirs_with_headers(ALL), connect_info, OK), bare(connect_info), many),
        (calls(ours(1, ONE).layer(service_fn(hello)), socket_addr, REJECTED), bare(socket_addr), many),
        (calls(theirs(ONE), connect_info, REJECTED), bare(connect_info), few),
        (calls(theirs_with_headers(ONE), connect_info, REJECTED), bare(connect_info), few),
    ];
    let mut rows = rows.map(|(layered, bare, calls)| (layered, bare, calls, Vec::new(), Vec::new()));
    // Warm up, and count.
    for (name, (layered, bare, ..)) in ROWS.iter().zip(&mut rows) {
        // A layer marks its first thousand requests, to find out whether it is mounted around itself.
        layered(1_100);
        bare(1_100);
        let (with, without) = (raw::allocations(|| layered(100)), raw::allocations(|| bare(100)));
        figures.set(&format!("{name}: allocations"), (with as f64 - without as f64) / 100.0);
    }
    for _ in 0..if scale.divisor == 1 { 25 } else { 3 } {
        for (layered, bare, calls, added, bare_alone) in &mut rows {
            let time = |call: &mut Call| {
                let start = Instant::now();
                call(*calls);
                start.elapsed().as_nanos() as f64 / *calls as f64
            };
            let (without, with) = (time(bare), time(layered));
            added.push(with - without);
            bare_alone.push(without);
        }
    }
    for (name, (_, _, _, added, bare)) in ROWS.iter().zip(rows) {
        figures.set(&format!("{name}: ns"), median(added));
        figures.set(&format!("{name}: bare"), median(bare));
    }
    figures
}

/// (period, burst): all pass, or one an hour.
type Terms = (Duration, u32);
const ALL: Terms = (Duration::from_secs(1), u32::MAX);
const ONE: Terms = (Duration::from_secs(3_600), 1);
const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 40_000);

async fn hello(_: Request<()>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::from("hello")))
}

fn ours(policies: usize, (period, burst): Terms) -> RateLimitLayer {
    let quota = Quota::new(1, period).expect("a sensible quota").burst(burst);
    let policy = |n| Policy::new(format!("policy-{n}"), TokenBucket::new(quota)).key(PeerIp::new());
    RateLimitLayer::new((0..policies).map(policy).collect::<Vec<_>>())
}

fn theirs((period, burst): Terms) -> impl Service<Request<()>, Response = Response<impl Sized>, Error = Infallible> {
    let config = GovernorConfigBuilder::default().period(period).burst_size(burst).finish().expect("a sensible quota");
    GovernorLayer::new(config).layer(service_fn(hello))
}

fn theirs_with_headers(
    (period, burst): Terms,
) -> impl Service<Request<()>, Response = Response<impl Sized>, Error = Infallible> {
    let mut builder = GovernorConfigBuilder::default();
    let config = builder.period(period).burst_size(burst).use_headers().finish().expect("a sensible quota");
    GovernorLayer::new(config).layer(service_fn(hello))
}

/// As our `PeerIp` finds it.
fn socket_addr() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PEER);
    request
}

/// As their `PeerIpKeyExtractor` finds it.
fn connect_info() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(ConnectInfo(PEER));
    request
}

fn bare(request: fn() -> Request<()>) -> Call {
    calls(service_fn(hello), request, OK)
}

/// Makes a request, has it answered, and drops the answer, as often as told.
fn calls<S, B>(mut service: S, request: fn() -> Request<()>, expected: StatusCode) -> Call
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + 'static,
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
    Box::new(move |calls| {
        for _ in 0..calls {
            assert_eq!(call(), expected);
        }
    })
}
