//! `Policy::or_else` and `and`: compares random policy trees with a naive ledger, and checks the responses.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::support::cases::cases;
use crate::support::tree::{Tree, trees};
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::FixedWindow;
use tower_sluice::key::{HeaderKey, User};
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::policy::Policies;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{
    Concurrency, Decision, FailureMode, LeakyQueue, Limiter, LimiterError, MissingKey, Permits, Policy, Quota,
    RateLimitLayer, RateLimiter, Verdict,
};

/// How a member's charge depends on the response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bill {
    Fixed,
    /// Refunded if the response is an error.
    Refunded,
    /// The response states the final cost.
    Settled,
}

/// A policy with a one-minute window.
#[derive(Clone, Debug)]
struct Member {
    limit: u64,
    bill: Bill,
    is_shadow: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// A request to which the members in the mask apply.
    Request {
        applies: u8,
        cost: u64,
        is_error: bool,
        settled: u64,
    },
    Advance(u64),
    Ban(usize, u64),
    Allow(usize, u64),
    /// A live change that replaces all limits.
    Change(Vec<u64>),
}

/// The naive ledger. Times are in seconds.
struct Ledger {
    members: Vec<Member>,
    used: Vec<u64>,
    banned_until: Vec<u64>,
    allowed_until: Vec<u64>,
    now: u64,
}

const NEVER: u64 = u64::MAX;

impl Ledger {
    /// The wait that one member demands for a request; `None` if the member does not apply or is a shadow.
    fn wait(&self, at: usize, applies: u8, cost: u64) -> Option<u64> {
        let Member { limit, is_shadow, .. } = self.members[at];
        if applies & (1 << at) == 0 || is_shadow {
            return None;
        }
        if self.allowed_until[at] > self.now {
            return Some(0);
        }
        let fits = self.used[at] + cost <= limit;
        let wait = if fits {
            0
        } else if cost > limit {
            NEVER
        } else {
            60 - self.now % 60
        };
        Some(wait.max(self.banned_until[at].saturating_sub(self.now)))
    }

    fn advance(&mut self, seconds: u64) {
        if self.now / 60 != (self.now + seconds) / 60 {
            self.used.fill(0);
        }
        self.now += seconds;
    }
}

const START: u64 = 1_699_999_980;

fn name(member: usize) -> String {
    format!("m{member}")
}

fn number(value: &HeaderMap, name: &str) -> u64 {
    value[name].to_str().unwrap().parse().unwrap()
}

fn policy(member: &Member, at: usize, clock: &ManualClock) -> Policy {
    let store = MemoryStore::with_capacity(64).with_clock(clock.clone());
    let limiter = RateLimiter::new(FixedWindow::new(Quota::per_minute(member.limit)), store);
    let policy = Policy::new(name(at), limiter)
        .key(User::key())
        .when(move |request| number(request.headers(), "applies") & (1 << at) != 0)
        .cost_fn(|request| number(request.headers(), "cost"));
    let policy = match member.bill {
        Bill::Fixed => policy,
        Bill::Refunded => policy.charge_when(|response| response.status().is_success()),
        Bill::Settled => policy.cost_after(|response| number(response.headers(), "settled")),
    };
    if member.is_shadow { policy.shadow() } else { policy }
}

fn policies(tree: &Tree, members: &[Member], clock: &ManualClock) -> Policies {
    tree.policies(&|at| policy(&members[at], at, clock))
}

fn request(fields: &[(&str, u64)]) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    for (name, value) in fields {
        request.headers_mut().insert(name.parse::<http::HeaderName>().unwrap(), (*value).into());
    }
    request
}

/// Names the policies that were charged, without shadows.
fn charged(verdict: &Verdict) -> Vec<String> {
    let charged = verdict.policies().iter().filter(|policy| policy.decision().is_allowed() && !policy.is_shadow());
    charged.map(|policy| policy.name().to_owned()).collect()
}

