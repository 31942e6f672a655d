//! [`Credit`] and [`Debit`]: units that are added to a key, or charged to it, by hand.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::values::time::Timestamp;
use crate::values::{LimiterError, Quota};

/// Units that are added to a key in a [`Balance`](crate::Balance), for example because a customer has bought them.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::limiter::Credit;
///
/// let year = Duration::from_secs(365 * 86_400);
/// let bought = Credit::units(500).expires_in(year).reference("invoice-17");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Credit {
    pub(crate) units: u64,
    pub(crate) expiry: CreditExpiry,
    pub(crate) reference: Option<String>,
}

/// When a credit's units expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a store knows all of them")]
pub enum CreditExpiry {
    /// They do not.
    Never,
    /// After this time, by the store's clock, rounded up to a millisecond.
    In(Duration),
    /// At this instant, rounded up to a millisecond.
    At(SystemTime),
}

impl Credit {
    /// Adds this number of units, from 1 to [`Quota::MAX_UNITS`], which never expire.
    pub const fn units(units: u64) -> Self {
        Self { units, expiry: CreditExpiry::Never, reference: None }
    }

    /// Lets the units expire after this time, rounded up to a millisecond.
    pub fn expires_in(self, span: Duration) -> Self {
        Self { expiry: CreditExpiry::In(span), ..self }
    }

    /// Lets the units expire at this instant, rounded up to a millisecond. Credits that expire at the same instant
    /// become one lot. So for many small credits, choose the end of a day or a month.
    pub fn expires_at(self, at: SystemTime) -> Self {
        Self { expiry: CreditExpiry::At(at), ..self }
    }

    /// Names the reason for the units, such as a payment. A later credit to the key with the same reference does
    /// nothing, even if its units differ. From 1 to 200 bytes, without control characters.
    ///
    /// A reference is known for seven days, and longer if the units that it added expire later (if they never expire:
    /// seven days). Credits and [charges](crate::limiter::Debit) by hand have separate references.
    pub fn reference(self, reference: impl Into<String>) -> Self {
        Self { reference: Some(reference.into()), ..self }
    }

    /// Checks the units and the reference.
    pub(crate) fn check(&self) -> Result<(), LimiterError> {
        check(self.units, self.reference.as_deref())
    }
}

/// Units that are [charged by hand](crate::LimitsHandle::charge), also beyond the limit. A plain number converts to it.
///
/// ```
/// use tower_sluice::limiter::Debit;
///
/// let batch_job = Debit::units(1_200).reference("job-4711");
/// assert_eq!(Debit::units(5), 5.into());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Debit {
    pub(crate) units: u64,
    pub(crate) reference: Option<String>,
}

impl Debit {
    /// Charges this number of units, from 1 to [`Quota::MAX_UNITS`].
    pub const fn units(units: u64) -> Self {
        Self { units, reference: None }
    }

    /// Names the reason for the charge, as for a [credit](Credit::reference). For seven days, a later charge by hand to
    /// the key with the same reference does nothing.
    pub fn reference(self, reference: impl Into<String>) -> Self {
        Self { reference: Some(reference.into()), ..self }
    }

    /// Checks the units and the reference.
    pub(crate) fn check(&self) -> Result<(), LimiterError> {
        check(self.units, self.reference.as_deref())
    }
}

impl From<u64> for Debit {
    fn from(units: u64) -> Self {
        Self::units(units)
    }
}

/// For how long a reference is known at least.
pub const REFERENCE_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// A reference's greatest length, in bytes.
const LONGEST_REFERENCE: usize = 200;

fn check(units: u64, reference: Option<&str>) -> Result<(), LimiterError> {
    if !(1..=Quota::MAX_UNITS).contains(&units) {
        return Err(LimiterError::cannot(format!(
            "{units} units by hand: write a number from 1 to {}",
            Quota::MAX_UNITS
        )));
    }
    let is_bad = |reference: &str| {
        !(1..=LONGEST_REFERENCE).contains(&reference.len()) || reference.chars().any(char::is_control)
    };
    if reference.is_some_and(is_bad) {
        return Err(LimiterError::cannot("a reference has from 1 to 200 bytes, and no control characters"));
    }
    Ok(())
}

