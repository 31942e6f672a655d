//! The times in a log.

use super::Unreadable;

const NANOS: u64 = 1_000_000_000;
/// The first second of the year 2500. Timestamps in nanoseconds end in 2554, and the limits need some time after the
/// log's.
const END: u64 = 16_725_225_600;

/// The last time that was read, because neighbouring lines mostly have the same.
#[derive(Debug, Default)]
pub(super) struct TimeCache {
    text: [u8; LENGTH],
    nanos: u64,
}

/// The length of `10/Oct/2000:13:55:36 -0700`.
const LENGTH: usize = 26;

impl TimeCache {
    /// Reads a time in any form, as nanoseconds since the Unix epoch. Most times are `10/Oct/2000:13:55:36 -0700`.
    pub(super) fn read(&mut self, text: &[u8]) -> Result<u64, Unreadable> {
        let Ok(whole) = <&[u8; LENGTH]>::try_from(text) else { return any(text) };
        if self.text != *whole {
            self.nanos = clf(whole).or_else(|_| any(text))?;
            self.text = *whole;
        }
        Ok(self.nanos)
    }
}

/// Whether a line contains a text that looks like a time: `12:34:56`, or ten digits, as Unix seconds have.
pub(super) fn is_in(line: &[u8]) -> bool {
    let is_clock = |part: &[u8]| {
        let form = part.iter().map(|byte| if byte.is_ascii_digit() { b'0' } else { *byte });
        form.eq(*b"00:00:00")
    };
    let digits = line.split(|byte| !byte.is_ascii_digit());
    line.windows("00:00:00".len()).any(is_clock) || digits.into_iter().any(|digits| digits.len() >= "1700000000".len())
}

/// Reads a time by its form: a plain log's (also with a fraction of a second, or without an offset), RFC 3339, or a
/// number.
pub(super) fn any(text: &[u8]) -> Result<u64, Unreadable> {
    /// Longer than any time.
    const LONGEST: usize = 64;
    if text.len() > LONGEST {
        return Err(no_time());
    }
    let text = std::str::from_utf8(text).map_err(|_| no_time())?.trim();
    if text.contains('/') && text.contains(':') {
        return clf_with_fraction(text);
    }
    if text.contains(['-', ':']) { iso(text) } else { number(text) }
}

/// Reads `10/Oct/2000:13:55:36.123 -0700`. Without an offset, the time is in UTC.
fn clf_with_fraction(text: &str) -> Result<u64, Unreadable> {
    const SECONDS: usize = "10/Oct/2000:13:55:36".len();
    let (seconds, rest) = text.split_at_checked(SECONDS).ok_or_else(no_time)?;
    let (fraction, offset) = match rest.strip_prefix(['.', ',']) {
        Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        None => ("", rest),
    };
    let offset = match offset.trim() {
        "" | "Z" | "UTC" => "+0000",
        offset => offset,
    };
    let whole = format!("{seconds} {offset}");
    let whole = <&[u8; LENGTH]>::try_from(whole.as_bytes()).map_err(|_| no_time())?;
    clf(whole)?.checked_add(fraction_nanos(fraction, NANOS)).ok_or_else(no_time)
}

/// Reads `2000-10-10T13:55:36.5Z`, also with a space or a comma in it, or without an offset, which is UTC.
fn iso(text: &str) -> Result<u64, Unreadable> {
    // Ruby and Go write `2000-10-10 13:55:36 +0100`.
    let joined = text.replacen(" +", "+", 1).replacen(" -", "-", 1);
    let text = if joined.len() < text.len() { joined.as_str() } else { text };
    let with_point = |text: &str| text.replace(',', ".");
    rfc3339(text).or_else(|_| rfc3339(&with_point(text))).or_else(|_| rfc3339(&format!("{}Z", with_point(text))))
}

/// Returns a fraction's nanoseconds, if the whole is `unit` nanoseconds. Digits beyond them are dropped.
fn fraction_nanos(digits: &str, unit: u64) -> u64 {
    let mut digit = unit;
    digits.bytes().fold(0, |nanos, byte| {
        digit /= 10;
        nanos + u64::from(byte - b'0') * digit
    })
}

fn no_time() -> Unreadable {
    Unreadable::new("the time is not of the form [10/Oct/2000:13:55:36 -0700], nor RFC 3339, nor a number")
}

/// Checks that a time can be replayed, and returns it in nanoseconds.
pub(super) fn from_seconds(seconds: i64, nanos: u32) -> Result<u64, Unreadable> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds < END);
    let seconds = seconds.ok_or_else(|| Unreadable::new("the time is not between the years 1970 and 2500"))?;
    Ok(seconds * NANOS + u64::from(nanos))
}

/// Reads `2000-10-10T13:55:36.5Z`, or with another offset.
pub(super) fn rfc3339(text: &str) -> Result<u64, Unreadable> {
    let time: jiff::Timestamp = text
        .parse()
        .map_err(|_| Unreadable::new("the time is neither RFC 3339, such as 2000-10-10T13:55:36Z, nor a number"))?;
    from_seconds(time.as_second(), u32::try_from(time.subsec_nanosecond()).unwrap_or(0))
}

