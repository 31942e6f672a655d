//! `Decision`, the answer of a limiter.

mod words;

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use self::words::{
    DELAY_BITS, DELAY_COARSE, DELAY_MASK, Limit, OutcomeKind, RESET_COARSE, Remaining, WAIT_COARSE, at_most_max,
};
use crate::values::{Exception, Receipt, Shape, Terms};

/// The answer to one request: whether it passes, and the numbers that a client needs.
///
/// A rejection is a decision, not an error. A limiter that cannot decide returns a
/// [`LimiterError`](crate::LimiterError).
///
/// 64 bytes. Times are kept in nanoseconds, or above 584 years (a delay: above a year) in milliseconds, rounded up.
/// Units are [`Quota::MAX_UNITS`](crate::Quota::MAX_UNITS) at most.
#[derive(Clone, Copy)]
#[must_use]
pub struct Decision {
    receipt: Receipt,
    /// The time until the same request is admitted (if rejected), or until one unit is available (if admitted; zero if
    /// that is unknown, or if one is available now). In units of 1/`per` nanosecond, like `reset`, so that most
    /// decisions need no division: the getters divide.
    wait: u64,
    /// The time until the key owes nothing.
    reset: u64,
    per: NonZeroU64,
    limit: Limit,
    remaining: Remaining,
    /// The delay's lowest 32 bits; `limit` and `remaining` have the others.
    delay_low: u32,
}

const _: () = assert!(size_of::<Decision>() == 64, "one cache line");

/// A time, perhaps as a quotient: the division is deferred to the getters, which few callers use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeferredTime {
    Whole(Duration),
    /// `owed / per` nanoseconds, rounded up.
    Quotient {
        owed: u64,
        per: NonZeroU64,
    },
}

impl DeferredTime {
    /// The time in parts of a nanosecond, and the parts per nanosecond; `None` if it does not fit.
    #[inline(always)]
    const fn parts(self) -> Option<(u64, NonZeroU64)> {
        match self {
            Self::Quotient { owed, per } => Some((owed, per)),
            Self::Whole(span) if span.as_nanos() > u64::MAX as u128 => None,
            Self::Whole(span) => Some((narrow(span.as_nanos()), NonZeroU64::MIN)),
        }
    }

    pub(crate) const fn ceil(self) -> Duration {
        match self {
            Self::Whole(span) => span,
            Self::Quotient { owed, per } => Duration::from_nanos(owed.div_ceil(per.get())),
        }
    }
}

const NANOS_PER_MILLI: u128 = 1_000_000;

/// Saturates at `u64::MAX`.
#[allow(clippy::cast_possible_truncation)]
const fn narrow(number: u128) -> u64 {
    if number > u64::MAX as u128 { u64::MAX } else { number as u64 }
}

#[allow(clippy::cast_possible_truncation)]
const fn low_half(number: u64) -> u32 {
    number as u32
}

const fn millis_ceil(span: Duration) -> u64 {
    narrow(span.as_nanos().div_ceil(NANOS_PER_MILLI))
}

/// Whether a request passes. Complete by definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)]
pub enum Outcome {
    /// The request passes and has been charged. After a [peek](crate::limiter::Mode::Peek), it would pass. In the
    /// verdict on a request that another policy rejected, it would have passed, and this policy did not charge it.
    Allow,
    /// The request is rejected and was not charged.
    Reject {
        /// The exact time after which the same request is admitted if the key isn't charged until then; `None` if no
        /// wait helps, as for a cost that never fits, or if the time is [not known](Decision::is_until_released).
        retry_after: Option<Duration>,
    },
}

impl Decision {
    /// For a rejected `cost`: the units that are left, at most `cost`, which [`Mode::UpTo`](crate::limiter::Mode::UpTo)
    /// charges. `None` if nothing is left, or if it was admitted.
    #[must_use]
    pub fn partial_cost(&self, cost: u64) -> Option<u64> {
        Some(self.remaining().min(cost)).filter(|left| *left > 0 && !self.is_allowed())
    }

