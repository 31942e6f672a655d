//! Keys as text: as an operator types them, and as a page shows them.
//!
//! A text is trimmed. Names that begin or end with white space, have a ` + `, or begin with a quotation mark or a
//! parenthesis are JSON-like strings in quotation marks. In such a string, `\xff` is a byte. A combination is its
//! parts, with ` + ` between them.
//!
//! [`text_of`] and [`key_of_text`] are inverse to each other, for every key and every extractor. A key without such a
//! text is written as its bytes, `(0x00ff)`, or as its hash, `(sha256:…)`, if only that is kept.

use std::any::TypeId;
use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use super::KeyExtractor;
use crate::engine::domain::Domain;
use crate::values::PartitionKey;

/// Stands between a combination's parts.
pub(crate) const SEPARATOR: &str = " + ";

/// The text of the one key that [all requests share](PartitionKey::SHARED).
pub(crate) const SHARED: &str = "(shared)";

/// The error if a text is not a policy's key. It describes the keys.
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

/// Reads the text of the one key that all requests share.
pub(crate) fn read_shared(text: &str) -> Result<PartitionKey, KeyTextError> {
    match text.trim() {
        "" | SHARED => Ok(PartitionKey::SHARED),
        _ => Err(KeyTextError::new("(shared), the key that all requests share")),
    }
}

pub(crate) fn write_shared(key: &PartitionKey) -> Option<String> {
    (*key == PartitionKey::SHARED).then(|| SHARED.to_owned())
}

/// The bytes of a key, in hexadecimal, stand between this and a closing parenthesis.
const BYTES: &str = "(0x";

/// If only a key's SHA-256 is kept, it stands in hexadecimal between this and a closing parenthesis.
const HASH: &str = "(sha256:";

/// A text's greatest length, in bytes: the longest key, as hexadecimal digits.
const LONGEST: usize = BYTES.len() + 2 * 256 + 1;

/// Returns a key's text. [`key_of_text`] reads this key from it, so no two keys have the same text.
pub(crate) fn text_of<D: Domain>(extractor: &dyn KeyExtractor<D>, key: &PartitionKey) -> String {
    // Check the text, because a user's extractor may write keys that it does not make, or paint on a terminal.
    let is_its = |text: &String| {
        text.len() <= LONGEST && text.chars().all(is_printable) && key_of_text(extractor, text).as_ref() == Ok(key)
    };
    extractor.write_text(key).filter(is_its).unwrap_or_else(|| bytes_of(key))
}

/// Returns the key that a text stands for, as an operator writes it, such as `203.0.113.7` for an address. A key
/// without another text is written as its bytes, `(0x00ff)`.
///
/// # Errors
///
/// If the extractor does not make a key from such a text.
pub fn key_of_text<D: Domain>(extractor: &dyn KeyExtractor<D>, text: &str) -> Result<PartitionKey, KeyTextError> {
    // If this is a combination, only a part may be written so.
    let trimmed = if text.contains(SEPARATOR) { "" } else { text.trim() };
    let read = match (trimmed.strip_prefix(BYTES), trimmed.strip_prefix(HASH)) {
        (Some(digits), _) => read_digits(digits).map(PartitionKey::from),
        (_, Some(digits)) => read_digits(digits).and_then(|hash| PartitionKey::from_hash(&hash)),
        (None, None) => return extractor.read_text(text),
    };
    let expected = "the bytes of a key, such as (0x00ff); a name that begins so, in quotation marks";
    read.ok_or_else(|| KeyTextError::new(expected))
}

/// Writes a key that has no other text.
pub(crate) fn bytes_of(key: &PartitionKey) -> String {
    let (mark, bytes) = key.kept_hash().map_or((BYTES, key.as_bytes()), |hash| (HASH, hash));
    let mut text = mark.to_owned();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push(')');
    text
}

fn read_digits(text: &str) -> Option<Vec<u8>> {
    let pairs = text.strip_suffix(')')?.as_bytes().chunks(2);
    pairs.map(|pair| read_byte(*pair.first()?, *pair.get(1)?)).collect()
}

