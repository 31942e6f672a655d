//! Ticks and debts against exact arithmetic.

use std::time::Duration;

use super::clock::MAX_NANOS;
use super::*;

#[test]
fn ticks_are_exact_quotients_and_waits_their_inverse() {
    let odd = Quota::new(7, Duration::from_nanos(1_000_003)).unwrap();
    let quotas = [
        Quota::per_second(1),
        Quota::per_second(3),
        Quota::per_second(10).burst(20),
        Quota::per_second(10_000_000),
        Quota::per_second(3_999_999_999),
        Quota::per_minute(7).burst(u32::MAX),
        Quota::per_day(1),
        Quota::per_day(1).burst(u32::MAX),
        odd,
        Quota::new(1, Duration::from_secs(100 * 365 * 86_400)).unwrap(),
    ];
    for quota in quotas {
        let bucket = TickBucket::new(&quota).unwrap();
        assert!(bucket.capacity() <= 1 << DEBT_BITS, "{quota:?}");
        let mut seed = u64::from(quota.limit());
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 29
        };
        for _ in 0..20_000 {
            let nanos = random() >> (random() % 60 + 3);
            let tick = bucket.clock.tick(Timestamp::from_nanos(nanos));
            let exact = u128::from(nanos) * u128::from(bucket.clock.ticks.get());
            let (count, rest) = (exact / u128::from(bucket.clock.period), exact % u128::from(bucket.clock.period));
            assert_eq!((u128::from(tick.count), u128::from(tick.rest)), (count, rest), "{quota:?} at {nanos}");

            let ticks = 1 + random() % bucket.capacity();
            let wait = bucket.clock.span(tick, ticks).ceil().as_nanos();
            let passed = |wait: u128| {
                let then = u128::from(nanos) + wait;
                then * u128::from(bucket.clock.ticks.get()) / u128::from(bucket.clock.period) - count
            };
            assert!(passed(wait) >= u128::from(ticks), "{quota:?} at {nanos}: {ticks} ticks in {wait} ns");
            assert!(wait == 0 || passed(wait - 1) < u128::from(ticks), "{quota:?} at {nanos}");
        }
    }
    assert!(TickBucket::new(&Quota::new(u32::MAX, Duration::from_nanos(1)).unwrap()).is_none());
}

/// Periods that share no factor with the ticks, at the instants where a tick begins, and at the clock's end.
#[test]
fn ticks_are_exact_where_they_begin_and_where_the_clock_ends() {
    let of = |limit, nanos, burst| Quota::new(limit, Duration::from_nanos(nanos)).unwrap().burst(burst);
    let century = 100 * 366 * 86_400 * 1_000_000_000;
    let quotas = [
        of(1, century - 1, 1),
        of(3, century - 1, u32::MAX),
        of(u32::MAX, century - 1, 1),
        of(u32::MAX, century, u32::MAX),
        of(1, 1, 1),
        of(3, 1, u32::MAX),
        of(7, 2, 3),
        of(u32::MAX, (1 << 30) + 1, 1 << 20),
        of(1 << 31, 999_999_937, 1),
    ];
    for quota in quotas {
        let bucket = TickBucket::new(&quota).unwrap();
        let (ticks, period) = (u128::from(bucket.clock.ticks.get()), u128::from(bucket.clock.period));
        assert!(ticks < 4 * period && period < 1 << 62, "{quota:?}");
        let last = u128::from(MAX_NANOS) * ticks / period;
        for part in 0..1_000 {
            let begins = (last * part / 999 * period).div_ceil(ticks);
            for nanos in [begins.saturating_sub(1), begins, begins + 1] {
                let exact = nanos.min(u128::from(MAX_NANOS)) * ticks;
                let tick = bucket.clock.tick(Timestamp::from_nanos(u64::try_from(nanos).unwrap()));
                assert_eq!(u128::from(tick.count), exact / period, "{quota:?} at {nanos}");
                assert_eq!(u128::from(tick.rest), exact % period, "{quota:?} at {nanos}");
                assert!(tick.count < 1 << 63);
            }
        }
        assert_eq!(bucket.clock.tick(Timestamp::MAX).count, bucket.clock.last().count);
    }
}

#[test]
fn debts_read_right_across_the_wrap() {
    let (bucket, tag) = (TickBucket::new(&Quota::per_second(1)).unwrap(), Tag::from_hash(0x0abc_def0));
    let wrap = 1 << (EPOCH_BITS + 4);
    for now in [0, 1, 5, wrap - 4, wrap - 1, wrap, 1 << 40, (1 << 63) - 7] {
        for debt in [0, 1, 1_000, 1 << 34] {
            let word = Word::new(tag, bucket.stamp(debt, Tick::at(now)));
            assert_eq!(bucket.owed(word, Tick::at(now)), debt, "{debt} at {now}");
            assert!(word.is(tag) && !word.is_empty());
            // Paid, and long paid.
            for later in [1, 1 << 30, (9 << EPOCH_BITS) - 1] {
                let then = Tick::at(now + debt + later);
                assert_eq!(bucket.owed(word, then), 0, "{debt} at {now}, {later} later");
            }
        }
    }
    assert_eq!(bucket.owed(Word::EMPTY, Tick::at(u64::MAX)), 0);
    assert_eq!(bucket.owed(Word::EMPTY, Tick::at(wrap - 1)), 0);
}

/// No debt that a word can hold, and no cost, makes a ruling overflow or free more than there is.
#[test]
fn rulings_at_the_edges() {
    for burst in [1, 2, 3, 20, u32::MAX - 1, u32::MAX] {
        let bucket = TickBucket::new(&Quota::per_hour(7).burst(burst)).unwrap();
        let full = bucket.capacity();
        for debt in [0, 1, full - 1, full, full + 1, 7 << 32] {
            for cost in [0, 1, 2, burst - 1, burst, burst.saturating_add(1), u32::MAX] {
                let price = u128::from(cost) << bucket.shift;
                let after = u128::from(debt) + price;
                let ruling = bucket.judge(debt, cost, Tick::at(5));
                let is_right = match ruling {
                    Ruling::Peek { debt: owed } => cost == 0 && owed == debt,
                    Ruling::Never { debt: owed } => cost > burst && owed == debt,
                    Ruling::Admit { debt: owed } => u128::from(owed) == after && after <= u128::from(full),
                    Ruling::Reject { debt: owed } => owed == debt && cost <= burst && after > u128::from(full),
                    Ruling::Full { .. } => false,
                };
                assert!(is_right, "burst {burst}, debt {debt}, cost {cost}: {ruling:?}");
                let decision = bucket.decision(ruling, cost, Tick::at(5));
                assert!(decision.remaining() <= decision.limit());
            }
        }
    }
}
