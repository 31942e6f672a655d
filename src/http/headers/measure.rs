//! Converts decisions to the numbers that fields advertise: the units left, and the seconds that they have to last.

use std::num::NonZeroU64;
use std::time::Duration;

use super::decimal::MAX_INTEGER;
use super::wait::retry_after_seconds;
use crate::values::time::seconds_ceil;
use crate::values::{Decision, Outcome, Quota, Shape, Terms, gcd};

/// The quota that one policy advertises, with the method that computes a decision's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Measure {
    /// Units that time restores.
    Restored(RestoredMeasure),
    /// Units in flight. We do not know when they will be released, so no time is advertised.
    InFlight { limit: u64 },
}

/// A quota's terms, with all that can be computed in advance.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestoredMeasure {
    shape: Shape,
    /// `limit` units per `period` nanoseconds, in lowest terms, so that a quota such as a million per day computes in
    /// 64 bits.
    limit: u64,
    period: u64,
    /// One second, in 1/`limit` nanoseconds, in which all times are counted, as in `algorithm::gcra`.
    second: u128,
    /// The time in which an empty bucket fills up.
    capacity: u128,
    /// The reduction for a store's ticks: a 2^32nd of the capacity. A memory table rounds its clock down to ticks of at
    /// most half that length, so that a state may owe a tick too little. (Half-nanosecond ticks, and ticks after some
    /// live changes, may be longer. In these cases `t` may be a second more than it has to be, but is never less.)
    tick: u128,
    advertised: Advertised,
}

/// The numbers in `RateLimit-Policy`: `quota` units in each `window` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advertised {
    pub(super) quota: u64,
    /// `None` if time does not restore the units, and for calendar windows, because months differ in length, and so do
    /// days where clocks are changed. The present window's length would be true, but the field should be the same on
    /// all responses (draft-ietf-httpapi-ratelimit-headers-11, section 3), and that window's end is in `t`.
    pub(super) window: Option<NonZeroU64>,
}

/// The numbers in `RateLimit`: at most `left` units within the next `within` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(super) left: u64,
    /// `None` if no wait helps, because the request costs more than ever fits, and if the time is not known.
    pub(super) within: Option<NonZeroU64>,
}

const SECOND: u64 = 1_000_000_000;

/// The longest window, in seconds, that is advertised only because it holds a whole number of units. Beyond an hour, it
/// is too far from the configured period, and a client learns less from it than from a rounded quota.
const LONGEST_SEARCH: u64 = 3_600;

impl Measure {
    pub(super) fn new(terms: &Terms) -> Self {
        match (terms.quota(), terms.shape()) {
            (Some(quota), Some(shape)) => Self::Restored(RestoredMeasure::new(quota, shape)),
            _ => Self::InFlight { limit: terms.limit() },
        }
    }

    pub(super) fn advertised(&self) -> Advertised {
        match self {
            Self::Restored(restored) => restored.advertised,
            Self::InFlight { limit } => Advertised { quota: *limit, window: None },
        }
    }

    /// Returns the numbers to advertise after `decision`.
    #[inline]
    pub(super) fn level(&self, decision: &Decision) -> Level {
        match self {
            Self::Restored(restored) => restored.level(decision),
            Self::InFlight { .. } => {
                Level { left: if decision.is_allowed() { decision.remaining() } else { 0 }, within: None }
            }
        }
    }
}

impl RestoredMeasure {
    fn new(quota: Quota, shape: Shape) -> Self {
        let (limit, period) = (quota.limit(), quota.period_nanos());
        let burst = quota.max_burst();
        let common = gcd(limit, period);
        let advertised = match shape {
            Shape::Bucket => Advertised::of_bucket(limit, period, burst),
            Shape::FixedWindow | Shape::SlidingWindow => Advertised::of_window(limit, period),
            Shape::CalendarWindow => Advertised { quota: limit, window: None },
        };
        let (limit, period) = (limit / common, period / common);
        let capacity = u128::from(burst) * u128::from(period);
        Self {
            shape,
            limit,
            period,
            second: u128::from(limit) * u128::from(SECOND),
            capacity,
            tick: capacity >> 32,
            advertised,
        }
    }

    /// Returns the numbers to advertise after `decision`.
    ///
    /// left / within never exceeds quota / window, so a client that spreads the remaining units evenly is never
    /// rejected. (Exceptions are fixed and calendar windows, which advertise their end, and advertised quotas that had
    /// to be rounded down.)
    fn level(&self, decision: &Decision) -> Level {
        let (left, within) = match decision.outcome() {
            Outcome::Reject { retry_after } => (0, retry_after.map(retry_after_seconds)),
            Outcome::Allow => {
                let left = decision.remaining();
                (left, Some(self.within(decision, left).min(MAX_INTEGER)))
            }
        };
        // Each case gives a second at least.
        Level { left, within: within.map(|within| NonZeroU64::new(within).unwrap_or(NonZeroU64::MIN)) }
    }