fn read_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Whether a person sees the character: it is not a control character, has a width, does not change the writing
/// direction, and if it is white space, it is the common space.
fn is_printable(char: char) -> bool {
    /// The characters in Unicode's category Cf that occur outside single scripts.
    const FORMATS: [RangeInclusive<char>; 9] = [
        '\u{ad}'..='\u{ad}',
        '\u{61c}'..='\u{61c}',
        '\u{180e}'..='\u{180e}',
        '\u{200b}'..='\u{200f}',
        '\u{202a}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{feff}'..='\u{feff}',
        '\u{fff9}'..='\u{fffb}',
        '\u{e0000}'..='\u{e0fff}',
    ];
    let is_format = FORMATS.iter().any(|range| range.contains(&char));
    !is_format && !char.is_control() && (char == ' ' || !char.is_whitespace())
}

/// Returns the name that a text stands for: the trimmed text, or a quoted string's content. `None` if such a string
/// does not end in its mark, or has an escape other than `\"`, `\\` and `\xff`.
pub(crate) fn unquoted(text: &str) -> Option<Cow<'_, [u8]>> {
    let text = text.trim();
    let Some(rest) = text.strip_prefix('"') else { return Some(text.as_bytes().into()) };
    let mut rest = rest.strip_suffix('"')?.as_bytes();
    let mut name = Vec::with_capacity(rest.len());
    while let [first, behind @ ..] = rest {
        let (byte, behind) = match (first, behind) {
            (b'\\', [mark @ (b'"' | b'\\'), behind @ ..]) => (*mark, behind),
            (b'\\', [b'x', high, low, behind @ ..]) => (read_byte(*high, *low)?, behind),
            (b'\\' | b'"', _) => return None,
            _ => (*first, behind),
        };
        name.push(byte);
        rest = behind;
    }
    Some(name.into())
}

/// Reads a name as [`unquoted`] does. `None` if its bytes are not UTF-8, too.
pub(crate) fn unquoted_text(text: &str) -> Option<Cow<'_, str>> {
    match unquoted(text)? {
        Cow::Borrowed(name) => std::str::from_utf8(name).ok().map(Cow::Borrowed),
        Cow::Owned(name) => String::from_utf8(name).ok().map(Cow::Owned),
    }
}

/// Returns a name as [`unquoted`] reads it.
pub(crate) fn quoted(name: &[u8]) -> String {
    if let Some(name) = std::str::from_utf8(name).ok().filter(|name| is_plain(name)) {
        return name.to_owned();
    }
    let mut quoted = "\"".to_owned();
    let escape = |quoted: &mut String, byte: &u8| {
        let _ = write!(quoted, "\\x{byte:02x}");
    };
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' | '\\' => quoted.extend(['\\', char]),
                // A page shows several spaces as one.
                ' ' if quoted.ends_with(' ') => escape(&mut quoted, &b' '),
                _ if is_printable(char) => quoted.push(char),
                _ => char.encode_utf8(&mut [0; 4]).as_bytes().iter().for_each(|byte| escape(&mut quoted, byte)),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(&mut quoted, byte));
    }
    quoted.push('"');
    quoted
}

/// Whether a name does not need quotation marks.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.trim() == name
        && !name.starts_with(['"', '('])
        && !name.contains(SEPARATOR)
        && !name.contains("  ")
        && name.chars().all(is_printable)
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
pub(crate) fn parts(text: &str) -> Vec<&str> {
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

/// Reads a user name, a header value, or any other text.
pub(crate) fn read_name(text: &str, expected: &'static str) -> Result<PartitionKey, KeyTextError> {
    let name = unquoted(text).filter(|name| !name.is_empty());
    name.map(|name| PartitionKey::from(&*name)).ok_or_else(|| KeyTextError::new(expected))
}

/// Writes a text key. `None` if only its hash is kept, or if its bytes are shorter as digits.
pub(crate) fn write_name(key: &PartitionKey) -> Option<String> {
    let bytes = Some(key.as_bytes()).filter(|_| key.kept_hash().is_none())?;
    Some(quoted(bytes)).filter(|text| text.len() <= BYTES.len() + 2 * bytes.len() + 1)
}

/// Splits a key made by [`PartitionKey::from_parts`] into its parts. `None` if there are not this many.
pub(crate) fn split(key: &PartitionKey, parts: usize) -> Option<Vec<PartitionKey>> {
    let mut rest = key.as_bytes();
    let mut found = Vec::with_capacity(parts);
    while !rest.is_empty() {
        let (len, behind) = rest.split_first_chunk()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        found.push(PartitionKey::from_canonical(behind.get(..len)?));
        rest = &behind[len..];
    }
    (found.len() == parts).then_some(found)
}

/// The type that a closure returns as its key. With it, a number that an operator types is read as the closure's key
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    U32,
    U64,
    U128,
    I32,
    I64,
    Address,
    /// Text, or a user's type, which is taken for text.
    Text,
}

