//! Calendar windows in memory: contracts, threads, refunds and live changes.

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, Weekday};
use tower_sluice::limiter::{Ask, IntoLimiter, Shape};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::{Random, admitted_by_threads, check_algorithm, check_limiter, seed_of, seeds, take_quotas};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{admits, charge, check_invariants, decided};
use crate::heirs::inherit;

const DAY: Duration = Duration::from_secs(86_400);

fn berlin(window: CalendarWindow) -> CalendarWindow {
    window.zone("Europe/Berlin").unwrap()
}

fn windows(limit: u64) -> [CalendarWindow; 4] {
    [
        berlin(CalendarWindow::daily(limit)),
        CalendarWindow::weekly(limit).week_start(Weekday::Sunday).zone("America/New_York").unwrap(),
        berlin(CalendarWindow::monthly(limit)).anchor(31),
        CalendarWindow::monthly(limit).zone("Pacific/Apia").unwrap(),
    ]
}

#[test]
fn calendar_windows_keep_the_contract() {
    for limit in [1, 7, u64::from(u32::MAX), Quota::MAX_UNITS] {
        for (window, seed) in windows(limit).iter().zip(1..) {
            check_algorithm(window, seed_of(seed));
        }
    }
}

#[test]
fn the_store_decides_like_the_algorithm() {
    for (window, seed) in windows(5).iter().zip(1..) {
        check_limiter(window, seed_of(seed), |clock| {
            RateLimiter::new(window.clone(), MemoryStore::with_capacity(64).with_clock(clock))
        });
    }
}

/// All threads begin a window at once, without earlier state, and after the previous window.
#[test]
fn threads_are_admitted_exactly_the_limit() {
    for run in 0..100 {
        let window = berlin(CalendarWindow::monthly(500));
        for now in [1_700_000_000, 1_703_000_000] {
            let clock = ManualClock::starting_at(Timestamp::from_nanos(now * 1_000_000_000));
            let limiter = RateLimiter::new(window.clone(), MemoryStore::with_capacity(64).with_clock(clock));
            assert_eq!(admitted_by_threads(&limiter, 8, 1_000), 500, "run {run}");
        }
    }
}

fn limiter(window: CalendarWindow, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(window, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter()
}

fn ask(limiter: &dyn Limiter, cost: u64) -> Decision {
    decided(limiter.decide(&Ask::charge(&PartitionKey::from("key"), cost)))
}

/// Noon on 20 March 2026 in Berlin, nine days before clocks are set forward.
fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_774_004_400_000_000_000))
}

/// A key takes fewer bytes on 32 bits.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_key_takes_the_documented_bytes() {
    let limiter = RateLimiter::new(CalendarWindow::monthly(5), MemoryStore::with_capacity(10_000));
    assert_eq!(limiter.size_in_bytes() / 10_000, 52);
}

/// Even in the store, which keeps no key that has expired.
#[test]
fn the_very_last_window_admits_its_limit() {
    let clock = ManualClock::starting_at(Timestamp::MAX);
    let limiter = limiter(CalendarWindow::monthly(2), &clock);
    let admitted = (0..10).filter(|_| ask(&*limiter, 1).is_allowed()).count();
    assert_eq!(admitted, 2);
}

/// A window that the clock had reached still counts after the clock was set back.
#[test]
fn a_reversed_clock_admits_no_more() {
    let (clock, window) = (clock(), berlin(CalendarWindow::daily(3)));
    let limiter = RateLimiter::new(window, MemoryStore::with_capacity(64).with_clock(clock.clone()));
    let before = clock.now();
    assert_eq!(charge(&limiter, 1, 2).remaining(), 1);
    clock.advance(DAY);
    assert_eq!(charge(&limiter, 1, 3).remaining(), 0);
    clock.set(before);
    let rejected = charge(&limiter, 1, 1);
    assert_eq!(rejected.retry_after(), Some(DAY + DAY / 2));
    clock.advance(DAY);
    assert!(!admits(&limiter, 1));
    clock.advance(DAY / 2);
    assert!(admits(&limiter, 1));
}

#[test]
fn refunds_count_in_their_own_window() {
    let clock = clock();
    let limiter = limiter(berlin(CalendarWindow::daily(5)), &clock);
    let key = PartitionKey::from("key");
    let first = ask(&*limiter, 4);
    limiter.refund(&Ask::charge(&key, 3), first.receipt(), 3);
    assert_eq!(ask(&*limiter, 0).remaining(), 4);
    clock.advance(DAY);
    assert_eq!(ask(&*limiter, 2).remaining(), 3);
    limiter.refund(&Ask::charge(&key, 1), first.receipt(), 1);
    assert_eq!(ask(&*limiter, 0).remaining(), 3);
}

