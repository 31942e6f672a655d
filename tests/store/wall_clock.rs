//! Windows that the wall clock names, while that clock jumps beside the monotonic one: after a suspend, by a late NTP,
//! and back.

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter, Mode};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::{Random, seeds};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::heirs::inherit;
use crate::support::effort::rounds;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const LIMIT: u64 = 5;
/// More than words hold.
const LARGE: u64 = 1 << 40;

/// 2026-11-29, 10:00 UTC.
const MORNING: Timestamp = Timestamp::from_nanos(1_795_946_400_000_000_000);

type Shared = Arc<dyn Limiter>;

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Shared {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock.clone())).into_limiter()
}

/// A daily limit for each table form, with the cost that is a fifth of it.
fn daily(clock: &ManualClock) -> [(&'static str, Shared, u64, Option<Quota>); 5] {
    let large = FixedWindow::new(Quota::per_day(LIMIT * LARGE));
    let fixed = || FixedWindow::new(Quota::per_day(LIMIT));
    [
        ("words", limiter(fixed(), clock), 1, None),
        ("states", limiter(large, clock), LARGE, None),
        ("own quotas", limiter(fixed(), clock), LARGE, Some(Quota::per_day(LIMIT * LARGE))),
        ("calendar", limiter(CalendarWindow::daily(LIMIT), clock), 1, None),
        ("own calendars", limiter(CalendarWindow::monthly(1), clock), 1, None),
    ]
}

/// A question, under the key's own window or quota.
fn ask(subject: &(&str, Shared, u64, Option<Quota>), key: &str) -> Decision {
    ask_in(subject, key, Mode::Charge)
}

fn ask_in(subject: &(&str, Shared, u64, Option<Quota>), key: &str, mode: Mode) -> Decision {
    let (name, limiter, cost, quota) = subject;
    let key = PartitionKey::from(key);
    let window = CalendarWindow::daily(LIMIT);
    let ask = Ask::charge(&key, *cost).under(*quota).to(mode);
    let ask = if *name == "own calendars" { ask.in_window(Some(&window)) } else { ask };
    limiter.decide(&ask).at_once().unwrap()
}

fn admitted(subject: &(&str, Shared, u64, Option<Quota>), key: &str) -> u64 {
    (0..20).map(|_| u64::from(ask(subject, key).is_allowed())).sum()
}

fn step(clock: &ManualClock, forward: bool, span: Duration) {
    let wall = clock.wall();
    let nanos = u64::try_from(span.as_nanos()).unwrap();
    clock.set_wall(if forward { wall.saturating_add(span) } else { Timestamp::from_nanos(wall.as_nanos() - nanos) });
}

/// A laptop sleeps for 36 hours: its clock stands still, and the wall clock goes on.
#[test]
fn a_day_ends_during_a_suspend() {
    let clock = ManualClock::starting_at(MORNING);
    for subject in daily(&clock) {
        clock.set_wall(MORNING);
        assert_eq!(admitted(&subject, "a"), LIMIT, "{}", subject.0);
        step(&clock, true, 36 * HOUR);
        assert_eq!(admitted(&subject, "a"), LIMIT, "{}: on the next day but one", subject.0);
        // It is 22:00.
        assert_eq!(ask(&subject, "a").retry_after(), Some(2 * HOUR), "{}", subject.0);
    }
}

/// A process starts 40 days behind, before the wall clock is corrected.
#[test]
fn a_month_ends_when_the_calendar_says() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(MORNING.as_nanos() - 40 * 86_400 * 1_000_000_000));
    let monthly = limiter(CalendarWindow::monthly(1), &clock);
    let key = PartitionKey::from("a");
    let ask = || monthly.decide(&Ask::charge(&key, 1)).at_once().unwrap();
    assert!(ask().is_allowed());
    clock.set_wall(MORNING);
    assert!(ask().is_allowed(), "another month");
    assert_eq!(ask().retry_after(), Some(38 * HOUR));
}

/// The wall clock passes midnight, is set back before it, and passes it again, by a tenth of a second.
#[test]
fn a_midnight_step_repeats_no_day() {
    let clock = ManualClock::starting_at(MORNING);
    for subject in daily(&clock) {
        let before = MORNING.saturating_add(14 * HOUR - Duration::from_millis(50));
        clock.set_wall(before);
        assert_eq!(admitted(&subject, "a"), LIMIT, "{}", subject.0);
        let mut second_day = 0;
        for _ in 0..3 {
            step(&clock, true, Duration::from_millis(100));
            second_day += admitted(&subject, "a");
            step(&clock, false, Duration::from_millis(100));
            second_day += admitted(&subject, "a");
        }
        assert_eq!(second_day, LIMIT, "{}", subject.0);
        let wait = DAY + Duration::from_millis(50);
        assert_eq!(ask(&subject, "a").retry_after(), Some(wait), "{}: to the end of the second day", subject.0);
    }
}

