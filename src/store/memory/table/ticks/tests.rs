//! Checks ticks and debts against exact arithmetic.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;

use super::clock::MAX_NANOS;
use super::*;
use crate::store::memory::table::word::PAYLOAD_BITS;
use crate::util::cases::cases;
use crate::values::counterexamples::{Counterexample, each};

const CENTURY: u64 = 100 * 366 * 86_400 * 1_000_000_000;

fn quota_of(limit: u64, nanos: u64, burst: u64) -> Quota {
    Quota::per(limit, Duration::from_nanos(nanos)).burst(burst)
}

fn at_nanos(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Draws numbers from one to `greatest`, in all magnitudes.
fn number(greatest: u64) -> impl Strategy<Value = u64> {
    (1..=greatest, 0..u64::BITS).prop_map(|(number, shift)| (number >> shift).max(1))
}

/// Draws buckets with common quotas, and with any.
fn bucket() -> impl Strategy<Value = TickBucket> {
    let common = select(vec![
        Quota::per_second(1),
        Quota::per_second(3),
        Quota::per_second(10).burst(20),
        Quota::per_second(10_000_000),
        Quota::per_second(3_999_999_999),
        Quota::per_minute(7).burst(u32::MAX.into()),
        Quota::per_day(1),
        Quota::per_day(1).burst(u32::MAX.into()),
    ]);
    let count = || number(u32::MAX.into());
    let any = (count(), number(CENTURY), count()).prop_map(|(limit, nanos, burst)| quota_of(limit, nanos, burst));
    prop_oneof![common, any].prop_filter_map("at most four units in a nanosecond", |quota| TickBucket::new(&quota))
}

proptest! {
    #![proptest_config(cases(if cfg!(miri) { 8 } else { 20_000 }))]

    /// A clock that began before `begun` counts from there on like a clock that began at that instant.
    #[test]
    fn readings_are_exact_quotients(
        bucket in bucket(),
        begun in number(MAX_NANOS),
        passed in number(MAX_NANOS / 2),
    ) {
        let clock = bucket.started_before(at_nanos(begun)).clock;
        let first = clock.read(at_nanos(begun));
        prop_assert_eq!(first.rest, 0);
        let now = clock.read(at_nanos(begun + passed));
        let exact = u128::from(passed) * u128::from(clock.ticks.get());let period = u128::from(clock.period);
        prop_assert_eq!(u128::from(now.count - first.count), exact / period);
        prop_assert_eq!(u128::from(now.rest), exact % period);
        prop_assert_eq!(now.behind, 0);
    }

    /// A wait is the least time after which its ticks have passed, also counted from a later tick than the clock shows.
    #[test]
    fn waits_are_exact(
        bucket in bucket(),
        nanos in number(MAX_NANOS),
        part in any::<u64>(),
        behind in select(vec![0, 1, 1_000, 1 << EPOCH_BITS]),
    ) {
        let clock = bucket.clock;
        let tick = clock.read(at_nanos(nanos));let ticks = 1 + part % bucket.capacity();
        let wait = clock.span(tick.moved_to(tick.count + behind), ticks).ceil().as_nanos();
        let passed = |wait: u128| {
            let then = u128::from(nanos) + wait;
            then * u128::from(clock.ticks.get()) / u128::from(clock.period) - u128::from(tick.count)
        };
        let due = u128::from(ticks + behind);
        prop_assert!(passed(wait) >= due, "{} ticks in {} ns", due, wait);
        prop_assert!(wait == 0 || passed(wait - 1) < due, "{} ticks in less than {} ns", due, wait);
    }
}

#[test]
fn a_clock_before_its_start_stands_still() {
    let clock = TickBucket::new(&Quota::per_second(10)).unwrap().started_before(at_nanos(MAX_NANOS)).clock;
    assert!(clock.read(at_nanos(MAX_NANOS)).count > 0);
    for nanos in [0, 1, MAX_NANOS / 4] {
        let tick = clock.read(at_nanos(nanos));
        assert_eq!((tick.count, tick.rest, tick.behind), (0, 0, 0), "at {nanos}");
    }
}

#[test]
fn buckets_beyond_32_bits_have_no_ticks() {
    assert!(TickBucket::new(&quota_of(1, CENTURY, MOST_UNITS)).is_some());
    assert!(TickBucket::new(&quota_of(1, CENTURY, MOST_UNITS + 1)).is_none());
    assert!(TickBucket::new(&quota_of(MOST_UNITS, CENTURY, 1)).is_some());
    assert!(TickBucket::new(&quota_of(MOST_UNITS + 1, CENTURY, 1)).is_none());
}

#[test]
fn four_units_per_nanosecond_have_no_ticks() {
    assert!(TickBucket::new(&quota_of(4, 1, 1)).is_none());
    assert!(TickBucket::new(&quota_of(3, 1, 1)).is_some());
    assert!(TickBucket::new(&quota_of(MOST_UNITS, 1, 1)).is_none());
}

/// Checks periods that share no factor with the ticks, at the instants where a tick begins, and at the clock's end.
#[test]
fn ticks_are_exact_at_their_edges() {
    let quotas = [
        quota_of(1, CENTURY - 1, 1),
        quota_of(3, CENTURY - 1, MOST_UNITS),
        quota_of(MOST_UNITS, CENTURY - 1, 1),
        quota_of(MOST_UNITS, CENTURY, MOST_UNITS),
        quota_of(1, 1, 1),
        quota_of(3, 1, MOST_UNITS),
        quota_of(7, 2, 3),
        quota_of(MOST_UNITS, (1 << 30) + 1, 1 << 20),
        quota_of(1 << 31, 999_999_937, 1),
    ];
    for quota in quotas {
        let bucket = TickBucket::new(&quota).unwrap();
        assert!(bucket.capacity() <= 1 << DEBT_BITS, "{quota:?}");
        let ticks = u128::from(bucket.clock.ticks.get());
        let period = u128::from(bucket.clock.period);
        assert!(ticks < 4 * period && period < 1 << 62, "{quota:?}");
        let last = u128::from(MAX_NANOS) * ticks / period;
        for part in 0..1_000 {
            let begins = (last * part / 999 * period).div_ceil(ticks);
            for nanos in [begins.saturating_sub(1), begins, begins + 1] {
                let exact = nanos.min(u128::from(MAX_NANOS)) * ticks;
                let tick = bucket.clock.tick(at_nanos(u64::try_from(nanos).unwrap()));
                assert_eq!(u128::from(tick.count), exact / period, "{quota:?} at {nanos}");
                assert_eq!(u128::from(tick.rest), exact % period, "{quota:?} at {nanos}");
                assert!(tick.count < 1 << 63);
            }
        }
        assert_eq!(bucket.clock.tick(Timestamp::MAX).count, bucket.clock.tick(Timestamp::from_nanos(MAX_NANOS)).count);
    }
}

#[test]
fn debts_survive_the_wrap() {
    /// The number of ticks after which the time in a word repeats.
    const WRAP: u64 = 1 << PAYLOAD_BITS;
    /// The number of ticks after payment at which a word looks like a debt again.
    const LOOKS_OWED: u64 = WRAP - FARTHEST_AHEAD;
    let bucket = TickBucket::new(&Quota::per_second(1)).unwrap();
    let tag = Tag::from_hash(0x0abc_def0);
    for now in [0, 1, 5, WRAP - 4, WRAP - 1, WRAP, 1 << 40, (1 << 63) - 7] {
        for debt in [0, 1, 1_000, 1 << DEBT_BITS, FARTHEST_AHEAD] {
            let word = Word::new(tag, bucket.stamp(debt, Tick::from_count(now)));
            assert_eq!(bucket.owed(word, Tick::from_count(now)), debt, "{debt} at {now}");
            assert!(word.is(tag) && !word.is_empty());
            for later in [0, 1, 1 << 30, LOOKS_OWED - 1] {
                let then = Tick::from_count(now + debt + later);
                assert_eq!(bucket.owed(word, then), 0, "{debt} at {now}, {later} after it was paid");
            }
            assert_eq!(bucket.owed(word, Tick::from_count(now + debt + LOOKS_OWED)), FARTHEST_AHEAD, "{debt} at {now}");
        }
    }
    assert_eq!(LOOKS_OWED, 9 << EPOCH_BITS, "as the head of `table/mod.rs` says");
    assert_eq!(bucket.owed(Word::EMPTY, Tick::from_count(u64::MAX)), 0);
    assert_eq!(bucket.owed(Word::EMPTY, Tick::from_count(WRAP - 1)), 0);
}

/// No debt that a word can hold, and no cost, makes a ruling overflow or free more than there is.
#[test]
fn rulings_at_the_edges() {
    for burst in [1, 2, 3, 20, MOST_UNITS - 1, MOST_UNITS] {
        let bucket = TickBucket::new(&Quota::per_hour(7).burst(burst)).unwrap();
        let full = bucket.capacity();
        assert_eq!(full, burst << bucket.shift);
        for debt in [0, 1, full - 1, full, full + 1, FARTHEST_AHEAD] {
            for cost in [0, 1, 2, burst - 1, burst, burst + 1, u32::MAX.into(), Quota::MAX_UNITS, u64::MAX] {
                let after = u128::from(debt) + (u128::from(cost) << bucket.shift);
                let expected = if cost == 0 {
                    Ruling::Peek { debt }
                } else if cost > burst {
                    Ruling::Never { debt }
                } else if after > u128::from(full) {
                    Ruling::Reject { debt }
                } else {
                    Ruling::Admit { debt: u64::try_from(after).unwrap() }
                };
                let context = format!("burst {burst}, debt {debt}, cost {cost}");
                let ruling = bucket.judge(debt, cost, Tick::from_count(5));
                assert_eq!(ruling, expected, "{context}");

                let (owed, passes) = match expected {
                    Ruling::Admit { debt } | Ruling::Peek { debt } => (debt, true),
                    Ruling::Reject { debt } | Ruling::Never { debt } => (debt, false),
                    Ruling::Full { .. } => unreachable!("a table that is full says so, and no rule"),
                };
                let decision = bucket.decision(ruling, cost, Tick::from_count(5));
                assert_eq!(decision.is_allowed(), passes, "{context}");
                let free = full.saturating_sub(owed) >> bucket.shift;
                assert_eq!(decision.remaining(), free, "{context}");
            }
        }
    }
}

/// Returns a counterexample's clock, and its reading.
fn clock_of(case: &Counterexample) -> (TickClock, Tick) {
    let clock = TickClock::new(case.number("limit"), case.number("shift"), case.number("period")).unwrap();
    (clock, clock.tick(at_nanos(case.number("now"))))
}

#[test]
fn readings_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/clock.rs: TickClock::tick", |case| {
        let (_, tick) = clock_of(case);
        [("count", tick.count.into()), ("rest", tick.rest.into())]
    });
}

