//! `PartitionKey`: the bytes that identify a budget.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// The bytes that identify one budget: a client, a user, a path, or any combination.
///
/// Two requests share a budget if their keys are equal, and otherwise only by a [collision] of hashes in the store.
/// Keys are compared byte for byte, without normalisation. If several spellings of a name are one account, use the
/// account as the key.
///
/// [collision]: crate::store::MemoryStore#accuracy
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
///
/// Made of text, bytes, integers (big-endian, with their type's length: `7_u32` and `7_u64` are different keys) and
/// addresses. A `Uuid` is `uuid.into_bytes().into()`; in a closure, as in an
/// [`ExtensionKey`](crate::key::ExtensionKey), `uuid.as_u128()`, which is the same key.
///
/// # Cost
///
/// Keys of up to 46 bytes (every address, most API keys) are stored inline, keys of up to 256 bytes in an allocation.
/// For longer keys, whose length only the server's limits bound, we keep just the SHA-256, inline: their bytes are read
/// once, and not stored or compared. SHA-256 resists collisions without a secret, so that no client can find a value
/// that draws on another client's budget, and all processes that share a store agree. (A hash with a secret per process
/// would be cheaper, but processes would disagree; truncation would unite all tokens with one prefix.)
#[derive(Clone)]
#[doc(alias = "uuid")]
pub struct PartitionKey(Bytes);

/// Inline bytes: they make a `PartitionKey` 48 bytes long.
const INLINE: usize = 46;

/// Longer keys are stored as their hash.
const LONGEST: usize = 256;

/// The prefix of a hash. A key that has this form is hashed as well, so that no client can send another key's hash.
const MARK: [u8; 8] = *b"\0sha256\0";
const HASHED: usize = MARK.len() + 32;

enum Bytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Clone for Bytes {
    #[inline(always)]
    fn clone(&self) -> Self {
        match self {
            Self::Inline { len, bytes } => Self::Inline { len: *len, bytes: *bytes },
            Self::Heap(bytes) => Self::Heap(allocated(bytes)),
        }
    }
}

/// Not inlined: a caller that clones a short key saves no registers for an allocation.
#[cold]
#[inline(never)]
fn allocated(bytes: &[u8]) -> Box<[u8]> {
    bytes.into()
}

impl PartitionKey {
    /// The key of a budget that all requests share.
    pub const SHARED: Self = Self(Bytes::Inline { len: 0, bytes: [0; INLINE] });

    /// Makes a key from parts. It equals another such key only if all parts are equal.
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut key = JoinedPieces { bytes: [0; LONGEST], len: 0, hash: None };
        for part in parts {
            let part = part.as_ref();
            key.push(&(part.len() as u64).to_le_bytes());
            key.push(part);
        }
        match key.hash {
            None => Self::from(&key.bytes[..key.len]),
            Some(hash) => Self::hashed(hash),
        }
    }

    /// Makes a key that can't be kept inline as it is: a longer key, or one that looks like a hash.
    #[cold]
    fn long(key: &[u8]) -> Self {
        if key.len() <= LONGEST && key.len() != HASHED {
            Self(Bytes::Heap(key.into()))
        } else {
            Self::hashed(Sha256::new_with_prefix(key))
        }
    }

    fn hashed(hash: Sha256) -> Self {
        let mut bytes = [0; INLINE];
        bytes[..MARK.len()].copy_from_slice(&MARK);
        bytes[MARK.len()..HASHED].copy_from_slice(&hash.finalize());
        #[allow(clippy::cast_possible_truncation)]
        Self(Bytes::Inline { len: HASHED as u8, bytes })
    }

    /// The canonical bytes: the bytes that made the key, or their hash if they are more than 256 or look like such a
    /// hash.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The key with these [canonical bytes](Self::as_bytes), as this crate has written them: a hash stays one.
    pub(crate) fn from_canonical(bytes: &[u8]) -> Self {
        if bytes.len() == HASHED && bytes.starts_with(&MARK) {
            #[allow(clippy::cast_possible_truncation)]
            return Self(Bytes::Inline { len: HASHED as u8, bytes: padded(bytes) });
        }
        Self::from(bytes)
    }

    /// The key for which only this SHA-256 is kept. `None` if `hash` has another length.
    pub(crate) fn from_hash(hash: &[u8]) -> Option<Self> {
        (MARK.len() + hash.len() == HASHED).then(|| Self::from_canonical(&[&MARK[..], hash].concat()))
    }

    /// The key's SHA-256, if only that is kept.
    pub(crate) fn kept_hash(&self) -> Option<&[u8]> {
        self.as_bytes().strip_prefix(&MARK).filter(|hash| MARK.len() + hash.len() == HASHED)
    }
}