/// Compares the layer with the ledger, step by step.
fn compare(tree: &Tree, members: Vec<Member>, steps: Vec<Step>) {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(START * 1_000_000_000));
    let count = members.len();
    let layer = RateLimitLayer::builder(policies(tree, &members, &clock)).verdict().build();
    let limits = layer.handle();
    let mut ledger = Ledger {
        members,
        used: vec![0; count],
        banned_until: vec![0; count],
        allowed_until: vec![0; count],
        now: START,
    };
    for step in steps {
        match step.clone() {
            Step::Request { applies, cost, is_error, settled } => {
                let status = if is_error { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
                let answer = move |_| {
                    let response = Response::builder().status(status).header("settled", settled);
                    ready(Ok::<_, Infallible>(response.body(String::new()).unwrap()))
                };
                let request = request(&[("applies", applies.into()), ("cost", cost)]);
                let response = layer.layer(service_fn(answer)).oneshot(request).now_or_never().unwrap().unwrap();
                let verdict = response.extensions().get::<Verdict>().unwrap();
                let wait_of = |at| ledger.wait(at, applies, cost);
                let wait = tree.wait(&wait_of).unwrap_or(0);
                assert_eq!(verdict.is_allowed(), wait == 0, "{step:?}: {verdict:?}");
                if wait > 0 {
                    let advertised = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap());
                    let expected = (wait != NEVER).then(|| wait.to_string());
                    assert_eq!(advertised, expected.as_deref(), "{step:?}: {verdict:?}");
                    assert!(verdict.violated().next().is_some());
                    continue;
                }
                assert_eq!(verdict.violated().count(), 0);
                let mut paid = tree.charged(&wait_of);
                paid.retain(|at| ledger.allowed_until[*at] <= ledger.now);
                let mut names = charged(verdict);
                names.sort();
                let mut expected: Vec<_> = paid.iter().copied().map(name).collect();
                expected.sort();
                assert_eq!(names, expected, "{step:?}: {verdict:?}");
                let applies = |at: &usize| applies & (1 << at) != 0;
                let shadows = (0..count).filter(|at| ledger.members[*at].is_shadow && applies(at));
                let shadows = shadows.filter(|at| ledger.used[*at] + cost <= ledger.members[*at].limit);
                for at in shadows.chain(paid).collect::<Vec<_>>() {
                    let Member { limit, bill, .. } = ledger.members[at];
                    ledger.used[at] += match bill {
                        Bill::Refunded if is_error => 0,
                        Bill::Settled => settled.min(cost.max(limit - ledger.used[at])),
                        _ => cost,
                    };
                }
            }
            Step::Advance(seconds) => {
                clock.advance(Duration::from_secs(seconds));
                ledger.advance(seconds);
            }
            // A shadow bans no key.
            Step::Ban(at, _) | Step::Allow(at, _) if ledger.members[at % count].is_shadow => {}
            Step::Ban(at, seconds) => {
                let at = at % count;
                let span = Duration::from_secs(seconds);
                let _ = limits.ban(&name(at), "alice", span, "a test").now_or_never().unwrap().unwrap();
                (ledger.banned_until[at], ledger.allowed_until[at]) = (ledger.now + seconds, 0);
            }
            Step::Allow(at, seconds) => {
                let at = at % count;
                let span = Duration::from_secs(seconds);
                let _ = limits.allow(&name(at), "alice", span, "a test").now_or_never().unwrap().unwrap();
                (ledger.allowed_until[at], ledger.banned_until[at]) = (ledger.now + seconds, 0);
            }
            Step::Change(changed) => {
                for (member, limit) in ledger.members.iter_mut().zip(changed) {
                    member.limit = limit;
                }
                assert!(limits.replace(policies(tree, &ledger.members, &clock)).unwrap().not_inherited().is_empty());
            }
        }
        for (at, member) in ledger.members.iter().enumerate() {
            let status = limits.peek(&name(at), "alice").now_or_never().unwrap().unwrap();
            if status.ban().is_none() && status.allowance().is_none() {
                let left = member.limit.saturating_sub(ledger.used[at]);
                assert_eq!(status.decision().remaining(), left, "{} after {step:?}", name(at));
            }
        }
    }
}

fn member() -> impl Strategy<Value = Member> {
    let bill = prop_oneof![3 => Just(Bill::Fixed), 1 => Just(Bill::Refunded), 1 => Just(Bill::Settled)];
    (1..8_u64, bill, prop::bool::weighted(0.15)).prop_map(|(limit, bill, is_shadow)| Member { limit, bill, is_shadow })
}

fn step() -> impl Strategy<Value = Step> {
    let applies = prop_oneof![3 => Just(255_u8), 1 => any::<u8>()];
    let request = (applies, 1..4_u64, prop::bool::weighted(0.3), 0..6_u64);
    prop_oneof![
        12 => request.prop_map(|(applies, cost, is_error, settled)| Step::Request { applies, cost, is_error, settled }),
        2 => (1..70_u64).prop_map(Step::Advance),
        1 => (0..8_usize, 1..90_u64).prop_map(|(at, span)| Step::Ban(at, span)),
        1 => (0..8_usize, 1..90_u64).prop_map(|(at, span)| Step::Allow(at, span)),
        1 => prop::collection::vec(1..8_u64, 8).prop_map(Step::Change),
    ]
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn random_trees_decide_like_a_naive_ledger(
        tree in trees(), members in prop::collection::vec(member(), 8), steps in prop::collection::vec(step(), 1..60),
    ) {
        let members = members[..tree.size()].to_vec();
        compare(&tree, members, steps);
    }
}

