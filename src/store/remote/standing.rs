//! [`Standing`]: a key's ban, allowance and debt, beside its state.

use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::values::time::Timestamp;
use crate::values::{Decision, Exception, Override, OverrideReason, Receipt};

/// A key's ban, allowance and debt. Until they are over, they decide on its requests, regardless of its state.
///
/// A process bans a key for its [penalty](crate::Penalty), and lets it owe a
/// [shortfall](crate::Policy::owe_shortfalls). An operator bans it or allows it [by hand](Override).
///
/// It is kept with the state, so a request reads it in the call that it makes anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a backend writes all of them")]
pub struct Standing {
    /// When its ban ends. Zero if it was never banned.
    pub banned_until: Timestamp,
    /// When the last unit of its debt is charged. Zero if it never owed anything. The key's state is given at this
    /// instant.
    pub owing_until: Timestamp,
    /// When its allowance ends. Zero if it was never allowed by hand. An allowance has precedence over a ban and a
    /// debt.
    pub allowed_until: Timestamp,
    /// Why an operator has banned or allowed it.
    pub reason: OverrideReason,
}

/// A debt is paid after 35 years at the latest, because the servers' clocks count up to there.
const LONGEST: Duration = Duration::from_micros(1 << 50);

/// A debt is charged in parts that are a fraction of a full budget, so that a sliding window restores them as it
/// passes.
const PARTS: u64 = 16;

impl Standing {
    /// The standing for a key that was never banned, and never owed anything.
    pub(crate) const NONE: Self = Self {
        banned_until: Timestamp::ZERO,
        owing_until: Timestamp::ZERO,
        allowed_until: Timestamp::ZERO,
        reason: OverrideReason::NONE,
    };

    /// Whether there is a standing, in force or not.
    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// Translates a standing's times, from a clock that shows `then` to a clock that shows `now`.
    pub(crate) fn seen_at(self, then: Timestamp, now: Timestamp) -> Self {
        let seen = |until: Timestamp| match until.saturating_since(then) {
            Duration::ZERO => Timestamp::ZERO,
            left => now.saturating_add(left),
        };
        Self {
            banned_until: seen(self.banned_until),
            owing_until: seen(self.owing_until),
            allowed_until: seen(self.allowed_until),
            reason: self.reason,
        }
    }

    /// Returns the later end: the ban's or the debt's.
    #[must_use]
    pub fn until(self) -> Timestamp {
        self.banned_until.max(self.owing_until)
    }

    /// Returns when the last of ban, debt and allowance ends: until then, a server must keep the standing.
    #[must_use]
    pub fn expires(self) -> Timestamp {
        self.until().max(self.allowed_until)
    }

    /// Whether the key is banned or allowed at `now`, or owes something.
    #[must_use]
    pub fn is_in_force(self, now: Timestamp) -> bool {
        self.expires() > now
    }

    /// Whether an operator allows the key at `now`, so that nothing is charged.
    #[must_use]
    pub fn is_allowed(self, now: Timestamp) -> bool {
        self.allowed_until > now
    }

    /// Returns the standing for a key that is banned for `span` from `now` on. A ban that has begun ends when its first
    /// response said, and a key that an operator allows is not banned. A debt that is over by then is forgotten.
    #[must_use]
    pub fn ban(self, now: Timestamp, span: Duration) -> Self {
        if self.banned_until > now || self.is_allowed(now) {
            return self;
        }
        self.overridden(now, Override::Ban { span, reason: OverrideReason::NONE })
    }

    /// Returns the standing for a key that an operator bans or allows from `now` on, or whose ban or allowance ends. A
    /// ban or an allowance that has begun is replaced. A debt that is over by then is forgotten.
    #[must_use]
    pub fn overridden(self, now: Timestamp, by_hand: Override) -> Self {
        let owing_until = if self.owing_until > now { self.owing_until } else { Timestamp::ZERO };
        let debt = Self { owing_until, ..Self::NONE };
        match by_hand {
            Override::Ban { span, reason } => Self { banned_until: now.saturating_add(span), reason, ..debt },
            Override::Allow { span, reason } => Self { allowed_until: now.saturating_add(span), reason, ..debt },
            Override::Lift => debt,
        }
    }

