//! Buckets through live changes, against a naive model: a token level per key, which drains at the rate in force.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::{Random, seeds};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{Charge, check_invariants, decided};
use crate::heirs::inherit;
use crate::support::effort::rounds;
use crate::support::trace::Trace;

/// How many parts a token has. All periods below divide this, so that every drain is whole.
const PARTS: u128 = 3_600_000_000_000;

#[derive(Clone, Copy)]
struct Level {
    parts: u128,
    at: u64,
}

impl Level {
    fn drain(&mut self, now: u64, quota: &Quota) {
        let rate = u128::from(quota.limit()) * (PARTS / quota.period().as_nanos());
        self.parts = self.parts.saturating_sub(u128::from(now.saturating_sub(self.at)) * rate);
        self.at = now;
    }
}

/// The expected behaviour of one limiter. Heirs begin with a copy.
#[derive(Clone)]
struct Model {
    quota: Quota,
    levels: HashMap<u64, Level>,
    /// The levels that charges left behind: the unpaid part is less.
    charges: HashMap<usize, Level>,
}

impl Model {
    fn drain(&mut self, now: u64) {
        let Self { quota, levels, charges } = self;
        levels.values_mut().chain(charges.values_mut()).for_each(|level| level.drain(now, quota));
    }

    /// Admits, and returns how much is left; or returns how long to wait.
    fn take(&mut self, key: u64, cost: u64, now: u64, charge: usize) -> Result<u64, Option<Duration>> {
        self.drain(now);
        let level = self.levels.entry(key).or_insert(Level { parts: 0, at: now });
        let (after, full) = (level.parts + u128::from(cost) * PARTS, u128::from(self.quota.max_burst()) * PARTS);
        if cost > self.quota.max_burst() {
            Err(None)
        } else if after <= full {
            level.parts = after;
            self.charges.insert(charge, *level);
            Ok(u64::try_from((full - after) / PARTS).unwrap())
        } else {
            let rate = u128::from(self.quota.limit()) * (PARTS / self.quota.period().as_nanos());
            Err(Some(Duration::from_nanos(u64::try_from((after - full).div_ceil(rate)).unwrap())))
        }
    }

    fn refund(&mut self, key: u64, cost: u64, charge: usize, now: u64) {
        self.drain(now);
        let Some(unpaid) = self.charges.remove(&charge) else { return };
        let level = self.levels.get_mut(&key).unwrap();
        level.parts -= unpaid.parts.min(u128::from(cost) * PARTS).min(level.parts);
    }

    fn forget(&mut self, key: u64, charges: &[Charge]) {
        self.levels.remove(&key);
        for charge in charges.iter().filter(|charge| charge.key == key) {
            self.charges.remove(&charge.number);
        }
    }
}

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_125_000_000))
}

const RATES: [u64; 7] = [1, 2, 5, 10, 16, 100, 50_000];
const BURSTS: [u64; 7] = [1, 3, 20, 40, 100, 2_000, 100_000];
const CAPACITIES: [usize; 3] = [256, 300, 1_000];

/// A limiter, and its model.
type Modelled = (Arc<dyn Limiter>, Rc<RefCell<Model>>);

struct Layers {
    random: Random,
    clock: ManualClock,
    in_force: [Modelled; 2],
    /// Limiters that were in force.
    kept: Vec<Modelled>,
    charges: Vec<Charge>,
    number: usize,
}

impl Layers {
    fn new(seed: u64) -> Self {
        let (mut random, clock) = (Random::new(seed), clock());
        let quota = Self::quota(&mut random);
        let limiter = Self::limiter(quota, 256, &clock);
        let model = Model { quota, levels: HashMap::new(), charges: HashMap::new() };
        let shared = (limiter, Rc::new(RefCell::new(model)));
        Self { random, clock, in_force: [shared.clone(), shared], kept: Vec::new(), charges: Vec::new(), number: 0 }
    }

    fn quota(random: &mut Random) -> Quota {
        let seconds = random.pick(&[1, 1, 1, 8]);
        let quota = Quota::per(random.pick(&RATES), Duration::from_secs(seconds));
        quota.burst(random.pick(&BURSTS))
    }

