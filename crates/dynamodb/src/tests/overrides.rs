//! Bans and allowances by hand, which processes share like [bans and debts](super::standing).

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::ready;

use http::{Request, Response};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{Policy, RateLimitLayer};

use super::effort::rounds;
use super::service::Fate;
use super::standing::{self, settled};
use super::*;

/// Longer than two windows.
const SPAN: Duration = Duration::from_secs(5 * 86_400 / 2);

/// One process.
fn process<A: Kept>(service: &Service, clock: &ManualClock, algorithm: A) -> RateLimitLayer {
    RateLimitLayer::new(Policy::new("api", limiter(&dynamo(service, clock), algorithm)).key(User::key()))
}

const KEY: &str = "alice";

/// Returns how many of five requests a process without memory admits.
async fn admitted_anew<A: Kept>(service: &Service, clock: &ManualClock, algorithm: A) -> u64 {
    let layer = process(service, clock, algorithm);
    let mut admitted = 0;
    for _ in 0..5 {
        admitted += u64::from(status(&layer).await == 200);
    }
    admitted
}

async fn status(layer: &RateLimitLayer) -> u16 {
    let hello = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new(KEY));
    layer.clone().layer(hello).oneshot(request).await.unwrap().status().as_u16()
}

async fn overrides<A: Kept>(algorithm: A, letter: &str) {
    let (service, clock) = service().await;
    let new = || process(&service, &clock, algorithm.clone());
    let anew = || admitted_anew(&service, &clock, algorithm.clone());
    let first = new();
    assert_eq!(status(&first).await, 200);
    let _ = first.handle().allow("api", KEY, SPAN, "a partner").await.unwrap();
    assert_eq!(anew().await, 5, "{letter}: nothing is charged");
    let peeked = new().handle().peek("api", KEY).await.unwrap();
    assert_eq!((peeked.ban(), peeked.allowance().unwrap().left()), (None, SPAN), "{letter}");
    // Any characters.
    let reason = "scrapes, at 100 %: \"all\"! @night #b = :b \u{e9}\u{1f980}\\";
    let _ = new().handle().ban("api", KEY, SPAN, reason).await.unwrap();
    service.forget_counts();
    assert_eq!(status(&new()).await, 429, "{letter}");
    let counts = service.counts();
    assert_eq!(counts.reads + counts.writes, 1, "{letter}: as each decision takes");
    let ban = first.handle().peek("api", KEY).await.unwrap().ban().unwrap();
    assert_eq!((ban.left(), ban.reason().as_str()), (SPAN, reason), "{letter}");
    // The budget has not changed.
    let lifted = new().handle().unban("api", KEY).await.unwrap();
    assert_eq!((lifted.ban(), lifted.decision().remaining()), (None, 2), "{letter}");
    assert_eq!(anew().await, 2, "{letter}");
    assert_eq!(service.items().len(), 1, "{letter}: no item of a later window is left");
    assert!(service.items()[0].get("s").is_none(), "{letter}: {:?}", service.items());
    // In the window after the next, and to the end.
    let _ = first.handle().ban("api", KEY, SPAN, reason).await.unwrap();
    clock.advance(2 * DAY);
    assert_eq!(anew().await, 0, "{letter}");
    let ban = new().handle().peek("api", KEY).await.unwrap().ban().unwrap();
    assert_eq!((ban.left(), ban.reason().as_str()), (SPAN - 2 * DAY, reason), "{letter}");
    clock.advance(SPAN - 2 * DAY);
    assert_eq!(anew().await, 3, "{letter}");
    // A shorter one replaces it in all windows.
    let _ = first.handle().ban("api", KEY, 10 * DAY, reason).await.unwrap();
    let _ = new().handle().allow("api", KEY, DAY, "a mistake").await.unwrap();
    assert_eq!(anew().await, 5, "{letter}");
    clock.advance(DAY);
    assert!(anew().await > 0, "{letter}: the ban is not back");
    clock.advance(DAY);
    assert!(anew().await > 0, "{letter}: nor in the window after that");
}

#[tokio::test]
async fn all_processes_and_windows_follow_overrides() {
    overrides(TokenBucket::new(per_day(3)), "bucket").await;
    overrides(SlidingWindow::new(per_day(3)), "sliding window").await;
    overrides(FixedWindow::new(per_day(3)), "fixed window").await;
    #[cfg(feature = "calendar")]
    overrides(tower_sluice::algorithm::CalendarWindow::daily(3), "window of the calendar").await;
}