    /// Charges `units` to a key at `now`: at once while any are left, and the others as soon as time restores them.
    /// Until the last unit is charged, the key owes something. `state` is the state now, or when an earlier debt ends.
    /// Also returns the state when the debt ends, or now without a debt.
    ///
    /// A key that is allowed is not charged, and owes nothing more.
    ///
    /// In the long run, every algorithm pays the debt at its quota's rate. If that takes more than 35 years, the rest
    /// is forgiven.
    #[must_use]
    pub fn charge<A: Algorithm>(
        self,
        algorithm: &A,
        mut state: Option<A::State>,
        now: Timestamp,
        units: u64,
    ) -> (Self, Option<A::State>) {
        if self.is_allowed(now) {
            return (self, state);
        }
        let most = algorithm.max_cost().max(1);
        let mut at = now.max(self.owing_until);
        let mut left = units;
        // At once.
        while left > 0 {
            let (decision, next) = algorithm.decide(state, at, left.min(most));
            let (part, next) = match next {
                Some(next) => (left.min(most), Some(next)),
                None => match decision.partial_cost(left.min(most)) {
                    Some(part) => (part, algorithm.decide(state, at, part).1),
                    None => break,
                },
            };
            if next.is_none() {
                break;
            }
            state = next;
            left -= part;
        }
        // Units for many full budgets: after these, the budget is used up as it is now.
        if left / most > 8 {
            let skipped = (left / most - 4) * most;
            at = at.saturating_add(algorithm.quota().time_to_restore(skipped));
            state = algorithm.decide(None, at, most).1;
            left -= skipped;
        }
        let end = now.saturating_add(LONGEST);
        while left > 0 && at < end {
            let part = left.min((most / PARTS).max(1));
            let (decision, next) = algorithm.decide(state, at, part);
            match (next, decision.retry_after()) {
                (Some(next), _) => {
                    state = Some(next);
                    left -= part;
                }
                (None, Some(wait)) if !wait.is_zero() => at = at.saturating_add(wait),
                (None, _) => break,
            }
        }
        if at > end {
            at = end;
            state = algorithm.decide(None, end, most).1;
        }
        let owing_until = if at > now { at } else { self.owing_until };
        (Self { owing_until, ..self }, state)
    }

