//! The numbers, spans and instants in fields, in all forms that partners send.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use tower_sluice::internal::{date, only_line, parse_digits};

use super::{MAX_BYTES, SECOND};

/// A number from here on is an instant, in seconds since 1970 (this one is in 2001); below, it is a number of seconds
/// from now.
const FIRST_EPOCH_SECOND: u64 = 1_000_000_000;

/// From this number on, it is an instant in milliseconds.
const FIRST_EPOCH_MILLI: u64 = 100_000_000_000;

/// From this number on, it is an instant in microseconds.
const FIRST_EPOCH_MICRO: u64 = 100_000_000_000_000;

/// From this number on, it is an instant in nanoseconds.
const FIRST_EPOCH_NANO: u64 = 100_000_000_000_000_000;

/// The units for a span, in microseconds. `ms` comes before its prefix `m`.
const UNITS: [(&[u8], u64); 8] = [
    (b"ms", 1_000),
    (b"us", 1),
    ("µs".as_bytes(), 1),
    (b"ns", 0),
    (b"d", 86_400 * SECOND),
    (b"h", 3_600 * SECOND),
    (b"m", 60 * SECOND),
    (b"s", SECOND),
];

/// Reads a field that contains one number.
pub(super) fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    whole(line(headers, name)?)
}

/// Reads a number that may have decimals, rounded down.
pub(super) fn whole(text: &[u8]) -> Option<u64> {
    decimal(text, 1)?;
    parse_digits(split(text).0)
}

/// Returns the value of a field that occurs exactly once, unless it is too long.
pub(super) fn line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let line = only_line(headers, name).filter(|line| line.len() <= MAX_BYTES)?;
    Some(line.as_bytes().trim_ascii())
}

/// Reads the time until a reset, in whole seconds, rounded up: a number of seconds, a span with units, or an instant.
pub(super) fn seconds_until(text: &[u8], now: SystemTime) -> Option<u64> {
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if let Some(number) = decimal(text, 1) {
        return Some(match number {
            FIRST_EPOCH_NANO.. => number.div_ceil(1_000_000_000).saturating_sub(since_1970),
            FIRST_EPOCH_MICRO.. => number.div_ceil(1_000_000).saturating_sub(since_1970),
            FIRST_EPOCH_MILLI.. => number.div_ceil(1_000).saturating_sub(since_1970),
            FIRST_EPOCH_SECOND.. => number.saturating_sub(since_1970),
            _ => number,
        });
    }
    if let Some(micros) = span(text) {
        return Some(micros.div_ceil(SECOND));
    }
    let instant = rfc3339(text).or_else(|| {
        let instant = date(&HeaderValue::from_bytes(text).ok()?)?;
        Some(instant.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    });
    Some(instant?.saturating_sub(since_1970))
}

/// Reads a number with or without decimals, in `unit`ths, rounded up.
pub(super) fn decimal(text: &[u8], unit: u64) -> Option<u64> {
    let (whole, decimals) = split(text);
    let whole = parse_digits(whole)?.saturating_mul(unit);
    let Some(decimals) = decimals else { return Some(whole) };
    parse_digits(decimals)?;
    let (first, rest) = decimals.split_at(decimals.len().min(9));
    let is_more = rest.iter().any(|digit| *digit != b'0');
    let first = first.iter().chain(b"000000000").take(9).fold(0, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    let share = ((first + u128::from(is_more)) * u128::from(unit)).div_ceil(1_000_000_000);
    Some(whole.saturating_add(u64::try_from(share).unwrap_or(u64::MAX)))
}

/// Divides a number into its whole part and its decimals.
fn split(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], Some(&text[point + 1..])),
        None => (text, None),
    }
}

