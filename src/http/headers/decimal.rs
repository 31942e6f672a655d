//! Decimal numbers in header fields: writing, parsing and rounding.

use std::sync::LazyLock;

use http::HeaderValue;

use crate::http::text::Text;

/// The buffer in which a value is built, on the stack. Two policies with names of usual length fit in.
pub(super) type Scratch = Text<128>;

/// Makes a value from `text`, which has to be printable ASCII.
pub(super) fn value_of(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("printable ASCII")
}

/// The greatest Integer in a structured field (RFC 9651, section 3.3.1).
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The values of smaller numbers are slices of [`DIGITS`], so that most responses do not allocate for them.
const FEW: usize = 10_000;

/// 0000 to 9999. Made by the first value, in some 20 µs, because a constant would make a program 40 KB larger.
static DIGITS: LazyLock<&'static str> = LazyLock::new(|| {
    let mut digits = String::with_capacity(4 * FEW);
    for number in 0..FEW {
        for power in [1_000, 100, 10, 1] {
            digits.push(char::from(b"0123456789"[number / power % 10]));
        }
    }
    digits.leak()
});

/// Makes a value from `number`. Below [`FEW`], it does not allocate.
pub(super) fn value(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(few @ ..FEW) => {
            let zeros = usize::from(few < 10) + usize::from(few < 100) + usize::from(few < 1_000);
            let digits: &'static str = *DIGITS;
            HeaderValue::from_static(&digits[4 * few + zeros..4 * few + 4])
        }
        _ => {
            let mut out = Scratch::new();
            out.push_number(number);
            value_of(&out)
        }
    }
}

/// Parses a number that has only digits, saturating at [`u64::MAX`].
pub fn parse(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |number: u64, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every length are written, too.
    #[test]
    fn every_small_number_is_written() {
        let lengths = (0..20).map(|zeros| 10_u64.pow(zeros));
        for number in (0..12_000).chain(lengths.clone()).chain(lengths.map(|power| power - 1)).chain([u64::MAX]) {
            assert_eq!(value(number), number.to_string());
            assert_eq!(parse(number.to_string().as_bytes()), Some(number));
        }
    }

    #[test]
    fn only_digits_are_numbers() {
        for text in ["", "-1", "+1", " 1", "1 ", "1.5", "0x1", "soon"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(b"007"), Some(7));
        assert_eq!(parse(b"99999999999999999999"), Some(u64::MAX));
    }
}