    /// Whether this rejection by a limiter that [sheds](crate::limiter::Description::sheds) is due to the server's
    /// load, and not to a ban or to a cost above the maximum.
    pub(crate) fn is_shed(&self) -> bool {
        matches!(self.limit.kind(), OutcomeKind::Reject | OutcomeKind::UntilReleased) && self.ban().is_none()
    }

    /// The key's ban, if it is banned: on a server, or by hand.
    pub(crate) fn ban(&self) -> Option<Exception> {
        self.receipt.exception().filter(|exception| exception.is_ban)
    }

    /// The key's allowance, if it is allowed by hand.
    pub(crate) fn allowance(&self) -> Option<Exception> {
        self.receipt.exception().filter(|exception| !exception.is_ban)
    }

    /// The decision for a key that is banned: [`banned_for`](Self::banned_for), marked.
    pub(crate) fn banned(self, ban: &Exception) -> Self {
        self.banned_for(ban.left).with_receipt(Receipt::for_exception(ban))
    }

    /// Turns a peek of cost 0 into the decision on one unit: if zero are left and the time until the next one is known,
    /// a rejection until then.
    pub(crate) fn until_next(self) -> Self {
        let rejected = |next| Self::reject(self.limit(), 0, Some(next)).with_reset_after(self.reset_after());
        self.next_after().filter(|_| self.remaining() == 0).map_or(self, rejected)
    }

    /// The decision for a key that is allowed by hand: its budget is full (`limit` units), and it isn't charged.
    pub(crate) fn allowed(limit: u64, allowance: &Exception) -> Self {
        Self::allow(limit, limit).with_receipt(Receipt::for_exception(allowance))
    }

    /// The decision for a key whose ban lasts for another `left`: rejected until the ban ends, or for longer if it
    /// would be rejected for longer without the ban.
    pub(crate) fn banned_for(self, left: Duration) -> Self {
        let wait = match self.limit.kind() {
            OutcomeKind::Allow => Some(left),
            OutcomeKind::Reject => Some(left.max(self.waits())),
            OutcomeKind::UntilReleased => return Self { remaining: self.remaining.with_units(0), ..self },
            OutcomeKind::Never => None,
        };
        Self::reject(self.limit(), 0, wait).with_reset_after(self.reset_after().max(left))
    }

    /// The decision for a key that owes something beside its limiter's charges: at most `left` units are left. If that
    /// is zero, the next unit comes after the time `next`. The key owes nothing after `paid_in`.
    pub(crate) fn leaving_at_most(mut self, left: u64, next: Duration, paid_in: Duration) -> Self {
        // `None`: the limiter has nothing left, and its next unit follows from its reset.
        let limiter_next = if self.remaining() > 0 { Some(Duration::ZERO) } else { self.next_after() };
        self.remaining = self.remaining.with_units(self.remaining().min(left));
        self = self.with_reset_after(self.reset_after().max(paid_in));
        match limiter_next.filter(|_| left == 0) {
            Some(limiter_next) => self.with_next_after(next.max(limiter_next)),
            None => self,
        }
    }

    /// Shortens a rejection's wait to at most `most`.
    pub(crate) fn wait_at_most(self, most: Duration) -> Self {
        match self.limit.kind() {
            OutcomeKind::Reject => self.waiting(DeferredTime::Whole(self.waits().min(most))),
            OutcomeKind::Allow | OutcomeKind::UntilReleased | OutcomeKind::Never => self,
        }
    }

