//! Bans: which keys a penalty bans, for how long, and how bans survive live changes.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::support::effort::rounds;
use crate::support::metrics::Metrics;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, TokenBucket};
use tower_sluice::key::{HeaderKey, User, key_fn};
use tower_sluice::policy::PolicyError;
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{MissingKey, PartitionKey, Penalty, Policy, Quota, RateLimitLayer, RateLimiter};

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_000_000_000_000_000_000))
}

fn timed<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<RateLimiter<A, MemoryTable<A::State, ManualClock>>> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone())))
}

/// One request per second, and a ban for premature retries.
fn policy(clock: &ManualClock) -> Policy {
    Policy::new("api", timed(TokenBucket::new(Quota::per_second(1)), clock)).key(User::key())
}

fn penalty(clock: &ManualClock, ban: u64) -> Penalty {
    Penalty::new(Quota::per_day(1), Duration::from_secs(ban)).with_clock(clock.clone())
}

/// The seconds in `Retry-After` for `user`; zero if its request passes.
fn wait_of(layer: &RateLimitLayer, user: &str) -> u64 {
    wait_for(layer, user, Method::GET)
}

fn wait_for(layer: &RateLimitLayer, user: &str, method: Method) -> u64 {
    let mut request = Request::new(());
    *request.method_mut() = method;
    request.extensions_mut().insert(User::new(user));
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    let response = service.oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    response.headers().get("retry-after").map_or(0, |wait| wait.to_str().unwrap().parse().unwrap())
}

fn ban(layer: &RateLimitLayer, user: &str) {
    assert_eq!([(); 3].map(|()| wait_of(layer, user)), [0, 1, 1]);
}

#[test]
fn later_requests_do_not_extend_a_ban() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(&clock).penalty(penalty(&clock, 30)));
    ban(&layer, "a");
    for left in (1..=30).rev() {
        assert_eq!(wait_of(&layer, "a"), left);
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(wait_of(&layer, "a"), 0);
}

/// A client that waits for another policy has not been given a wait by this one.
#[test]
fn a_policy_with_room_notes_no_misconduct() {
    let clock = clock();
    let roomy = Policy::new("roomy", timed(TokenBucket::new(Quota::per_hour(2)), &clock)).key(User::key());
    let posts = policy(&clock).when(|request| request.method() == Method::POST);
    let layer = RateLimitLayer::new([roomy.penalty(penalty(&clock, 7_200)), posts]);
    let waits = [Method::POST, Method::POST, Method::GET, Method::GET, Method::GET, Method::GET]
        .map(|method| wait_for(&layer, "a", method));
    // The policy's own first rejection advertises the wait, and one retry before its end is tolerated.
    assert_eq!(waits, [0, 1, 0, 1_800, 1_800, 7_200]);
}

#[test]
fn repeated_bans_grow_until_a_quiet_time() {
    let clock = clock();
    let seconds = Duration::from_secs;
    let penalty = || penalty(&clock, 10).growing(2, seconds(35)).forgetting_after(seconds(100));
    let layer = RateLimitLayer::new(policy(&clock).penalty(penalty()));
    ban(&layer, "a");
    assert_eq!(wait_of(&layer, "a"), 10);
    let mut pause = 10;
    for (further, length) in [(0, 20), (0, 35), (0, 35), (99, 35), (100, 10), (0, 20)] {
        clock.advance(seconds(pause + further));
        // One request passes, one is rejected, and one retries early.
        assert_eq!([(); 3].map(|()| wait_of(&layer, "a")), [0, 1, length]);
        pause = length;
        // A live change does not reset the ban count.
        let _ = layer.handle().replace(policy(&clock).penalty(penalty())).unwrap();
    }
    let _ = layer.handle().unban("api", "a").now_or_never().unwrap().unwrap();
    clock.advance(seconds(20));
    // A key that an operator unbans starts over.
    ban(&layer, "a");
    assert_eq!(wait_of(&layer, "a"), 10);
}

#[test]
fn a_changed_length_applies_to_new_bans() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(&clock).penalty(penalty(&clock, 30)));
    ban(&layer, "a");
    assert_eq!(wait_of(&layer, "a"), 30);
    for length in [12 * 3_600, 5] {
        layer.handle().replace(policy(&clock).penalty(penalty(&clock, length))).unwrap();
        assert_eq!(wait_of(&layer, "a"), 30, "after a change to {length} s");
    }
    clock.advance(Duration::from_secs(30));
    assert_eq!(wait_of(&layer, "a"), 0);
}

#[test]
fn a_restored_penalty_keeps_unfinished_bans() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(&clock).penalty(penalty(&clock, 30)));
    ban(&layer, "a");
    assert_eq!(wait_of(&layer, "a"), 30);
    for _ in 0..2 {
        layer.handle().replace(policy(&clock)).unwrap();
    }
    // Without a penalty, no ban applies.
    clock.advance(Duration::from_secs(10));
    assert_eq!(wait_of(&layer, "a"), 0);
    layer.handle().replace(policy(&clock).penalty(penalty(&clock, 3_600))).unwrap();
    assert_eq!(wait_of(&layer, "a"), 20);
    clock.advance(Duration::from_secs(20));
    assert_eq!(wait_of(&layer, "a"), 0);
}

/// A well-behaved client sends as fast as allowed: it is rejected every second, and never retries prematurely.
#[test]
fn waiting_as_advertised_causes_no_ban() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(&clock).penalty(penalty(&clock, 30)));
    for _ in 0..1_000 {
        assert_eq!(wait_of(&layer, "a"), 0);
        assert_eq!(wait_of(&layer, "a"), 1);
        clock.advance(Duration::from_secs(1));
    }
}

