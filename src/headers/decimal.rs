//! Numbers as header fields have them: ASCII digits, written by hand, since they are written on every
//! response.

use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;

/// Where a value is put together before it becomes a [`HeaderValue`], which then allocates once, and
/// exactly what it needs. Room for two policies.
pub(super) type Scratch = SmallVec<[u8; 128]>;

/// A value of what was put together, which is printable ASCII.
pub(super) fn value_of(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("printable ASCII")
}

/// The greatest Integer of a structured field (RFC 9651, section 3.3.1).
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Whole seconds that cover `span`.
pub(super) fn seconds_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// 00 to 99.
const PAIRS: &str = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849\
                     5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/// As many digits as a `u64` has at most.
const DIGITS: usize = 20;

/// Appends `number`.
pub(super) fn push(out: &mut Scratch, number: u64) {
    let mut digits = [0; DIGITS];
    let mut start = DIGITS;
    let mut rest = number;
    while rest >= 10 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(pair(rest % 100));
        rest /= 100;
    }
    if rest > 0 || start == DIGITS {
        start -= 1;
        digits[start] = pair(rest)[1];
    }
    out.extend_from_slice(&digits[start..]);
}

/// Appends the last `width` digits of `number`.
pub(super) fn push_padded(out: &mut Scratch, number: u64, width: usize) {
    let mut digits = [b'0'; DIGITS];
    let mut rest = number;
    for digit in digits[..width].iter_mut().rev() {
        *digit = pair(rest % 10)[1];
        rest /= 10;
    }
    out.extend_from_slice(&digits[..width]);
}

/// The two digits of a number below 100.
fn pair(number: u64) -> &'static [u8] {
    let start = usize::try_from(number * 2).unwrap_or(0);
    &PAIRS.as_bytes()[start..start + 2]
}

/// `number` on its own. Below 100, nothing is allocated.
pub(super) fn value(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(small @ 0..=9) => HeaderValue::from_static(&PAIRS[small * 2 + 1..small * 2 + 2]),
        Ok(small @ 10..=99) => HeaderValue::from_static(&PAIRS[small * 2..small * 2 + 2]),
        _ => {
            let mut out = Scratch::new();
            push(&mut out, number);
            value_of(&out)
        }
    }
}

/// The number in `text`, which is nothing but digits; [`u64::MAX`] if it is greater than that.
pub(super) fn parse(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |number: u64, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pushed(number: u64) -> String {
        let mut out = Scratch::from_slice(b"x");
        push(&mut out, number);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn every_small_number_and_every_length_is_written() {
        let lengths = (0..20).map(|zeros| 10_u64.pow(zeros));
        for number in (0..12_000).chain(lengths.clone()).chain(lengths.map(|power| power - 1)).chain([u64::MAX]) {
            assert_eq!(pushed(number), format!("x{number}"));
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

    proptest! {
        #[test]
        fn numbers_are_written_as_the_standard_library_does(number: u64, width in 1..=20_usize) {
            prop_assert_eq!(pushed(number), format!("x{number}"));
            let mut out = Scratch::new();
            push_padded(&mut out, number, width);
            let all = format!("{number:020}");
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), &all[20 - width..]);
        }
    }
}