    /// Decides on a request if the key is banned or allowed, or owes something. `state` is the state at the end. A
    /// request with cost 0 is rejected only if the key is banned.
    pub(crate) fn decide<A: Algorithm>(
        self,
        algorithm: &A,
        state: Option<A::State>,
        now: Timestamp,
        cost: u64,
    ) -> Option<Decision> {
        if !self.is_in_force(now) {
            return None;
        }
        let exception =
            |is_ban, until: Timestamp| Exception { is_ban, left: until.saturating_since(now), reason: self.reason };
        if self.is_allowed(now) {
            let limit = algorithm.max_cost();
            return Some(Decision::allowed(limit, &exception(false, self.allowed_until)));
        }
        let left = self.until().saturating_since(now);
        let is_banned = self.banned_until > now;
        let then = algorithm.decide(state, self.until(), cost).0;
        let reset = left.saturating_add(then.reset_after());
        if cost == 0 && !is_banned {
            let owing = Decision::allow(then.limit(), 0).with_reset_after(reset);
            return Some(owing.with_next_after(left.saturating_add(then.next_after().unwrap_or_default())));
        }
        if !then.is_allowed() && then.retry_after().is_none() {
            return Some(then);
        }
        // For a banned key that is only peeked at: until the ban is over and a unit is free.
        let wait = left.saturating_add(then.retry_after().or(then.next_after()).unwrap_or_default());
        let rejection = Decision::reject(then.limit(), 0, Some(wait)).with_reset_after(reset);
        let ban = exception(true, self.banned_until);
        Some(if is_banned { rejection.with_receipt(Receipt::for_exception(&ban)) } else { rejection })
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use crate::values::Quota;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn instant_after(span: Duration) -> Timestamp {
        Timestamp::ZERO.saturating_add(span)
    }

    /// How long a key without earlier charges has to wait for one unit.
    fn wait_after<A: Algorithm>(algorithm: &A, now: Timestamp, units: u64) -> Duration {
        let (standing, state) = Standing::default().charge(algorithm, None, now, units);
        let decision = standing.decide(algorithm, state, now, 1);
        decision.unwrap_or_else(|| algorithm.decide(state, now, 1).0).retry_after().unwrap_or_default()
    }

    #[test]
    fn a_bucket_first_pays_its_debt() {
        let bucket = TokenBucket::new(Quota::per_hour(100).burst(10));
        let now = instant_after(HOUR * 1_000);
        for (units, wait) in [(5, Duration::ZERO), (10, HOUR / 100), (11, HOUR / 50), (110, HOUR * 101 / 100)] {
            assert_eq!(wait_after(&bucket, now, units), wait, "{units}");
        }
        assert_eq!(wait_after(&bucket, now, 1_000_010), HOUR * 1_000_001 / 100);
    }

    #[test]
    fn windows_are_used_up_in_turn() {
        let fixed = FixedWindow::new(Quota::per_hour(100));
        let now = instant_after(HOUR * 1_000 + HOUR / 4);
        let left = HOUR * 3 / 4;
        for (units, wait) in
            [(99, Duration::ZERO), (100, left), (199, left), (200, left + HOUR), (450, left + 3 * HOUR)]
        {
            assert_eq!(wait_after(&fixed, now, units), wait, "{units}");
        }
        let (standing, state) = Standing::default().charge(&fixed, None, now, 130);
        assert_eq!(standing.until(), instant_after(HOUR * 1_001));
        assert_eq!(fixed.decide(state, standing.until(), 0).0.remaining(), 70);
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn months_are_used_up_in_turn() {
        let month = crate::algorithm::CalendarWindow::monthly(10).zone("UTC").unwrap();
        assert!(wait_after(&month, instant_after(HOUR * 1_000), 25) > 24 * HOUR * 31);
    }

    /// One hundred per hour, over a thousand hours.
    #[test]
    fn every_algorithm_restores_at_its_rate() {
        fn hours<A: Algorithm>(algorithm: &A) -> u128 {
            wait_after(algorithm, instant_after(HOUR * 1_000), 100_000).as_nanos().div_ceil(HOUR.as_nanos())
        }
        let quota = Quota::per_hour(100);
        for hours in
            [hours(&TokenBucket::new(quota)), hours(&FixedWindow::new(quota)), hours(&SlidingWindow::new(quota))]
        {
            assert!((998..=1_002).contains(&hours), "{hours}");
        }
    }

    #[test]
    fn debts_add_up() {
        let bucket = TokenBucket::new(Quota::per_hour(10));
        let now = instant_after(HOUR * 1_000);
        let (mut standing, mut state) = Standing::default().charge(&bucket, None, now, 10);
        assert!(!standing.is_in_force(now), "nothing more than was left");
        for _ in 0..9 {
            (standing, state) = standing.charge(&bucket, state, now, 10);
        }
        let rejection = standing.decide(&bucket, state, now, 1).unwrap();
        assert_eq!(rejection.retry_after(), Some(HOUR * 91 / 10));
        // Part of it is paid.
        let later = now.saturating_add(5 * HOUR);
        (standing, state) = standing.charge(&bucket, state, later, 10);
        assert_eq!(standing.decide(&bucket, state, later, 1).unwrap().retry_after(), Some(HOUR * 51 / 10));
        let paid = standing.until();
        assert!(standing.decide(&bucket, state, paid, 1).is_none());
        assert_eq!(bucket.decide(state, paid, 1).0.retry_after(), Some(HOUR / 10));
    }

    #[test]
    fn a_thousand_years_debt_is_cut() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let now = instant_after(HOUR);
        let (standing, _) = Standing::default().charge(&bucket, None, now, u32::MAX.into());
        assert_eq!(standing.until(), now.saturating_add(LONGEST));
    }

    #[test]
    fn a_ban_keeps_its_first_end() {
        let bucket = TokenBucket::new(Quota::per_hour(10));
        let now = instant_after(HOUR);
        let banned = Standing::default().ban(now, HOUR);
        assert_eq!(banned.ban(instant_after(HOUR * 3 / 2), HOUR), banned);
        let rejection = banned.decide(&bucket, None, instant_after(HOUR * 3 / 2), 1).unwrap();
        assert_eq!((rejection.retry_after(), rejection.ban().unwrap().left()), (Some(HOUR / 2), HOUR / 2));
        assert!(!banned.decide(&bucket, None, now, 0).unwrap().is_allowed(), "a request of cost 0 is rejected, too");
        assert!(banned.decide(&bucket, None, instant_after(2 * HOUR), 1).is_none());
        let (owing, state) = Standing::default().charge(&bucket, None, now, 20);
        assert_eq!(owing.decide(&bucket, state, now, 1).unwrap().ban(), None);
        assert!(owing.decide(&bucket, state, now, 0).unwrap().is_allowed());
        assert_eq!(owing.decide(&bucket, state, now, 11).unwrap().retry_after(), None, "it never fits");
    }

    /// The debt stays.
    #[test]
    fn an_override_replaces_only_the_last() {
        let bucket = TokenBucket::new(Quota::per_hour(10));
        let now = instant_after(HOUR);
        let reason = OverrideReason::new("scrapes").unwrap();
        let (owing, state) = Standing::default().charge(&bucket, None, now, 20);
        let banned = owing.overridden(now, Override::Ban { span: HOUR * 5, reason });
        let ban = banned.decide(&bucket, state, now, 1).unwrap().ban().unwrap();
        assert_eq!((ban.left(), ban.reason()), (HOUR * 5, reason));
        assert_eq!(banned.ban(now, HOUR), banned, "a penalty does not shorten it");
        let allowed = banned.overridden(now, Override::Allow { span: HOUR, reason: OverrideReason::NONE });
        let decision = allowed.decide(&bucket, state, now, 11).unwrap();
        assert!(decision.is_allowed() && decision.remaining() == 10, "more than ever fits, and nothing is charged");
        assert_eq!(decision.allowance().unwrap().left(), HOUR);
        assert_eq!(allowed.ban(now, HOUR), allowed, "nor does a penalty replace it");
        assert_eq!(allowed.charge(&bucket, state, now, 5), (allowed, state), "no debt grows");
        let later = instant_after(HOUR * 2);
        assert!(allowed.decide(&bucket, state, later, 1).is_none() && !allowed.is_in_force(later), "the debt was paid");
        assert_eq!(allowed.overridden(now, Override::Lift), owing);
        assert_eq!(
            banned.overridden(now, Override::Lift).decide(&bucket, state, now, 1),
            owing.decide(&bucket, state, now, 1)
        );
    }
}