async fn resets<A: Kept>(algorithm: A) {
    let (service, clock) = service().await;
    let new = || process(&service, &clock, algorithm.clone());
    for _ in 0..2 {
        let _ = new().handle().ban("api", KEY, SPAN, "scrapes").await.unwrap();
        clock.advance(DAY);
        let _ = new().handle().reset("api", KEY).await.unwrap();
        for _ in 0..2 {
            assert_eq!(admitted_anew(&service, &clock, algorithm.clone()).await, 3);
            clock.advance(2 * DAY);
        }
    }
}

#[tokio::test]
async fn a_reset_ends_a_manual_ban_everywhere() {
    resets(TokenBucket::new(per_day(3))).await;
    resets(SlidingWindow::new(per_day(3))).await;
    resets(FixedWindow::new(per_day(3))).await;
}

/// A fixed window has an item for each window, and here DynamoDB fails between the items.
#[tokio::test]
async fn a_half_lifted_ban_can_be_lifted() {
    for is_reset in [false, true] {
        let (service, clock) = service().await;
        let new = || process(&service, &clock, FixedWindow::new(per_day(3)));
        let lift = async || match is_reset {
            true => new().handle().reset("api", KEY).await,
            false => new().handle().unban("api", KEY).await,
        };
        let _ = new().handle().ban("api", KEY, SPAN, "scrapes").await.unwrap();
        clock.advance(Duration::from_secs(1));
        let mut requests = 0;
        let most = if is_reset { 1 } else { 2 };
        service.decide(move |_| {
            requests += 1;
            if requests <= most { Fate::Answered } else { Fate::Refused }
        });
        assert!(lift().await.is_err());
        service.all(Fate::Answered);
        assert!(new().handle().peek("api", KEY).await.unwrap().ban().is_none(), "the present item is changed first");
        let _ = lift().await.unwrap();
        for _ in 0..3 {
            assert_eq!(admitted_anew(&service, &clock, FixedWindow::new(per_day(3))).await, 3);
            clock.advance(DAY);
        }
    }
}

