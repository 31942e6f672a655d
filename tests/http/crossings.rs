//! Crossings: a key's use passes a share of its limit.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::policy::Crossing;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, LimiterError, Policy, Quota, RateLimitLayer, RateLimiter, Settlement, Verdict};

const MINUTE: Duration = Duration::from_secs(60);

const HOUR: Duration = Duration::from_secs(3_600);

/// At the beginning of an hour.
fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_nanos(3_600_000_000_000 * 1_000));
    clock
}

/// A policy whose request costs are in the query.
fn policy(algorithm: impl Algorithm, clock: &ManualClock) -> Policy {
    let store = MemoryStore::default().with_clock(clock.clone());
    Policy::new("api", RateLimiter::new(algorithm, store))
        .key(User::key())
        .cost_fn(|request| request.uri().query().map_or(1, |cost| cost.parse().unwrap()))
}

/// Records all crossings as "KEY SHARE USED/LIMIT SECONDS".
#[derive(Clone, Default)]
struct Crossings(Arc<Mutex<Vec<String>>>);

impl Crossings {
    fn watch(&self, policy: Policy, shares: &[f64]) -> Policy {
        shares.iter().fold(policy, |policy, share| {
            let crossings = Arc::clone(&self.0);
            policy.on_crossing(*share, move |crossing| crossings.lock().unwrap().push(describe(crossing)))
        })
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn describe(crossing: &Crossing<'_>) -> String {
    assert_eq!(crossing.policy(), "api");
    let key = crossing.key_text();
    assert_eq!(crossing.key(), &key.as_str().into());
    let (share, used, limit) = (crossing.share(), crossing.used(), crossing.limit());
    format!("{key} {share} {used}/{limit} {}", crossing.reset_after().as_secs())
}

/// Sends a request by `user` that costs `cost`, and settles it at `settled`. Returns the status, and the share in the
/// verdict.
fn settle(layer: &RateLimitLayer, user: &str, cost: u64, settled: Option<u64>) -> (u16, Option<f64>) {
    let handler = service_fn(move |request: Request<()>| async move {
        if let Some(cost) = settled {
            request.extensions().get::<Settlement>().unwrap().settle("api", cost).unwrap();
        }
        Ok::<_, Infallible>(Response::new(()))
    });
    let mut request = Request::get(format!("/?{cost}")).body(()).unwrap();
    request.extensions_mut().insert(User::new(user));
    let response = layer.layer(handler).oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    let crossed = response.extensions().get::<Verdict>().and_then(|verdict| verdict.policies().first()?.crossed());
    (response.status().as_u16(), crossed)
}

fn send(layer: &RateLimitLayer, user: &str, cost: u64) -> (u16, Option<f64>) {
    settle(layer, user, cost, None)
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder(policy).verdict().build()
}

/// The charge that reaches the share reports it.
#[test]
fn a_share_is_reported_once_per_window() {
    let crossings = Crossings::default();
    let clock = clock();
    let layer = layer(crossings.watch(policy(FixedWindow::new(Quota::per_hour(10)), &clock), &[1.0, 0.8, 0.95]));
    assert_eq!(send(&layer, "alice", 7), (200, None));
    assert_eq!(send(&layer, "bob", 7), (200, None));
    assert_eq!(crossings.take(), [""; 0]);
    // Rejections and requests at cost 0 cross nothing.
    assert_eq!([send(&layer, "alice", 4), send(&layer, "alice", 0)], [(429, None), (200, None)]);
    clock.advance(MINUTE);
    assert_eq!(send(&layer, "alice", 1), (200, Some(0.8)));
    assert_eq!(send(&layer, "alice", 1), (200, None));
    assert_eq!(crossings.take(), ["alice 0.8 8/10 3540"]);
    // 9.5 units round up to ten, so both shares are crossed at once, the lower one first.
    assert_eq!(send(&layer, "alice", 1), (200, Some(1.0)));
    assert_eq!(crossings.take(), ["alice 0.95 10/10 3540", "alice 1 10/10 3540"]);
    assert_eq!(send(&layer, "bob", 3), (200, Some(1.0)));
    assert_eq!(crossings.take(), ["bob 0.8 10/10 3540", "bob 0.95 10/10 3540", "bob 1 10/10 3540"]);
    clock.advance(HOUR);
    assert_eq!(send(&layer, "alice", 8), (200, Some(0.8)));
    assert_eq!(crossings.take(), ["alice 0.8 8/10 3540"]);
}

/// The bucket holds ten and refills in ten hours. Its use stays around 80 %.
#[test]
fn a_bucket_reports_once_per_refill_time() {
    let crossings = Crossings::default();
    let clock = clock();
    let layer = layer(crossings.watch(policy(TokenBucket::new(Quota::per_hour(1).burst(10)), &clock), &[0.8]));
    send(&layer, "alice", 8);
    assert_eq!(crossings.take(), ["alice 0.8 8/10 28800"]);
    for hours in 1..8 {
        clock.advance(HOUR);
        assert_eq!(send(&layer, "alice", 1), (200, Some(0.8)), "the verdict has the crossing itself");
        assert_eq!(crossings.take(), [""; 0], "{hours}");
    }
    clock.advance(HOUR);
    send(&layer, "alice", 1);
    assert_eq!(crossings.take(), ["alice 0.8 8/10 28800"]);
}

#[test]
fn each_key_crosses_shares_of_its_quota() {
    let crossings = Crossings::default();
    let policy = policy(SlidingWindow::new(Quota::per_hour(10)), &clock()).quota_fn(|request| {
        let user = request.extensions().get::<User>()?;
        (*user == User::new("alice")).then(|| Quota::per_hour(100))
    });
    let layer = layer(crossings.watch(policy, &[0.8]));
    (0..8).for_each(|_| assert_eq!(send(&layer, "alice", 10).0, 200));
    send(&layer, "bob", 9);
    assert_eq!(crossings.take(), ["alice 0.8 80/100 7200", "bob 0.8 9/10 7200"]);
}

#[cfg(feature = "calendar")]
#[test]
fn a_month_is_reported_once() {
    let crossings = Crossings::default();
    let clock = ManualClock::new();
    // 2026-02-27, midnight.
    clock.set(Timestamp::from_nanos(1_772_150_400_000_000_000));
    let month = tower_sluice::CalendarWindow::monthly(10).zone("UTC").unwrap();
    let layer = layer(crossings.watch(policy(month, &clock), &[0.8]));
    send(&layer, "alice", 8);
    clock.advance(24 * HOUR);
    send(&layer, "alice", 2);
    assert_eq!(crossings.take(), ["alice 0.8 8/10 172800"]);
    clock.advance(24 * HOUR);
    send(&layer, "alice", 9);
    assert_eq!(crossings.take(), ["alice 0.8 9/10 2678400"]);
}

/// A refund takes the key below the share, and a charge beyond the estimate takes it above.
#[test]
fn settlements_cross_shares_and_refunds_repeat_none() {
    for owes in [false, true] {
        let crossings = Crossings::default();
        let clock = clock();
        let policy = policy(FixedWindow::new(Quota::per_hour(10)), &clock).settle_by_handler();
        let policy = if owes { policy.owe_shortfalls() } else { policy };
        let layer = layer(crossings.watch(policy, &[0.5, 0.8, 1.0]));
        settle(&layer, "alice", 1, Some(3));
        assert_eq!(crossings.take(), [""; 0]);
        settle(&layer, "alice", 1, Some(6));
        assert_eq!(crossings.take(), ["alice 0.5 9/10 3600", "alice 0.8 9/10 3600"]);
        // Only the remaining unit is charged.
        settle(&layer, "bob", 9, Some(30));
        let first = ["bob 0.5 9/10 3600", "bob 0.8 9/10 3600"];
        assert_eq!(crossings.take(), [&first[..], &["bob 1 10/10 3600"]].concat());
        // Estimated at nine units, and settled at one, twice.
        settle(&layer, "carol", 9, Some(1));
        settle(&layer, "carol", 9, Some(1));
        assert_eq!(
            crossings.take().len(),
            3,
            "the second time, the estimate reaches 100 %, and the others are reported"
        );
        clock.advance(HOUR);
        settle(&layer, "carol", 9, Some(1));
        assert_eq!(crossings.take().len(), 2, "another window");
    }
}

/// Many keys send ten concurrent requests each; for each key, one request crosses.
#[test]
fn one_of_concurrent_charges_crosses() {
    let crossings = Crossings::default();
    let layer = layer(crossings.watch(policy(FixedWindow::new(Quota::per_hour(10)), &clock()), &[0.8]));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for user in 0..200 {
                    for _ in 0..3 {
                        let _ = send(&layer, &format!("user-{user}"), 1);
                    }
                }
            });
        }
    });
    let mut reported = crossings.take();
    reported.sort_unstable();
    let mut expected: Vec<_> = (0..200).map(|user| format!("user-{user} 0.8 8/10 3600")).collect();
    expected.sort_unstable();
    assert_eq!(reported, expected);
}

