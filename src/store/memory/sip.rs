//! SipHash-1-3 (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012) of a whole key at
//! once: a library's hasher, made for keys that come in pieces, takes half as long again.

use std::hash::{BuildHasher, RandomState};

use crate::partition::little_endian;

/// A keyed hash: who does not know the secret cannot choose keys that meet in a slot.
#[derive(Clone, Copy)]
pub(super) struct Secret([u64; 2]);

impl Secret {
    /// The standard library draws it from the system.
    pub(super) fn random() -> Self {
        let seed = RandomState::new();
        Self([seed.hash_one(0), seed.hash_one(1)])
    }

    #[inline(always)]
    pub(super) fn hash(self, key: &[u8]) -> u64 {
        let Self([k0, k1]) = self;
        let mut state = State([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ]);
        let words = key.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            state.absorb(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        state.absorb((key.len() as u64) << 56 | little_endian(rest));
        state.finish()
    }
}

struct State([u64; 4]);

impl State {
    #[inline(always)]
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    #[inline(always)]
    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..3 {
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

    use siphasher::sip::SipHasher13;

    use super::*;

    #[test]
    fn is_what_others_compute() {
        let key: Vec<u8> = (0..=255_u8).map(|i| i.wrapping_mul(167).wrapping_add(13)).collect();
        for k in [0, 1, 0x0706_0504_0302_0100, u64::MAX] {
            let secret = Secret([k, k.rotate_left(11) ^ 0x5555]);
            for len in 0..=key.len() {
                let theirs = SipHasher13::new_with_keys(secret.0[0], secret.0[1]).hash(&key[..len]);
                assert_eq!(secret.hash(&key[..len]), theirs, "{len} bytes");
            }
        }
        // The standard library's, whose secret is zero.
        #[allow(clippy::default_constructed_unit_structs)]
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(&key[..21]);
        assert_eq!(Secret([0, 0]).hash(&key[..21]), hasher.finish());
    }
}
