//! On which dates windows begin.

use std::time::Duration;

use jiff::Span;
use jiff::civil::Date;

/// How often windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Period {
    Day,
    Week {
        first: Weekday,
    },
    Month {
        /// From 1 to 31.
        anchor: u8,
    },
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, missing_docs, reason = "there are seven, and their names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The calendar reaches to the year 9999, and clocks to 2554.
const IN_RANGE: &str = "a clock shows dates from 1969 to 2554";

impl Period {
    pub(super) const fn is_week(self) -> bool {
        matches!(self, Self::Week { .. })
    }

    pub(super) const fn is_month(self) -> bool {
        matches!(self, Self::Month { .. })
    }

    /// Returns the length on which rates are based. For months, it is the shortest month's, because a rate must not be
    /// understated.
    pub(super) const fn nominal(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Day => DAY,
            Self::Week { .. } => 7 * DAY,
            Self::Month { .. } => 28 * DAY,
        })
    }

    /// Returns the first date of the window that contains `date`.
    pub(super) fn first_date(self, date: Date) -> Date {
        match self {
            Self::Day => date,
            Self::Week { first } => {
                let since = date.weekday().since(to_jiff(first));
                date.checked_sub(Span::new().days(since)).expect(IN_RANGE)
            }
            Self::Month { anchor } => {
                let this = in_month(date, anchor);
                if this <= date { this } else { in_month(month_before(date), anchor) }
            }
        }
    }

    /// Returns the first date of the window that follows the window beginning on `first`.
    pub(super) fn next(self, first: Date) -> Date {
        match self {
            Self::Day => first.tomorrow().expect(IN_RANGE),
            Self::Week { .. } => first.checked_add(Span::new().days(7)).expect(IN_RANGE),
            Self::Month { anchor } => in_month(first.last_of_month().tomorrow().expect(IN_RANGE), anchor),
        }
    }

    /// Returns the first date of the window that precedes the window beginning on `first`.
    pub(super) fn previous(self, first: Date) -> Date {
        match self {
            Self::Day => first.yesterday().expect(IN_RANGE),
            Self::Week { .. } => first.checked_sub(Span::new().days(7)).expect(IN_RANGE),
            Self::Month { anchor } => in_month(month_before(first), anchor),
        }
    }
}

/// Returns the date in the month of `date` on which a window begins.
fn in_month(date: Date, anchor: u8) -> Date {
    let last = date.days_in_month();
    let day = i8::try_from(anchor).map_or(last, |anchor| anchor.min(last));
    Date::new(date.year(), date.month(), day).expect("the month has this day")
}

fn month_before(date: Date) -> Date {
    date.first_of_month().yesterday().expect(IN_RANGE)
}

/// Not a conversion by `From`, which would make a version of `jiff` part of the public interface.
pub(super) fn to_jiff(day: Weekday) -> jiff::civil::Weekday {
    jiff::civil::Weekday::from_monday_zero_offset(day as i8).expect("one of seven")
}
