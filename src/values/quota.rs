//! `Quota`: a limit per period, with a burst.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::values::time::{duration_from_nanos, nanos_of};

/// `limit` units per `period`, with up to `burst` at once.
///
/// ```
/// use tower_sluice::Quota;
///
/// // Ten per second in the long run; a client that was idle may send twenty at one instant.
/// const API: Quota = Quota::per_second(10).burst(20);
/// assert_eq!(API.limit(), 10);
/// assert_eq!(API.max_burst(), 20);
/// ```
///
/// A request costs one unit, unless its policy sets another [cost](crate::Policy::cost).
///
/// **The burst counts the first request**: `burst(1)` admits one request and then one per
/// `period / limit`. Unless set, it is `limit` for the buckets and 1 for a
/// [`LeakyQueue`](crate::LeakyQueue), which is there to space requests out. Windows have no burst:
/// their whole limit may come at once, and they reject a quota with another burst.
///
/// The constructors are `const` and panic on nonsense, so that a zero in a constant does not compile. [`try_per`] and
/// [`try_burst`] are for numbers that are read at run time.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::Quota;
///
/// const LOGIN: Quota = Quota::per(5, Duration::from_secs(15 * 60));
/// ```
///
/// Where a limiter is wanted, a quota is a [`TokenBucket`](crate::TokenBucket) in memory.
///
/// [`try_per`]: Self::try_per
/// [`try_burst`]: Self::try_burst
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
#[doc(alias("rate", "limit"))]
pub struct Quota {
    limit: NonZeroU64,
    /// The burst. Above [`MAX_UNITS`], the [number](Self::calendar) that stands for a key's own calendar.
    burst: Option<NonZeroU64>,
    /// Zero only for a suspended quota.
    period_nanos: u64,
}

const _: () = assert!(size_of::<Option<Quota>>() == 24, "a store may keep one for each key");

/// A period longer than a hundred years is most likely a mistake in the unit.
const MAX_PERIOD_NANOS: u64 = 100 * 366 * 86_400 * 1_000_000_000;

/// The largest integer in a structured field (RFC 9651), so that every quota can be advertised.
const MAX_UNITS: u64 = 999_999_999_999_999;

impl Quota {
    /// The greatest limit, and the greatest burst: 999,999,999,999,999 units, just under 2^50.
    ///
    /// It is the largest integer in a [structured field](https://www.rfc-editor.org/rfc/rfc9651#section-3.3.1), so that
    /// every quota can be advertised. It is enough for 999 TB per month in bytes, or for a billion dollars in
    /// millionths. If you need more, count in greater units.
    pub const MAX_UNITS: u64 = MAX_UNITS;

    /// `limit` units per second.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`MAX_UNITS`](Self::MAX_UNITS).
    #[track_caller]
    pub const fn per_second(limit: u64) -> Self {
        Self::per(limit, Duration::from_secs(1))
    }

    /// `limit` units per minute.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`MAX_UNITS`](Self::MAX_UNITS).
    #[track_caller]
    pub const fn per_minute(limit: u64) -> Self {
        Self::per(limit, Duration::from_secs(60))
    }

    /// `limit` units per hour.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`MAX_UNITS`](Self::MAX_UNITS).
    #[track_caller]
    pub const fn per_hour(limit: u64) -> Self {
        Self::per(limit, Duration::from_secs(3_600))
    }

    /// `limit` units per 24 hours.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`MAX_UNITS`](Self::MAX_UNITS).
    #[track_caller]
    pub const fn per_day(limit: u64) -> Self {
        Self::per(limit, Duration::from_secs(86_400))
    }

    /// `limit` units per `period`.
    ///
    /// # Panics
    ///
    /// If `limit` or `period` is zero, the limit exceeds [`MAX_UNITS`](Self::MAX_UNITS), or the period a hundred years.
    #[track_caller]
    #[doc(alias("period", "with_period"))]
    pub const fn per(limit: u64, period: Duration) -> Self {
        match Self::try_per(limit, period) {
            Ok(quota) => quota,
            Err(QuotaError::ZeroPeriod) => panic!("a quota's period must not be zero"),
            Err(QuotaError::PeriodTooLong { .. }) => panic!("a quota's period must not exceed a hundred years"),
            Err(QuotaError::LimitTooGreat { .. }) => panic!("a quota's limit must not exceed 999,999,999,999,999"),
            Err(_) => panic!("a quota's limit must be at least 1"),
        }
    }

