//! A handwritten limiter, as a floor: it has our keyed hash, our two candidate sets with eight words each and our
//! clock, and nothing else. One limit, no waits, no sweeps, no answer when both sets are full, and no lock: two threads
//! that meet a new key at once may insert it twice. Its advantage over ours is the most that we could still gain.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use tower_sluice::time::{Clock, Monotonic};

use crate::subject::Terms;

const TAG_BITS: u32 = 28;
const TAG: u64 = (1 << TAG_BITS) - 1;
/// A word's longest debt, since it has 36 bits for the time at which the debt is paid.
const LONGEST_DEBT: u128 = 1 << 34;

/// A cache line. A word contains its key's tag, and above it the tick at which the key's debt is paid.
#[repr(align(64))]
#[derive(Default)]
struct Set([AtomicU64; 8]);

impl Set {
    /// Returns a key's word, and its slot.
    #[inline(always)]
    fn find(&self, tag: u64) -> Option<(&AtomicU64, u64)> {
        self.0.iter().map(|slot| (slot, slot.load(Ordering::Acquire))).find(|(_, word)| word & TAG == tag)
    }

    /// Returns the slots whose debt is paid, with their words.
    fn free(&self, now: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        self.0.iter().map(|slot| (slot, slot.load(Ordering::Acquire))).filter(move |(_, word)| word >> TAG_BITS <= now)
    }
}

pub struct Ideal {
    secret: [u64; 2],
    sets: Vec<Set>,
    /// When it was made, in nanoseconds: ticks are counted from there, so that they fit.
    start: u64,
    /// A tick has two to this power nanoseconds.
    shift: u32,
    /// A request's cost, and the most that a key may owe, in ticks.
    cost: u64,
    most: u64,
}

impl Ideal {
    pub fn new(Terms { period, burst }: Terms, keys: usize) -> Self {
        let (period, seed) = (period.as_nanos(), RandomState::new());
        let shift = (0..).find(|shift| (period * u128::from(burst)) >> shift < LONGEST_DEBT).unwrap_or(0);
        let cost = (period.div_ceil(1 << shift)) as u64;
        let mut sets = Vec::new();
        sets.resize_with((2 * keys).div_ceil(8).max(2), Set::default);
        let (secret, start) = ([seed.hash_one(0), seed.hash_one(1)], Monotonic.now().as_nanos());
        Self { secret, sets, start, shift, cost, most: cost * u64::from(burst) }
    }

    /// Charges the key for one request, if it is admitted.
    #[inline]
    pub fn admits(&self, key: &[u8]) -> bool {
        let hash = sip_1_3(self.secret, key);
        let tag = (hash & TAG).max(1);
        let first = scale(hash >> 32, self.sets.len());
        let now = (Monotonic.now().as_nanos() - self.start) >> self.shift;
        loop {
            let found = self.sets[first].find(tag).or_else(|| self.second(first, tag).find(tag));
            let Some((slot, word)) = found.or_else(|| self.free(first, tag, now)) else { return false };
            let paid = (word >> TAG_BITS).max(now) + self.cost;
            if paid > now + self.most {
                return false;
            }
            let new = paid << TAG_BITS | tag;
            if slot.compare_exchange(word, new, Ordering::SeqCst, Ordering::Acquire).is_ok() {
                return true;
            }
        }
    }

    /// Returns any set but the first.
    #[inline(always)]
    fn second(&self, first: usize, tag: u64) -> &Set {
        let second = first + 1 + scale(tag.wrapping_mul(0x9e37_79b1) & 0xffff_ffff, self.sets.len() - 1);
        &self.sets[if second < self.sets.len() { second } else { second - self.sets.len() }]
    }

    /// Returns a free slot in the emptier candidate set, for a new key.
    #[cold]
    fn free(&self, first: usize, tag: u64, now: u64) -> Option<(&AtomicU64, u64)> {
        let [first, second] = [&self.sets[first], self.second(first, tag)];
        let emptier = if second.free(now).count() > first.free(now).count() { second } else { first };
        emptier.free(now).next()
    }
}

/// Returns `count` times a fraction of 2^32.
fn scale(fraction: u64, count: usize) -> usize {
    ((fraction * count as u64) >> 32) as usize
}

/// SipHash-1-3 over a whole key.
#[inline(always)]
fn sip_1_3([k0, k1]: [u64; 2], key: &[u8]) -> u64 {
    let constants = [*b"somepseu", *b"dorandom", *b"lygenera", *b"tedbytes"].map(u64::from_be_bytes);
    let mut state = [k0 ^ constants[0], k1 ^ constants[1], k0 ^ constants[2], k1 ^ constants[3]];
    let mut absorb = |word| {
        state[3] ^= word;
        round(&mut state);
        state[0] ^= word;
    };
    let words = key.chunks_exact(8);
    let rest = words.remainder().iter().rev().fold(0, |rest, byte| rest << 8 | u64::from(*byte));
    words.for_each(|word| absorb(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
    absorb((key.len() as u64) << 56 | rest);
    state[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut state));
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

#[inline(always)]
fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32).wrapping_add(*d);
    *c = c.wrapping_add(*b);
    *d = d.rotate_left(21) ^ *a;
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    /// The standard library's hasher without a secret is SipHash-1-3.
    #[test]
    fn its_hash_matches_the_standard_library() {
        let key: Vec<u8> = (0..40).collect();
        for length in 0..key.len() {
            let mut theirs = DefaultHasher::new();
            theirs.write(&key[..length]);
            assert_eq!(sip_1_3([0, 0], &key[..length]), theirs.finish(), "{length} bytes");
        }
    }

    #[test]
    fn each_key_is_admitted_its_burst() {
        for (burst, keys) in [(1, 10_000_u32), (7, 100), (20_000, 1)] {
            let ideal = Ideal::new(Terms::exactly(burst), keys as usize);
            let admitted = (0..2 * burst * keys).filter(|draw| ideal.admits(&(draw % keys).to_be_bytes())).count();
            assert_eq!(admitted, (burst * keys) as usize);
        }
    }
}
