//! Time spans, as people write them.

use std::fmt;
use std::time::Duration;

/// Why a text is not a time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoSpan {
    /// It cannot be read as a time span.
    Unreadable,
    /// It has months or years. Their lengths differ, and `1M`, a month, may well be meant as a minute.
    WithoutFixedLength,
}

/// Reads a span such as `250ms` or `1h 30m`.
///
/// # Errors
///
/// If the text is not a time span, or has months or years.
pub fn parse(text: &str) -> Result<Duration, NoSpan> {
    let span = humantime::parse_duration(text).map_err(|_| NoSpan::Unreadable)?;
    let mut units = text.split(|char: char| !char.is_alphabetic());
    if units.any(|unit| matches!(unit, "M" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years")) {
        return Err(NoSpan::WithoutFixedLength);
    }
    Ok(span)
}

/// Continues a sentence about the text.
impl fmt::Display for NoSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "is not a time",
            Self::WithoutFixedLength => "has months or years, whose lengths differ",
        })
    }
}

impl NoSpan {
    /// Returns the text to write in its place.
    #[must_use]
    pub const fn cure(self) -> &'static str {
        match self {
            Self::Unreadable => "write 250ms, 1s, 1m, 1h or 1day",
            Self::WithoutFixedLength => "write 1m for a minute, or a number of days such as 30days",
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn units_of_one_length_are_read() {
        for (text, seconds) in [("1m", 60), ("1min", 60), ("1h 30m", 5_400), ("1day", 86_400), ("2weeks", 1_209_600)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn months_and_years_are_not_read() {
        for text in ["1M", "1 M", "1day 1M", "1month", "2months", "1y", "1yr", "1year", "3years 1s"] {
            assert_eq!(parse(text), Err(NoSpan::WithoutFixedLength), "{text}");
        }
        for text in ["", "1", "M", "1fortnight"] {
            assert_eq!(parse(text), Err(NoSpan::Unreadable), "{text}");
        }
    }
}