/// The window's use does not change its end.
#[test]
fn unused_keys_report_the_next_window() {
    let clock = clock();
    let limiter = limiter(berlin(CalendarWindow::monthly(5)), &clock);
    // Until 1 April: eleven and a half days, less the hour by which clocks are set forward.
    let left = DAY * 23 / 2 - Duration::from_secs(3_600);
    for cost in [0, 5, 1] {
        assert_eq!(ask(&*limiter, cost).reset_after(), left);
    }
    assert_eq!(limiter.describe().terms().unwrap().shape(), Some(Shape::CalendarWindow));
}

/// Units used in the present window count in the present window under the new limit, period, zone or anchor.
#[test]
fn a_live_change_keeps_the_windows_use() {
    let days = |days: u32| DAY * days - DAY / 2;
    let hour = Duration::from_secs(3_600);
    let months = || CalendarWindow::monthly(10);
    for (next, left) in [
        (berlin(CalendarWindow::monthly(8)), days(12) - hour),
        (months(), days(12)),
        (months().zone("America/New_York").unwrap(), days(12) + 5 * hour),
        (berlin(months()).anchor(22), days(2)),
        (berlin(CalendarWindow::weekly(10)), days(3)),
        (berlin(CalendarWindow::daily(10)), days(1)),
    ] {
        let clock = clock();
        let before = limiter(berlin(months()), &clock);
        let spent = ask(&*before, 7);
        let (name, limit) = (format!("{next:?}"), next.quota().limit());
        // In UTC, noon in Berlin is at eleven.
        let left = if name.contains("UTC") { left + hour } else { left };
        let heir = inherit(&limiter(next, &clock), &before).unwrap();
        let rejected = ask(&*heir, 5);
        assert_eq!(rejected.remaining(), limit - 7, "{name}");
        assert_eq!(rejected.retry_after(), Some(left), "{name}");
        // After a limit change, charges from before are refunded; after a calendar change, they are not.
        heir.refund(&Ask::charge(&PartitionKey::from("key"), 7), spent.receipt(), 7);
        let refunded = if limit == 8 { 7 } else { 0 };
        assert_eq!(ask(&*heir, 0).remaining(), limit - 7 + refunded, "{name}");
        clock.advance(left);
        assert_eq!(ask(&*heir, 0).remaining(), limit, "{name}");
    }
}

/// The third calendar equals the first, but its count does not include the first one's charge, so a refund would take
/// too much off it.
#[test]
fn two_anchor_changes_lose_a_refund() {
    let clock = clock();
    let first = limiter(berlin(CalendarWindow::monthly(10)), &clock);
    let spent = ask(&*first, 7);
    let anchored = berlin(CalendarWindow::monthly(10)).anchor(21);
    let second = inherit(&limiter(anchored, &clock), &first).unwrap();
    clock.advance(DAY);
    assert_eq!(ask(&*second, 2).remaining(), 8);
    let third = inherit(&limiter(berlin(CalendarWindow::monthly(10)), &clock), &second).unwrap();
    third.refund(&Ask::charge(&PartitionKey::from("key"), 7), spent.receipt(), 7);
    assert_eq!(ask(&*third, 0).remaining(), 8);
}