impl From<&[u8]> for PartitionKey {
    #[inline]
    fn from(key: &[u8]) -> Self {
        match u8::try_from(key.len()) {
            Ok(len) if key.len() <= INLINE && !(key.len() == HASHED && key.starts_with(&MARK)) => {
                Self(Bytes::Inline { len, bytes: padded(key) })
            }
            _ => Self::long(key),
        }
    }
}

/// Joins a key's pieces, and hashes them once they exceed [`LONGEST`].
struct JoinedPieces {
    bytes: [u8; LONGEST],
    len: usize,
    hash: Option<Sha256>,
}

impl JoinedPieces {
    fn push(&mut self, piece: &[u8]) {
        match (&mut self.hash, self.bytes.get_mut(self.len..self.len + piece.len())) {
            (None, Some(room)) => {
                room.copy_from_slice(piece);
                self.len += piece.len();
            }
            (hash, _) => hash.get_or_insert_with(|| Sha256::new_with_prefix(&self.bytes[..self.len])).update(piece),
        }
    }
}

/// A short key, padded with zeros. Written in 8-byte words, in which the hash reads it soon after: the processor can
/// forward a store to a load only if one store covers the whole load.
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

/// Reads up to seven bytes as a little-endian number, without a loop, since most keys are that short.
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

impl<const N: usize> From<[u8; N]> for PartitionKey {
    fn from(key: [u8; N]) -> Self {
        Self::from(key.as_slice())
    }
}

impl<const N: usize> From<&[u8; N]> for PartitionKey {
    fn from(key: &[u8; N]) -> Self {
        Self::from(key.as_slice())
    }
}

macro_rules! from {
    ($($type:ty),+: $key:ident => $bytes:expr) => {$(
        impl From<$type> for PartitionKey {
            fn from($key: $type) -> Self {
                Self::from($bytes)
            }
        }
    )+};
}

from!(&str, &String, String, Cow<'_, str>: key => key.as_bytes());
from!(Vec<u8>: key => key.as_slice());
from!(u32, u64, u128, i32, i64: key => key.to_be_bytes().as_slice());

/// Takes the whole address. An IPv4-mapped IPv6 address is the IPv4 address.
/// To group IPv6 addresses by network, use `PeerIp` or `ClientIp`.
impl From<IpAddr> for PartitionKey {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::from(ip.octets()),
            IpAddr::V6(ip) => Self::from(ip.octets()),
        }
    }
}

/// Equals the key for the same [`IpAddr`].
impl From<Ipv4Addr> for PartitionKey {
    fn from(ip: Ipv4Addr) -> Self {
        Self::from(IpAddr::V4(ip))
    }
}