/// A clock that was far ahead is corrected: keys are not locked for the time by which it was wrong.
#[test]
fn a_far_step_locks_two_windows() {
    for days in [2, 40, 4_000] {
        let clock = ManualClock::starting_at(MORNING);
        for subject in daily(&clock) {
            clock.set_wall(MORNING.saturating_add(days * DAY));
            assert_eq!(admitted(&subject, "a"), LIMIT, "{}", subject.0);
            clock.set_wall(MORNING);
            // A policy that is asked after another one is peeked at first, and only then charged.
            let looked = ask_in(&subject, "a", Mode::Peek);
            assert!(looked.retry_after().is_some_and(|wait| wait <= 38 * HOUR), "{}: {looked:?}", subject.0);
            let rejected = ask(&subject, "a");
            assert!(!rejected.is_allowed(), "{}: {days} days back", subject.0);
            let wait = rejected.retry_after().expect("a wait that helps");
            assert!(wait <= 38 * HOUR, "{}: {days} days back: {wait:?}", subject.0);
            step(&clock, true, wait - Duration::from_nanos(1));
            assert!(!ask(&subject, "a").is_allowed(), "{}: {days} days back", subject.0);
            step(&clock, true, Duration::from_nanos(1));
            assert_eq!(admitted(&subject, "a"), LIMIT, "{}: {days} days back", subject.0);
        }
    }
}

/// Each limit passes once for each time that the wall clock goes forward into another day, and each wait is true.
#[test]
fn jumps_admit_only_their_days() {
    for seed in seeds(rounds(100, 2_000)) {
        let clock = ManualClock::starting_at(MORNING);
        for subject in daily(&clock) {
            let mut random = Random::new(seed);
            clock.set_wall(MORNING);
            let (mut passed, mut days) = (admitted(&subject, "a"), 1);
            for _ in 0..40 {
                let far = [1, 1, 1, 30, 3_000][usize::try_from(random.below(5)).unwrap()];
                let span = Duration::from_secs(random.below(far * 86_400));
                let before = clock.wall();
                let forward = random.below(2) == 0;
                match random.below(3) {
                    0 => clock.advance(span),
                    _ if !forward && span.as_nanos() > u128::from(before.as_nanos()) / 2 => {}
                    _ => step(&clock, forward, span),
                }
                let day = |at: Timestamp| at.as_nanos() / 86_400_000_000_000;
                days += u64::from(day(clock.wall()) > day(before));
                passed += admitted(&subject, "a");
                assert!(passed <= LIMIT * days, "seed {seed}: {}: {passed} in {days} days", subject.0);
                let wait = ask(&subject, "a").retry_after().expect("it is used up");
                // A table notes the latest time a sixteenth of a window late, and stays a window behind it at most.
                assert!(wait <= 2 * DAY + DAY / 16, "seed {seed}: {}: {wait:?}", subject.0);
            }
            let wait = ask(&subject, "a").retry_after().expect("it is used up");
            clock.advance(wait - Duration::from_nanos(1));
            assert!(!ask(&subject, "a").is_allowed(), "seed {seed}: {}", subject.0);
            clock.advance(Duration::from_nanos(1));
            assert_eq!(admitted(&subject, "a"), LIMIT, "seed {seed}: {}", subject.0);
        }
    }
}

/// Buckets, sliding windows and staggered windows do not follow the wall clock.
#[test]
fn other_limits_ignore_the_wall_clock() {
    let clock = ManualClock::starting_at(MORNING);
    let quota = Quota::per_day(LIMIT);
    let limiters = [
        limiter(TokenBucket::new(quota), &clock),
        limiter(SlidingWindow::new(quota), &clock),
        limiter(FixedWindow::new(quota).staggered(), &clock),
    ];
    let key = PartitionKey::from("a");
    for limiter in limiters {
        let ask = || limiter.decide(&Ask::charge(&key, 1)).at_once().unwrap();
        clock.set_wall(MORNING);
        assert!((0..LIMIT).all(|_| ask().is_allowed()));
        let wait = ask().retry_after();
        for wall in [MORNING.saturating_add(400 * DAY), Timestamp::from_nanos(7)] {
            clock.set_wall(wall);
            assert_eq!(ask().retry_after(), wait);
        }
    }
}

/// A live change after a step back keeps the used units in the windows by the clock as it is.
#[test]
fn a_skewed_tables_heirs_follow_the_clock() {
    let clock = ManualClock::starting_at(MORNING);
    let key = PartitionKey::from("a");
    let count = |limiter: &Shared| {
        (0..20).filter(|_| limiter.decide(&Ask::charge(&key, 1)).at_once().unwrap().is_allowed()).count() as u64
    };
    let before = limiter(FixedWindow::new(Quota::per_day(LIMIT)), &clock);
    clock.set_wall(MORNING.saturating_add(40 * DAY));
    assert_eq!(count(&before), LIMIT);
    clock.set_wall(MORNING);
    assert_eq!(count(&before), 0);
    for quota in [Quota::per_day(2 * LIMIT), Quota::per_hour(2 * LIMIT), Quota::per_day(2 * LIMIT * LARGE)] {
        let heir = inherit(&limiter(FixedWindow::new(quota), &clock), &before).unwrap();
        if quota.limit() < LARGE {
            assert_eq!(count(&heir), LIMIT, "{quota:?}");
        } else {
            let peek = heir.decide(&Ask::peek(&key, quota.limit() - LIMIT)).at_once().unwrap();
            assert!(peek.is_allowed() && peek.remaining() == 0, "{peek:?}");
        }
        clock.set_wall(MORNING.saturating_add(2 * DAY));
        assert!(heir.decide(&Ask::charge(&key, quota.limit())).at_once().unwrap().is_allowed(), "{quota:?}");
        clock.set_wall(MORNING);
    }
}
