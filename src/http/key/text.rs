//! Keys as text: as an operator types them, and as a page shows them.
//!
//! A text is trimmed, or a JSON-like string in quotation marks, for names that begin or end with white space, have a
//! ` + `, or begin with a quotation mark. A combination is its parts, with ` + ` between them.

use std::any::TypeId;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::values::PartitionKey;

/// Stands between the parts of a combination.
pub(super) const SEPARATOR: &str = " + ";

/// The text of the one key that [all requests share](PartitionKey::SHARED).
pub(crate) const SHARED: &str = "(shared)";

/// The reason why a text is no key of a policy: it describes the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTextError {
    expected: Cow<'static, str>,
}

impl KeyTextError {
    /// An error for a policy whose keys are `expected`, such as "an address, such as 203.0.113.7".
    pub fn new(expected: impl Into<Cow<'static, str>>) -> Self {
        Self { expected: expected.into() }
    }

    /// Describes the keys.
    #[must_use]
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

impl fmt::Display for KeyTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no key of the policy; write {}", self.expected)
    }
}

impl Error for KeyTextError {}

/// Returns the name that a text stands for: trimmed, or the content of a string in quotation marks.
pub(super) fn unquoted(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    let inner = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .filter(|_| closing_mark(text) == Some(text.len() - 1));
    let Some(inner) = inner else { return text.into() };
    let mut escaped = false;
    let unescape = |char: &char| {
        escaped = *char == '\\' && !escaped;
        !escaped
    };
    inner.chars().filter(unescape).collect::<String>().into()
}

/// Returns a name as [`unquoted`] reads it.
pub(super) fn quoted(name: &str) -> String {
    if name.trim() == name && !name.is_empty() && !name.starts_with('"') && !name.contains(SEPARATOR) && name != SHARED
    {
        return name.to_owned();
    }
    let escaped = name.chars().flat_map(|char| ['\\', char].into_iter().skip(usize::from(!matches!(char, '"' | '\\'))));
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns the index of the mark that ends the string at the beginning of `text`.
fn closing_mark(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(index, char)| {
        let closes = char == '"' && !escaped;
        escaped = char == '\\' && !escaped;
        closes.then_some(index)
    })
}

/// Splits a combination into its parts, which stay quoted.
pub(super) fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    loop {
        let from = if rest.starts_with('"') { closing_mark(rest).unwrap_or(0) } else { 0 };
        let Some(at) = rest[from..].find(SEPARATOR).map(|at| from + at) else { break };
        parts.push(&rest[..at]);
        rest = rest[at + SEPARATOR.len()..].trim_start();
    }
    parts.push(rest);
    parts
}

/// Reads the name of a user, the value of a header, or any other text.
pub(super) fn read_name(text: &str, expected: &'static str) -> Result<PartitionKey, KeyTextError> {
    match &*unquoted(text) {
        "" => Err(KeyTextError::new(expected)),
        name => Ok(name.into()),
    }
}

/// Writes a key of text. `None` if the key is no text: it is known by its hash only, or made of other bytes.
pub(super) fn write_name(key: &PartitionKey) -> Option<String> {
    let name = std::str::from_utf8(key.as_bytes()).ok()?;
    (!name.chars().any(char::is_control)).then(|| quoted(name))
}

/// Splits a key made by [`PartitionKey::from_parts`] into its parts. `None` if there are not this many.
pub(super) fn split(key: &PartitionKey, parts: usize) -> Option<Vec<PartitionKey>> {
    let mut rest = key.as_bytes();
    let mut found = Vec::with_capacity(parts);
    while !rest.is_empty() {
        let (len, behind) = rest.split_first_chunk()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        found.push(PartitionKey::from(behind.get(..len)?));
        rest = &behind[len..];
    }
    (found.len() == parts).then_some(found)
}

/// The type that a closure returns as its key: so a number that an operator types is the key that the closure makes of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    U32,
    U64,
    U128,
    I32,
    I64,
    Address,
    /// Text, or a type of the user's own, which is taken for one.
    Text,
}

