//! A stack buffer for short texts, which are then allocated once, at their exact length.

use std::ops::Deref;

/// Up to `N` bytes on the stack, more on the heap. Optimised for many short pieces: appending one costs little more
/// than copying it.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    /// The whole text, once it is longer than `N`.
    spilled: Vec<u8>,
}

impl<const N: usize> Text<N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0, spilled: Vec::new() }
    }

    /// Appends bytes.
    #[inline]
    pub(crate) fn push(&mut self, piece: &[u8]) {
        match self.bytes.get_mut(self.len..self.len + piece.len()) {
            Some(room) => {
                room.copy_from_slice(piece);
                self.len += piece.len();
            }
            None => self.spill(piece),
        }
    }

    #[cold]
    fn spill(&mut self, piece: &[u8]) {
        if self.spilled.is_empty() {
            self.spilled.extend_from_slice(&self.bytes[..self.len]);
            // No later piece fits, so all later pieces are spilled.
            self.len = N;
        }
        self.spilled.extend_from_slice(piece);
    }

    /// Appends a number's decimal digits.
    #[inline]
    pub(crate) fn push_number(&mut self, number: u64) {
        match number {
            0..100 => self.push_pair(number),
            100..HUNDRED_MILLION => self.push_short(number),
            _ => self.push_long(number),
        }
    }

    #[inline(never)]
    fn push_long(&mut self, number: u64) {
        let upper = number / HUNDRED_MILLION;
        match upper {
            0..100 => self.push_pair(upper),
            100..HUNDRED_MILLION => self.push_short(upper),
            _ => {
                self.push_short(upper / HUNDRED_MILLION);
                self.push_last(eight_digits(upper % HUNDRED_MILLION), 8);
            }
        }
        self.push_last(eight_digits(number % HUNDRED_MILLION), 8);
    }

    /// Appends a number below a hundred.
    #[inline]
    fn push_pair(&mut self, number: u64) {
        let digit = |digit: u64| b"0123456789"[(digit % 10) as usize];
        if number < 10 { self.push(&[digit(number)]) } else { self.push(&[digit(number / 10), digit(number)]) }
    }

    /// Appends a number below a hundred million.
    #[inline]
    fn push_short(&mut self, number: u64) {
        let digits = eight_digits(number);
        // The set bit keeps the last digit, even if it is zero.
        let zeros = (digits | 1 << 56).trailing_zeros() / 8;
        self.push_last(digits, 8 - zeros);
    }

    /// Appends a number's last `width` decimal digits, padded with zeros. `width` is 1 to 8.
    #[inline]
    pub(crate) fn push_padded(&mut self, number: u64, width: u32) {
        self.push_last(eight_digits(number % HUNDRED_MILLION), width);
    }

    /// Appends the last `count` of eight digits.
    #[inline]
    fn push_last(&mut self, digits: u64, count: u32) {
        let text = ((digits | ASCII) >> (64 - 8 * count)).to_le_bytes();
        match self.bytes[self.len..].first_chunk_mut() {
            // Store eight bytes at once, and let the next piece overwrite the excess. The processor can forward a store
            // to a later load only if one store covers the whole load.
            Some(room) => {
                *room = text;
                self.len += count as usize;
            }
            None => self.push(&text[..count as usize]),
        }
    }
}

const HUNDRED_MILLION: u64 = 100_000_000;

/// Eight ASCII zeros.
const ASCII: u64 = u64::from_ne_bytes([b'0'; 8]);

/// The decimal digits of a number below a hundred million, one per byte, the first one in the lowest. Halves are split
/// into halves in parallel, so that three divisions follow one another, and not seven, as they would digit by digit.
#[inline]
const fn eight_digits(number: u64) -> u64 {
    // First two numbers below 10,000, in 32 bits each, then four below 100, in 16 bits each, then eight below 10.
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    // 10,486 / 2^20 is just above 1/100, and 103 / 2^10 just above 1/10, which is exact for numbers this small.
    let hundreds = (fours * 10_486) >> 20 & 0x0000_007f_0000_007f;
    let twos = hundreds | (fours - 100 * hundreds) << 16;
    let tens = (twos * 103) >> 10 & 0x000f_000f_000f_000f;
    tens | (twos - 10 * tens) << 8
}

impl<const N: usize> Deref for Text<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.spilled.is_empty() { &self.bytes[..self.len] } else { &self.spilled }
    }
}

/// Returns the length of the quoted string at the start of `text`, with its quotation marks (RFC 9110, section 5.6.4,
/// and RFC 9651, section 3.3.3; a `HeaderValue` cannot have control characters).
pub(crate) fn string_end(text: &[u8]) -> Option<usize> {
    let mut index = text.strip_prefix(b"\"").map(|_| 1)?;
    loop {
        match text.get(index)? {
            b'"' => return Some(index + 1),
            b'\\' => index += 2,
            _ => index += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::cases::cases;

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn numbers_match_the_standard_library(numbers in prop::collection::vec(prop_oneof![any::<u64>(), 0..10_000_000_000_u64, 0..1_000_u64], 0..9), width in 1..=8_u32) {
            let mut text = Text::<48>::new();
            let mut expected = String::new();
            let edges = [0, 9, 10, 99_999_999, 100_000_000, 9_999_999_999_999_999, 10_000_000_000_000_000, u64::MAX];
            for number in numbers.into_iter().chain(edges) {
                text.push_number(number);
                text.push_padded(number, width);
                let all = format!("{number:020}");
                expected += &format!("{number}{}", &all[20 - width as usize..]);
                prop_assert_eq!(std::str::from_utf8(&text).unwrap(), &expected);
            }
        }
    }

    #[test]
    fn digit_halves_are_split_exactly() {
        // Miri has time for a hundred numbers.
        for four in (0..10_000).step_by(if cfg!(miri) { 97 } else { 1 }) {
            for number in [four, four * 10_000, four * 10_001] {
                let digits = (eight_digits(number) | ASCII).to_le_bytes();
                assert_eq!(std::str::from_utf8(&digits).unwrap(), format!("{number:08}"));
            }
        }
    }

    #[test]
    fn long_texts_spill_to_the_heap() {
        for lengths in [[4, 4, 1, 3], [9, 0, 1, 8], [8, 0, 0, 0], [0, 0, 8, 1], [7, 2, 0, 100]] {
            let mut text = Text::<8>::new();
            let mut expected = Vec::<u8>::new();
            for (i, length) in lengths.into_iter().enumerate() {
                let piece = vec![b'a' + u8::try_from(i).unwrap(); length];
                text.push(&piece);
                expected.extend(&piece);
                assert_eq!(*text, expected);
            }
        }
    }
}