    /// [`per`](Self::per), for numbers that are read at run time.
    ///
    /// # Errors
    ///
    /// If `limit` or `period` is zero, the limit exceeds [`MAX_UNITS`](Self::MAX_UNITS), or the period a hundred years.
    pub const fn try_per(limit: u64, period: Duration) -> Result<Self, QuotaError> {
        if limit > MAX_UNITS {
            return Err(QuotaError::LimitTooGreat { limit });
        }
        let Some(limit) = NonZeroU64::new(limit) else { return Err(QuotaError::ZeroLimit) };
        match nanos_of(period) {
            0 => Err(QuotaError::ZeroPeriod),
            period_nanos if period_nanos > MAX_PERIOD_NANOS => Err(QuotaError::PeriodTooLong { period }),
            period_nanos => Ok(Self { limit, burst: None, period_nanos }),
        }
    }

    /// The quota for a suspended key, such as a customer whose plan is paused: every request is rejected without a
    /// wait, even at cost 0, and nothing is charged. Its limit, its burst and its period are zero.
    ///
    /// ```
    /// use tower_sluice::key::User;
    /// use tower_sluice::{MissingKey, Policy, Quota};
    ///
    /// /// An extension, which the authentication layer attaches to requests.
    /// #[derive(Clone, Copy)]
    /// struct Plan {
    ///     quota: Quota,
    ///     is_paused: bool,
    /// }
    ///
    /// let api = Policy::new("api", Quota::per_minute(60))
    ///     .key(User::key())
    ///     .on_missing_key(MissingKey::Share)
    ///     .quota_fn(|request| {
    ///         let plan = request.extensions().get::<Plan>()?;
    ///         Some(if plan.is_paused { Quota::suspended() } else { plan.quota })
    ///     });
    /// ```
    ///
    /// It is for [`quota_fn`](crate::Policy::quota_fn) and [`Ask::under`](crate::limiter::Ask::under); you can't make
    /// an algorithm from it. To suspend all the policy's keys, return it for each; in TOML, write `suspended = true`.
    ///
    /// The key's usage stays, and time restores it as before, so that the key continues with it once it has a quota
    /// again. No server is called. Therefore an [allowance](crate::LimitsHandle::allow) by hand lets a suspended key in
    /// only if this process keeps the allowance, and a suspended key's rejection does not say whether the key is
    /// banned.
    ///
    /// A layer answers 403 Forbidden, not 429, unless the policy has a [status](crate::Policy::status): the client has
    /// not sent too many requests, no wait helps, and clients repeat a 429 by themselves, but not a 403 (RFC 9110,
    /// section 15.5.4). gRPC clients get PERMISSION_DENIED.
    pub const fn suspended() -> Self {
        Self { limit: NonZeroU64::MIN, burst: None, period_nanos: 0 }
    }

    /// Whether this is [`suspended`](Self::suspended).
    #[must_use]
    #[inline]
    pub const fn is_suspended(&self) -> bool {
        self.period_nanos == 0
    }

    /// Panics if the quota is suspended, because no limiter can be made from it.
    #[track_caller]
    pub(crate) const fn assert_in_force(&self) {
        assert!(
            !self.is_suspended(),
            "a suspended quota is for keys, and a limiter needs another; return it from `quota_fn`, or ask under it"
        );
    }

    /// Lets up to `burst` units pass at once, the first included.
    ///
    /// # Panics
    ///
    /// If `burst` is zero, so that nothing would ever pass, or above [`MAX_UNITS`](Self::MAX_UNITS), or if the quota is
    /// [suspended](Self::suspended).
    #[track_caller]
    #[doc(alias = "capacity")]
    pub const fn burst(self, burst: u64) -> Self {
        self.assert_in_force();
        assert!(burst > 0, "a burst counts the first request, so it must be at least 1");
        assert!(burst <= MAX_UNITS, "a quota's burst must not exceed 999,999,999,999,999");
        Self { burst: NonZeroU64::new(burst), ..self }
    }

    /// [`burst`](Self::burst), for a number that is read at run time.
    ///
    /// # Errors
    ///
    /// If `burst` is zero or above [`MAX_UNITS`](Self::MAX_UNITS).
    pub const fn try_burst(self, burst: u64) -> Result<Self, QuotaError> {
        match burst {
            0 => Err(QuotaError::ZeroBurst),
            burst if burst > MAX_UNITS => Err(QuotaError::BurstTooGreat { burst }),
            burst => Ok(self.burst(burst)),
        }
    }