/// `Retry-After` is 24.8 days at most. Under a limit of one in 90 days, a client that retried after exactly that time
/// counted as premature, and was banned the second time.
#[test]
fn obeying_the_longest_advertised_wait_is_safe() {
    let clock = clock();
    let day = Duration::from_secs(86_400);
    let limit = TokenBucket::new(Quota::per(1, day * 90));
    let ban = Penalty::new(Quota::per(1, day * 90), day * 60).with_clock(clock.clone());
    let layer = RateLimitLayer::new(Policy::new("api", timed(limit, &clock)).key(User::key()).penalty(ban));
    assert_eq!(wait_of(&layer, "a"), 0);
    let mut waited = 0;
    while waited < 90 * 86_400 {
        let wait = wait_of(&layer, "a");
        assert_eq!(wait, 2_147_483.min(90 * 86_400 - waited), "after {waited} s");
        clock.advance(Duration::from_secs(wait));
        waited += wait;
    }
    assert_eq!(wait_of(&layer, "a"), 0);
}

/// A response that a client held open kept its key from being banned: in six seconds, 507 rejections did not count.
#[test]
fn an_open_response_excuses_few_rejections() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(&clock).settle_by_handler().penalty(penalty(&clock, 30)));
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("a"));
    let held = service.oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    let waits: Vec<_> = (0..500).map(|_| wait_of(&layer, "a")).collect();
    drop(held);
    // Ten are excused. The next one counts, and the penalty allows it.
    let banned_by = waits.iter().position(|wait| *wait == 30).expect("it is never banned");
    assert!((2..=11).contains(&banned_by), "banned by rejection {banned_by}");
}

/// A rejection without a `Retry-After` does not count, although an earlier rejection has advertised a wait.
#[test]
fn requests_that_never_fit_cause_no_ban() {
    let clock = clock();
    let cost_above_the_burst = 2;
    let policy = policy(&clock)
        .cost_fn(move |request| if request.method() == Method::PUT { cost_above_the_burst } else { 1 })
        .penalty(penalty(&clock, 30));
    let layer = RateLimitLayer::new(policy);
    assert_eq!([(); 2].map(|()| wait_of(&layer, "a")), [0, 1]);
    for _ in 0..10 {
        assert_eq!(wait_for(&layer, "a", Method::PUT), 0, "no `Retry-After`");
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!(wait_of(&layer, "a"), 0, "it has waited as advertised");
}

#[test]
fn penalties_on_shared_keys_are_rejected() {
    let clock = clock();
    let shared =
        || Policy::new("api", timed(TokenBucket::new(Quota::per_second(1)), &clock)).penalty(penalty(&clock, 30));
    let header = || shared().key(HeaderKey::from_static("x-api-key"));
    for policy in [shared(), header().on_missing_key(MissingKey::Share), shared().shadow()] {
        let error = RateLimitLayer::try_new(policy).unwrap_err();
        assert!(matches!(&error, PolicyError::Conflict { name, option: "penalty", .. } if name == "api"));
        assert!(error.to_string().contains("one client"), "{error}");
    }
    for policy in [header(), header().on_missing_key(MissingKey::Skip)] {
        let _ = RateLimitLayer::try_new(policy).unwrap();
    }
    // A custom extractor may share its key now and then, which the builder cannot know in advance.
    let custom = shared().key(key_fn(|_| Some(PartitionKey::SHARED)));
    let layer = RateLimitLayer::new(custom);
    assert_eq!(wait_of(&layer, "a"), 0);
    for _ in 0..100 {
        assert_eq!(wait_of(&layer, "a"), 1);
    }
}

/// With all rounds, more keys misbehave than the ban table holds. It evicts the bans that end first, and counts them.
#[test]
fn live_and_evicted_bans_are_counted() {
    let metrics = Metrics::record();
    let clock = clock();
    let nothing = RateLimiter::new(
        TokenBucket::new(Quota::per_day(1)),
        MemoryStore::with_capacity(300_000).with_clock(clock.clone()),
    );
    // Cost 1 and burst 1, so that the second request is rejected; usually the second rejection bans the key.
    let policy = Policy::new("api", nothing).key(User::key());
    let layer = RateLimitLayer::new(policy.penalty(penalty(&clock, 3_600)));
    let count = |series: &str| {
        layer.observe();
        metrics.of(&format!(r#"ban_table_{series}{{policy="api"}}"#)).parse::<u64>().unwrap()
    };
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    let misbehave = |users: std::ops::Range<u32>| {
        for user in users {
            let user = User::new(user.to_string());
            for _ in 0..4 {
                let mut request = Request::new(());
                request.extensions_mut().insert(user.clone());
                let _ = service.clone().oneshot(request).now_or_never().expect("memory answers at once").unwrap();
            }
        }
    };
    let banned = rounds(6_000, 30_000);
    misbehave(0..u32::try_from(banned).unwrap());
    // Estimated from one slot in 32.
    let live = count("live_keys");
    assert!((banned as u64 / 2..=banned as u64 * 3 / 2).contains(&live), "{live} of {banned}");
    assert_eq!(count("evicted_live_total"), 0);
    if banned == 30_000 {
        misbehave(30_000..200_000);
        assert!(count("evicted_live_total") > 10_000, "{}", count("evicted_live_total"));
    }
}