    /// The decision if `cost` had been charged in place of `charged`. Exact, with three exceptions: a bucket's reset
    /// may be a nanosecond off, a window's reset may be late by at most one window, and if a greater cost takes the
    /// last unit, the time until the next one is unknown.
    pub(crate) fn recharged(mut self, charged: u64, cost: u64, terms: Option<Terms>) -> Self {
        // Below 2^65, so that any cost is subtracted exactly.
        let remaining = (u128::from(self.remaining()) + u128::from(charged)).saturating_sub(cost.into());
        let remaining = u64::try_from(remaining).map_or(self.limit(), |remaining| remaining.min(self.limit()));
        self.remaining = self.remaining.with_units(remaining);
        if cost == 0 {
            self.receipt = Receipt::NONE;
        }
        if self.is_allowed() && remaining > 0 {
            // No unit has to be waited for.
            (self.wait, self.remaining) = (0, self.remaining.with(WAIT_COARSE, false));
        }
        let restored = terms.and_then(|terms| Some((terms.shape()?, terms.quota()?)));
        let reset = match restored {
            // A calendar window ends at the same time, however much of it is used.
            Some((Shape::CalendarWindow, _)) => self.reset_after(),
            _ if remaining == self.limit() => Duration::ZERO,
            Some((Shape::Bucket, quota)) => {
                let paid_in = |units| quota.time_of(units);
                self.reset_after().saturating_add(paid_in(cost)).saturating_sub(paid_in(charged))
            }
            Some((shape, quota)) if cost > charged => {
                let (before, window) = (self.reset_after(), quota.period());
                match shape {
                    // Before the charge, no window had begun.
                    Shape::FixedWindow if before.is_zero() => window,
                    // Before it, only the remainder of the last window counted, until this one ends. The charge counts
                    // in the next one, too.
                    Shape::SlidingWindow if before.is_zero() => window.saturating_mul(2),
                    Shape::SlidingWindow if before <= window => before.saturating_add(window),
                    _ => before,
                }
            }
            Some(_) | None => self.reset_after(),
        };
        self.with_reset_after(reset)
    }

    /// Admits, with `remaining` of `limit` units left. Both are cut to [`Quota::MAX_UNITS`](crate::Quota::MAX_UNITS),
    /// here and where a decision rejects.
    pub const fn allow(limit: u64, remaining: u64) -> Self {
        Self::admit(at_most_max(limit), at_most_max(remaining))
    }

    /// Rejects a request whose key has a [suspended](crate::Quota::suspended) quota: there are no units, and no wait
    /// helps.
    pub const fn suspended() -> Self {
        Self::never(0, 0).with_receipt(Receipt::SUSPENDED)
    }

    /// Whether the request is rejected because its key's quota is [suspended](crate::Quota::suspended).
    #[must_use]
    pub const fn is_suspended(&self) -> bool {
        self.receipt.is_suspended()
    }

    /// [`allow`](Self::allow), for numbers from a quota, which need no cut.
    #[inline(always)]
    pub(crate) const fn admit(limit: u64, remaining: u64) -> Self {
        Self::new(OutcomeKind::Allow, limit, remaining)
    }

    /// Rejects, with `remaining` of `limit` units left (fewer than were asked for).
    pub const fn reject(limit: u64, remaining: u64, retry_after: Option<Duration>) -> Self {
        let limit = at_most_max(limit);
        let remaining = at_most_max(remaining);
        match retry_after {
            Some(wait) => Self::reject_for(limit, remaining, DeferredTime::Whole(wait)),
            None => Self::never(limit, remaining),
        }
    }

    /// Rejects, with any wait. For numbers from a quota.
    #[inline(always)]
    pub(crate) const fn never(limit: u64, remaining: u64) -> Self {
        Self::new(OutcomeKind::Never, limit, remaining)
    }

    /// Rejects until the key's other requests release units, with `remaining` of `limit` units left. We can't know when
    /// that will be, so there is no time to retry after.
    pub const fn reject_until_released(limit: u64, remaining: u64) -> Self {
        Self::new(OutcomeKind::UntilReleased, at_most_max(limit), at_most_max(remaining))
    }

    /// Rejects for a time that may be an undivided quotient. For numbers from a quota.
    #[inline(always)]
    pub(crate) const fn reject_for(limit: u64, remaining: u64, wait: DeferredTime) -> Self {
        Self::new(OutcomeKind::Reject, limit, remaining).waiting(wait)
    }

    #[inline(always)]
    const fn new(kind: OutcomeKind, limit: u64, remaining: u64) -> Self {
        let limit = Limit::new(limit, kind);
        let remaining = Remaining::new(remaining);
        Self { receipt: Receipt::NONE, wait: 0, reset: 0, per: NonZeroU64::MIN, limit, remaining, delay_low: 0 }
    }