    /// Units per period.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        if self.is_suspended() { 0 } else { self.limit.get() }
    }

    /// The period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_nanos)
    }

    /// The most units that may be taken at once: the burst if one was set, otherwise the limit.
    #[must_use]
    pub const fn max_burst(&self) -> u64 {
        self.explicit_burst_or(self.limit())
    }

    /// The burst that was set, or `default`, for limiters whose burst is not the limit by default.
    #[must_use]
    pub const fn explicit_burst_or(&self, default: u64) -> u64 {
        match self.burst {
            Some(burst) if burst.get() <= MAX_UNITS => burst.get(),
            _ => default,
        }
    }

    /// A key's limit in flight, up to [`MAX_UNITS`]. Zero suspends the key. The period means nothing.
    pub(crate) const fn in_flight(limit: u64) -> Self {
        if limit == 0 {
            return Self::suspended();
        }
        Self::per_second(if limit > MAX_UNITS { MAX_UNITS } else { limit })
    }

    /// This limit, per window in the calendar with this number. Such quotas are given to keys, and have no burst.
    #[cfg(feature = "calendar")]
    pub(crate) const fn in_calendar(self, number: u32) -> Self {
        Self { burst: NonZeroU64::new(u64::MAX - number as u64), ..self }
    }

    /// The number that stands for the key's own calendar, if it has one.
    #[cfg(feature = "calendar")]
    pub(crate) const fn calendar(&self) -> Option<u32> {
        match self.burst {
            #[allow(clippy::cast_possible_truncation, reason = "numbers of calendars have 32 bits")]
            Some(burst) if burst.get() > MAX_UNITS => Some((u64::MAX - burst.get()) as u32),
            _ => None,
        }
    }

    /// Whether the key has its own calendar.
    pub(crate) const fn has_calendar(&self) -> bool {
        matches!(self.burst, Some(burst) if burst.get() > MAX_UNITS)
    }

    /// This quota as servers keep it, because a calendar's number is valid in one process only.
    pub(crate) const fn without_calendar(self) -> Self {
        match self.burst {
            Some(burst) if burst.get() > MAX_UNITS => Self { burst: None, ..self },
            _ => self,
        }
    }

    /// The time in which this many units are restored, rounded down to the nanosecond.
    pub(crate) fn time_of(&self, units: u64) -> Duration {
        duration_from_nanos(u128::from(units) * u128::from(self.period_nanos) / u128::from(self.limit.get()))
    }

    /// The time in which this many units are restored, rounded up.
    pub(crate) fn time_to_restore(&self, units: u64) -> Duration {
        duration_from_nanos((u128::from(units) * u128::from(self.period_nanos)).div_ceil(u128::from(self.limit.get())))
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period_nanos
    }

    /// This quota for a window, which has no burst but its limit.
    pub(crate) const fn without_burst(self) -> Self {
        Self { burst: None, ..self }
    }

    /// Whether both restore units at one rate, in equal steps.
    pub(crate) fn has_rate_of(&self, other: &Self) -> bool {
        (self.limit, self.period_nanos) == (other.limit, other.period_nanos)
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_suspended() {
            return f.write_str("suspended");
        }
        write!(f, "{} per {:?}", self.limit, self.period())?;
        match self.burst {
            Some(burst) if burst.get() > MAX_UNITS => write!(f, ", by calendar {}", u64::MAX - burst.get()),
            Some(burst) => write!(f, ", burst {burst}"),
            None => Ok(()),
        }
    }
}

/// The greatest common divisor, which reduces limit / period to lowest terms.
pub(crate) const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Why numbers do not make a [`Quota`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// A limit of zero would never admit anything.
    ZeroLimit,
    /// A period of zero has no rate.
    ZeroPeriod,
    /// The period is longer than a hundred years.
    #[non_exhaustive]
    PeriodTooLong {
        /// The period that was asked for.
        period: Duration,
    },
    /// A burst of zero would never admit anything.
    ZeroBurst,
    /// The limit is above [`Quota::MAX_UNITS`].
    #[non_exhaustive]
    LimitTooGreat {
        /// The limit that was asked for.
        limit: u64,
    },
    /// The burst is above [`Quota::MAX_UNITS`].
    #[non_exhaustive]
    BurstTooGreat {
        /// The burst that was asked for.
        burst: u64,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroLimit => f.write_str("the limit is 0 and would reject everything; write at least 1"),
            Self::ZeroPeriod => f.write_str("the period is 0; write a time such as 1s"),
            Self::PeriodTooLong { period } => {
                write!(f, "the period of {} s exceeds a hundred years; check its unit", period.as_secs())
            }
            Self::ZeroBurst => f.write_str(
                "the burst is 0 and would reject everything; it counts the first request, so write at least 1",
            ),
            Self::LimitTooGreat { limit } => too_great(f, "limit", *limit),
            Self::BurstTooGreat { burst } => too_great(f, "burst", *burst),
        }
    }
}

fn too_great(f: &mut fmt::Formatter<'_>, what: &str, units: u64) -> fmt::Result {
    write!(f, "the {what} of {units} exceeds {MAX_UNITS}; count in greater units, such as KiB in place of bytes")
}