/// Admits or rejects as the test sets it. The layer cannot peek at it, so charges before its own are rolled back.
struct Switch(Arc<AtomicBool>);

impl Limiter for Switch {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        let is_open = self.0.load(Ordering::Relaxed);
        if is_open { Decision::allow(1, 1) } else { Decision::reject(1, 0, Some(HOUR)) }.into()
    }
}

#[test]
fn a_rolled_back_charge_is_not_reported() {
    let crossings = Crossings::default();
    let switch = Arc::new(AtomicBool::new(false));
    let api = crossings.watch(policy(FixedWindow::new(Quota::per_hour(10)), &clock()), &[0.8]);
    let layer =
        RateLimitLayer::builder([api, Policy::new("switch", Arc::new(Switch(Arc::clone(&switch)))).key(User::key())])
            .verdict()
            .build();
    assert_eq!(send(&layer, "alice", 8), (429, None));
    assert_eq!(crossings.take(), [""; 0]);
    switch.store(true, Ordering::Relaxed);
    assert_eq!(send(&layer, "alice", 8), (200, Some(0.8)));
    assert_eq!(crossings.take(), ["alice 0.8 8/10 3600"]);
}

#[test]
fn a_shadow_reports_until_it_would_reject() {
    let crossings = Crossings::default();
    let shadow = policy(FixedWindow::new(Quota::per_hour(10)), &clock()).shadow();
    let layer = layer(crossings.watch(shadow, &[0.8, 1.0]));
    for cost in [9, 9, 1, 1] {
        assert_eq!(send(&layer, "alice", cost).0, 200);
    }
    assert_eq!(crossings.take(), ["alice 0.8 9/10 3600", "alice 1 10/10 3600"]);
}

