//! The time and allocations that a layer adds to a call over the bare service, without a server around it.
//! [`crate::count`] counts the instructions for these calls.

use std::convert::Infallible;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::PeerIp;
use tower_sluice::policy::ShowKey;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Limiter, Overload as IdleOverload, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};

use crate::Figures;
use crate::floor::{Minimal, asks};
use crate::ideal::Ideal;
use crate::machine;
use crate::ours::{self, Adds};
use crate::raw;
use crate::scale::{Scale, median};
use crate::subject;

/// `tower_governor`'s layer. Its type depends on its settings and on the service that it is put around.
macro_rules! theirs {
    ($terms:expr $(, $setting:ident)?) => {{
        let (period, burst) = $terms;
        let mut builder = ::tower_governor::governor::GovernorConfigBuilder::default();
        builder.period(period).burst_size(burst);
        ::tower_governor::GovernorLayer::new(builder$(.$setting())?.finish().expect("a sensible quota"))
    }};
}
pub(crate) use theirs;

/// A layer around the service, and whether it admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Bare,
    Minimal,
    MinimalIdeal,
    Silent,
    Fields,
    Verdict,
    TwoPolicies,
    Customer,
    CustomerFields,
    Governor,
    GovernorHeaders,
    Rejected,
    RejectedTracked,
    GovernorRejected,
    GovernorHeadersRejected,
    Overload,
}

use Row::*;

/// The rows whose time is measured, in this order.
pub const ROWS: [Row; 15] = [
    Minimal,
    MinimalIdeal,
    Silent,
    Fields,
    Verdict,
    TwoPolicies,
    Customer,
    CustomerFields,
    Governor,
    GovernorHeaders,
    Rejected,
    RejectedTracked,
    GovernorRejected,
    GovernorHeadersRejected,
    Overload,
];

impl Row {
    pub const fn name(self) -> &'static str {
        match self {
            Bare => "bare service",
            Minimal => "a minimal layer around ours: one decision",
            MinimalIdeal => "a minimal layer around a hand-written ideal",
            Silent => "ours, admitted, no fields",
            Fields => "ours, admitted, RateLimit-Policy and RateLimit",
            Verdict => "ours, admitted, fields, and the verdict in the extensions",
            TwoPolicies => "ours, admitted by two policies, no fields",
            Customer => "ours, a quota per customer, admitted, no fields",
            CustomerFields => "ours, a quota per customer, admitted, RateLimit-Policy and RateLimit",
            Governor => "tower_governor, admitted",
            GovernorHeaders => "tower_governor with headers, admitted",
            Rejected => "ours, rejected with body and all fields",
            RejectedTracked => "ours, rejected likewise, and its key tracked",
            GovernorRejected => "tower_governor, rejected",
            GovernorHeadersRejected => "tower_governor with headers, rejected",
            Overload => "ours, protection from overload, while nobody waits",
        }
    }

    const fn terms(self) -> Terms {
        match self {
            Rejected | RejectedTracked | GovernorRejected | GovernorHeadersRejected => ONE,
            _ => ALL,
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Rejected | RejectedTracked | GovernorRejected | GovernorHeadersRejected => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::OK,
        }
    }
}

/// The clock from which our limiters read the time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The crate's default clock.
    Passes,
    /// A clock that stands still, so that each run executes equal instructions.
    StandsStill,
}

/// Makes that many requests.
pub type Call = Box<dyn FnMut(u64)>;

pub fn measure(scale: Scale) -> Figures {
    let mut figures = Figures::default();
    figures.set("pinned", f64::from(machine::pin(0)));
    // A rejection by `tower_governor` asks the processor for its features, which takes long in virtual machines.
    let chunk = |row| match row {
        GovernorRejected | GovernorHeadersRejected => (1_000 / scale.divisor).max(50),
        _ => (20_000 / scale.divisor).max(200),
    };
    let mut rows =
        ROWS.map(|row| (row, calls(row, Time::Passes), calls(Bare, Time::Passes), chunk(row), Vec::new(), Vec::new()));
    // Warm up, and count.
    for (row, layered, bare, ..) in &mut rows {
        // A layer marks its first thousand requests, to find out whether it is mounted around itself.
        layered(1_100);
        bare(1_100);
        let (with, without) = (raw::allocations(|| layered(100)), raw::allocations(|| bare(100)));
        figures.set(&format!("{}: allocations", row.name()), (with as f64 - without as f64) / 100.0);
    }
    for _ in 0..if scale.divisor == 1 { 25 } else { 3 } {
        for (_, layered, bare, calls, added, bare_alone) in &mut rows {
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
    for (row, .., added, bare) in rows {
        figures.set(&format!("{}: ns", row.name()), median(added));
        figures.set(&format!("{}: bare", row.name()), median(bare));
    }
    figures
}

/// (period, burst): all pass, or one an hour.
pub type Terms = (Duration, u32);
pub const ALL: Terms = (Duration::from_secs(1), u32::MAX);
pub const ONE: Terms = (Duration::from_secs(3_600), 1);

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 40_000);

async fn hello(_: Request<()>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::from("hello")))
}