fn memory(name: &str, limit: u64, clock: &ManualClock) -> Policy {
    let store = MemoryStore::with_capacity(64).with_clock(clock.clone());
    Policy::new(name, RateLimiter::new(FixedWindow::new(Quota::per_minute(limit)), store)).key(User::key())
}

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(START * 1_000_000_000))
}

/// Sends a request. Returns its response, which carries the request's permits if it has any.
fn send(layer: &RateLimitLayer) -> Response<()> {
    let echo = |request: Request<()>| {
        let mut response = Response::new(String::new());
        if let Some(permits) = request.extensions().get::<Permits>() {
            response.extensions_mut().insert(permits.clone());
        }
        ready(Ok::<_, Infallible>(response))
    };
    layer.layer(service_fn(echo)).oneshot(request(&[])).now_or_never().unwrap().unwrap().map(drop)
}

fn field<'a>(response: &'a Response<()>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// The fields of an admitted request name the member that was charged; a rejection names all members.
#[test]
fn rejection_fields_name_the_shortest_wait() {
    let clock = clock();
    let store = MemoryStore::with_capacity(64).with_clock(clock.clone());
    let overage = RateLimiter::new(FixedWindow::new(Quota::per_hour(1)), store);
    let overage = Policy::new("overage", overage).key(User::key());
    let layer = RateLimitLayer::builder(memory("included", 2, &clock).or_else(overage)).verdict().build();
    let first = send(&layer);
    assert_eq!(field(&first, "ratelimit"), "\"included\";r=1;t=60");
    assert_eq!(field(&first, "ratelimit-policy"), "\"included\";q=2;w=60");
    assert_eq!(field(&send(&layer), "ratelimit"), "\"included\";r=0;t=60");
    let third = send(&layer);
    assert_eq!(third.status(), 200);
    let until_the_hour = 3_600 - START % 3_600;
    assert_eq!(field(&third, "ratelimit"), format!("\"overage\";r=0;t={until_the_hour}"));
    let verdict = third.extensions().get::<Verdict>().unwrap();
    let passed_over =
        |verdict: &Verdict| verdict.policies().iter().map(|policy| policy.is_passed_over()).collect::<Vec<_>>();
    assert_eq!((passed_over(verdict), verdict.is_allowed()), (vec![true, false], true));
    let rejected = send(&layer);
    assert_eq!((rejected.status(), field(&rejected, "retry-after")), (StatusCode::TOO_MANY_REQUESTS, "60"));
    assert_eq!(field(&rejected, "ratelimit"), format!("\"included\";r=0;t=60, \"overage\";r=0;t={until_the_hour}"));
    let verdict = rejected.extensions().get::<Verdict>().unwrap();
    assert_eq!((passed_over(verdict), verdict.violated().count()), (vec![false, false], 2));
}

/// The other alternative has room, so only the policy beside them rejects the request.
#[test]
fn a_member_with_an_alternative_rejects_nothing() {
    let clock = clock();
    let tree = memory("first", 1, &clock).or_else(memory("second", 9, &clock)).and(memory("all", 1, &clock));
    let layer = RateLimitLayer::builder(tree).verdict().build();
    assert_eq!(send(&layer).status(), 200);
    let rejected = send(&layer);
    assert_eq!(field(&rejected, "ratelimit"), "\"second\";r=9;t=60, \"all\";r=0;t=60");
    let verdict = rejected.extensions().get::<Verdict>().unwrap();
    assert_eq!(verdict.violated().map(|policy| policy.name()).collect::<Vec<_>>(), ["all"]);
}

/// Rejects every request, at any cost.
struct Full;

