//! The conformance suite for algorithms.

use std::time::Duration;

use super::{IntervalChecker, Random};
use crate::algorithm::Algorithm;
use crate::values::Decision;
use crate::values::time::{Timestamp, nanos_of};

/// Checks the six points of the [`Algorithm`] contract, and the numbers in decisions, on random traces and on edge
/// values.
///
/// # Panics
///
/// At the first step that breaks the contract. The message says how.
#[track_caller]
pub fn check_algorithm<A: Algorithm>(algorithm: &A, seed: u64) {
    let mut random = Random::new(seed);
    // The beginning of time, a day in November 2023, and the middle of the clock's range.
    for start in [0, 1, 1_700_000_000_000_000_000, u64::MAX / 2] {
        for _ in 0..16 {
            run_forward(algorithm, &mut random, Timestamp::from_nanos(start));
        }
    }
    for _ in 0..64 {
        run_anywhere(algorithm, &mut random);
    }
}

/// Runs a trace forward in time, in steps around the quota's interval and period.
fn run_forward<A: Algorithm>(algorithm: &A, random: &mut Random, start: Timestamp) {
    let mut trial = Trial { algorithm, state: None, now: start };
    let mut checker = IntervalChecker::new(algorithm.quota(), algorithm.worst_burst());
    for _ in 0..400 {
        let cost = trial.some_cost(random);
        let decision = trial.take(cost);
        if decision.is_allowed() {
            checker.admit(trial.now, cost);
        }
        trial.check_backwards(random);
        trial.check_forgetting(random);
        trial.now = trial.now.saturating_add(trial.some_step(random));
        if trial.now == Timestamp::MAX {
            break;
        }
    }
}

/// Runs a trace with arbitrary instants and costs. An algorithm must not panic, and its decisions must still make
/// sense.
fn run_anywhere<A: Algorithm>(algorithm: &A, random: &mut Random) {
    let mut trial = Trial { algorithm, state: None, now: Timestamp::ZERO };
    for _ in 0..100 {
        let edges = [0, 1, u64::MAX, u64::MAX - 1, u64::MAX / 2, 1 << 53, random.next(), random.next() >> 20];
        trial.now = Timestamp::from_nanos(random.pick(&edges));
        let cost = trial.some_cost(random);
        let (decision, next) = trial.algorithm.decide(trial.state, trial.now, cost);
        trial.check_decision(cost, &decision, next.as_ref());
        trial.state = next.or(trial.state);
    }
}

struct Trial<'a, A: Algorithm> {
    algorithm: &'a A,
    state: Option<A::State>,
    now: Timestamp,
}

