//! SipHash (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012) for a whole key in one call,
//! without the state and the branches that a hasher for keys in pieces needs, such as the `siphasher` crate's.

use std::fmt;

use crate::util::random::random;
use crate::values::little_endian;

/// The secret for a keyed hash. Without it, an attacker cannot choose keys that collide in a table, and cannot find a
/// key from its hash. Kept as the state in which each hash begins. Debug output does not show it.
#[derive(Clone, Copy)]
pub(crate) struct Secret(SipState);

impl Secret {
    /// A random secret, which the standard library takes from the operating system.
    pub(crate) fn random() -> Self {
        Self::of_words([random(), random()])
    }

    const fn of_words([k0, k1]: [u64; 2]) -> Self {
        // The paper's constants.
        Self(SipState([
            k0 ^ u64::from_be_bytes(*b"somepseu"),
            k1 ^ u64::from_be_bytes(*b"dorandom"),
            k0 ^ u64::from_be_bytes(*b"lygenera"),
            k1 ^ u64::from_be_bytes(*b"tedbytes"),
        ]))
    }

    /// Makes a secret from these bytes, read as two little-endian words like the keys in the authors' test vectors.
    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        #[allow(clippy::cast_possible_truncation)]
        Self::of_words([both as u64, (both >> 64) as u64])
    }

    /// Returns the bytes that [`from_bytes`](Self::from_bytes) reads, only for a table's snapshot.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let [v0, v1, ..] = self.0.0;
        let words = [v0 ^ u64::from_be_bytes(*b"somepseu"), v1 ^ u64::from_be_bytes(*b"dorandom")];
        (u128::from(words[0]) | u128::from(words[1]) << 64).to_le_bytes()
    }

    /// SipHash-1-3, for tables, whose hashes stay in the process.
    #[inline(always)]
    pub(crate) fn hash(self, key: &[u8]) -> u64 {
        self.sip::<1, 3>(key)
    }

    /// SipHash-2-4, for hashes that appear in response fields and logs.
    pub(crate) fn mark(self, key: &[u8]) -> u64 {
        self.sip::<2, 4>(key)
    }

    #[inline(always)]
    fn sip<const C: usize, const D: usize>(self, key: &[u8]) -> u64 {
        let mut state = self.0;
        let words = key.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            state.absorb::<C>(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        state.absorb::<C>((key.len() as u64) << 56 | little_endian(rest));
        state.finish::<D>()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The paper's internal state, *v*0 to *v*3.
#[derive(Clone, Copy)]
struct SipState([u64; 4]);

impl SipState {
    #[inline(always)]
    fn absorb<const C: usize>(&mut self, word: u64) {
        self.0[3] ^= word;
        for _ in 0..C {
            self.round();
        }
        self.0[0] ^= word;
    }

    #[inline(always)]
    fn finish<const D: usize>(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..D {
            self.round();
        }
        let [a, b, c, d] = self.0;
        a ^ b ^ c ^ d
    }

    #[inline(always)]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32).wrapping_add(d);
        c = c.wrapping_add(b);
        d = d.rotate_left(21) ^ a;
        b = b.rotate_left(17) ^ c;
        self.0 = [a, b, c.rotate_left(32), d];
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    use siphasher::sip::{SipHasher13, SipHasher24};

    use super::*;

    #[test]
    fn agrees_with_other_implementations() {
        let key: Vec<u8> = (0..=255_u8).map(|i| i.wrapping_mul(167).wrapping_add(13)).collect();
        for k in [0, 1, 0x0706_0504_0302_0100, u64::MAX] {
            let [k0, k1] = [k, k.rotate_left(11) ^ 0x5555];
            let secret = Secret::of_words([k0, k1]);
            // Miri has time for some lengths, with every remainder modulo eight.
            for len in (0..=key.len()).step_by(if cfg!(miri) { 19 } else { 1 }) {
                let key = &key[..len];
                assert_eq!(secret.hash(key), SipHasher13::new_with_keys(k0, k1).hash(key), "{len} bytes");
                assert_eq!(secret.mark(key), SipHasher24::new_with_keys(k0, k1).hash(key), "{len} bytes");
            }
        }
        // The vectors by SipHash-2-4's authors: key 00 01 … 0f, input 00 01 ….
        let bytes: Vec<u8> = (0..16).collect();
        let secret = Secret::from_bytes(bytes.as_slice().try_into().unwrap());
        assert_eq!(secret.mark(&bytes[..15]), 0xa129_ca61_49be_45e5);
        assert_eq!(secret.to_bytes().as_slice(), bytes);
        // The standard library's hasher, with a secret of zero.
        #[allow(clippy::default_constructed_unit_structs)]
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(&key[..21]);
        assert_eq!(Secret::of_words([0, 0]).hash(&key[..21]), hasher.finish());
    }
}
