//! Keys made on the fly, without allocating, and the order in which they come.

use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};

use tower_sluice::PartitionKey;

use crate::raw;

/// One key, rewritten in place. Different indices (below 2^32) make different keys.
pub trait Key: Clone + Send + Sync + 'static {
    /// The key type for limiters over a map.
    type Value: Clone + Eq + Hash + Send + Sync + 'static;

    fn first() -> Self;
    fn set(&mut self, index: u64);
    fn value(&self) -> &Self::Value;
    /// The key as our limiter wants it.
    fn partition(&self) -> PartitionKey;
}

impl Key for u64 {
    type Value = Self;

    fn first() -> Self {
        mix(0)
    }

    #[inline]
    fn set(&mut self, index: u64) {
        *self = mix(index);
    }

    #[inline]
    fn value(&self) -> &Self {
        self
    }

    #[inline]
    fn partition(&self) -> PartitionKey {
        PartitionKey::from(*self)
    }
}

/// An IPv4 address, as the `IpAddr` that a socket gives.
impl Key for IpAddr {
    type Value = Self;

    fn first() -> Self {
        Ipv4Addr::from_bits(0).into()
    }

    #[inline]
    fn set(&mut self, index: u64) {
        *self = Ipv4Addr::from_bits(mix32(index as u32)).into();
    }

    #[inline]
    fn value(&self) -> &Self {
        self
    }

    #[inline]
    fn partition(&self) -> PartitionKey {
        PartitionKey::from(*self)
    }
}

/// Twenty bytes: `key-` and sixteen hexadecimal digits.
impl Key for String {
    type Value = Self;

    fn first() -> Self {
        let mut text = "key-................".to_owned();
        text.set(0);
        text
    }

    #[inline]
    fn set(&mut self, index: u64) {
        let bits = mix(index);
        let mut bytes = *b"key-................";
        bytes[4..12].copy_from_slice(&hex((bits >> 32) as u32).to_le_bytes());
        bytes[12..20].copy_from_slice(&hex(bits as u32).to_le_bytes());
        raw::overwrite(self, &bytes);
    }

    #[inline]
    fn value(&self) -> &Self {
        self
    }

    #[inline]
    fn partition(&self) -> PartitionKey {
        PartitionKey::from(self.as_str())
    }
}

/// Eight digits at once: a nibble to a byte, and each byte to its letter.
fn hex(bits: u32) -> u64 {
    let mut nibbles = u64::from(bits);
    nibbles = (nibbles | nibbles << 16) & 0x0000_ffff_0000_ffff;
    nibbles = (nibbles | nibbles << 8) & 0x00ff_00ff_00ff_00ff;
    nibbles = (nibbles | nibbles << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = ((nibbles + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    nibbles + 0x3030_3030_3030_3030 + letters * 39
}

/// Different for different inputs, and without order (SplitMix64's finaliser).
#[inline]
fn mix(index: u64) -> u64 {
    let z = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes 32 bits (MurmurHash3's finaliser).
#[inline]
fn mix32(index: u32) -> u32 {
    let h = (index ^ (index >> 16)).wrapping_mul(0x85eb_ca6b);
    let h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// Which key comes next.
pub trait Order: Send {
    fn next(&mut self) -> u64;
}

/// All keys equally often.
pub struct Uniform {
    state: u64,
    keys: u64,
}

impl Uniform {
    pub fn new(keys: u64, seed: u64) -> Self {
        Self { state: mix(seed), keys }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Within 0 and 1.
    fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Order for Uniform {
    #[inline]
    fn next(&mut self) -> u64 {
        let bits = self.bits();
        ((u128::from(bits) * u128::from(self.keys)) >> 64) as u64
    }
}

/// The n-th most frequent key comes 1/n times as often as the first, drawn in advance.
pub struct Zipf {
    drawn: Vec<u32>,
    position: usize,
}

impl Zipf {
    /// By rejection-inversion (Hörmann and Derflinger 1996), with exponent 1.
    pub fn new(keys: u64, seed: u64, draws: usize) -> Self {
        let mut random = Uniform::new(keys, seed);
        let n = keys as f64;
        let (low, high) = (1.5_f64.ln() - 1.0, (n + 0.5).ln());
        let certain = 2.0 - (2.5_f64.ln() - 0.5).exp();
        let drawn = std::iter::repeat_with(|| {
            loop {
                let u = high + random.fraction() * (low - high);
                let x = u.exp();
                let k = x.round().clamp(1.0, n);
                if k - x <= certain || u >= (k + 0.5).ln() - 1.0 / k {
                    return k as u32 - 1;
                }
            }
        });
        Self { drawn: drawn.take(draws.next_power_of_two()).collect(), position: 0 }
    }
}

impl Order for Zipf {
    #[inline]
    fn next(&mut self) -> u64 {
        self.position = (self.position + 1) & (self.drawn.len() - 1);
        self.drawn[self.position].into()
    }
}