    // This and `with_reset_span` change fields one by one, because a decision that is passed on and returned would be
    // copied.
    #[inline(always)]
    const fn waiting(mut self, wait: DeferredTime) -> Self {
        let Some((owed, per)) = wait.parts() else {
            (self.wait, self.remaining) = (millis_ceil(wait.ceil()), self.remaining.with(WAIT_COARSE, true));
            return self;
        };
        let shares_units = self.reset > 0 && !self.remaining.has(RESET_COARSE);
        self.remaining = self.remaining.with(WAIT_COARSE, false);
        if shares_units && self.per.get() != per.get() {
            self = self.in_nanos();
            self.wait = owed.div_ceil(per.get());
        } else {
            (self.wait, self.per) = (owed, per);
        }
        self
    }

    /// Converts `wait` and `reset` from units of 1/`per` nanosecond to nanoseconds.
    #[cold]
    const fn in_nanos(mut self) -> Self {
        if !self.remaining.has(WAIT_COARSE) {
            self.wait = self.wait.div_ceil(self.per.get());
        }
        if !self.remaining.has(RESET_COARSE) {
            self.reset = self.reset.div_ceil(self.per.get());
        }
        self.per = NonZeroU64::MIN;
        self
    }

    const fn waits(&self) -> Duration {
        self.span(self.wait, self.remaining.has(WAIT_COARSE))
    }

    const fn span(&self, owed: u64, is_coarse: bool) -> Duration {
        if is_coarse { Duration::from_millis(owed) } else { Duration::from_nanos(owed.div_ceil(self.per.get())) }
    }

    /// Sets the time until the key owes nothing.
    pub const fn with_reset_after(self, reset_after: Duration) -> Self {
        self.with_reset_span(DeferredTime::Whole(reset_after))
    }

    #[inline(always)]
    pub(crate) const fn with_reset_span(mut self, reset: DeferredTime) -> Self {
        let Some((owed, per)) = reset.parts() else {
            (self.reset, self.remaining) = (millis_ceil(reset.ceil()), self.remaining.with(RESET_COARSE, true));
            return self;
        };
        let shares_units = self.wait > 0 && !self.remaining.has(WAIT_COARSE);
        self.remaining = self.remaining.with(RESET_COARSE, false);
        if shares_units && self.per.get() != per.get() {
            self = self.in_nanos();
            self.reset = owed.div_ceil(per.get());
        } else {
            (self.reset, self.per) = (owed, per);
        }
        self
    }

    #[inline(always)]
    pub(crate) const fn with_next_span(self, next: DeferredTime) -> Self {
        match self.limit.kind() {
            OutcomeKind::Allow => self.waiting(next),
            OutcomeKind::Reject | OutcomeKind::UntilReleased | OutcomeKind::Never => self,
        }
    }

    /// Sets the time until one unit is available, for an admission that leaves zero units. Set it for a request with
    /// cost 0, and for a sliding window. After a charge to a bucket or a fixed window, it follows from the terms.
    pub const fn with_next_after(self, next_after: Duration) -> Self {
        self.with_next_span(DeferredTime::Whole(next_after))
    }

    /// Sets the time that the request waits, or would wait, in a queue.
    pub const fn with_delay(mut self, delay: Duration) -> Self {
        let nanos = delay.as_nanos();
        let kept = if nanos < DELAY_COARSE as u128 {
            narrow(nanos)
        } else {
            // A million years at most.
            let millis = millis_ceil(delay);
            DELAY_COARSE | if millis < DELAY_COARSE { millis } else { DELAY_COARSE - 1 }
        };
        let middle = kept >> u32::BITS;
        let high = kept >> (u32::BITS + DELAY_BITS);
        self.delay_low = low_half(kept);
        self.remaining = Remaining(self.remaining.0 & !DELAY_MASK | middle << 2 & DELAY_MASK);
        self.limit = Limit(self.limit.0 & !DELAY_MASK | high << 2 & DELAY_MASK);
        self
    }