/// Equals the key for the same [`IpAddr`]: an IPv4-mapped one is the IPv4 address.
impl From<Ipv6Addr> for PartitionKey {
    fn from(ip: Ipv6Addr) -> Self {
        Self::from(IpAddr::V6(ip))
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

/// Shows printable text as text, and anything else in hexadecimal. Keys may be personal data: do not
/// log them.
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
    fn every_key_is_48_bytes() {
        assert_eq!(size_of::<PartitionKey>(), 48);
        for len in (0..=INLINE + 10).chain([255, 256]) {
            let bytes: Vec<u8> = (1..=255).cycle().take(len).collect();
            let key = PartitionKey::from(bytes.as_slice());
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(matches!(key.0, Bytes::Inline { .. }), len <= INLINE, "{len} bytes");
        }
    }

    #[test]
    fn long_keys_are_stored_as_hashes() {
        let hash = |key: &[u8]| [MARK.as_slice(), &Sha256::digest(key)].concat();
        // Miri takes minutes to hash the longer two.
        for len in [257, 300, 4_096, 1 << 20].into_iter().take(if cfg!(miri) { 2 } else { 4 }) {
            let long: Vec<u8> = (1..=255).cycle().take(len).collect();
            let key = PartitionKey::from(long.as_slice());
            assert_eq!(key.as_bytes(), hash(&long));
            assert!(matches!(key.0, Bytes::Inline { .. }), "{len} bytes");
            // Every byte counts, and so does the length.
            for at in [0, 255, 256, len - 1] {
                let mut other = long.clone();
                other[at] ^= 1;
                assert_ne!(PartitionKey::from(other), key);
            }
            assert_ne!(PartitionKey::from(&long[..len - 1]), key);

            let parts = PartitionKey::from_parts([&b"short"[..], &long, b"end"]);
            let length = |len: usize| (len as u64).to_le_bytes();
            let joined = [&length(5)[..], b"short", &length(len), &long, &length(3), b"end"].concat();
            assert_eq!(parts.as_bytes(), hash(&joined));
            assert!(matches!(parts.0, Bytes::Inline { .. }));
        }
    }

    #[test]
    fn canonical_bytes_are_the_key() {
        for len in [0, 1, 40, 46, 47, 256, 257, 1_000] {
            let key = PartitionKey::from(vec![b'a'; len]);
            assert_eq!(PartitionKey::from_canonical(key.as_bytes()), key, "{len}");
        }
    }

    #[test]
    fn parts_are_hashed_above_256_bytes() {
        for last in (0..300).step_by(if cfg!(miri) { 20 } else { 1 }) {
            let parts = PartitionKey::from_parts([&[b'a'; 100][..], &vec![b'b'; last]]);
            // Each part has eight bytes for its length.
            let joined = 8 + 100 + 8 + last;
            assert_eq!(parts.as_bytes().len(), if joined <= LONGEST { joined } else { HASHED }, "{last}");
        }
    }

    #[test]
    fn no_key_equals_another_keys_hash() {
        let victim = PartitionKey::from([b'x'; 1_000].as_slice());
        let forged = PartitionKey::from(victim.as_bytes());
        assert_ne!(forged, victim);
        assert_eq!(forged.as_bytes().len(), HASHED);
        assert_ne!(PartitionKey::from(&victim.as_bytes()[..HASHED - 1]), victim);
        assert_ne!(PartitionKey::from([b'a'; HASHED].as_slice()), victim);
    }

    #[test]
    fn mapped_addresses_are_the_addresses_they_map() {
        let v4 = PartitionKey::from("1.2.3.4".parse::<IpAddr>().unwrap());
        let mapped = PartitionKey::from("::ffff:1.2.3.4".parse::<IpAddr>().unwrap());
        assert_eq!(v4, mapped);
        assert_eq!(v4, PartitionKey::from(Ipv4Addr::new(1, 2, 3, 4)));
        assert_eq!(v4, PartitionKey::from(Ipv4Addr::new(1, 2, 3, 4).to_ipv6_mapped()));
        assert_ne!(v4, PartitionKey::from("2001:db8::1.2.3.4".parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn keys_do_not_depend_on_types() {
        let text = PartitionKey::from("alice");
        assert_eq!(PartitionKey::from(b"alice"), text);
        assert_eq!(PartitionKey::from(*b"alice"), text);
        assert_eq!(PartitionKey::from(Cow::Borrowed("alice")), text);
        assert_eq!(PartitionKey::from(Cow::<str>::Owned("alice".into())), text);
        // A UUID's bytes and its number.
        assert_eq!(
            PartitionKey::from(*b"0123456789abcdef"),
            PartitionKey::from(u128::from_be_bytes(*b"0123456789abcdef"))
        );
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