/// With windows of a minute, a ban for a year is written into 64 windows, and every answer says so.
#[tokio::test]
async fn a_long_ban_ends_after_64_windows() {
    let (service, clock) = service().await;
    let window = FixedWindow::new(Quota::per_minute(3));
    let layer = process(&service, &clock, window);
    service.forget_counts();
    let year = 365 * DAY;
    let ban = layer.handle().ban("api", KEY, year, "scrapes").await.unwrap().ban().unwrap();
    // The present window is not whole.
    let minute = Duration::from_secs(60);
    assert!(ban.left() > 63 * minute && ban.left() <= 64 * minute, "{ban:?}");
    assert_eq!((service.items().len(), service.counts().writes), (64, 64));
    clock.advance(ban.left() - Duration::from_nanos(1));
    assert_eq!(admitted_anew(&service, &clock, window).await, 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(admitted_anew(&service, &clock, window).await, 3);
    // A bucket has one item.
    let (service, clock) = super::service().await;
    let layer = process(&service, &clock, TokenBucket::new(Quota::per_minute(3)));
    let allowance = layer.handle().allow("api", KEY, year, "a partner").await.unwrap().allowance().unwrap();
    assert_eq!((allowance.left(), service.items().len()), (year, 1));
    let expiry: u64 = service.items()[0]["x"]["N"].as_str().unwrap().parse().unwrap();
    assert!(expiry >= (Duration::from_nanos(NOW.as_nanos()) + year).as_secs(), "{expiry}");
}

/// Until the key is reset.
#[tokio::test]
async fn an_unreadable_standing_is_an_error() {
    let (service, clock) = service().await;
    let layer = process(&service, &clock, TokenBucket::new(per_day(3)));
    let _ = layer.handle().ban("api", KEY, SPAN, "scrapes").await.unwrap();
    let item = service.items()[0].clone();
    for (name, value) in [
        ("b", json!({ "S": "1" })),
        ("d", json!({ "N": "-1" })),
        ("a", json!({ "S": "" })),
        ("r", json!({ "S": "a\nb" })),
        ("r", json!({ "N": "1" })),
        ("s", json!({ "N": "99999999999999999999" })),
    ] {
        let mut bad = item.clone();
        bad[name] = value;
        service.call("PutItem", &json!({ "TableName": TABLE, "Item": bad }));
        let layer = process(&service, &clock, TokenBucket::new(per_day(3)));
        let error = layer.handle().unban("api", KEY).await.unwrap_err();
        assert_eq!(kind(&error), FaultKind::ForeignItem, "{name}: {error}");
        assert!(layer.handle().peek("api", KEY).await.is_err(), "{name}");
        assert_eq!(service.items(), [bad]);
    }
    let _ = layer.handle().reset("api", KEY).await.unwrap();
    assert_eq!(admitted_anew(&service, &clock, TokenBucket::new(per_day(3))).await, 3);
}

/// The item's key was never banned, allowed or in debt.
#[tokio::test]
async fn items_without_standings_lack_their_attributes() {
    let (service, clock) = service().await;
    let layer = process(&service, &clock, TokenBucket::new(per_day(3)));
    assert_eq!(status(&layer).await, 200);
    let before = service.items();
    let names = |item: &Value| item.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert!(names(&before[0]).iter().eq(["k", "q", "t", "u", "x"]), "{before:?}");
    let _ = layer.handle().ban("api", KEY, SPAN, "scrapes").await.unwrap();
    assert!(names(&service.items()[0]).iter().eq(["b", "d", "k", "q", "r", "s", "t", "u", "x"]));
    let _ = layer.handle().allow("api", KEY, SPAN, "a partner").await.unwrap();
    assert!(names(&service.items()[0]).iter().eq(["a", "b", "d", "k", "q", "r", "s", "t", "u", "x"]));
    let _ = layer.handle().unban("api", KEY).await.unwrap();
    assert!(names(&service.items()[0]).iter().eq(["k", "q", "t", "u", "x"]));
    let _ = process(&service, &clock, TokenBucket::new(per_day(3))).handle().unban("api", "bob").await.unwrap();
    assert_eq!(service.items().len(), 1, "to lift nothing writes nothing");
}

/// Two processes charge while two others ban, allow and lift, all at once. In the end, the present item's last change
/// is in force in all windows.
async fn races<A: Kept>(algorithm: A, seed: u64) {
    let mut random = Random::new(seed);
    let (service, clock) = service().await;
    let layers: Vec<_> = (0..4).map(|_| process(&service, &clock, algorithm.clone())).collect();
    let operators = [0, 1].map(|process: usize| {
        let handle = layers[process].handle();
        let acts: Vec<_> = (0..3).map(|_| random.below(4)).collect();
        let pauses: Vec<_> = (0..3).map(|_| random.below(12)).collect();
        async move {
            for (act, pause) in acts.into_iter().zip(pauses) {
                for _ in 0..pause {
                    tokio::task::yield_now().await;
                }
                let _ = match act {
                    0 => handle.ban("api", KEY, SPAN, "scrapes").await.unwrap(),
                    1 => handle.allow("api", KEY, 2 * SPAN, "a partner").await.unwrap(),
                    2 => handle.unban("api", KEY).await.unwrap(),
                    _ => handle.ban("api", KEY, DAY / 2, "a mistake").await.unwrap(),
                };
            }
        }
    });
    let clients = [2, 3].map(|process: usize| {
        let layer = layers[process].clone();
        async move {
            for _ in 0..6 {
                let _ = status(&layer).await;
            }
        }
    });
    let [first, second] = operators;
    let [third, fourth] = clients;
    tokio::join!(first, second, third, fourth);
    // The present item's exception holds in all windows.
    let exception = async || {
        let layer = process(&service, &clock, algorithm.clone());
        let status = layer.handle().peek("api", KEY).await.unwrap();
        status.ban().or(status.allowance()).map(|found| (status.ban().is_some(), found.left(), found.reason()))
    };
    let present = exception().await;
    let mut passed = Duration::ZERO;
    while passed < 6 * DAY {
        let expected =
            present.filter(|(_, left, _)| *left > passed).map(|(is_ban, left, why)| (is_ban, left - passed, why));
        assert_eq!(exception().await, expected, "seed {seed}, after {passed:?}");
        clock.advance(DAY / 2);
        passed += DAY / 2;
    }
    // Nothing else is left.
    assert_eq!(admitted_anew(&service, &clock, algorithm.clone()).await, 3, "seed {seed}");
}

#[tokio::test]
async fn the_last_of_simultaneous_changes_wins_everywhere() {
    for seed in seeds(rounds(10, 1_000)) {
        races(FixedWindow::new(per_day(3)), seed).await;
        races(TokenBucket::new(per_day(3)), seed).await;
        races(SlidingWindow::new(per_day(3)), seed).await;
    }
}

/// A charge is on its way while an operator bans the key. It applies before the ban, or not at all.
#[tokio::test(start_paused = true)]
async fn a_charge_after_the_ban_charges_nothing() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        let operator = process(&service, &clock, algorithm.clone());
        let client = process(&service, &clock, algorithm.clone());
        assert_eq!(status(&client).await, 200);
        let mut writes = 0;
        service.decide(move |operation| {
            writes += u32::from(operation == "UpdateItem");
            // The charge is the first write.
            if operation == "UpdateItem" && writes == 1 {
                Fate::Delayed(Duration::from_secs(1))
            } else {
                Fate::Answered
            }
        });
        let late = tokio::spawn(async move { status(&client).await });
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let _ = operator.handle().ban("api", KEY, SPAN, "scrapes").await.unwrap();
        assert_eq!(late.await.unwrap(), 429);
        let status = operator.handle().unban("api", KEY).await.unwrap();
        assert_eq!(status.decision().remaining(), 2, "of three, one was charged before");
    }
    check(TokenBucket::new(per_day(3))).await;
    check(SlidingWindow::new(per_day(3))).await;
    check(FixedWindow::new(per_day(3))).await;
}

