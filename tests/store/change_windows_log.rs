//! Windows through random live changes, against a log with every charge: refunds, limiters that two layers share,
//! limits that need other tables, and period changes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow};
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::{Random, seeds};
use tower_sluice::time::{Clock, ManualClock};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{Charge, check_invariants, clock};
use crate::heirs::inherit;
use crate::support::effort::rounds;

/// A charge to a key that counts in a window.
#[derive(Clone, Copy)]
struct Event {
    key: u64,
    window: u64,
    cost: u64,
    /// The charge's number; `None` after a period change, because it can no longer be refunded.
    number: Option<usize>,
}

/// The decision that a limiter should make, given its counts.
#[derive(Clone)]
struct Log {
    limit: u64,
    period: u64,
    is_sliding: bool,
    events: Vec<Event>,
}

impl Log {
    fn used(&self, key: u64, now: u64) -> u64 {
        let window = now / self.period;
        let of = |window| {
            let events = self.events.iter().filter(|event| (event.key, Some(event.window)) == (key, window));
            events.map(|event| event.cost).sum::<u64>()
        };
        let before = if self.is_sliding { of(window.checked_sub(1)) } else { 0 };
        of(Some(window)) + (before * (self.period - now % self.period)).div_ceil(self.period)
    }

    fn fits(&self, key: u64, cost: u64, now: u64) -> bool {
        self.used(key, now) + cost <= self.limit
    }

    /// Keeps the counting charges; under another period, they count in the window of the change.
    fn changed(&self, limit: u64, period: u64, now: u64) -> Self {
        let changed = Self { limit, period, ..self.clone() };
        if period == self.period {
            return changed;
        }
        let event = |key| Event { key, window: now / period, cost: self.used(key, now), number: None };
        Self { events: (0..KEYS).map(event).collect(), ..changed }
    }

    fn refund(&mut self, number: usize) {
        self.events.retain(|event| event.number != Some(number));
    }
}

const KEYS: u64 = 12;

/// A limiter, and its model.
type Modelled = (Arc<dyn Limiter>, Rc<RefCell<Log>>);

struct Layers<A> {
    make: fn(Quota) -> A,
    random: Random,
    clock: ManualClock,
    in_force: [Modelled; 2],
    kept: Vec<Modelled>,
    charges: Vec<Charge>,
    number: usize,
}

impl<A: Algorithm> Layers<A> {
    fn new(make: fn(Quota) -> A, is_sliding: bool, seed: u64) -> Self {
        let clock = clock();
        let log = Log { limit: 5, period: 1_000_000_000, is_sliding, events: Vec::new() };
        let limiter = Self::limiter(make, &clock, log.limit, log.period, 256);
        let shared = (limiter, Rc::new(RefCell::new(log)));
        let in_force = [shared.clone(), shared];
        Self { make, random: Random::new(seed), clock, in_force, kept: Vec::new(), charges: Vec::new(), number: 0 }
    }

