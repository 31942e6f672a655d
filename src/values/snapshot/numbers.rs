//! Numbers as bytes: seven bits in each, the lowest first (LEB128).

use std::time::Duration;

use crate::values::Quota;

/// Appends a number.
pub(crate) fn put_number(bytes: &mut Vec<u8>, number: impl Into<u128>) {
    let mut rest = number.into();
    while rest >= 0x80 {
        bytes.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    bytes.push(rest.to_le_bytes()[0]);
}

/// Appends a quota: its limit, its burst (zero if it isn't set) and its period.
pub(crate) fn put_quota(bytes: &mut Vec<u8>, quota: &Quota) {
    put_number(bytes, quota.limit());
    put_number(bytes, quota.explicit_burst_or(0));
    put_number(bytes, quota.period_nanos());
}

/// The bytes that are not read yet. A method returns `None` if they do not have the form that it reads.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a number with at most 128 bits.
    pub(crate) fn number(&mut self) -> Option<u128> {
        let mut number = 0_u128;
        for shift in (0..u128::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn usize(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn quota(&mut self) -> Option<Quota> {
        let limit = self.u64()?;
        let burst = self.u64()?;
        let quota = Quota::try_per(limit, Duration::from_nanos(self.u64()?)).ok()?;
        if burst == 0 { Some(quota) } else { quota.try_burst(burst).ok() }
    }

    /// Reads bytes behind their length.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let (bytes, rest) = self.usize().and_then(|length| self.0.split_at_checked(length))?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a text behind its length.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX.into(), u128::MAX - 1, u128::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            let mut input = Input::new(&bytes);
            assert_eq!((input.number(), input.is_empty()), (Some(number), true));
            // A number that is cut short is rejected.
            assert!((0..bytes.len()).all(|end| Input::new(&bytes[..end]).number().is_none()));
        }
        let too_great = [[0xff; 18].as_slice(), &[0x04]].concat();
        assert_eq!(Input::new(&too_great).number(), None);
        assert_eq!(Input::new(&[0x80; 40]).number(), None);
    }

    #[test]
    fn quotas_and_texts_round_trip() {
        let most = Quota::per_day(Quota::MAX_UNITS);
        for quota in [Quota::per_second(1), Quota::per_hour(10).burst(3), most, most.burst(Quota::MAX_UNITS)] {
            let mut bytes = Vec::new();
            put_quota(&mut bytes, &quota);
            assert_eq!(Input::new(&bytes).quota(), Some(quota));
        }
        assert_eq!(Input::new(&[0, 0, 1]).quota(), None, "a limit of zero");
        assert_eq!(Input::new(b"\x02abc").text(), Some("ab"));
        assert_eq!(Input::new(b"\x04abc").text(), None);
        assert_eq!(Input::new(b"\x01\xff").text(), None);
    }
}