impl Content {
    pub(crate) fn of_type<K: 'static>() -> Self {
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

    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::U32 | Self::U64 => "a whole number, such as 1234",
            Self::I32 | Self::I64 => "a whole number, such as 1234 or -5",
            Self::U128 => "a UUID, such as 67e55044-10b1-426f-9247-bb680e5fe0c8, or a whole number",
            Self::Address => "an address, such as 203.0.113.7 or 2001:db8::1",
            Self::Text => "a text that is not empty, such as alice",
        }
    }

    pub(crate) fn read(self, text: &str) -> Result<PartitionKey, KeyTextError> {
        let Some(name) = unquoted_text(text).filter(|_| self != Self::Text) else {
            return read_name(text, self.expected());
        };
        let key = match self {
            Self::U32 => name.parse::<u32>().ok().map(PartitionKey::from),
            Self::U64 => name.parse::<u64>().ok().map(PartitionKey::from),
            Self::I32 => name.parse::<i32>().ok().map(PartitionKey::from),
            Self::I64 => name.parse::<i64>().ok().map(PartitionKey::from),
            Self::U128 => read_uuid(&name).or_else(|| name.parse().ok()).map(PartitionKey::from),
            Self::Address => name.parse::<IpAddr>().ok().map(PartitionKey::from),
            Self::Text => None,
        };
        key.ok_or_else(|| KeyTextError::new(self.expected()))
    }

    pub(crate) fn write(self, key: &PartitionKey) -> Option<String> {
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
pub(crate) fn address(key: &PartitionKey) -> Option<IpAddr> {
    let bytes = key.as_bytes();
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Reads the form in RFC 9562, section 4, in upper or lower case.
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
    use std::collections::HashMap;
    use std::net::SocketAddr;

    use http::Request;

    use super::*;
    use crate::http::head::RequestHead;
    use crate::http::key::{ClientIp, ExtensionKey, Global, HeaderKey, KeyError, PathKey, PeerIp, User, key_fn};
    use crate::testing::Random;
    use crate::util::effort::rounds;

    /// Checks that `text` stands for the key of `request`, and returns the written text.
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
    fn addresses_stand_for_their_networks() {
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
    fn names_are_trimmed_and_may_be_quoted() {
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
    fn combinations_are_joined_by_a_plus() {
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
    fn numbers_match_the_closures_type() {
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
        let global: &dyn KeyExtractor = &Global;
        assert!(global.read_text("alice").unwrap_err().expected().contains("(shared)"));
    }

    /// Each kind of key that a person cannot type has a text.
    #[test]
    fn untypable_keys_are_written() {
        let by_name = |key: PartitionKey| text_of(&User::key(), &key);
        assert_eq!(by_name(b"\xff\xfe".into()), "(0xfffe)");
        assert_eq!(by_name("a\tb\u{85}c d".into()), r#""a\x09b\xc2\x85c d""#);
        assert_eq!(by_name("caf\u{e9} \u{202e}  ".into()), r#""café \xe2\x80\xae \x20""#);
        assert_eq!(by_name("(shared)".into()), r#""(shared)""#);
        // printf 'a%.0s' $(seq 300) | sha256sum
        let hash = "(sha256:9835fa6bf4e20a9b9ea812506302e98982721a6cf8d2cae67af57129bf21ae90)";
        assert_eq!(by_name("a".repeat(300).into()), hash);
        assert_eq!(text_of(&PeerIp::new(), &"alice".into()), "(0x616c696365)");
        let pair = PartitionKey::from_parts(["a".repeat(300).as_bytes(), &[192, 0, 2, 1]]);
        let whole = "(sha256:fc9744803582adf39f76d083c21a57236b396ae4d14d965dcf6e011689c00d50)";
        assert_eq!(text_of(&(User::key(), PeerIp::new()), &pair), whole);
        let pair = PartitionKey::from_parts([PartitionKey::from("a".repeat(300)).as_bytes(), &[192, 0, 2, 1]]);
        assert_eq!(text_of(&(User::key(), PeerIp::new()), &pair), format!("{hash} + 192.0.2.1"));
    }

    #[test]
    fn truncated_texts_are_not_keys() {
        let by_name = User::key();
        for text in ["(0xf)", "(0xff", "(0xfg)", "(sha256:00)", "\"a", "\"a\\\"", "\"a\\xf\"", "\"a\\q\"", "\"a\" b"] {
            assert!(key_of_text(&by_name, text).is_err(), "{text}");
        }
        assert_eq!(key_of_text(&by_name, " (0xFFfe) "), Ok(b"\xff\xfe".into()));
    }

    /// A user's extractor, whose keys are written as one text, with a line feed, or not at all.
    struct Careless(Option<&'static str>);

    impl KeyExtractor for Careless {
        fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
            Ok("alice".into())
        }

        fn write_text(&self, _: &PartitionKey) -> Option<String> {
            self.0.map(ToOwned::to_owned)
        }
    }

    /// Keys of all lengths, from bytes that texts consist of, and from parts.
    fn any_key(random: &mut Random) -> PartitionKey {
        const ALPHABET: [&[u8]; 16] = [
            b"a",
            b" ",
            b"+",
            b"\"",
            b"\\",
            b"(",
            b")",
            b"0x",
            b"sha256:",
            b"\0",
            b"\t",
            b"\xff",
            b"\xc2\x85",
            "\u{202e}".as_bytes(),
            "ß".as_bytes(),
            b"_",
        ];
        let long = if random.below(8) == 0 { 260 } else { 6 };
        let mut bytes = |most: u64| {
            let pieces = random.below(most + 1);
            (0..pieces).flat_map(|_| random.pick(&ALPHABET).to_vec()).collect::<Vec<_>>()
        };
        let [first, second, third] = [bytes(long), bytes(4), bytes(4)];
        match random.below(5) {
            0 => PartitionKey::from(first.as_slice()),
            1 => PartitionKey::from_parts([PartitionKey::from(first.as_slice()).as_bytes(), &second]),
            2 => PartitionKey::from_parts([PartitionKey::from(first.as_slice()).as_bytes()]),
            3 => PartitionKey::from_parts([PartitionKey::from_parts([first, second]).as_bytes(), &third]),
            _ => PartitionKey::from(random.next()),
        }
    }

    /// An operator acts on the key that is shown, so its text is read as this key, and no two keys have one text.
    #[test]
    fn each_key_has_its_own_text() {
        let nested = ((User::key(), PeerIp::new()), Global);
        let one: Vec<Box<dyn KeyExtractor>> = vec![Box::new(User::key())];
        let extractors: [&dyn KeyExtractor; 12] = [
            &User::key(),
            &HeaderKey::from_static("x-api-key"),
            &PathKey::raw(),
            &PeerIp::new(),
            &ClientIp::peer(),
            &Global,
            &key_fn(|_| Some(7_u64)),
            &nested,
            &one,
            &Careless(None),
            &Careless(Some("alice")),
            &Careless(Some("a\nb")),
        ];
        let mut random = Random::of_trial(54);
        for extractor in extractors {
            let mut texts = HashMap::new();
            for _ in 0..rounds(300, 30_000) {
                let key = any_key(&mut random);
                let text = text_of(extractor, &key);
                assert_eq!(key_of_text(extractor, &text), Ok(key.clone()), "{text}");
                assert!(text.len() <= LONGEST && text.chars().all(is_printable), "{text:?}");
                let other = texts.insert(text.clone(), key.clone());
                assert!(other.is_none_or(|other| other == key), "{text}");
            }
        }
    }
}