/// Sends requests to the service inside a row's layer, the given number of times.
pub fn calls(row: Row, time: Time) -> Call {
    let (terms, status) = (row.terms(), row.status());
    match row {
        Bare => repeat(service_fn(hello), status),
        Minimal => {
            let inner = service_fn(hello);
            repeat(Minimal { admits: asks(limiter(terms, time)), inner }, status)
        }
        MinimalIdeal => {
            let (period, burst) = terms;
            let (ideal, inner) = (Ideal::new(subject::Terms { period, burst }, 1), service_fn(hello));
            repeat(Minimal { admits: move |key: &PartitionKey| ideal.admits(key.as_bytes()), inner }, status)
        }
        Silent => repeat(ours(1, terms, Adds::Nothing, time).layer(service_fn(hello)), status),
        Fields | Rejected => repeat(ours(1, terms, Adds::Fields, time).layer(service_fn(hello)), status),
        RejectedTracked => repeat(tracked(terms, time).layer(service_fn(hello)), status),
        Verdict => repeat(ours(1, terms, Adds::FieldsAndVerdict, time).layer(service_fn(hello)), status),
        TwoPolicies => repeat(ours(2, terms, Adds::Nothing, time).layer(service_fn(hello)), status),
        Overload => {
            let policy = Policy::new("policy-0", IdleOverload::new()).key(PeerIp::new());
            repeat(ours::layer(vec![policy], Adds::Nothing).layer(service_fn(hello)), status)
        }
        Customer => repeat(per_customer(terms, Adds::Nothing, time).layer(service_fn(hello)), status),
        CustomerFields => repeat(per_customer(terms, Adds::Fields, time).layer(service_fn(hello)), status),
        Governor | GovernorRejected => repeat(theirs!(terms).layer(service_fn(hello)), status),
        GovernorHeaders | GovernorHeadersRejected => {
            repeat(theirs!(terms, use_headers).layer(service_fn(hello)), status)
        }
    }
}

/// As policies hold it.
pub fn limiter((period, burst): Terms, time: Time) -> Arc<dyn Limiter> {
    let bucket = TokenBucket::new(Quota::per(1, period).burst(burst.into()));
    match time {
        Time::Passes => Arc::new(RateLimiter::new(bucket, MemoryStore::default())),
        Time::StandsStill => {
            let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
            Arc::new(RateLimiter::new(bucket, MemoryStore::default().with_clock(clock)))
        }
    }
}

pub fn ours(policies: usize, terms: Terms, adds: Adds, time: Time) -> RateLimitLayer {
    let policy = |n| Policy::new(format!("policy-{n}"), limiter(terms, time)).key(PeerIp::new());
    ours::layer((0..policies).map(policy).collect(), adds)
}

/// A customer's quota, as an authentication layer has put it into the request. All requests carry it, so that rows with
/// and without a quota per customer compare.
#[derive(Clone, Copy)]
struct Plan(Quota);

/// A customer's quota: twice the others' rate.
fn plan() -> Plan {
    Plan(Quota::per(2, Duration::from_secs(1)).burst(u32::MAX.into()))
}

/// One policy, whose keys have their own quotas.
fn per_customer(terms: Terms, adds: Adds, time: Time) -> RateLimitLayer {
    let policy = Policy::new("policy-0", limiter(terms, time)).key(PeerIp::new());
    ours::layer(vec![policy.quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0))], adds)
}

/// One policy, which tracks the keys that it rejects most.
fn tracked(terms: Terms, time: Time) -> RateLimitLayer {
    let policy = Policy::new("policy-0", limiter(terms, time)).key(PeerIp::new());
    ours::layer(vec![policy.track_offenders(ShowKey::hash())], Adds::Fields)
}

/// As axum's server does, the request carries the peer's address as `ConnectInfo`.
fn request() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(ConnectInfo(PEER));
    request.extensions_mut().insert(plan());
    request
}

/// Makes a request, has it answered, and drops the answer, `calls` times.
fn repeat<S, B>(mut service: S, expected: StatusCode) -> Call
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
