//! Tags: hashes that stand for partition keys on servers and in this process's tables.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::util::base64;
use crate::util::expiring_map::{ExpiringMap, HashTag};
use crate::values::PartitionKey;

/// Makes the tags of one limiter's keys.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "its secret is in no log")]
pub struct Tags {
    /// The hash's state after the secret.
    hash: Sha256,
}

impl Tags {
    /// With a secret, a tag cannot be found by trying keys. Processes that share budgets must agree on it.
    pub fn new(secret: &[u8]) -> Self {
        // A whole block, so that hashing a key starts from a state that depends on the secret and is not known without
        // it.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&Sha256::digest(secret));
        Self { hash: Sha256::new_with_prefix(block) }
    }

    /// The hash that stands for a key.
    pub fn of(&self, key: &PartitionKey) -> KeyTag {
        let hash = self.hash.clone().chain_update(key.as_bytes()).finalize();
        KeyTag(hash[..16].try_into().expect("half of 32 bytes"))
    }
}

/// A hash that stands for a partition key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyTag([u8; 16]);

impl KeyTag {
    /// Returns the tag in base64url.
    pub fn text(self) -> [u8; 22] {
        std::array::from_fn(|index| base64::character(base64::URL_SAFE, &self.0, index))
    }

    /// Returns the tag as a number, from which [`from_bits`](Self::from_bits) makes it again.
    pub const fn to_bits(self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    /// Returns the tag for such a number.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits.to_le_bytes())
    }

    /// Returns 64 of its bits, for a table.
    pub fn short(self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes"))
    }
}

/// Writes the tag in base64url.
impl fmt::Display for KeyTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("base64 is ASCII"))
    }
}

impl HashTag for KeyTag {
    fn bits(self) -> u64 {
        self.short()
    }
}

/// A process's knowledge about up to 8,192 keys. A whole negative cache takes 1.1 MiB, and so do all leases (see both
/// modules' tests). Each key beyond costs a call per request if it is used up (in the negative cache) or in demand (in
/// the leases).
pub(super) type KnownKeys<V> = ExpiringMap<KeyTag, V, 4>;

/// Creates an empty map.
pub(super) fn known_keys<V: Copy>() -> KnownKeys<V> {
    KnownKeys::new(SETS).expect("a mebibyte")
}

pub(super) const SETS: usize = 2_048;

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn tags_are_written_in_base64url() {
        assert_eq!(&KeyTag([0; 16]).text(), b"AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(&KeyTag([0xff; 16]).text(), b"_____________________w");
    }
}