impl<A: Algorithm> Trial<'_, A> {
    fn some_cost(&self, random: &mut Random) -> u64 {
        let max = self.algorithm.max_cost();
        let (some, few) = (random.below(max), random.below(4));
        random.pick(&[0, 1, 1, 1, 1, few, some, max.saturating_sub(1), max, max.saturating_add(1), u64::MAX])
    }

    fn some_step(&self, random: &mut Random) -> Duration {
        let quota = self.algorithm.quota();
        let period = quota.period_nanos();
        let interval = period / quota.limit();
        let steps = [
            0,
            0,
            1,
            interval / 3,
            interval,
            interval + 1,
            random.below(interval.saturating_mul(4)),
            random.below(period),
            random.below(period.saturating_mul(3)),
            random.pick(&[0, 0, 0, period.saturating_mul(1_000_000)]),
        ];
        Duration::from_nanos(random.pick(&steps))
    }

    /// Makes a decision, checks it, and keeps the new state.
    fn take(&mut self, cost: u64) -> Decision {
        let (decision, next) = self.algorithm.decide(self.state, self.now, cost);
        self.check_decision(cost, &decision, next.as_ref());
        self.check_retry(cost, &decision);
        self.state = next.or(self.state);
        self.check_remaining(&decision);
        decision
    }

    /// Checks point 2, that a cost of zero is admitted and charges nothing, and that exactly the costs above the
    /// maximum never fit.
    fn check_decision(&self, cost: u64, decision: &Decision, next: Option<&A::State>) {
        let (now, max) = (self.now, self.algorithm.max_cost());
        assert!(decision.remaining() <= decision.limit(), "at {now:?}: `remaining` exceeds the limit: {decision:?}");
        if !decision.is_allowed() {
            assert!(next.is_none(), "point 2: at {now:?} a rejection of {cost} came with a new state");
        }
        if cost == 0 {
            assert!(decision.is_allowed() && next.is_none(), "at {now:?} a cost of 0 was rejected or charged");
        }
        if cost > max {
            assert!(!decision.is_allowed(), "at {now:?} a cost of {cost} was admitted, above the maximum of {max}");
            assert_eq!(
                decision.retry_after(),
                None,
                "at {now:?} a cost of {cost}, above the maximum, has a retry_after"
            );
        } else if !decision.is_allowed() && decision.retry_after().is_none() {
            let (last, _) = self.algorithm.decide(self.state, Timestamp::MAX, cost);
            assert!(!last.is_allowed(), "at {now:?} a cost of {cost} has no retry_after, but is admitted later");
        }
    }

    /// Checks point 6: admitted after exactly `retry_after`, and not a nanosecond earlier.
    fn check_retry(&self, cost: u64, decision: &Decision) {
        let Some(wait) = decision.retry_after() else { return };
        let then = self.now.saturating_add(wait);
        if then == Timestamp::MAX {
            // Beyond the clock's range.
            return;
        }
        assert!(wait > Duration::ZERO, "point 6: rejected at {:?}, with a retry_after of zero", self.now);
        let admitted = |at| self.algorithm.decide(self.state, at, cost).0.is_allowed();
        let before = Timestamp::from_nanos(then.as_nanos() - 1);
        assert!(admitted(then), "point 6: {cost} rejected at {:?} and again after {wait:?}", self.now);
        assert!(!admitted(before), "point 6: {cost} rejected at {:?} for {wait:?}, yet admitted earlier", self.now);
    }

    /// Checks that a cost of `remaining` is admitted, and no greater one.
    fn check_remaining(&self, decision: &Decision) {
        let remaining = decision.remaining();
        let admitted = |cost| self.algorithm.decide(self.state, self.now, cost).0.is_allowed();
        assert!(admitted(remaining), "at {:?} {remaining} remain, but are not admitted", self.now);
        assert!(
            remaining >= crate::values::Quota::MAX_UNITS || !admitted(remaining + 1),
            "at {:?} only {remaining} remain, but more are admitted",
            self.now
        );
    }

    /// Checks point 3: setting the clock back admits nothing extra.
    fn check_backwards(&self, random: &mut Random) {
        let earlier = Timestamp::from_nanos(self.now.as_nanos().saturating_sub(nanos_of(self.some_step(random))));
        let cost = self.some_cost(random);
        let admitted = |at| self.algorithm.decide(self.state, at, cost).0.is_allowed();
        assert!(
            cost == 0 || !admitted(earlier) || admitted(self.now),
            "point 3: {cost} rejected at {:?}, admitted with the clock set back to {earlier:?}",
            self.now
        );
    }

    /// Checks point 4: an expired state decides like an absent one.
    fn check_forgetting(&self, random: &mut Random) {
        let Some(state) = self.state else { return };
        let expiry = self.algorithm.expires_at(&state);
        if expiry == Timestamp::MAX {
            return;
        }
        for later in [Duration::ZERO, Duration::from_nanos(1), self.some_step(random)] {
            let now = expiry.max(self.now).saturating_add(later);
            let cost = self.some_cost(random);
            let (remembered, _) = self.algorithm.decide(Some(state), now, cost);
            let (forgotten, _) = self.algorithm.decide(None, now, cost);
            assert_eq!(remembered, forgotten, "point 4: expired at {expiry:?}, yet observable at {now:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::algorithm::{FixedWindow, FixedWindowState, GcraState, TokenBucket};
    use crate::values::Quota;

    const LIMIT: u64 = 7;

    /// A bucket with a fault.
    struct Faulty {
        bucket: TokenBucket,
        fault: Fault,
    }

    #[derive(Clone, Copy)]
    enum Fault {
        RejectionChanges,
        SettingBackForgets,
        ExpiresAtOnce,
        WaitTooShort,
        WaitTooLong,
        WaitMissing,
        RemainingTooLow,
    }

    impl Algorithm for Faulty {
        type State = GcraState;

        fn quota(&self) -> Quota {
            self.bucket.quota()
        }

        fn decide(&self, state: Option<GcraState>, now: Timestamp, cost: u64) -> (Decision, Option<GcraState>) {
            const NANO: Duration = Duration::from_nanos(1);
            let full = now.saturating_add(self.quota().period());
            let state = match self.fault {
                // Only before a clock was set back can more have been owed than the whole bucket.
                Fault::SettingBackForgets => state.filter(|state| self.expires_at(state) <= full),
                _ => state,
            };
            let (decision, next) = self.bucket.decide(state, now, cost);
            let limit = decision.limit();
            let remaining = decision.remaining();
            let rejected = |wait| Decision::reject(limit, remaining, wait).with_reset_after(decision.reset_after());
            match (self.fault, decision.retry_after()) {
                (Fault::RejectionChanges, Some(_)) => (decision, state),
                (Fault::WaitTooShort, Some(wait)) => (rejected(Some(wait - NANO)), next),
                (Fault::WaitTooLong, Some(wait)) => (rejected(Some(wait + NANO)), next),
                (Fault::WaitMissing, Some(_)) => (rejected(None), next),
                (Fault::RemainingTooLow, None) if decision.is_allowed() => {
                    let fewer = Decision::allow(limit, remaining.saturating_sub(1));
                    (fewer.with_reset_after(decision.reset_after()), next)
                }
                _ => (decision, next),
            }
        }

        fn expires_at(&self, state: &GcraState) -> Timestamp {
            match self.fault {
                Fault::ExpiresAtOnce => Timestamp::ZERO,
                _ => self.bucket.expires_at(state),
            }
        }
    }

    /// A window that claims to admit at most its limit in any short interval, even around an edge.
    struct Understated(FixedWindow);

    impl Algorithm for Understated {
        type State = FixedWindowState;

        fn quota(&self) -> Quota {
            self.0.quota()
        }

        fn decide(
            &self,
            state: Option<FixedWindowState>,
            now: Timestamp,
            cost: u64,
        ) -> (Decision, Option<FixedWindowState>) {
            self.0.decide(state, now, cost)
        }

        fn expires_at(&self, state: &FixedWindowState) -> Timestamp {
            self.0.expires_at(state)
        }

        fn worst_burst(&self) -> u64 {
            LIMIT
        }
    }

    #[track_caller]
    fn assert_found(run: impl FnOnce() + std::panic::UnwindSafe, message: &str) {
        let panic = catch_unwind(run).expect_err(message);
        let found = panic.downcast_ref::<String>().expect("the message says when");
        assert!(found.contains(message), "{message}: {found}");
    }

    #[test]
    fn each_broken_point_is_named() {
        let quota = Quota::per_minute(LIMIT);
        for (fault, message) in [
            (Fault::RejectionChanges, "point 2: "),
            (Fault::SettingBackForgets, "point 3: "),
            (Fault::ExpiresAtOnce, "point 4: "),
            (Fault::WaitTooShort, "point 6: "),
            (Fault::WaitTooLong, "yet admitted earlier"),
            (Fault::WaitMissing, "has no retry_after, but is admitted later"),
            (Fault::RemainingTooLow, "remain, but more are admitted"),
        ] {
            let faulty = Faulty { bucket: TokenBucket::new(quota), fault };
            assert_found(|| check_algorithm(&faulty, 1), message);
        }
        // Point 5.
        let understated = Understated(FixedWindow::new(quota));
        assert_found(|| check_algorithm(&understated, 1), "an interval ending at");
    }
}
