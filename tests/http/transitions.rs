//! Events for operators: a key is limited, banned or let in again; a limiter fails, or works again.

use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::policy::{Event, Transition};
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::ManualClock;
use tower_sluice::{FailureMode, Limiter, LimiterError, Penalty, Policy, Quota, RateLimitLayer, RateLimiter};

const HOUR: Duration = Duration::from_secs(3_600);

fn timed<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<RateLimiter<A, MemoryTable<A::State, ManualClock>>> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone())))
}

/// Records all events.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn layer(&self, policies: impl tower_sluice::layer::IntoPolicies) -> RateLimitLayer {
        let events = Arc::clone(&self.0);
        let note = move |event: &Event<'_>| events.lock().unwrap().push(describe(event));
        RateLimitLayer::builder(policies).route("/r").on_transition(note).build()
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn describe(event: &Event<'_>) -> String {
    let what = match event.transition() {
        Transition::Limited { decision, .. } => format!("limited, {:?}", decision.retry_after().unwrap()),
        Transition::Banned { ban, .. } => format!("banned for {:?} {}", ban.left(), ban.reason()),
        Transition::Allowed { allowance, .. } => format!("allowed for {:?} {}", allowance.left(), allowance.reason()),
        Transition::Lifted { .. } => "let in".to_owned(),
        Transition::Reset { .. } => "reset".to_owned(),
        Transition::Failing { error, .. } => format!("failing: {error}"),
        Transition::Recovered => "recovered".to_owned(),
        other => format!("{other:?}"),
    };
    assert_eq!(event.route(), Some("/r"));
    let left_out = if event.left_out() > 0 { format!(" ({} left out)", event.left_out()) } else { String::new() };
    format!("{} {}: {what}{left_out}", event.policy(), event.key_text().unwrap_or_default())
}

fn send(layer: &RateLimitLayer, user: &str) -> u16 {
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new(user));
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    service.oneshot(request).now_or_never().expect("memory answers at once").unwrap().status().as_u16()
}

/// The next rejection is an event again only after the key's budget was full.
#[test]
fn a_keys_first_rejection_is_an_event() {
    let clock = ManualClock::new();
    let events = Events::default();
    let bucket = || timed(TokenBucket::new(Quota::per_hour(2)), &clock);
    let layer = events.layer([
        Policy::new("api", bucket()).key(User::key()),
        Policy::new("watch", timed(TokenBucket::new(Quota::per_hour(1)), &clock)).key(User::key()).shadow(),
    ]);
    (0..9).for_each(|_| {
        send(&layer, "alice");
    });
    assert_eq!(events.take(), ["watch alice: limited, 3600s", "api alice: limited, 1800s"]);
    clock.advance(HOUR * 3 / 4);
    assert_eq!([send(&layer, "alice"), send(&layer, "alice")], [200, 429]);
    assert_eq!(events.take(), [""; 0], "it has been limited all the time");
    clock.advance(HOUR * 2);
    (0..9).for_each(|_| {
        send(&layer, "alice");
    });
    assert_eq!(events.take(), ["watch alice: limited, 3600s", "api alice: limited, 1800s"]);
    let _ = layer.handle().replace(Policy::new("api", bucket()).key(User::key())).unwrap();
    assert_eq!(send(&layer, "alice"), 429);
    assert_eq!(events.take(), [""; 0], "a live change is no reason to report it again");
}

#[test]
fn bans_and_operator_actions_are_events() {
    let clock = ManualClock::new();
    let events = Events::default();
    let penalty = Penalty::new(Quota::per_day(1), HOUR * 5).with_clock(clock.clone());
    let bucket = timed(TokenBucket::new(Quota::per_hour(1)), &clock);
    let layer = events.layer(Policy::new("api", bucket).key(User::key()).penalty(penalty));
    (0..9).for_each(|_| {
        send(&layer, "alice");
    });
    assert_eq!(events.take(), ["api alice: limited, 3600s", "api alice: banned for 18000s "]);
    let limits = layer.handle();
    let _ = limits.unban("api", "alice").now_or_never().unwrap().unwrap();
    let _ = limits.ban("api", "bob", HOUR, "scrapes").now_or_never().unwrap().unwrap();
    let _ = limits.allow("api", "bob", HOUR, "a mistake").now_or_never().unwrap().unwrap();
    let _ = limits.reset("api", "bob").now_or_never().unwrap().unwrap();
    assert_eq!(
        events.take(),
        [
            "api alice: let in",
            "api bob: banned for 3600s scrapes",
            "api bob: allowed for 3600s a mistake",
            "api bob: reset"
        ]
    );
}

/// Every request in the flood has a new key.
#[test]
fn a_flood_causes_ten_events_a_second() {
    let clock = ManualClock::new();
    let events = Events::default();
    let layer = events.layer(Policy::new("api", timed(TokenBucket::new(Quota::per_hour(1)), &clock)).key(User::key()));
    let flood = |from: u32| {
        (from..from + 100).for_each(|user| {
            let _ = (send(&layer, &user.to_string()), send(&layer, &user.to_string()));
        })
    };
    flood(0);
    assert_eq!(events.take().len(), 10);
    clock.advance(Duration::from_secs(1));
    flood(100);
    let second = events.take();
    assert!(second[0].starts_with("api 100: limited") && second[0].ends_with(" (90 left out)"), "{second:?}");
    assert_eq!(second.len(), 10);
    assert!(second[1..].iter().all(|event| !event.contains("left out")), "{second:?}");
}

/// A limiter that always fails.
struct Broken;

impl Limiter for Broken {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        LimiterError::new("no store").into()
    }
}

#[test]
fn an_outage_is_one_event() {
    let events = Events::default();
    let layer = events.layer(Policy::new("api", Arc::new(Broken)).on_failure(FailureMode::Allow));
    for _ in 0..5 {
        assert_eq!(send(&layer, "alice"), 200);
    }
    assert_eq!(events.take(), ["api : failing: no store"]);
}