/// Reads a span such as `6m0s`, `1.5s` or `20ms` in microseconds, rounded up.
pub(super) fn span(mut text: &[u8]) -> Option<u64> {
    let mut micros = 0_u64;
    if text.is_empty() {
        return None;
    }
    while !text.is_empty() {
        let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (number, rest) = text.split_at(end);
        let (name, unit) = UNITS.iter().find(|(name, _)| rest.starts_with(name))?;
        let part = if *unit > 0 { decimal(number, *unit)? } else { decimal(number, 1)?.div_ceil(1_000) };
        micros = micros.saturating_add(part);
        text = &rest[name.len()..];
    }
    Some(micros)
}

/// Reads an RFC 3339 instant, with or without seconds, as seconds since 1970, rounded up.
fn rfc3339(text: &[u8]) -> Option<u64> {
    let digits = |range: std::ops::Range<usize>| parse_digits(text.get(range)?);
    let marks = [text.get(4)?, text.get(7)?, text.get(13)?];
    if marks != [&b'-', &b'-', &b':'] || !matches!(text.get(10)?, b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (digits(0..4)?, digits(5..7)?, digits(8..10)?);
    let (hour, minute) = (digits(11..13)?, digits(14..16)?);
    let rest = text.get(16..)?;
    let (second, zone) = match rest.split_first()? {
        (b':', seconds) => {
            let end = seconds.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
            (decimal(&seconds[..end], 1)?, &seconds[end..])
        }
        _ => (0, rest),
    };
    let is_valid = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_valid || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let since_1970 = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    match zone {
        b"Z" | b"z" => Some(since_1970),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let offset = parse_digits(&[*h1, *h2])? * 3_600 + parse_digits(&[*m1, *m2])? * 60;
            Some(if *sign == b'+' { since_1970.saturating_sub(offset) } else { since_1970 + offset })
        }
        _ => None,
    }
}

/// Returns the days from 1970 to a date (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
const fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_with_decimals_are_rounded_up() {
        for (text, micros) in [
            ("30", Some(30_000_000)),
            ("30.0", Some(30_000_000)),
            ("0.25", Some(250_000)),
            ("1.0000001", Some(1_000_001)),
            ("1.0000000000001", Some(1_000_001)),
            ("99999999999999999999", Some(u64::MAX)),
            ("1.", None),
            (".5", None),
            ("1.2.3", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(decimal(text.as_bytes(), SECOND), micros, "{text}");
        }
    }

    #[test]
    fn spans_have_units() {
        for (text, micros) in [
            ("6m0s", Some(360 * SECOND)),
            ("1h2m3.5s", Some(3_723_500_000)),
            ("20ms", Some(20_000)),
            ("1.2us", Some(2)),
            ("7µs", Some(7)),
            ("1ns", Some(1)),
            ("1d", Some(86_400 * SECOND)),
            ("6m0", None),
            ("6x", None),
            ("s", None),
            ("", None),
        ] {
            assert_eq!(span(text.as_bytes()), micros, "{text}");
        }
    }

    #[test]
    fn instants_are_read_in_every_form() {
        let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        for (text, seconds) in [
            ("60", Some(60)),
            ("59.1", Some(60)),
            ("1790000060", Some(60)),
            ("1790000059.5", Some(60)),
            ("1790000059001", Some(60)),
            ("2026-09-21T14:14:20Z", Some(60)),
            ("2026-09-21T14:14:19.25Z", Some(60)),
            ("2026-09-21T16:14:20+02:00", Some(60)),
            ("2026-09-21T11:44:20-02:30", Some(60)),
            ("2026-09-21T14:15Z", Some(100)),
            ("Mon, 21 Sep 2026 14:14:20 GMT", Some(60)),
            ("1999-01-01T00:00:00Z", Some(0)),
            ("2026-13-21T14:14:20Z", None),
            ("2026-09-21T14:14:20", None),
            ("2026-09-21", None),
            ("soon", None),
        ] {
            assert_eq!(seconds_until(text.as_bytes(), now), seconds, "{text}");
        }
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 2, 29), 11_016);
        assert_eq!(days(2026, 9, 21), 20_717);
    }
}