    /// Sets the receipt that a later refund needs.
    pub const fn with_receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = receipt;
        self
    }

    /// Whether the request passes, and if not, when it would.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self.limit.kind() {
            OutcomeKind::Allow => Outcome::Allow,
            OutcomeKind::Reject | OutcomeKind::UntilReleased | OutcomeKind::Never => {
                Outcome::Reject { retry_after: self.retry_after() }
            }
        }
    }

    /// Whether the request passes.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.limit.kind(), OutcomeKind::Allow)
    }

    /// The exact wait after which the same request is admitted, alone on its key. `None` if it is
    /// admitted now, or never will be, or at a time that is [not known](Self::is_until_released).
    #[must_use]
    #[doc(alias = "Retry-After")]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.limit.kind() {
            OutcomeKind::Reject => Some(self.waits()),
            OutcomeKind::Allow | OutcomeKind::UntilReleased | OutcomeKind::Never => None,
        }
    }

    /// Whether this is a rejection until the key's other requests end, at a time that is not known.
    #[must_use]
    pub const fn is_until_released(&self) -> bool {
        matches!(self.limit.kind(), OutcomeKind::UntilReleased)
    }

    /// The time until one unit is available, if this is an admission that leaves zero units, and if its limiter [has
    /// set it](Self::with_next_after).
    #[must_use]
    pub const fn next_after(&self) -> Option<Duration> {
        if self.wait > 0 && self.is_allowed() { Some(self.waits()) } else { None }
    }

    /// The most units that a key that owes nothing can take at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit.units()
    }

    /// The units that are available right after this decision. Never more than
    /// [`limit`](Self::limit).
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining.units()
    }

    /// The time until the key is as if it had never been seen. For a calendar window, always the time until it ends.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.span(self.reset, self.remaining.has(RESET_COARSE))
    }

    /// The time that the request waited in a queue; zero for limiters that do not queue.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        let high = (self.limit.0 & DELAY_MASK) >> 2;
        let middle = (self.remaining.0 & DELAY_MASK) >> 2;
        let kept = (high << DELAY_BITS | middle) << u32::BITS | self.delay_low as u64;
        match kept & DELAY_COARSE {
            0 => Duration::from_nanos(kept),
            _ => Duration::from_millis(kept & !DELAY_COARSE),
        }
    }

    /// Whether the request waited in a queue.
    #[inline]
    pub(crate) const fn is_delayed(&self) -> bool {
        self.delay_low as u64 | self.limit.0 & DELAY_MASK | self.remaining.0 & DELAY_MASK != 0
    }

    /// The receipt that [`Limiter::refund`](crate::Limiter::refund) needs to refund exactly this charge.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        self.receipt
    }
}

