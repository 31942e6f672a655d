//! Properties of every memory table kind: the lock-free ones for buckets and windows, and those behind locks, for
//! calendar windows and for keys with their own quotas.

use std::sync::Arc;

use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter, Mode, Receipt};
use tower_sluice::store::{MemoryStore, TableStats};
use tower_sluice::testing::take_quotas;
use tower_sluice::time::ManualClock;
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{check_invariants, clock, decided};
use crate::heirs::inherit;

const LIMIT: u64 = 10;

/// Makes a limiter of one kind, given its clock and its capacity.
type Kind = fn(&ManualClock, usize) -> Arc<dyn Limiter>;

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock, keys: usize) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(keys).with_clock(clock.clone())).into_limiter()
}

fn with_quotas(limiter: Arc<dyn Limiter>) -> Arc<dyn Limiter> {
    assert!(take_quotas(&*limiter));
    limiter
}

/// Nothing is paid, and no window ends, within a test's seconds.
fn quota() -> Quota {
    Quota::per_day(LIMIT)
}

const KINDS: [(&str, Kind); 7] = [
    ("bucket", |clock, keys| limiter(TokenBucket::new(quota()), clock, keys)),
    ("fixed window", |clock, keys| limiter(FixedWindow::new(quota()), clock, keys)),
    ("sliding window", |clock, keys| limiter(SlidingWindow::new(quota()), clock, keys)),
    ("staggered window", |clock, keys| limiter(FixedWindow::new(quota()).staggered(), clock, keys)),
    ("day", |clock, keys| limiter(CalendarWindow::daily(LIMIT), clock, keys)),
    ("bucket with quotas", |clock, keys| with_quotas(limiter(TokenBucket::new(quota()), clock, keys))),
    ("window with quotas", |clock, keys| with_quotas(limiter(SlidingWindow::new(quota()), clock, keys))),
];

fn ask(limiter: &dyn Limiter, ask: &Ask<'_>) -> Decision {
    decided(limiter.decide(ask))
}

fn charge(limiter: &dyn Limiter, key: u64, cost: u64) -> Decision {
    ask(limiter, &Ask::charge(&PartitionKey::from(key), cost))
}

fn remaining(limiter: &dyn Limiter, key: u64) -> u64 {
    ask(limiter, &Ask::peek(&PartitionKey::from(key), 0)).remaining()
}

fn refund(limiter: &dyn Limiter, key: u64, receipt: Receipt, cost: u64) {
    limiter.refund(&Ask::charge(&PartitionKey::from(key), cost), receipt, cost);
}

fn reset(limiter: &dyn Limiter, key: u64) {
    let _ = ask(limiter, &Ask::reset(&PartitionKey::from(key)));
}

#[test]
fn a_reset_clears_only_its_key() {
    for (name, kind) in KINDS {
        let limiter = kind(&clock(), 2_000);
        for key in 0..200 {
            assert!(charge(&*limiter, key, 3).is_allowed(), "{name}");
        }
        reset(&*limiter, 7);
        for key in 0..200 {
            let left = if key == 7 { LIMIT } else { LIMIT - 3 };
            assert_eq!(remaining(&*limiter, key), left, "{name}, key {key}");
        }
    }
}

/// One in 256 keys shares its reset count with another.
#[test]
fn a_reset_spares_most_refunds() {
    for (name, kind) in KINDS {
        let limiter = kind(&clock(), 2_000);
        let charges: Vec<_> = (0..200).map(|key| (key, charge(&*limiter, key, 1).receipt())).collect();
        reset(&*limiter, 1_000);
        charges.into_iter().for_each(|(key, receipt)| refund(&*limiter, key, receipt, 1));
        let refunded = (0..200).filter(|key| remaining(&*limiter, *key) == LIMIT).count();
        assert!(refunded > 180, "{name}: {refunded} of 200");
    }
}

#[test]
fn resets_before_a_change_prevent_refunds() {
    for (name, kind) in KINDS {
        let clock = clock();
        let before = kind(&clock, 2_000);
        let early = charge(&*before, 7, 4).receipt();
        reset(&*before, 7);
        assert!(charge(&*before, 7, 6).is_allowed(), "{name}");
        let after = inherit(&kind(&clock, 2_000), &before).unwrap();
        refund(&*after, 7, early, 4);
        assert_eq!(remaining(&*after, 7), LIMIT - 6, "{name}");
        check_invariants(&*after, &clock);
    }
}

#[test]
fn charges_before_a_change_are_refunded() {
    for (name, kind) in KINDS {
        let clock = clock();
        let before = kind(&clock, 2_000);
        let charged = [1, 4].map(|cost| charge(&*before, 7, cost).receipt());
        let after = inherit(&kind(&clock, 2_000), &before).unwrap();
        refund(&*after, 7, charged[1], 4);
        assert_eq!(remaining(&*after, 7), LIMIT - 1, "{name}");
        check_invariants(&*after, &clock);
    }
}

