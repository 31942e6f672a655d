//! Whose budget: the bytes that tell one client from another.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// The bytes that name one budget: a client, a user, a path, or any combination.
///
/// Two requests share a budget exactly when their keys are equal. Short keys (up to 46 bytes: every
/// address, most API keys) are stored inline and cost no allocation.
///
/// ```
/// use tower_sluice::PartitionKey;
///
/// let user = PartitionKey::from("alice");
/// let pair = PartitionKey::from_parts([b"alice".as_slice(), b"/login"]);
/// assert_ne!(user, pair);
/// // Parts carry their length, so no two lists of parts spell the same key.
/// assert_ne!(PartitionKey::from_parts(["ab", "c"]), PartitionKey::from_parts(["a", "bc"]));
/// ```
#[derive(Clone)]
pub struct PartitionKey(Bytes);

/// Makes a `PartitionKey` 48 bytes long, and holds an IPv6 network with a 40-byte companion.
const INLINE: usize = 46;

#[derive(Clone)]
enum Bytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl PartitionKey {
    /// The key of a budget that everybody shares.
    pub const SHARED: Self = Self(Bytes::Inline { len: 0, bytes: [0; INLINE] });

    /// A key that is equal to another only if all of its parts are.
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut bytes = Vec::new();
        for part in parts {
            let part = part.as_ref();
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        Self::from(bytes.as_slice())
    }

    /// The canonical bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Heap(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for PartitionKey {
    #[inline]
    fn from(key: &[u8]) -> Self {
        match u8::try_from(key.len()) {
            Ok(len) if key.len() <= INLINE => Self(Bytes::Inline { len, bytes: padded(key) }),
            _ => Self(Bytes::Heap(key.into())),
        }
    }
}

/// A short key, and zeros. Written in the words in which a hash reads it soon after: a word that was written
/// in two pieces is not there for reading until both have left for the cache.
#[inline]
fn padded(key: &[u8]) -> [u8; INLINE] {
    let mut bytes = [0; INLINE];
    let words = key.chunks_exact(8);
    let rest = words.remainder();
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(word);
    }
    let end = &mut bytes[key.len() - rest.len()..];
    match end.first_chunk_mut::<8>() {
        Some(word) => *word = little_endian(rest).to_le_bytes(),
        None => end[..rest.len()].copy_from_slice(rest),
    }
    bytes
}

/// Up to seven bytes as a number, the first one least, without a loop: most keys are that short.
#[inline]
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    let wide = |four: &[u8]| u64::from(u32::from_le_bytes(four.try_into().expect("four bytes")));
    match bytes.len() {
        0 => 0,
        // One to three: the first, the middle and the last, which may be the same.
        len @ 1..4 => {
            let at = |i: usize| u64::from(bytes[i]) << (8 * i);
            at(0) | at(len / 2) | at(len - 1)
        }
        // Four to seven: the first four and the last four, which overlap in equal bytes.
        len => wide(&bytes[..4]) | wide(&bytes[len - 4..]) << (8 * (len - 4)),
    }
}

impl From<&str> for PartitionKey {
    fn from(key: &str) -> Self {
        Self::from(key.as_bytes())
    }
}

impl From<&String> for PartitionKey {
    fn from(key: &String) -> Self {
        Self::from(key.as_bytes())
    }
}

impl From<String> for PartitionKey {
    fn from(key: String) -> Self {
        Self::from(key.as_bytes())
    }
}

impl From<Vec<u8>> for PartitionKey {
    fn from(key: Vec<u8>) -> Self {
        Self::from(key.as_slice())
    }
}

macro_rules! from_integers {
    ($($integer:ty),+) => {$(
        impl From<$integer> for PartitionKey {
            fn from(key: $integer) -> Self {
                Self::from(key.to_be_bytes().as_slice())
            }
        }
    )+};
}

from_integers!(u32, u64, u128, i32, i64);

/// The whole address; an IPv4-mapped IPv6 address counts as the IPv4 address that it is.
/// To group IPv6 by network, see `PeerIp` and `ClientIp`.
impl From<IpAddr> for PartitionKey {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::from(ip.octets().as_slice()),
            IpAddr::V6(ip) => Self::from(ip.octets().as_slice()),
        }
    }
}

impl PartialEq for PartitionKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PartitionKey {}

impl PartialOrd for PartitionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PartitionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for PartitionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// Readable text is shown as text, anything else in hexadecimal. Keys may be personal data: mind
/// where this is printed.
impl fmt::Debug for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.as_bytes()) {
            Ok(text) if !text.chars().any(char::is_control) => write!(f, "PartitionKey({text:?})"),
            _ => {
                f.write_str("PartitionKey(0x")?;
                self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_48_bytes_whatever_it_holds() {
        assert_eq!(size_of::<PartitionKey>(), 48);
        for len in (0..=INLINE + 10).chain([255, 256, 300, 70_000]) {
            let bytes: Vec<u8> = (1..=255).cycle().take(len).collect();
            let key = PartitionKey::from(bytes.as_slice());
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(matches!(key.0, Bytes::Inline { .. }), len <= INLINE, "{len} bytes");
        }
    }

    #[test]
    fn mapped_addresses_are_the_addresses_they_map() {
        let v4 = PartitionKey::from("1.2.3.4".parse::<IpAddr>().unwrap());
        let mapped = PartitionKey::from("::ffff:1.2.3.4".parse::<IpAddr>().unwrap());
        assert_eq!(v4, mapped);
        assert_ne!(v4, PartitionKey::from("2001:db8::1.2.3.4".parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn parts_never_run_into_each_other() {
        let keys = [
            PartitionKey::from_parts(["", "ab"]),
            PartitionKey::from_parts(["a", "b"]),
            PartitionKey::from_parts(["ab", ""]),
            PartitionKey::from_parts(["ab"]),
            PartitionKey::from_parts::<&str>([]),
        ];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a == b, i == j);
            }
        }
    }
}