impl Content {
    pub(super) fn of_type<K: 'static>() -> Self {
        let is = |other| TypeId::of::<K>() == other;
        if is(TypeId::of::<u32>()) {
            Self::U32
        } else if is(TypeId::of::<u64>()) {
            Self::U64
        } else if is(TypeId::of::<u128>()) || is(TypeId::of::<[u8; 16]>()) {
            Self::U128
        } else if is(TypeId::of::<i32>()) {
            Self::I32
        } else if is(TypeId::of::<i64>()) {
            Self::I64
        } else if is(TypeId::of::<IpAddr>()) || is(TypeId::of::<Ipv4Addr>()) || is(TypeId::of::<Ipv6Addr>()) {
            Self::Address
        } else {
            Self::Text
        }
    }

    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::U32 | Self::U64 => "a whole number, such as 1234",
            Self::I32 | Self::I64 => "a whole number, such as 1234 or -5",
            Self::U128 => "a UUID, such as 67e55044-10b1-426f-9247-bb680e5fe0c8, or a whole number",
            Self::Address => "an address, such as 203.0.113.7 or 2001:db8::1",
            Self::Text => "a text that is not empty, such as alice",
        }
    }

    pub(super) fn read(self, text: &str) -> Result<PartitionKey, KeyTextError> {
        let name = unquoted(text);
        let key = match self {
            Self::U32 => name.parse::<u32>().ok().map(PartitionKey::from),
            Self::U64 => name.parse::<u64>().ok().map(PartitionKey::from),
            Self::I32 => name.parse::<i32>().ok().map(PartitionKey::from),
            Self::I64 => name.parse::<i64>().ok().map(PartitionKey::from),
            Self::U128 => read_uuid(&name).or_else(|| name.parse().ok()).map(PartitionKey::from),
            Self::Address => name.parse::<IpAddr>().ok().map(PartitionKey::from),
            Self::Text => return read_name(text, self.expected()),
        };
        key.ok_or_else(|| KeyTextError::new(self.expected()))
    }

    pub(super) fn write(self, key: &PartitionKey) -> Option<String> {
        let bytes = key.as_bytes();
        match self {
            Self::U32 => bytes.try_into().ok().map(|bytes| u32::from_be_bytes(bytes).to_string()),
            Self::U64 => bytes.try_into().ok().map(|bytes| u64::from_be_bytes(bytes).to_string()),
            Self::I32 => bytes.try_into().ok().map(|bytes| i32::from_be_bytes(bytes).to_string()),
            Self::I64 => bytes.try_into().ok().map(|bytes| i64::from_be_bytes(bytes).to_string()),
            Self::U128 => bytes.try_into().ok().map(|bytes| write_uuid(u128::from_be_bytes(bytes))),
            Self::Address => address(key).map(|address| address.to_string()),
            Self::Text => write_name(key),
        }
    }
}