/// The keys fill several table pages, and each page is copied by itself.
#[test]
fn an_heir_keeps_twenty_thousand_keys() {
    for (name, kind) in KINDS {
        let clock = clock();
        let before = kind(&clock, 40_000);
        let used = |key: u64| 1 + (key % 9);
        for key in 0..20_000 {
            assert!(charge(&*before, key, used(key)).is_allowed(), "{name}");
        }
        let heir = inherit(&kind(&clock, 40_000), &before).unwrap();
        let wrong = (0..20_000).filter(|key| remaining(&*heir, *key) != LIMIT - used(*key)).count();
        // A key may share another one's slot, with a probability of 16 / 2^28.
        assert!(wrong <= 2, "{name}: {wrong} keys");
        let _ = charge(&*heir, 0, 1);
        check_invariants(&*heir, &clock);
    }
}

/// Layers may share a limiter, and each of them hands it on. If it inherits from another limiter, it takes that one's
/// used units.
#[test]
fn an_heir_inherits_from_one_limiter() {
    for (name, kind) in KINDS {
        let clock = clock();
        let [before, other] = [(); 2].map(|()| {
            let limiter = kind(&clock, 2_000);
            assert!(charge(&*limiter, 7, 4).is_allowed(), "{name}");
            limiter
        });
        let heir = inherit(&kind(&clock, 2_000), &before).unwrap();
        assert_eq!(charge(&*heir, 7, 1).remaining(), LIMIT - 5, "{name}");
        assert!(inherit(&heir, &before).is_some(), "{name}");
        assert_eq!(remaining(&*heir, 7), LIMIT - 5, "{name}");
        let third = inherit(&heir, &other).unwrap();
        assert_eq!(remaining(&*third, 7), LIMIT - 4, "{name}: what was used of the other limiter");
    }
}

/// A high limit's counts take more bits than a low limit's, and the new limit must find the earlier counts.
#[test]
fn counts_survive_lowered_and_raised_limits() {
    const MANY: u64 = 100_000;
    let of = |limit, clock: &ManualClock, has_quotas: bool| {
        let limiter = limiter(SlidingWindow::new(Quota::per_day(limit)), clock, 100);
        if has_quotas { with_quotas(limiter) } else { limiter }
    };
    // Under the limiter's quota, under keys' own quotas, and under a key's quota that is greater than the limiter's.
    for (limit, has_quotas) in [(MANY, false), (MANY, true), (10, true)] {
        let clock = clock();
        let mut present = of(limit, &clock, has_quotas);
        let own = has_quotas.then_some(Quota::per_day(MANY));
        let key = PartitionKey::from(7_u64);
        assert!(ask(&*present, &Ask::charge(&key, MANY).under(own)).is_allowed());
        if limit == 10 {
            // Its own quota is lowered as well.
            let few = Some(Quota::per_day(10));
            assert_eq!(ask(&*present, &Ask::charge(&key, 0).under(few)).remaining(), 0);
        }
        for limit in [10, 5, MANY] {
            present = inherit(&of(limit, &clock, false), &present).unwrap();
            check_invariants(&*present, &clock);
        }
        assert_eq!(remaining(&*present, 7), 0, "from a limit of {limit}, with quotas: {has_quotas}");
    }
}

/// A request from before the change is answered after it, under a quota that is greater than any before. The part of
/// its count that fits is more than the limit.
#[test]
fn a_growing_count_is_cut_to_fit() {
    for of in [
        |quota, clock: &_| limiter(SlidingWindow::new(quota), clock, 100),
        |quota, clock: &_| limiter(FixedWindow::new(quota), clock, 100),
    ] {
        let (clock, key) = (clock(), PartitionKey::from(7_u64));
        let before = with_quotas(of(quota(), &clock));
        assert!(charge(&*before, 1, 1).is_allowed());
        let heir = of(quota(), &clock);
        let inheritance = heir.inherit(&*before).unwrap();
        assert!(ask(&*before, &Ask::charge(&key, 90_000).under(Some(Quota::per_day(100_000)))).is_allowed());
        inheritance.finish();
        assert_eq!([remaining(&*heir, 7), remaining(&*heir, 1)], [0, LIMIT - 1]);
        check_invariants(&*heir, &clock);
    }
}

#[test]
fn memory_limiters_answer_all_questions() {
    for (name, kind) in KINDS {
        let description = kind(&clock(), 16).describe();
        assert!(
            [Mode::Peek, Mode::Shadow, Mode::UpTo, Mode::Reset].iter().all(|mode| description.answers(*mode)),
            "{name}"
        );
    }
}

/// In tables with several pages that are counted whole. In larger tables, only some pages are counted.
#[test]
fn the_statistics_count_the_keys() {
    for (name, kind) in KINDS {
        let limiter = kind(&clock(), 2_000);
        for key in 0..1_200 {
            assert!(charge(&*limiter, key, 1).is_allowed(), "{name}");
        }
        let TableStats { live_keys: live, evicted_live, turned_away, .. } = limiter.stats().table.unwrap();
        assert!((1_198..=1_200).contains(&live), "{name}: {live} keys");
        assert_eq!([evicted_live, turned_away], [0; 2], "{name}");
    }
}