impl Limiter for Full {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::reject(1, 0, None).into()
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

#[test]
fn allowed_keys_are_not_asked_about() {
    let clock = clock();
    let full = Policy::new("full", Arc::new(Full)).key(User::key());
    let tree = memory("first", 9, &clock).and(full).or_else(memory("second", 9, &clock));
    let layer = RateLimitLayer::builder(tree).verdict().build();
    let names = || charged(send(&layer).extensions().get::<Verdict>().unwrap());
    assert_eq!(names(), ["second"]);
    let _ = layer.handle().allow("full", "alice", Duration::from_secs(60), "pays").now_or_never().unwrap().unwrap();
    assert_eq!(names(), ["first"]);
}

/// The first alternative has two parts. Its first part's units are given back when the second part turns out to be
/// full.
#[test]
fn a_discarded_alternative_releases_its_units() {
    let clock = clock();
    let slots = Policy::new("slots", Concurrency::new(1)).key(User::key());
    let tree = slots.and(memory("first", 1, &clock)).or_else(memory("second", 2, &clock));
    let layer = RateLimitLayer::builder(tree).verdict().build();
    let names = |response: &Response<()>| charged(response.extensions().get::<Verdict>().unwrap());
    let first = send(&layer);
    assert_eq!(names(&first), ["slots", "first"]);
    // Its handler has passed its permits on, so the request is in flight until they are dropped.
    let permits = first.extensions().get::<Permits>().cloned().unwrap().take();
    assert_eq!(names(&send(&layer)), ["second"]);
    drop(permits);
    // Now a slot is free, but the policy beside it has no unit left.
    let third = send(&layer);
    assert_eq!(names(&third), ["second"]);
    assert!(third.extensions().get::<Permits>().is_none());
    assert_eq!(layer.handle().peek("slots", "alice").now_or_never().unwrap().unwrap().decision().remaining(), 1);
    assert_eq!(send(&layer).status(), StatusCode::TOO_MANY_REQUESTS);
}

/// A limiter whose server is unreachable.
struct OutOfReach;

impl Limiter for OutOfReach {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Fallback => Decision::allow(9, 8).into(),
            _ => LimiterError::new("out of reach").into(),
        }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Fallback)
    }
}

/// A member that fails closed is passed over. The answer is 503 only if the failed member might have admitted the
/// request.
#[test]
fn only_failed_members_cause_503() {
    let clock = clock();
    let failing = |mode| Policy::new("failing", Arc::new(OutOfReach)).key(User::key()).on_failure(mode);
    let charged_of = |mode| {
        let layer = RateLimitLayer::builder(failing(mode).or_else(memory("other", 1, &clock))).verdict().build();
        let first = charged(send(&layer).extensions().get::<Verdict>().unwrap());
        (first, send(&layer).status().as_u16())
    };
    assert_eq!(charged_of(FailureMode::LocalFallback), (vec!["failing".to_owned()], 200));
    assert_eq!(charged_of(FailureMode::Allow), (vec![], 200));
    // The other member has no room: if the first one had been reachable, the request might have passed.
    assert_eq!(charged_of(FailureMode::Reject), (vec!["other".to_owned()], 503));
    // The failed member could not have helped, because `all` rejects the request as well.
    let both = failing(FailureMode::Reject).or_else(memory("other", 1, &clock)).and(memory("all", 1, &clock));
    let layer = RateLimitLayer::new(both);
    assert_eq!([send(&layer), send(&layer)].map(|response| response.status().as_u16()), [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_follows_an_exhausted_quota() {
    let clock = clock();
    let queue = Policy::new("queue", LeakyQueue::new(Quota::per_second(1)).max_queue(1)).key(User::key());
    let layer = RateLimitLayer::builder(memory("quota", 1, &clock).or_else(queue)).verdict().build();
    let answer = || async {
        let echo = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(String::new()))));
        let begun = tokio::time::Instant::now();
        let response = layer.layer(echo).oneshot(request(&[])).await.unwrap();
        (response.status().as_u16(), begun.elapsed().as_secs())
    };
    assert_eq!(answer().await, (200, 0));
    assert_eq!(answer().await, (200, 0));
    let (waits, is_rejected) = tokio::join!(answer(), answer());
    assert_eq!((waits, is_rejected.0), ((200, 1), 429));
}

#[test]
fn a_member_without_its_key_is_skipped() {
    let clock = clock();
    let team = memory("team", 1, &clock).key(HeaderKey::from_static("x-team")).on_missing_key(MissingKey::Skip);
    let layer = RateLimitLayer::new(memory("own", 1, &clock).or_else(team));
    assert_eq!([send(&layer), send(&layer)].map(|response| response.status().as_u16()), [200, 429]);
}

#[test]
fn charge_order_does_not_change_the_choice() {
    let clock = clock();
    // `Concurrency` is charged after the memory limiters, and it is the first choice.
    let layer = RateLimitLayer::builder(
        Policy::new("first", LeakyQueue::new(Quota::per_minute(1)))
            .key(User::key())
            .or_else(memory("second", 1, &clock)),
    );
    let layer = layer.verdict().build();
    let names = |response: &Response<()>| charged(response.extensions().get::<Verdict>().unwrap());
    assert_eq!(names(&send(&layer)), ["first"]);
}