/// Reads a number in seconds, milliseconds, microseconds or nanoseconds: the unit that puts it between the years 1973
/// and 2500.
pub(super) fn number(text: &str) -> Result<u64, Unreadable> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().map_err(|_| no_time())?;
    let unit = match whole {
        0..END => NANOS,
        END..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_time());
    }
    let nanos = whole.checked_mul(unit).ok_or_else(no_time)?.saturating_add(fraction_nanos(fraction, unit));
    from_seconds(i64::try_from(nanos / NANOS).map_err(|_| no_time())?, u32::try_from(nanos % NANOS).unwrap_or(0))
}

fn clf(text: &[u8; LENGTH]) -> Result<u64, Unreadable> {
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if separators.iter().any(|(at, separator)| text[*at] != *separator) {
        return Err(no_time());
    }
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(&text[3..6]));
    let month = month.and_then(|index| u32::try_from(index + 1).ok()).ok_or_else(no_time)?;
    let (day, year) = (digits(&text[0..2])?, digits(&text[7..11])?);
    let (hour, minute, second) = (digits(&text[12..14])?, digits(&text[15..17])?, digits(&text[18..20])?);
    let (offset_hours, offset_minutes) = (digits(&text[22..24])?, digits(&text[24..26])?);
    // Second 60 is a leap second.
    if !(1..=days_in(year, month)).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
        || offset_hours > 23
        || offset_minutes > 59
    {
        return Err(no_time());
    }
    let offset = i64::from(offset_hours * 3_600 + offset_minutes * 60);
    let offset = match text[21] {
        b'+' => offset,
        b'-' => -offset,
        _ => return Err(no_time()),
    };
    let seconds = days_since_epoch(year, month, day) * 86_400 + i64::from(hour * 3_600 + minute * 60 + second);
    from_seconds(seconds - offset, 0)
}

const fn days_in(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

fn digits(text: &[u8]) -> Result<u32, Unreadable> {
    text.iter().try_fold(0, |number, byte| match byte {
        b'0'..=b'9' => Ok(number * 10 + u32::from(byte - b'0')),
        _ => Err(no_time()),
    })
}

/// Returns the days from 1970-01-01 to a day in the Gregorian calendar:
/// <https://howardhinnant.github.io/date_algorithms.html>.
fn days_since_epoch(year: u32, month: u32, day: u32) -> i64 {
    // Years begin in March, so that the leap day is the last of its year.
    let year = i64::from(year) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = i64::from((153 * ((month + 9) % 12) + 2) / 5 + day - 1);
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Result<u64, Unreadable> {
        TimeCache::default().read(text.as_bytes()).map(|nanos| nanos / NANOS)
    }

    #[test]
    fn plain_times_are_read_as_by_jiff() {
        for (clf, iso) in [
            ("10/Oct/2000:13:55:36 -0700", "2000-10-10T13:55:36-07:00"),
            ("29/Feb/2024:23:59:59 +0000", "2024-02-29T23:59:59Z"),
            ("01/Mar/2024:00:00:00 +0530", "2024-03-01T00:00:00+05:30"),
            ("01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00Z"),
            ("31/Dec/2499:23:59:59 +0000", "2499-12-31T23:59:59Z"),
        ] {
            assert_eq!(seconds(clf), rfc3339(iso).map(|nanos| nanos / NANOS), "{clf}");
            assert!(seconds(clf).is_ok());
        }
    }

    #[test]
    fn times_out_of_range_are_errors() {
        for text in [
            "01/Jan/9999:00:00:00 +0000",
            "31/Dec/1969:23:59:59 +0000",
            "32/Jan/2024:00:00:00 +0000",
            "31/Nov/2024:00:00:00 +0000",
            "29/Feb/2026:00:00:00 +0000",
            "29/Feb/2100:00:00:00 +0000",
            "01/Foo/2024:00:00:00 +0000",
            "01/Jan/2024:24:00:00 +0000",
            "01/Jan/2024 00:00:00 +0000",
            "01/Jan/2024:00:00:00 00000",
            "",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert!(rfc3339("9999-12-31T23:59:59Z").is_err());
        assert!(number("99999999999999999999999").is_err());
    }

    #[test]
    fn times_are_read_in_many_forms() {
        for (text, millis) in [
            ("10/Oct/2000:13:55:36.5 +0000", 971_186_136_500),
            ("10/Oct/2000:13:55:36,123 -0700", 971_211_336_123),
            ("10/Oct/2000:13:55:36.123", 971_186_136_123),
            ("10/Oct/2000:13:55:36", 971_186_136_000),
            ("2000-10-10T13:55:36.5Z", 971_186_136_500),
            ("2000-10-10T13:55:36+0000", 971_186_136_000),
            ("2000-10-10 13:55:36,5", 971_186_136_500),
            ("2000-10-10 13:55:36", 971_186_136_000),
            ("971186136.5", 971_186_136_500),
        ] {
            assert_eq!(any(text.as_bytes()).map(|nanos| nanos / 1_000_000), Ok(millis), "{text}");
            assert_eq!(TimeCache::default().read(text.as_bytes()).map(|nanos| nanos / 1_000_000), Ok(millis), "{text}");
        }
    }

    #[test]
    fn numbers_are_in_the_unit_that_fits() {
        let expected = 1_700_000_000_500_000_000;
        for text in ["1700000000.5", "1700000000500", "1700000000500000", "1700000000500000000"] {
            assert_eq!(number(text), Ok(expected), "{text}");
        }
    }
}
