//! Where short texts are put together before they are allocated, once and exactly as long as they are.

use std::ops::Deref;

/// Bytes on the stack, up to `N`; more than that on the heap. Pieces are short, and there are many: each costs
/// little more than its copying.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    /// All of it, once it is longer than `N`.
    spilled: Vec<u8>,
}

impl<const N: usize> Text<N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0, spilled: Vec::new() }
    }

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
            // From now on, nothing fits.
            self.len = N;
        }
        self.spilled.extend_from_slice(piece);
    }

    /// Decimal digits.
    #[inline]
    pub(crate) fn push_number(&mut self, number: u64) {
        let mut digits = Tail::<MOST_DIGITS>::new();
        digits.prepend_number(number);
        self.push(&digits);
    }

    /// The last `width` of the decimal digits, no more than there are in any number.
    #[inline]
    pub(crate) fn push_padded(&mut self, number: u64, width: usize) {
        let mut digits = Tail::<MOST_DIGITS>::new();
        digits.prepend_number(number);
        self.push(digits.padded(width));
    }
}

impl<const N: usize> Deref for Text<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.spilled.is_empty() { &self.bytes[..self.len] } else { &self.spilled }
    }
}

/// As many as [`u64::MAX`] has.
const MOST_DIGITS: usize = 20;

/// 00 to 99.
pub(crate) const PAIRS: &str =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849\
     5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/// The last two digits.
#[inline]
fn pair(number: u64) -> &'static [u8; 2] {
    let at = (number % 100) as usize * 2;
    PAIRS.as_bytes()[at..].first_chunk().expect("100 pairs")
}

/// A text that is put together from its end, as the digits of numbers come: how many there are is known last.
///
/// # Panics
///
/// If it becomes longer than `N`.
pub(crate) struct Tail<const N: usize> {
    bytes: [u8; N],
    from: usize,
}

impl<const N: usize> Tail<N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { bytes: [b'0'; N], from: N }
    }

    #[inline]
    pub(crate) fn prepend(&mut self, piece: &[u8]) {
        let from = self.from - piece.len();
        self.bytes[from..self.from].copy_from_slice(piece);
        self.from = from;
    }

    /// Decimal digits, two at a time.
    #[inline]
    pub(crate) fn prepend_number(&mut self, number: u64) {
        let mut rest = number;
        while rest >= 100 {
            self.prepend(pair(rest));
            rest /= 100;
        }
        let pair = pair(rest);
        self.prepend(if rest >= 10 { pair } else { &pair[1..] });
    }

    /// The last `width` bytes, with zeros before what there is.
    #[inline]
    fn padded(&self, width: usize) -> &[u8] {
        &self.bytes[N - width..]
    }
}

impl<const N: usize> Deref for Tail<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_the_standard_library_does(numbers in prop::collection::vec(any::<u64>(), 0..9), width in 0..=20_usize) {
            let (mut text, mut expected) = (Text::<48>::new(), String::new());
            for number in numbers.into_iter().chain([0, 9, 10, u64::MAX]) {
                text.push_number(number);
                text.push_padded(number, width);
                let all = format!("{number:020}");
                expected += &format!("{number}{}", &all[20 - width..]);
                prop_assert_eq!(std::str::from_utf8(&text).unwrap(), &expected);
            }
        }
    }

    #[test]
    fn what_does_not_fit_goes_to_the_heap() {
        for lengths in [[4, 4, 1, 3], [9, 0, 1, 8], [8, 0, 0, 0], [0, 0, 8, 1], [7, 2, 0, 100]] {
            let (mut text, mut expected) = (Text::<8>::new(), Vec::<u8>::new());
            for (i, length) in lengths.into_iter().enumerate() {
                let piece = vec![b'a' + u8::try_from(i).unwrap(); length];
                text.push(&piece);
                expected.extend(&piece);
                assert_eq!(*text, expected);
            }
        }
    }
}
