//! The units in Envoy's protocol.

use std::time::Duration;

/// A time unit in the protocol. A month has 30 days and a year 365, as in envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// All units, from the shortest.
    const ALL: [Self; 7] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the unit with this number in the protocol.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.number() == number)
    }

    /// Returns the unit that equals a period, if there is one.
    pub(crate) fn from_period(period: Duration) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.period() == period)
    }

    /// Returns the unit with this name, in upper or lower case.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Returns the unit's number in the protocol.
    pub(crate) const fn number(self) -> i32 {
        match self {
            Self::Second => 1,
            Self::Minute => 2,
            Self::Hour => 3,
            Self::Day => 4,
            Self::Month => 5,
            Self::Year => 6,
            Self::Week => 7,
        }
    }

    /// Returns how long the unit is.
    pub(crate) const fn period(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each unit is found by its name, its number and its period.
    #[test]
    fn units_are_found() {
        for unit in Unit::ALL {
            assert_eq!(Unit::from_name(unit.name()), Some(unit));
            assert_eq!(Unit::from_number(unit.number()), Some(unit));
            assert_eq!(Unit::from_period(unit.period()), Some(unit));
        }
        assert_eq!(Unit::from_name("WEEK"), Some(Unit::Week));
        assert_eq!(Unit::from_number(0), None);
        assert_eq!(Unit::from_period(Duration::from_secs(2)), None);
    }
}