/// A key's debt stays owed during a ban and after it, in the window in which it is paid.
#[tokio::test]
async fn a_debt_outlives_an_override() {
    async fn check<A: Kept>(algorithm: A, letter: &str) {
        let wait = async |acts: &[u32]| {
            let (service, clock) = service().await;
            let new = || process(&service, &clock, algorithm.clone());
            let handle = new().handle();
            let _ = standing::wait(&standing::process(&service, &clock, algorithm.clone()), 1, 8).await;
            settled().await;
            for act in acts {
                let _ = match act {
                    0 => handle.ban("api", KEY, DAY / 4, "scrapes").await.unwrap(),
                    1 => handle.ban("api", KEY, 30 * DAY, "scrapes").await.unwrap(),
                    2 => handle.allow("api", KEY, 30 * DAY, "a partner").await.unwrap(),
                    _ => handle.unban("api", KEY).await.unwrap(),
                };
            }
            let mut passed = Duration::ZERO;
            let mut admitted = Vec::new();
            while passed < 7 * DAY {
                if status(&new()).await == 200 {
                    admitted.push(passed);
                }
                clock.advance(DAY / 8);
                passed += DAY / 8;
            }
            admitted
        };
        let expected = wait(&[]).await;
        assert!(expected[0] >= DAY, "{letter}: {expected:?}");
        for acts in [&[0][..], &[1, 3], &[2, 3], &[1, 2, 0], &[0, 1, 2, 3]] {
            assert_eq!(wait(acts).await, expected, "{letter}: {acts:?}");
        }
    }
    check(TokenBucket::new(per_day(3)), "bucket").await;
    check(SlidingWindow::new(per_day(3)), "sliding window").await;
    check(FixedWindow::new(per_day(3)), "fixed window").await;
}

/// One process, whose clock is a little behind, is still in a window, while another one is in the next. Each lets the
/// key owe ten units. After the earlier window, the key owes both debts.
#[tokio::test(start_paused = true)]
async fn debts_around_an_edge_add_up() {
    let day = u64::try_from(DAY.as_nanos()).unwrap();
    let midnight = NOW.as_nanos().next_multiple_of(day);
    let [before, after] = [midnight - 1_000_000, midnight + 1_000_000]
        .map(|nanos| ManualClock::starting_at(Timestamp::from_nanos(nanos)));
    let mut seen = [0; 2];
    for head_start in 0..60 {
        let service = Service::new(before.clone());
        service.create_table();
        let [first, second] =
            [&before, &after].map(|clock| standing::process(&service, clock, FixedWindow::new(per_day(3))));
        let owe = async |process: &RateLimitLayer, pause: u32| {
            for _ in 0..pause {
                tokio::task::yield_now().await;
            }
            let wait = standing::wait(process, 1, 10).await;
            // Until all tasks wait.
            tokio::time::sleep(Duration::from_secs(1)).await;
            wait == 0
        };
        let (_, both) = tokio::join!(owe(&first, 30), owe(&second, head_start));
        let third = standing::process(&service, &after, FixedWindow::new(per_day(3)));
        let left = standing::wait(&third, 1, 1).await;
        // The earlier window has room for three of the first ten units. Seventeen others take five windows. If the
        // second process was faster, the three count twice; and if it was too late, it was rejected.
        let [least, most] = if both { [4, 6] } else { [1, 2] };
        assert!(left > least * 86_400 && left <= most * 86_400, "{head_start}: {left}");
        seen[usize::from(both)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 30, "{seen:?}");
}