impl Error for QuotaError {}

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;

    #[test]
    fn the_burst_defaults_to_the_limit() {
        assert_eq!(Quota::per_minute(7).max_burst(), 7);
        assert_eq!(Quota::per_minute(7).burst(3).max_burst(), 3);
    }

    #[test]
    fn quotas_of_any_period_are_constants() {
        const LOGIN: Quota = Quota::per(5, Duration::from_secs(15 * 60));
        assert_eq!((LOGIN.limit(), LOGIN.period()), (5, Duration::from_secs(900)));
        assert_eq!(Quota::per(7, Duration::from_secs(60)), Quota::per_minute(7));
        assert_eq!(Quota::per(1, Duration::from_nanos(1)).period(), Duration::from_nanos(1));
    }

    #[test]
    fn constructors_panic_with_the_reason() {
        let reason =
            |limit, period| *panic::catch_unwind(|| Quota::per(limit, period)).unwrap_err().downcast::<&str>().unwrap();
        assert!(reason(0, Duration::from_secs(1)).contains("limit"));
        assert!(reason(1, Duration::ZERO).contains("period must not be zero"));
        assert!(reason(1, Duration::MAX).contains("hundred years"));
        assert!(reason(Quota::MAX_UNITS + 1, Duration::from_secs(1)).contains("must not exceed 999,999,999,999,999"));
        let burst = panic::catch_unwind(|| Quota::per_second(1).burst(u64::MAX)).unwrap_err();
        assert_eq!(*burst.downcast::<&str>().unwrap(), "a quota's burst must not exceed 999,999,999,999,999");
    }

    #[test]
    fn the_greatest_quotas_are_constants() {
        const MOST: Quota = Quota::per_day(Quota::MAX_UNITS).burst(Quota::MAX_UNITS);
        assert_eq!((MOST.limit(), MOST.max_burst()), (999_999_999_999_999, 999_999_999_999_999));
        let second = Duration::from_secs(1);
        let error = Quota::try_per(Quota::MAX_UNITS + 1, second).unwrap_err();
        assert_eq!(error, QuotaError::LimitTooGreat { limit: 1_000_000_000_000_000 });
        assert_eq!(
            error.to_string(),
            "the limit of 1000000000000000 exceeds 999999999999999; count in greater units, such as KiB in place of bytes"
        );
        let error = Quota::per_second(1).try_burst(u64::MAX).unwrap_err();
        assert_eq!(error, QuotaError::BurstTooGreat { burst: u64::MAX });
        assert!(error.to_string().starts_with("the burst of 18446744073709551615 exceeds 999999999999999; "));
        assert_eq!(
            Quota::try_per(Quota::MAX_UNITS, second).unwrap().try_burst(Quota::MAX_UNITS).unwrap().limit(),
            999_999_999_999_999
        );
    }

    #[test]
    fn a_suspended_quota_has_no_units() {
        const PAUSED: Quota = Quota::suspended();
        assert_eq!((PAUSED.limit(), PAUSED.max_burst(), PAUSED.period()), (0, 0, Duration::ZERO));
        assert!(PAUSED.is_suspended() && PAUSED.without_burst() == PAUSED && !Quota::per_second(1).is_suspended());
        assert_eq!(format!("{PAUSED:?}"), "suspended");
        assert!(panic::catch_unwind(|| PAUSED.burst(5)).is_err());
    }

    #[test]
    fn restoring_the_greatest_quotas_never_overflows() {
        let century = Quota::per(Quota::MAX_UNITS, Duration::from_nanos(MAX_PERIOD_NANOS));
        assert_eq!(century.time_of(Quota::MAX_UNITS), century.period());
        assert_eq!(century.time_to_restore(Quota::MAX_UNITS), century.period());
        // A cost is not bounded as a quota is.
        let slow = Quota::per(1, Duration::from_nanos(MAX_PERIOD_NANOS));
        assert!(slow.time_of(u64::MAX) > Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn impossible_numbers_are_rejected_by_name() {
        let second = Duration::from_secs(1);
        assert_eq!(Quota::try_per(0, second), Err(QuotaError::ZeroLimit));
        assert_eq!(Quota::try_per(1, Duration::ZERO), Err(QuotaError::ZeroPeriod));
        assert!(matches!(Quota::try_per(1, Duration::MAX), Err(QuotaError::PeriodTooLong { .. })));
        assert_eq!(Quota::per_second(1).try_burst(0), Err(QuotaError::ZeroBurst));
        assert_eq!(Quota::try_per(5, second), Ok(Quota::per_second(5)));
    }
}