/// Two decisions are equal if their times are, in any unit.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let facts = |decision: &Self| {
            let kind = decision.limit.kind();
            let remaining = decision.remaining();
            let delay = decision.delay();
            (decision.receipt, delay, decision.limit(), remaining, kind, decision.waits(), decision.reset_after())
        };
        facts(self) == facts(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("next_after", &self.next_after())
            .field("reset_after", &self.reset_after())
            .field("delay", &self.delay())
            .field("receipt", &self.receipt)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Quota;

    /// Shorter times are nanoseconds.
    #[test]
    fn times_above_584_years_are_milliseconds() {
        let longest = Duration::from_nanos(u64::MAX);
        let longer = longest + Duration::from_nanos(1);
        let ceil = Duration::from_millis(u64::MAX / 1_000_000 + 1);
        for (wait, kept) in [(Duration::ZERO, Duration::ZERO), (longest, longest), (longer, ceil)] {
            for (reset, kept_reset) in [(Duration::ZERO, Duration::ZERO), (longest, longest), (longer, ceil)] {
                let decision = Decision::reject(5, 0, Some(wait)).with_reset_after(reset);
                assert_eq!((decision.retry_after(), decision.reset_after()), (Some(kept), kept_reset));
            }
        }
        let year = Duration::from_nanos(DELAY_COARSE);
        for (delay, kept) in [
            (Duration::ZERO, Duration::ZERO),
            (year - Duration::from_nanos(1), year - Duration::from_nanos(1)),
            (year, Duration::from_millis(DELAY_COARSE.div_ceil(1_000_000))),
            (longer, ceil),
            (Duration::MAX, Duration::from_millis(DELAY_COARSE - 1)),
        ] {
            // The delay shares words with everything else.
            let decision =
                Decision::reject(Quota::MAX_UNITS, Quota::MAX_UNITS - 1, Some(longer)).with_reset_after(longer);
            let delayed = decision.with_delay(year).with_delay(delay);
            assert_eq!((delayed.delay(), delayed.with_delay(Duration::ZERO)), (kept, decision));
            assert_eq!((delayed.limit(), delayed.remaining()), (Quota::MAX_UNITS, Quota::MAX_UNITS - 1));
            assert_eq!(delayed.outcome(), decision.outcome());
            assert_eq!(delayed.leaving_at_most(0, Duration::ZERO, Duration::ZERO).delay(), kept);
        }
    }

    #[test]
    fn units_above_the_greatest_are_cut() {
        let decision = Decision::allow(u64::MAX, u64::MAX);
        assert_eq!((decision.limit(), decision.remaining()), (Quota::MAX_UNITS, Quota::MAX_UNITS));
        let kinds = [
            Decision::allow(7, 3),
            Decision::reject(7, 3, Some(Duration::ZERO)),
            Decision::reject_until_released(7, 3),
            Decision::reject(7, 3, None),
        ];
        for (index, decision) in kinds.into_iter().enumerate() {
            assert_eq!((decision.limit(), decision.remaining()), (7, 3));
            assert_eq!(kinds.iter().position(|kind| *kind == decision), Some(index));
        }
        let recharged = Decision::allow(Quota::MAX_UNITS, 0).recharged(u64::MAX, 1, None);
        assert_eq!(recharged.remaining(), Quota::MAX_UNITS);
        assert_eq!(Decision::allow(9, 9).recharged(0, u64::MAX, None).remaining(), 0);
    }

    /// The wait and the reset may have different divisors.
    #[test]
    fn quotients_are_rounded_up_to_nanoseconds() {
        let per = |per| NonZeroU64::new(per).unwrap();
        let reset = DeferredTime::Quotient { owed: 10, per: per(4) };
        for (wait, nanos) in [
            (DeferredTime::Quotient { owed: 10, per: per(3) }, 4),
            (DeferredTime::Quotient { owed: 9, per: per(4) }, 3),
        ] {
            let decision = Decision::reject_for(5, 0, wait).with_reset_span(reset);
            assert_eq!(decision.retry_after(), Some(Duration::from_nanos(nanos)));
            assert_eq!(decision.reset_after(), Duration::from_nanos(3));
            // The units in which times are kept do not count.
            let whole = Decision::reject(5, 0, Some(Duration::from_nanos(nanos)));
            assert_eq!(decision, whole.with_reset_after(Duration::from_nanos(3)));
        }
    }

    /// A bug kept the wait for one unit, although the refund had made some available.
    #[test]
    fn units_left_after_recharging_need_no_wait() {
        let second = Duration::from_secs(1);
        let used_up = Decision::allow(5, 0).with_next_after(second);
        assert_eq!(used_up.recharged(2, 2, None).next_after(), Some(second));
        let refunded = used_up.recharged(2, 0, None);
        assert_eq!((refunded.remaining(), refunded.next_after()), (2, None));
        let rejected = Decision::reject(5, 0, Some(second));
        assert_eq!(rejected.recharged(2, 0, None).retry_after(), Some(second));
    }

    /// A bug kept the key's reset from before the charge, which may be at once.
    #[test]
    fn a_greater_recharge_extends_a_windows_reset() {
        let second = Duration::from_secs(1);
        let quota = crate::values::Quota::per(5, 10 * second);
        let reset = |terms, before: u32, charged, cost| {
            let decision = Decision::allow(5, 2).with_reset_after(before * second);
            decision.recharged(charged, cost, Some(terms)).reset_after().as_secs()
        };
        for (before, charged, cost, fixed, sliding) in
            [(0, 0, 4, 10, 20), (3, 0, 4, 3, 13), (10, 0, 4, 10, 20), (13, 1, 3, 13, 13), (13, 3, 1, 13, 13)]
        {
            assert_eq!(
                reset(Terms::sliding_window(quota), before, charged, cost),
                sliding,
                "{before} {charged} {cost}"
            );
            assert_eq!(reset(Terms::fixed_window(quota), before, charged, cost), fixed, "{before} {charged} {cost}");
        }
        let rejected = Decision::reject(5, 0, Some(second));
        assert_eq!(rejected.recharged(2, 0, None).retry_after(), Some(second));
    }
}