#[test]
fn calendar_windows_inherit_only_from_theirs() {
    let clock = clock();
    let fixed = FixedWindow::new(Quota::per_day(5));
    let fixed = RateLimiter::new(fixed, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter();
    let daily = limiter(CalendarWindow::daily(5), &clock);
    assert!(inherit(&daily, &fixed).is_none() && inherit(&fixed, &daily).is_none());
}

/// The model keeps a count per key and the end of its window, taken from the algorithm, through every kind of change.
#[test]
fn windows_agree_with_the_model() {
    let zones = ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia"];
    for seed in seeds(20) {
        let (mut random, clock) = (Random::new(seed), clock());
        let make = |random: &mut Random| {
            let limit = random.pick(&[1, 3, 5, 50]);
            let window = match random.below(3) {
                0 => CalendarWindow::daily(limit),
                1 => CalendarWindow::weekly(limit),
                _ => CalendarWindow::monthly(limit).anchor(random.pick(&[1, 17, 31])),
            };
            window.zone(random.pick(&zones)).unwrap()
        };
        let end = |window: &CalendarWindow, now| now + nanos(window.decide(None, Timestamp::from_nanos(now), 0).0);
        let mut window = make(&mut random);
        let mut limiter = limiter(window.clone(), &clock);
        let mut model = [(0, 0); 16];
        for step in 0..2_000 {
            let now = clock.now().as_nanos();
            for (used, ends) in &mut model {
                if *ends <= now {
                    (*used, *ends) = (0, end(&window, now));
                }
            }
            if random.below(40) == 0 {
                window = make(&mut random);
                limiter = inherit(&self::limiter(window.clone(), &clock), &limiter).unwrap();
                model.iter_mut().for_each(|(_, ends)| *ends = end(&window, now));
                continue;
            }
            let id = random.below(16);
            let (used, ends) = &mut model[usize::try_from(id).unwrap()];
            let decision = decided(limiter.decide(&Ask::charge(&PartitionKey::from(id), 1)));
            let limit = window.quota().limit();
            let wait = (*used >= limit).then(|| Duration::from_nanos(*ends - now));
            let context = format!("seed {seed}, step {step}, {window:?}");
            assert_eq!((decision.is_allowed(), decision.retry_after()), (wait.is_none(), wait), "{context}");
            *used += u64::from(wait.is_none());
            assert_eq!(decision.remaining(), limit.saturating_sub(*used), "{context}");
            let hours = random.pick(&[0, 0, 0, 1, 5, 30, 200]);
            clock.advance(Duration::from_secs(3_600 * hours + random.below(2)));
            if step % 50 == 0 {
                check_invariants(&*limiter, &clock);
            }
        }
    }
}

fn nanos(decision: Decision) -> u64 {
    u64::try_from(decision.reset_after().as_nanos()).unwrap()
}

/// A key's own quota uses the limiter's windows: another anchor moves the used units into today's window.
#[test]
fn another_anchor_keeps_own_quotas_use() {
    let clock = ManualClock::new();
    // 30 January 2026, 12:00 UTC.
    clock.set(Timestamp::from_nanos(1_769_774_400_000_000_000));
    let limiter = |window: CalendarWindow| {
        let limiter = RateLimiter::new(window, MemoryStore::with_capacity(64).with_clock(clock.clone())).into_limiter();
        assert!(take_quotas(&*limiter));
        limiter
    };
    let (key, own) = (PartitionKey::from("a"), CalendarWindow::monthly(9).quota());
    let ask = |limiter: &dyn Limiter, cost| decided(limiter.decide(&Ask::charge(&key, cost).under(Some(own))));
    let old = limiter(CalendarWindow::monthly(5));
    let charged = ask(&*old, 8);
    assert!(charged.is_allowed());
    let new = limiter(CalendarWindow::monthly(5).anchor(17));
    let inheritance = new.inherit(&*old).unwrap();
    let heir = inheritance.heir().map_or(new, Arc::clone);
    inheritance.finish();
    assert_eq!(ask(&*heir, 0).remaining(), 1);
    // The receipt names a window under the old anchor.
    heir.refund(&Ask::charge(&key, 8).under(Some(own)), charged.receipt(), 8);
    assert_eq!(ask(&*heir, 0).remaining(), 1);
    // 1 February: a new window under the old anchor, and not under the new one.
    clock.advance(DAY * 2);
    assert_eq!(ask(&*heir, 0).remaining(), 1);
    assert!(!ask(&*heir, 2).is_allowed());
    clock.advance(DAY * 17);
    assert_eq!(ask(&*heir, 0).remaining(), 9);
}

/// A receipt names a window under the first anchor, in which another charge counts after the second change.
#[test]
fn own_quotas_lose_this_refund_too() {
    let clock = clock();
    let with_quotas = |window| {
        let limiter = limiter(window, &clock);
        assert!(take_quotas(&*limiter));
        limiter
    };
    let plain = || berlin(CalendarWindow::monthly(10));
    let first = with_quotas(plain());
    let spent = ask(&*first, 7);
    let second = inherit(&with_quotas(plain().anchor(21)), &first).unwrap();
    clock.advance(DAY);
    assert_eq!(ask(&*second, 2).remaining(), 8);
    let third = inherit(&with_quotas(plain()), &second).unwrap();
    third.refund(&Ask::charge(&PartitionKey::from("key"), 7), spent.receipt(), 7);
    assert_eq!(ask(&*third, 0).remaining(), 8);
}