/// Always fails, so that the fallback decides.
struct Failing<L>(L);

impl<L: Limiter> Limiter for Failing<L> {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Fallback => self.0.decide(&ask.to(Mode::Charge)),
            _ => LimiterError::new("out of reach").into(),
        }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Fallback)
    }
}

#[test]
fn the_local_fallback_reports_its_crossings() {
    let crossings = Crossings::default();
    let limiter =
        Failing(RateLimiter::new(FixedWindow::new(Quota::per_hour(2)), MemoryStore::default().with_clock(clock())));
    let layer = layer(crossings.watch(Policy::new("api", Arc::new(limiter)).key(User::key()), &[1.0]));
    assert_eq!([(); 3].map(|()| send(&layer, "alice", 1).0), [200, 200, 429]);
    assert_eq!(crossings.take(), ["alice 1 2/2 3600"]);
}

#[test]
fn a_live_change_keeps_the_reports() {
    let crossings = Crossings::default();
    let clock = clock();
    let api = |limit| crossings.watch(policy(FixedWindow::new(Quota::per_hour(limit)), &clock), &[0.8]);
    let layer = layer(api(10));
    send(&layer, "alice", 8);
    assert_eq!(crossings.take().len(), 1);
    let _ = layer.handle().replace(api(20)).unwrap();
    assert_eq!(send(&layer, "alice", 8), (200, Some(0.8)));
    assert_eq!(crossings.take(), [""; 0], "80 % of the greater limit, in the same window");
    clock.advance(HOUR);
    send(&layer, "alice", 16);
    assert_eq!(crossings.take(), ["alice 0.8 16/20 3600"]);
}

/// The request is served and charged, and the other share is reported.
#[test]
fn a_panicking_callback_changes_nothing_else() {
    let crossings = Crossings::default();
    let api = policy(FixedWindow::new(Quota::per_hour(10)), &clock())
        .on_crossing(0.5, |_| std::panic::panic_any("a mistake of the program"));
    let layer = layer(crossings.watch(api, &[0.8]));
    assert_eq!(send(&layer, "alice", 9), (200, Some(0.8)));
    assert_eq!(crossings.take(), ["alice 0.8 9/10 3600"]);
    let peeked = layer.handle().peek("api", "alice").now_or_never().unwrap().unwrap();
    assert_eq!(peeked.decision().remaining(), 1);
}

/// The layer's hook gets them even if the policy has no callback.
#[test]
fn crossings_are_events() {
    use tower_sluice::policy::Transition;

    let events = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&events);
    let layer = RateLimitLayer::builder(policy(FixedWindow::new(Quota::per_hour(10)), &clock()).warn_at(0.8))
        .on_transition(move |event| {
            let Transition::Crossed { crossing, .. } = event.transition() else { return };
            noted.lock().unwrap().push((event.key_text(), describe(&crossing), format!("{event:?}")));
        })
        .build();
    send(&layer, "alice", 8);
    let event = r#"Event { policy: "api", transition: "Crossed", .. }"#;
    assert_eq!(
        *events.lock().unwrap(),
        [(Some("alice".to_owned()), "alice 0.8 8/10 3600".to_owned(), event.to_owned())]
    );
}
