//! Encodes base64 (RFC 4648) without padding, one character at a time, so that a few bytes need no allocation.

/// The alphabet in RFC 4648, section 4.
pub(crate) const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The alphabet in RFC 4648, section 5, for URLs and file names.
pub(crate) const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The number of characters that encode this many bytes.
pub(crate) const fn length(bytes: usize) -> usize {
    (bytes * 8).div_ceil(6)
}

/// Encodes the six bits in `bytes` from bit 6 × `index` on. The last group is padded with zero bits.
#[inline]
pub(crate) fn character(alphabet: &[u8; 64], bytes: &[u8], index: usize) -> u8 {
    let (byte, bit) = (index * 6 / 8, index * 6 % 8);
    let at = |byte| bytes.get(byte).copied().unwrap_or(0);
    let bits = u16::from_be_bytes([at(byte), at(byte + 1)]) >> (10 - bit);
    alphabet[usize::from(bits & 63)]
}

#[cfg(all(test, feature = "http"))]
mod tests {
    use super::*;

    /// Checks the vectors in RFC 4648, section 10, without their padding.
    #[test]
    fn encodes_the_vectors_of_the_rfc() {
        let text = |alphabet, bytes: &[u8]| {
            let all = (0..length(bytes.len())).map(|index| character(alphabet, bytes, index));
            String::from_utf8(all.collect()).unwrap()
        };
        for (bytes, expected) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(text(STANDARD, bytes.as_bytes()), expected);
        }
        assert_eq!(text(STANDARD, &[0xfb, 0xff, 0xbf]), "+/+/");
        assert_eq!(text(URL_SAFE, &[0xfb, 0xff, 0xbf]), "-_-_");
    }
}