#[test]
fn waits_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/clock.rs: TickClock::span", |case| {
        let (clock, tick) = clock_of(case);
        [("wait", clock.span(tick, case.number("ticks_later")).ceil().as_nanos())]
    });
}

#[test]
fn rulings_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/mod.rs: TickBucket::judge", |case| {
        let quota = quota_of(case.number("limit"), case.number("period"), case.number("burst"));
        let bucket = TickBucket::with_shift(&quota, case.number("shift")).unwrap();
        let now = bucket.read(at_nanos(case.number("now")));
        let debt = bucket.owed(Word::new(Tag::from_hash(7), case.number("tat")), now);
        match bucket.judge(debt, case.number("cost"), now) {
            Ruling::Admit { debt } => [("admitted", 1), ("tat", bucket.stamp(debt, now).into())],
            _ => [("admitted", 0), ("tat", 0)],
        }
    });
}

#[test]
fn tick_conversions_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/mod.rs: TickBucket::ticks_of", |case| {
        let bucket = TickBucket::with_shift(&Quota::per_day(1), case.number("shift")).unwrap();
        [("ticks", bucket.ticks_of(case.number("debt"), case.number("price")).into())]
    });
}

#[test]
fn words_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/mod.rs: TickBucket::owed", |case| {
        let bucket = TickBucket::new(&Quota::per_day(1)).unwrap();
        let now = Tick::from_count(case.number("at"));
        [("owed", bucket.owed(Word::new(Tag::from_hash(7), case.number("stamp")), now).into())]
    });
}

#[test]
fn refunds_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/mod.rs: TickBucket::refunded", |case| {
        let bucket = TickBucket::with_shift(&Quota::per_day(1), case.number("shift")).unwrap();
        let debt = case.number("debt");
        let now = Tick::from_count(case.number("now"));
        [("debt", bucket.refunded(debt, case.number("cost"), case.number("paid_at"), now).into())]
    });
}

#[test]
fn quota_changes_withstand_the_counterexamples() {
    each("src/store/memory/table/ticks/conversion.rs: Conversion::debt", |case| {
        let quota = quota_of(case.number("limit"), case.number("period"), 1);
        let [from, to] =
            ["shift", "new_shift"].map(|shift| TickBucket::with_shift(&quota, case.number(shift)).unwrap());
        let conversion = to.conversion(&from, from.read(at_nanos(case.number("now"))));
        [("debt", conversion.debt(case.number("debt")).into())]
    });
}