/// A lot's end: a whole millisecond since the Unix epoch, up to the year 2248.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry(u64);

const NANOS_PER_MILLI: u64 = 1_000_000;

impl Expiry {
    /// 43 bits, so that a receipt has room for two.
    pub(crate) const BITS: u32 = 43;

    /// Later than any other.
    pub const NEVER: Self = Self((1 << Self::BITS) - 1);

    /// Rounds `instant` up to a millisecond. Times after the year 2248 are cut.
    pub(crate) fn at(instant: Timestamp) -> Self {
        Self::from_millis(instant.as_nanos().div_ceil(NANOS_PER_MILLI))
    }

    /// This millisecond since the Unix epoch. [`NEVER`](Self::NEVER) if it is later than the year 2248.
    pub fn from_millis(millis: u64) -> Self {
        Self(millis.min(Self::NEVER.0))
    }

    /// The milliseconds since the Unix epoch; `2^43 - 1` for [`NEVER`](Self::NEVER).
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Whether it is over at `now`: from the first nanosecond of its millisecond on.
    pub(crate) const fn is_over(self, now: Timestamp) -> bool {
        now.as_nanos() / NANOS_PER_MILLI >= self.0
    }

    /// The instant; the last one of every clock for [`NEVER`](Self::NEVER).
    pub(crate) fn instant(self) -> Timestamp {
        Timestamp::from_nanos(self.0.saturating_mul(NANOS_PER_MILLI))
    }
}

impl CreditExpiry {
    /// When units that are added at `now` expire, on a clock that counts from the Unix epoch.
    pub(crate) fn from(self, now: Timestamp) -> Expiry {
        match self {
            Self::Never => Expiry::NEVER,
            Self::In(span) => Expiry::at(now.saturating_add(span)),
            Self::At(at) => {
                Expiry::at(Timestamp::ZERO.saturating_add(at.duration_since(UNIX_EPOCH).unwrap_or_default()))
            }
        }
    }

    /// Until when the reference for units that are added at `now` is known: until they expire, and for
    /// [`REFERENCE_KEPT`] at least.
    pub(crate) fn reference_until(self, now: Timestamp) -> Timestamp {
        let until = now.saturating_add(REFERENCE_KEPT);
        // If units never expire, their reference need not be known for ever.
        if self == Self::Never { until } else { until.max(self.from(now).instant()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lot is over from the first nanosecond of its millisecond on.
    #[test]
    fn expiries_are_rounded_up_to_milliseconds() {
        let now = Timestamp::from_nanos(5_000_001);
        let expiry = CreditExpiry::In(Duration::from_nanos(999_999)).from(now);
        assert_eq!(expiry.instant(), Timestamp::from_nanos(6_000_000), "exactly");
        let expiry = CreditExpiry::In(Duration::from_millis(1)).from(now);
        assert_eq!(expiry.instant(), Timestamp::from_nanos(7_000_000));
        assert!(!expiry.is_over(Timestamp::from_nanos(6_999_999)) && expiry.is_over(Timestamp::from_nanos(7_000_000)));
        let at = UNIX_EPOCH + Duration::from_millis(7);
        assert_eq!(CreditExpiry::At(at).from(now), expiry);
        assert!(CreditExpiry::In(Duration::MAX).from(now) == Expiry::NEVER && !Expiry::NEVER.is_over(now));
    }

    #[test]
    fn units_and_references_are_checked() {
        assert!(Credit::units(1).check().is_ok() && Debit::units(Quota::MAX_UNITS).reference("é").check().is_ok());
        for units in [0, Quota::MAX_UNITS + 1] {
            assert!(Credit::units(units).check().is_err() && Debit::units(units).check().is_err());
        }
        for reference in ["", "a\nb", &"x".repeat(201)] {
            assert!(Credit::units(1).reference(reference).check().is_err(), "{reference:?}");
        }
    }
}