    fn limiter(make: fn(Quota) -> A, clock: &ManualClock, limit: u64, period: u64, keys: usize) -> Arc<dyn Limiter> {
        let quota = Quota::per(limit, Duration::from_nanos(period));
        RateLimiter::new(make(quota), MemoryStore::with_capacity(keys).with_clock(clock.clone())).into_limiter()
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Gives one layer, or both, a new limiter or an earlier one.
    fn change(&mut self, changes_period: bool, context: &str) {
        // Sliding windows count the greatest limit behind locks.
        let limit = self.random.pick(&[1, 3, 5, 5, 50, 70_000]);
        let before = self.in_force[0].1.borrow().period;
        let period = if changes_period { self.random.pick(&[500, 1_000, 8_000]) * 1_000_000 } else { before };
        let capacity = self.random.pick(&[256, 256, 300, 1_000]);
        let (next, mut known) = if changes_period && !self.kept.is_empty() && self.random.below(5) == 0 {
            let index = usize::try_from(self.random.below(self.kept.len() as u64)).unwrap();
            let (limiter, log) = self.kept[index].clone();
            (limiter, Some(log))
        } else {
            (Self::limiter(self.make, &self.clock, limit, period, capacity), None)
        };
        let (limit, period) = known.as_ref().map_or((limit, period), |log| (log.borrow().limit, log.borrow().period));
        let layers: &[usize] = self.random.pick(&[&[0][..], &[1], &[0, 1]]);
        for layer in layers {
            let (before, log) = self.in_force[*layer].clone();
            if std::ptr::addr_eq(Arc::as_ptr(&before), Arc::as_ptr(&next)) {
                continue;
            }
            let heir = inherit(&next, &before).unwrap_or_else(|| panic!("{context}"));
            let is_next = Arc::ptr_eq(&heir, &next);
            let log = match &known {
                // Another layer was first, so the limiter is shared as it is. It has not counted the predecessor's
                // later charges, which a layer refunds to the predecessor.
                Some(known) if is_next => {
                    let is_counted = |number| known.borrow().events.iter().any(|event| event.number == Some(number));
                    self.charges.retain(|charge| charge.layer != *layer || is_counted(charge.number));
                    Rc::clone(known)
                }
                _ => Rc::new(RefCell::new(log.borrow().changed(limit, period, self.now()))),
            };
            if is_next {
                known = Some(Rc::clone(&log));
            }
            self.kept.push(std::mem::replace(&mut self.in_force[*layer], (heir, log)));
        }
        let surplus = self.kept.len().saturating_sub(4);
        self.kept.drain(..surplus);
    }

    fn ask(&mut self, context: &str) {
        let (now, layer, key) = (self.now(), usize::from(self.random.below(2) == 0), self.random.below(KEYS));
        let (limiter, log) = self.in_force[layer].clone();
        let mut log = log.borrow_mut();
        let cost = self.random.pick(&[1, 1, 2, log.limit / 2 + 1]);
        let decision = if self.random.below(4) == 0 {
            limiter.decide(&Ask::peek(&PartitionKey::from(key), cost)).at_once().unwrap()
        } else {
            let decision = limiter.decide(&Ask::charge(&PartitionKey::from(key), cost)).at_once().unwrap();
            self.number += 1;
            if decision.is_allowed() {
                assert!(log.fits(key, cost, now), "{context}: {decision:?}");
                let (window, number) = (now / log.period, self.number);
                log.events.push(Event { key, window, cost, number: Some(number) });
                self.charges.push(Charge { layer, number, key, cost, receipt: decision.receipt() });
                assert_eq!(decision.remaining(), log.limit.saturating_sub(log.used(key, now)), "{context}");
            }
            decision
        };
        if !decision.is_allowed() {
            Self::assert_is_true(&decision, &log, (key, cost, now), context);
        }
    }

    /// Checks a rejection, and the wait that it reports.
    fn assert_is_true(decision: &Decision, log: &Log, (key, cost, now): (u64, u64, u64), context: &str) {
        assert!(!log.fits(key, cost, now), "{context}: {decision:?}");
        let wait = decision.retry_after().map(|wait| u64::try_from(wait.as_nanos()).unwrap());
        assert_eq!(wait.is_some(), cost <= log.limit, "{context}: {decision:?}");
        if let Some(wait) = wait {
            let used = |at| log.used(key, at);
            let context = format!(
                "{context}: {cost} of {}, {} used at {now}, {} after {wait}",
                log.limit,
                used(now),
                used(now + wait)
            );
            assert!(log.fits(key, cost, now + wait) && !log.fits(key, cost, now + wait - 1), "{context}");
        }
    }

    fn refund(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let index = usize::try_from(self.random.below(self.charges.len() as u64)).unwrap();
        let Charge { layer, number, key, cost, receipt } = self.charges.swap_remove(index);
        let (limiter, log) = &self.in_force[layer];
        limiter.refund(&Ask::charge(&PartitionKey::from(key), cost), receipt, cost);
        log.borrow_mut().refund(number);
    }

    fn run(mut self, steps: u64, changes_period: bool, seed: u64) {
        for step in 0..steps {
            let context = format!("seed {seed}, step {step}");
            match self.random.below(100) {
                0..3 => self.change(changes_period, &context),
                3..15 => self.refund(),
                15..17 => self.charges.clear(),
                _ => self.ask(&context),
            }
            self.clock.advance(Duration::from_millis(self.random.pick(&[0, 0, 0, 1, 30, 260])));
            let now = self.now();
            // So that the log stays short.
            for (_, log) in self.in_force.iter().chain(&self.kept) {
                let mut log = log.borrow_mut();
                let earliest = (now / log.period).saturating_sub(1);
                log.events.retain(|event| event.window >= earliest);
            }
            if step % 50 == 0 || step + 1 == steps {
                for (limiter, _) in self.in_force.iter().chain(&self.kept) {
                    check_invariants(&**limiter, &self.clock);
                }
            }
        }
    }
}

#[test]
fn limit_changes_agree_with_a_log() {
    for seed in seeds(rounds(4, 40)) {
        Layers::new(FixedWindow::new, false, seed).run(2_000, false, seed);
        Layers::new(SlidingWindow::new, true, seed).run(2_000, false, seed);
    }
}

#[test]
fn period_changes_agree_with_a_log() {
    for seed in seeds(rounds(4, 40)) {
        Layers::new(FixedWindow::new, false, seed).run(2_000, true, seed);
        Layers::new(SlidingWindow::new, true, seed).run(2_000, true, seed);
    }
}