    fn limiter(quota: Quota, capacity: usize, clock: &ManualClock) -> Arc<dyn Limiter> {
        let store = MemoryStore::with_capacity(capacity).with_clock(clock.clone());
        RateLimiter::new(TokenBucket::new(quota), store).into_limiter()
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Gives one layer, or both, a new limiter or an earlier one.
    fn change(&mut self, context: &str) {
        let now = self.now();
        let fresh = Self::quota(&mut self.random);
        let capacity = self.random.pick(&CAPACITIES);
        let (next, mut known) = if !self.kept.is_empty() && self.random.below(5) == 0 {
            let index = usize::try_from(self.random.below(self.kept.len() as u64)).unwrap();
            let (limiter, model) = self.kept[index].clone();
            (limiter, Some(model))
        } else {
            (Self::limiter(fresh, capacity, &self.clock), None)
        };
        let quota = known.as_ref().map_or(fresh, |model| model.borrow().quota);
        let which = match self.random.below(3) {
            0 => vec![0],
            1 => vec![1],
            _ => vec![0, 1],
        };
        for layer in which {
            let (before, model) = self.in_force[layer].clone();
            if std::ptr::addr_eq(Arc::as_ptr(&before), Arc::as_ptr(&next)) {
                continue;
            }
            let heir = inherit(&next, &before).unwrap_or_else(|| panic!("{context}"));
            model.borrow_mut().drain(now);
            let model = match &known {
                // Another layer was first, so the limiter is shared as it is.
                Some(known) if Arc::ptr_eq(&heir, &next) => Rc::clone(known),
                _ => Rc::new(RefCell::new(Model { quota, ..model.borrow().clone() })),
            };
            if Arc::ptr_eq(&heir, &next) {
                known = Some(Rc::clone(&model));
            }
            let before = std::mem::replace(&mut self.in_force[layer], (heir, model));
            self.kept.push(before);
        }
        let surplus = self.kept.len().saturating_sub(4);
        self.kept.drain(..surplus);
    }

    fn ask(&mut self, context: &str) {
        let now = self.now();
        let layer = usize::try_from(self.random.below(2)).unwrap();
        let (limiter, model) = self.in_force[layer].clone();
        let (mut model, id) = (model.borrow_mut(), self.random.below(24));
        let (key, burst) = (PartitionKey::from(id), model.quota.max_burst());
        let cost = 1 + self.random.below(burst);
        let cost = self.random.pick(&[1, 1, 2, cost]);
        if self.random.below(4) == 0 {
            let peeked = limiter.decide(&Ask::peek(&key, cost)).at_once().unwrap();
            let expected = model.clone().take(id, cost, now, usize::MAX);
            assert_eq!(
                (peeked.is_allowed(), peeked.retry_after()),
                (expected.is_ok(), expected.err().flatten()),
                "{context}: peek"
            );
        }
        let decision = decided(limiter.decide(&Ask::charge(&key, cost)));
        self.number += 1;
        match model.take(id, cost, now, self.number) {
            Ok(left) => {
                assert!(decision.is_allowed() && decision.remaining() == left, "{context}: {decision:?}, {left}");
                let receipt = decision.receipt();
                self.charges.push(Charge { layer, number: self.number, key: id, cost, receipt });
            }
            Err(wait) => {
                assert!(!decision.is_allowed(), "{context}: {decision:?} instead of {wait:?}");
                assert_eq!(decision.retry_after(), wait, "{context}");
            }
        }
    }

    /// Charges are refunded last to first, or not at all.
    fn refund(&mut self) {
        let Some(Charge { layer, number, key, cost, receipt }) = self.charges.pop() else { return };
        let (limiter, model) = &self.in_force[layer];
        limiter.refund(&Ask::charge(&PartitionKey::from(key), cost), receipt, cost);
        model.borrow_mut().refund(key, cost, number, self.now());
    }

    /// Checks the tables in force, and those from which they have inherited.
    fn check_invariants(&self) {
        for (limiter, _) in self.in_force.iter().chain(&self.kept) {
            check_invariants(&**limiter, &self.clock);
        }
    }

    fn reset(&mut self) {
        let (limiter, model) = &self.in_force[0];
        let key = self.charges.last().map_or(0, |charge| charge.key);
        let _ = limiter.decide(&Ask::reset(&PartitionKey::from(key)));
        model.borrow_mut().forget(key, &self.charges);
        // One in 256 other keys loses its refunds, too, so leave those out.
        self.charges.clear();
    }
}

/// In eighths of a second, in which all of these rates make whole ticks, so that nothing is rounded.
#[test]
fn buckets_agree_with_the_model() {
    for seed in seeds(rounds(6, 60)) {
        let mut layers = Layers::new(seed);
        for step in 0..3_000 {
            let context = format!("seed {seed}, step {step}");
            match layers.random.below(100) {
                0 | 1 => layers.change(&context),
                2..10 => layers.refund(),
                10 => layers.reset(),
                11..14 => layers.charges.clear(),
                _ => layers.ask(&context),
            }
            let pause = layers.random.pick(&[0, 0, 0, 0, 125, 250, 1_000]);
            layers.clock.advance(Duration::from_millis(pause));
            if step % 50 == 0 {
                layers.check_invariants();
            }
        }
        layers.check_invariants();
    }
}

/// Where clocks are read between two ticks, a change does not forgive debts, and forgets less than a nanosecond of
/// leak.
#[test]
fn a_thousand_changes_lose_under_a_microsecond() {
    let quotas = [[Quota::per_second(7); 2], [Quota::per_second(7), Quota::per_second(7).burst(9)]];
    for quotas in quotas {
        let clock = clock();
        let key = PartitionKey::from("key");
        let mut limiter = Layers::limiter(quotas[0], 64, &clock);
        assert!(decided(limiter.decide(&Ask::charge(&key, 7))).is_allowed());
        for step in 0..1_000_u64 {
            clock.advance(Duration::from_nanos(12_345 + step));
            let next = Layers::limiter(quotas[usize::try_from(step).unwrap() % 2], 64, &clock);
            limiter = inherit(&next, &limiter).unwrap();
            check_invariants(&*limiter, &clock);
        }
        limiter = inherit(&Layers::limiter(quotas[0], 64, &clock), &limiter).unwrap();
        // All would be paid a second after the start.
        let passed = clock.now().saturating_since(self::clock().now());
        let left = limiter.decide(&Ask::peek(&key, 7)).at_once().unwrap().retry_after().unwrap();
        let late = (passed + left).checked_sub(Duration::from_secs(1)).expect("paid too early");
        assert!(late < Duration::from_micros(1), "{late:?}");
    }
}

/// A hundred changes per second, for three minutes, at odd times: never early, and late by at most a nanosecond per
/// change.
#[test]
fn frequent_changes_keep_the_rate() {
    let mut random = Random::of_trial(7);
    let clock = clock();
    let quota = |random: &mut Random| Quota::per_second(random.pick(&[5, 7, 9])).burst(random.pick(&[3, 11]));
    let mut model = Model { quota: quota(&mut random), levels: HashMap::new(), charges: HashMap::new() };
    let mut limiter = Layers::limiter(model.quota, 64, &clock);
    let key = PartitionKey::from(1);
    let (mut changes, mut admitted) = (0, 0);
    let mut trace = Trace::of(18_000);
    while trace.goes_on([("admitted requests", admitted > 800)]) {
        clock.advance(Duration::from_nanos(9_000_000 + random.below(2_000_000)));
        let now = clock.now().as_nanos();
        model.drain(now);
        model.quota = quota(&mut random);
        changes += 1;
        let capacity = random.pick(&[64, 65, 500]);
        limiter = inherit(&Layers::limiter(model.quota, capacity, &clock), &limiter).unwrap();
        let expected = model.clone().take(1, 1, now, 0);
        let decision = decided(limiter.decide(&Ask::charge(&key, 1)));
        match (expected, decision.retry_after()) {
            (Err(Some(exact)), Some(wait)) => {
                assert!(wait >= exact && wait - exact <= Duration::from_nanos(changes), "{wait:?}, {exact:?}");
            }
            // The model admits, and the limiter admits a moment later.
            (Ok(_), Some(wait)) => assert!(wait <= Duration::from_nanos(changes), "{wait:?}"),
            (Err(exact), None) => panic!("{exact:?} too early"),
            (Ok(_), None) => {
                let _ = model.take(1, 1, now, 0);
                admitted += 1;
            }
            (Err(None), Some(_)) => unreachable!("a cost of 1 fits"),
        }
        check_invariants(&*limiter, &clock);
    }
}

/// Each table keeps the rules of 256 tables before it, so one more change loses the refund.
#[test]
fn charges_are_refunded_after_256_changes() {
    for (changes, left) in [(256, 10), (257, 6)] {
        let clock = clock();
        let mut limiter = Layers::limiter(Quota::per_day(10), 64, &clock);
        let key = PartitionKey::from(1_u64);
        let charged = decided(limiter.decide(&Ask::charge(&key, 4)));
        for _ in 0..changes {
            limiter = inherit(&Layers::limiter(Quota::per_day(10), 64, &clock), &limiter).unwrap();
        }
        limiter.refund(&Ask::charge(&key, 4), charged.receipt(), 4);
        assert_eq!(decided(limiter.decide(&Ask::peek(&key, 0))).remaining(), left, "after {changes} changes");
    }
}

/// Limits above 32 bits do not fit into words. Such a bucket's receipts count in units of its rate.
#[test]
fn large_bucket_refunds_need_the_kept_rate() {
    let (limit, units) = (1 << 40, 1 << 38);
    let quota = Quota::per_day(limit);
    for (to, refunded) in [(quota, units), (quota.burst(2 * limit), units), (Quota::per_day(limit / 2).burst(limit), 0)]
    {
        let clock = clock();
        let before = Layers::limiter(quota, 64, &clock);
        let key = PartitionKey::from(1_u64);
        let charged = decided(before.decide(&Ask::charge(&key, units)));
        let heir = inherit(&Layers::limiter(to, 64, &clock), &before).unwrap();
        let left = || decided(heir.decide(&Ask::peek(&key, 0))).remaining();
        let left_before = left();
        heir.refund(&Ask::charge(&key, units), charged.receipt(), units);
        assert_eq!(left() - left_before, refunded, "{to:?}");
    }
}

/// This quota's ticks take 66 ms, and a change must not lose any: a thousand would be a minute.
#[test]
fn changes_cost_long_ticks_nothing() {
    const DAY: u128 = 86_400_000_000_000;
    let (mut random, clock) = (Random::of_trial(7), clock());
    let quota = |limit, burst| Quota::per_day(limit).burst(burst);
    let mut present = quota(10, 100_000);
    let mut limiter = Layers::limiter(present, 64, &clock);
    let key = PartitionKey::from(1_u64);
    assert!(decided(limiter.decide(&Ask::charge(&key, 100_000))).is_allowed());
    let mut owed = 100_000 * DAY;
    for _ in 0..1_000 {
        let passed = Duration::from_nanos(random.below(3_000_000_000));
        clock.advance(passed);
        owed -= passed.as_nanos() * u128::from(present.limit());
        present = quota(random.pick(&[7, 10, 20]), random.pick(&[100_000, 200_000, 250_000]));
        limiter = inherit(&Layers::limiter(present, 64, &clock), &limiter).unwrap();
    }
    let exact = owed / u128::from(present.limit());
    let found = decided(limiter.decide(&Ask::peek(&key, 0))).reset_after().as_nanos();
    assert!((exact..exact + 1_000_000_000).contains(&found), "{found} ns and not {exact}");
}

/// Debts up to four hours are kept, even if ticks of a 2^16th of a token could not count them.
#[test]
fn a_change_keeps_millions_of_tokens() {
    for (limit, tokens) in [(1_000_000, 1_000_000_000), (1_000, 10_000_000)] {
        let clock = clock();
        let quota = |burst| Quota::per_second(limit).burst(burst);
        let before = Layers::limiter(quota(tokens), 64, &clock);
        let key = PartitionKey::from(1_u64);
        assert!(decided(before.decide(&Ask::charge(&key, tokens))).is_allowed());
        let heir = inherit(&Layers::limiter(quota(1_000), 64, &clock), &before).unwrap();
        let left = decided(heir.decide(&Ask::peek(&key, 0))).reset_after();
        let exact = Duration::from_secs(tokens / limit);
        assert!((exact..exact + Duration::from_millis(1)).contains(&left), "{left:?} and not {exact:?}");
    }
}
