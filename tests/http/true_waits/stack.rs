//! A layer with several policies on a clock that the test moves, and requests to it.
#![allow(unreachable_pub)]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot;
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::{Global, User};
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::testing::{Random, check_invariants_of};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Limiter, Penalty, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead};

pub fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_000_000_000_123_456_789))
}

pub fn timed<A: Algorithm>(
    algorithm: A,
    clock: &ManualClock,
) -> Arc<RateLimiter<A, MemoryTable<A::State, ManualClock>>> {
    // Small tables, since there are thousands of them.
    Arc::new(RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock.clone())))
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub user: &'static str,
    pub cost: u64,
    /// The status with which the handler responds.
    pub status: u16,
}

impl Call {
    pub const fn of(user: &'static str) -> Self {
        Self { user, cost: 1, status: 200 }
    }

    pub fn random(random: &mut Random, user: &'static str) -> Self {
        Self { user, cost: random.pick(&[1, 1, 1, 2, 3, 7]), status: random.pick(&[200, 200, 401]) }
    }

    /// The cost function for policies whose requests differ in cost.
    pub fn cost_of(head: &RequestHead<'_>) -> u64 {
        head.extensions().get::<Self>().expect("every request has it").cost
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub call: Call,
    pub status: u16,
    /// `Retry-After`.
    pub retry_after: Option<u64>,
    /// `X-Rate-Limited-For`.
    pub wait: Option<Duration>,
    pub body: String,
}

impl Answer {
    pub fn of(response: &Response<String>, call: Call) -> Self {
        let field = |name| response.headers().get(name).map(|value| value.to_str().unwrap());
        let wait = |value: &str| {
            let (seconds, micros) = value.split_once('.').expect("with six decimals");
            Duration::from_secs(seconds.parse().unwrap()) + Duration::from_micros(micros.parse().unwrap())
        };
        Self {
            call,
            status: response.status().as_u16(),
            retry_after: field("retry-after").map(|value| value.parse().expect("whole seconds")),
            wait: field("x-rate-limited-for").map(wait),
            body: response.body().clone(),
        }
    }

    /// Whether the layer rejected the request. The handlers answer 200 and 401.
    pub fn is_rejected(&self) -> bool {
        ![200, 401].contains(&self.status)
    }

    pub fn is_ban(&self) -> bool {
        self.body.contains("#abnormal-usage-detected")
    }
}

type Answered = Result<Response<Full<bytes::Bytes>>, Infallible>;
type Body = tower_sluice::layer::ResponseBody<Full<bytes::Bytes>>;
type Gate = Arc<std::sync::Mutex<Option<oneshot::Receiver<()>>>>;

/// A service behind the layer.
pub struct Stack {
    service: BoxCloneService<Request<Gate>, Response<Body>, Infallible>,
    clock: ManualClock,
    /// The random policies' limiters.
    limiters: Vec<Arc<dyn Limiter>>,
}

/// An admitted request whose response is held back.
pub struct Held {
    open: oneshot::Sender<()>,
    response: BoxFuture<'static, Result<Response<Body>, Infallible>>,
}

impl Held {
    pub fn finish(self) {
        let _ = self.open.send(());
        let response = self.response.now_or_never().expect("the handler waits for nothing else");
        assert!(response.is_ok());
    }
}

impl Stack {
    pub fn new<const N: usize>(clock: &ManualClock, policies: [Policy; N]) -> Self {
        Self::of(clock, policies.into())
    }

    fn of(clock: &ManualClock, policies: Vec<Policy>) -> Self {
        let handler = service_fn(|request: Request<Gate>| {
            let status = request.extensions().get::<Call>().expect("every request has it").status;
            let gate = request.body().lock().unwrap().take();
            async move {
                if let Some(gate) = gate {
                    let _ = gate.await;
                }
                let body = Full::from("hello");
                Answered::Ok(Response::builder().status(status).body(body).expect("a status and a body"))
            }
        });
        let service = RateLimitLayer::new(policies).layer(handler);
        Self { service: BoxCloneService::new(service), clock: clock.clone(), limiters: Vec::new() }
    }

    /// One to four policies of all kinds.
    pub fn random(random: &mut Random, clock: &ManualClock) -> Self {
        let names = ["a", "b", "c", "d"];
        let count = 1 + usize::try_from(random.below(4)).expect("small");
        let (policies, limiters) = names[..count].iter().map(|name| Self::random_policy(name, random, clock)).unzip();
        Self { limiters, ..Self::of(clock, policies) }
    }

    fn random_policy(name: &'static str, random: &mut Random, clock: &ManualClock) -> (Policy, Arc<dyn Limiter>) {
        let limit = random.pick(&[1, 2, 3, 5, 10]);
        let period = Duration::from_nanos(random.pick(&[300_000_007, 1_000_000_000, 7_000_000_000, 60_000_000_000]));
        let quota = Quota::per(limit, period);
        let limiter: Arc<dyn Limiter> = match random.below(4) {
            0 => timed(TokenBucket::new(quota.burst(random.pick(&[1, 3, 10]))), clock),
            1 => timed(TokenBucket::new(quota), clock),
            2 => timed(FixedWindow::new(quota), clock),
            _ => timed(SlidingWindow::new(quota), clock),
        };
        let mut policy = Policy::new(name, Arc::clone(&limiter));
        if random.below(2) == 0 {
            policy = policy.cost_fn(Call::cost_of);
        }
        if random.below(4) == 0 {
            policy = policy.charge_when(|response| response.status() == StatusCode::UNAUTHORIZED);
        }
        if random.below(5) == 0 {
            policy = policy.shadow();
        }
        if random.below(3) == 0 {
            return (policy.key(Global), limiter);
        }
        policy = policy.key(User::key());
        if random.below(2) == 0 {
            let ban = Duration::from_millis(1 + random.below(20_000));
            let rejections = Quota::per(random.pick(&[1, 2, 5]), Duration::from_secs(60));
            policy = policy.penalty(Penalty::new(rejections, ban).with_clock(clock.clone()));
        }
        (policy, limiter)
    }

    pub fn call(&self, call: Call) -> Answer {
        let response = self.send(call, None).now_or_never().expect("memory answers at once").unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().now_or_never().expect("a body in memory").unwrap().to_bytes();
        Answer::of(&Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap()), call)
    }

    /// Sends a request whose response is held back; `None` if it was rejected.
    pub fn hold(&self, call: Call) -> Option<Held> {
        let (open, gate) = oneshot::channel();
        let mut response = self.send(call, Some(gate));
        match Pin::new(&mut response).now_or_never() {
            None => Some(Held { open, response }),
            Some(_) => None,
        }
    }

    fn send(
        &self,
        call: Call,
        gate: Option<oneshot::Receiver<()>>,
    ) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
        let mut request = Request::new(Gate::new(std::sync::Mutex::new(gate)));
        request.extensions_mut().insert(User::new(call.user));
        request.extensions_mut().insert(call);
        let mut service = self.service.clone();
        let _ = service.ready().now_or_never().expect("always ready").unwrap();
        service.call(request).boxed()
    }

    pub fn check_invariants(&self) {
        for limiter in &self.limiters {
            check_invariants_of(&**limiter, self.clock.now());
        }
    }

    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }
}
