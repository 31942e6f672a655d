//! Numbers, times and texts as a report shows them.

/// Groups digits: `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part as a percentage, with one decimal place. It is 0 % only for nothing, and 100 % only for the whole.
pub(super) fn percentage(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    if part == whole {
        return "100 %".to_owned();
    }
    let per_mille = (u128::from(part) * 2_000 + u128::from(whole)) / (2 * u128::from(whole));
    match per_mille {
        0 => "< 0.1 %".to_owned(),
        1_000 => "> 99.9 %".to_owned(),
        _ => format!("{}.{} %", per_mille / 10, per_mille % 10),
    }
}

/// A time in words, rounded, from microseconds: `850 µs`, `120 ms`, `1.25 s`, `3 min 20 s`.
pub(super) fn span(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..999_500 => format!("{} ms", (micros + 500) / 1_000),
        999_500..59_995_000 => {
            let hundredths = (micros + 5_000) / 10_000;
            format!("{}.{:02} s", hundredths / 100, hundredths % 100)
        }
        _ => {
            let seconds = micros.div_ceil(1_000_000);
            match seconds {
                0..3_600 => two_units(seconds / 60, "min", seconds % 60, "s"),
                3_600..86_400 => two_units(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
                86_400..172_800 => two_units(1, "day", seconds % 86_400 / 3_600, "h"),
                _ => two_units(seconds / 86_400, "days", seconds % 86_400 / 3_600, "h"),
            }
        }
    }
}

fn two_units(many: u64, large: &str, few: u64, small: &str) -> String {
    if few == 0 { format!("{many} {large}") } else { format!("{many} {large} {few} {small}") }
}

/// Returns the number between `least` and `most` with the most zeros at its end, because a histogram knows only this
/// range.
pub(super) fn roundest(least: u64, most: u64) -> u64 {
    let powers = (0..19).rev().map(|power| 10_u64.pow(power));
    let round = |power: u64| least.div_ceil(power).checked_mul(power).filter(|number| *number <= most);
    powers.into_iter().find_map(round).unwrap_or(least)
}

/// An instant, in UTC.
pub(super) fn instant(nanos: u64) -> String {
    format_time(nanos / 1_000_000_000, "%Y-%m-%d %H:%M:%S")
}

/// A minute since the epoch, in UTC.
pub(super) fn minute(minute: u64) -> String {
    format_time(minute.saturating_mul(60), "%Y-%m-%d %H:%M")
}

/// A number of things: `1 line`, `2 lines`.
pub(super) fn count(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { more })
}

fn format_time(seconds: u64, form: &str) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.strftime(form).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(percentage(1, 3), "33.3 %");
        assert_eq!(percentage(1, 1_000_000), "< 0.1 %");
        assert_eq!(percentage(999_999, 1_000_000), "> 99.9 %");
        assert_eq!(percentage(u64::MAX, u64::MAX), "100 %");
        assert_eq!(span(850), "850 µs");
        assert_eq!(span(119_500), "120 ms");
        assert_eq!(span(999_936), "1.00 s");
        assert_eq!(span(1_250_000), "1.25 s");
        assert_eq!(span(200_000_000), "3 min 20 s");
        assert_eq!(span(300_000_000), "5 min");
        assert_eq!(span(86_400_000_000), "1 day");
        assert_eq!(span(90_000_000_000), "1 day 1 h");
        assert_eq!(span(31_536_000_000_000), "365 days");
        assert_eq!(roundest(2_998_272, 3_000_319), 3_000_000);
        assert_eq!(roundest(1_023, 1_023), 1_023);
        assert_eq!(roundest(0, 0), 0);
        assert_eq!(instant(1_700_000_000_000_000_000), "2023-11-14 22:13:20");
    }
}