    /// Returns the seconds for which `left` units have to suffice.
    fn within(&self, decision: &Decision, left: u64) -> u64 {
        match (self.shape, left) {
            // Nothing is used, so no window has begun.
            (Shape::FixedWindow, _) if decision.reset_after().is_zero() => self.seconds_of(self.capacity),
            (Shape::FixedWindow | Shape::CalendarWindow, _) => seconds_ceil(decision.reset_after()),
            (Shape::Bucket | Shape::SlidingWindow, 0) => {
                seconds_ceil(decision.next_after().unwrap_or_else(|| self.next_after(decision))).max(1)
            }
            (Shape::Bucket, _) => {
                // The unused time minus one tick, because a tick too much could round up to a whole second more. It
                // covers at least the time that the whole units left are worth.
                let free = self.capacity.saturating_sub(self.units_of(decision.reset_after()) + self.tick);
                self.seconds_of(free.max(self.price(left)))
            }
            (Shape::SlidingWindow, _) => self.seconds_of(self.price(left)),
        }
    }

    /// Estimates the time until one unit is available from the decision alone. The estimate is never too short.
    fn next_after(&self, decision: &Decision) -> Duration {
        match self.shape {
            Shape::Bucket => {
                let needed = self.capacity - u128::from(self.period);
                let wait = self.units_of(decision.reset_after()).saturating_sub(needed);
                Duration::from_secs(self.seconds_of(wait))
            }
            // The decision does not have a better bound.
            Shape::FixedWindow | Shape::CalendarWindow | Shape::SlidingWindow => decision.reset_after(),
        }
    }

    /// The time that `units` are worth.
    fn price(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.period)
    }

    /// Converts a time, to at most 2^127, which is more than any bucket holds.
    fn units_of(&self, span: Duration) -> u128 {
        let nanos = span.as_nanos();
        match u64::try_from(nanos) {
            Ok(nanos) => u128::from(nanos) * u128::from(self.limit),
            // More than 584 years.
            Err(_) => nanos.saturating_mul(self.limit.into()).min(1 << 127),
        }
    }

    /// Rounds `units` up to whole seconds. Uses the processor's 64-bit division if the numbers fit, because the 128-bit
    /// one is a library call.
    fn seconds_of(&self, units: u128) -> u64 {
        let seconds = match (u64::try_from(units), u64::try_from(self.second)) {
            (Ok(units), Ok(second)) => units.div_ceil(second).into(),
            _ => units.div_ceil(self.second),
        };
        u64::try_from(seconds).unwrap_or(u64::MAX)
    }
}

impl Advertised {
    /// Finds the smallest window that holds the burst and a whole number of units, at exactly the bucket's rate.
    /// Failing that, takes the smallest that holds the burst, and rounds its units down.
    fn of_bucket(limit: u64, period: u64, burst: u64) -> Self {
        // `units` per `step` seconds, in lowest terms, so that whole windows are multiples of `step`.
        let per_second = u128::from(limit) * u128::from(SECOND);
        let common = u128::from(gcd(period, narrow(per_second % u128::from(period))));
        let units = per_second / common;
        let step = u128::from(period) / common;

        let least = (u128::from(burst) * step).div_ceil(units).max(1);
        let window = least.next_multiple_of(step);
        let window = if window <= u128::from(LONGEST_SEARCH).max(least) { window } else { least };
        let window = window.min(MAX_INTEGER.into());
        // The window is the least one, which restores less than the burst and a unit, or an hour at most, so the
        // product is below 2^113.
        let quota = (units * window / step).min(MAX_INTEGER.into());
        Self { quota: narrow(quota), window: NonZeroU64::new(narrow(window)) }
    }

    /// Takes the fewest periods that make whole seconds, or one period, rounded up.
    fn of_window(limit: u64, period: u64) -> Self {
        let periods = SECOND / gcd(period, SECOND);
        // Below 2^92, as periods are below 2^62.
        let window = u128::from(periods) * u128::from(period) / u128::from(SECOND);
        if periods == 1 || window <= u128::from(LONGEST_SEARCH) {
            Self { quota: limit.saturating_mul(periods).min(MAX_INTEGER), window: NonZeroU64::new(narrow(window)) }
        } else {
            Self { quota: limit, window: NonZeroU64::new(period.div_ceil(SECOND)) }
        }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