/// Returns the address that a key is.
pub(super) fn address(key: &PartitionKey) -> Option<IpAddr> {
    let bytes = key.as_bytes();
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The form of RFC 9562, section 4, in any case.
fn read_uuid(text: &str) -> Option<u128> {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    let is_hex = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    (is_hex && groups == [8, 4, 4, 4, 12]).then(|| u128::from_str_radix(&text.replace('-', ""), 16).ok())?
}

fn write_uuid(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::Request;

    use super::*;
    use crate::http::head::RequestHead;
    use crate::http::key::{ExtensionKey, Global, HeaderKey, KeyExtractor, PathKey, PeerIp, User, key_fn};

    /// Checks that `text` stands for the key of `request`, and returns the text that is written.
    #[track_caller]
    fn typed(extractor: &impl KeyExtractor, request: &Request<()>, text: &str) -> String {
        let key = extractor.extract(&RequestHead::from(request)).unwrap();
        assert_eq!(extractor.read_text(text), Ok(key.clone()), "{text:?}");
        let written = extractor.write_text(&key).expect("it is readable");
        assert_eq!(extractor.read_text(&written), Ok(key), "{written:?}");
        written
    }

    fn from_peer(peer: &str) -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer.parse::<SocketAddr>().unwrap());
        request
    }

    #[test]
    fn an_address_stands_for_the_network_that_has_the_budget() {
        let peer = PeerIp::new();
        assert_eq!(typed(&peer, &from_peer("203.0.113.7:1"), " 203.0.113.7 "), "203.0.113.7");
        assert_eq!(typed(&peer, &from_peer("203.0.113.7:1"), "::ffff:203.0.113.7"), "203.0.113.7");
        for text in ["2001:db8::1", "2001:DB8::", "2001:db8::/64"] {
            assert_eq!(typed(&peer, &from_peer("[2001:db8::2]:1"), text), "2001:db8::/64", "{text}");
        }
        assert_eq!(typed(&peer.ipv6_prefix(48), &from_peer("[2001:db8:0:9::2]:1"), "2001:db8::1"), "2001:db8::/48");
        for text in ["", "alice", "203.0.113", "203.0.113.7/24", "2001:db8::/48", "[2001:db8::1]:80"] {
            let error = peer.read_text(text).unwrap_err().to_string();
            assert!(error.contains("203.0.113.7") && error.contains("/64"), "{text:?}: {error}");
        }
    }

    #[test]
    fn names_and_values_are_trimmed_and_may_be_quoted() {
        let mut request = Request::builder().header("x-api-key", " k1 ").body(()).unwrap();
        request.extensions_mut().insert(User::new(" a \"+\\ "));
        assert_eq!(typed(&HeaderKey::from_static("x-api-key"), &request, " k1"), "k1");
        assert_eq!(typed(&User::key(), &request, r#"" a \"+\\ ""#), r#"" a \"+\\ ""#);
        for text in ["", "  ", "\"\""] {
            assert!(
                User::key().read_text(text).is_err() && HeaderKey::from_static("x-api-key").read_text(text).is_err()
            );
        }
        assert!(HeaderKey::from_static("x-api-key").read_text("\"a\u{1}b\"").is_err(), "no header has it");
    }

    #[test]
    fn a_combination_is_written_with_a_plus_between_its_parts() {
        let mut request = from_peer("203.0.113.7:1");
        request.extensions_mut().insert(User::new("alice"));
        let pair = (User::key(), PeerIp::new());
        assert_eq!(typed(&pair, &request, "alice + 203.0.113.7"), "alice + 203.0.113.7");
        let vector: Vec<Box<dyn KeyExtractor>> = vec![Box::new(User::key()), Box::new(PeerIp::new())];
        assert_eq!(typed(&vector, &request, "\"alice\"  +  203.0.113.7"), "alice + 203.0.113.7");
        request.extensions_mut().insert(User::new("alice + bob"));
        assert_eq!(typed(&pair, &request, "\"alice + bob\" + 203.0.113.7"), "\"alice + bob\" + 203.0.113.7");
        // A combination within another one.
        let nested = (pair, Global);
        let text = r#""\"alice + bob\" + 203.0.113.7" + (shared)"#;
        assert_eq!(typed(&nested, &request, text), text);
        for text in ["alice", "alice + ", "203.0.113.7 + alice", "a + b + 203.0.113.7", ""] {
            let error = (User::key(), PeerIp::new()).read_text(text).unwrap_err();
            assert!(error.expected().contains("alice") && error.expected().contains(" + "), "{text:?}: {error}");
        }
    }

    #[test]
    fn numbers_are_read_as_the_closure_returns_them() {
        let mut request = Request::new(());
        request.extensions_mut().insert(7_u64);
        assert_eq!(typed(&ExtensionKey::new(|id: &u64| *id), &request, "7"), "7");
        assert_eq!(typed(&ExtensionKey::new(|id: &u64| u32::try_from(*id).unwrap()), &request, "7"), "7");
        assert_eq!(typed(&key_fn(|_| Some(-7_i64)), &request, "-7"), "-7");
        assert_eq!(typed(&key_fn(|_| Some("a".to_owned())), &request, "a"), "a");
        let uuid = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let bits = 0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8_u128;
        assert_eq!(typed(&key_fn(move |_| Some(bits)), &request, &uuid.to_uppercase()), uuid);
        assert_eq!(typed(&key_fn(move |_| Some(bits.to_be_bytes())), &request, &bits.to_string()), uuid);
        assert_eq!(typed(&key_fn(|_| Some(IpAddr::from([192, 0, 2, 1]))), &request, "192.0.2.1"), "192.0.2.1");
        assert!(ExtensionKey::new(|id: &u64| *id).read_text("alice").unwrap_err().expected().contains("number"));
    }

    #[test]
    fn paths_and_the_shared_key() {
        let request = Request::builder().uri("/a?b").body(()).unwrap();
        assert_eq!(typed(&PathKey::raw(), &request, "/a"), "/a");
        assert!(PathKey::raw().read_text("a").is_err());
        for text in ["", "(shared)"] {
            assert_eq!(typed(&Global, &request, text), "(shared)");
        }
        assert!(Global.read_text("alice").unwrap_err().expected().contains("(shared)"));
    }

    #[test]
    fn a_key_that_is_known_by_its_hash_has_no_text() {
        let long = PartitionKey::from("a".repeat(300));
        assert_eq!(User::key().write_text(&long), None);
        let pair = PartitionKey::from_parts(["a".repeat(300).as_bytes(), &[192, 0, 2, 1]]);
        assert_eq!((User::key(), PeerIp::new()).write_text(&pair), None);
    }
}
