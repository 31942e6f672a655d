//! Parses forwarding header elements into client addresses or names. Pure functions on bytes.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::list::MAX_BYTES;
use crate::http::text::string_end;

/// The client in a list element, or in a header with one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForwardedNode<'a> {
    Address(IpAddr),
    /// `obfnode` (RFC 7239 §6.3): a name that a proxy gave, with its underscore.
    Obfuscated(Cow<'a, [u8]>),
}

impl ForwardedNode<'_> {
    pub(super) const fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(ip) => Some(*ip),
            Self::Obfuscated(_) => None,
        }
    }
}

/// The most parameters in a `Forwarded` element. RFC 7239 registers four.
const MAX_PARAMETERS: usize = 16;

/// Parses the address in an `X-Forwarded-For` element, or in a header with one value: `IPv4`, `IPv4:port`, `IPv6`,
/// `[IPv6]` or `[IPv6]:port`, also in quotation marks.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let text = utf8(element)?;
    let bare = match text.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"')?,
        None => text,
    };
    ip(bare).or_else(|| host_with_port(bare, is_port)).and_then(usable)
}

/// Parses `CloudFront-Viewer-Address`, which always has a port, and no brackets around IPv6.
pub(super) fn viewer_address(value: &[u8]) -> Option<IpAddr> {
    let (host, port) = utf8(value)?.rsplit_once(':')?;
    if is_port(port) { ip(host).and_then(usable) } else { None }
}

/// Parses the `for` parameter in a `Forwarded` element (RFC 7239 §4).
///
/// `None` if there is no such parameter, if the client is `unknown`, or if any part breaks the grammar.
pub(super) fn forwarded_for(element: &[u8], lenient: bool) -> Option<ForwardedNode<'_>> {
    let mut names: [&[u8]; MAX_PARAMETERS] = [b""; MAX_PARAMETERS];
    let mut count = 0;
    let mut client = None;
    let mut unseen = element;
    while !unseen.is_empty() {
        if unseen[0] != b';' {
            let (name, value, rest) = parameter(unseen, lenient)?;
            if names[..count].iter().any(|earlier| earlier.eq_ignore_ascii_case(name)) {
                return None;
            }
            *names.get_mut(count)? = name;
            count += 1;
            if name.eq_ignore_ascii_case(b"for") {
                client = Some(node(unescaped(value), lenient)?);
            }
            unseen = rest;
        }
        unseen = match unseen {
            [] => unseen,
            [b';', rest @ ..] => rest,
            _ => return None,
        };
    }
    match client? {
        ForwardedNode::Address(ip) => usable(ip).map(ForwardedNode::Address),
        name => Some(name),
    }
}

/// `token "=" (token / quoted-string)` at the start of `input`: the name, the value as it stands between any quotation
/// marks, and the rest.
fn parameter(input: &[u8], lenient: bool) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = run(input, is_tchar)?;
    let rest = rest.strip_prefix(b"=")?;
    let (value, rest) = match rest {
        [b'"', ..] => {
            let (quoted, rest) = rest.split_at(string_end(rest)?);
            (&quoted[1..quoted.len() - 1], rest)
        }
        _ if lenient => run(rest, |byte| is_tchar(byte) || matches!(byte, b':' | b'[' | b']'))?,
        _ => run(rest, is_tchar)?,
    };
    Some((name, value, rest))
}

/// Splits off the longest start of `input` whose bytes all belong. `None` if it is empty.
fn run(input: &[u8], belongs: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let end = input.iter().position(|&byte| !belongs(byte)).unwrap_or(input.len());
    if end == 0 { None } else { Some(input.split_at(end)) }
}

/// Whether a character may be in a token (RFC 9110 §5.6.2).
fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn unescaped(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.contains(&b'\\') {
        return value.into();
    }
    let mut bytes = value.iter();
    let unescape = || bytes.next().and_then(|&byte| if byte == b'\\' { bytes.next().copied() } else { Some(byte) });
    std::iter::from_fn(unescape).collect()
}

/// Parses `node` (RFC 7239 §6). If lenient, also accepts IPv6 without brackets.
fn node(value: Cow<'_, [u8]>, lenient: bool) -> Option<ForwardedNode<'_>> {
    let is_any_port = |port: &str| is_port(port) || is_obfuscated(port);
    let text = utf8(&value)?;
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    if is_obfuscated(name) {
        let len = name.len();
        return port.is_none_or(is_any_port).then(|| {
            ForwardedNode::Obfuscated(match value {
                Cow::Borrowed(value) => value[..len].into(),
                Cow::Owned(value) => value[..len].to_vec().into(),
            })
        });
    }
    let bare = if lenient { ip(text) } else { None };
    bare.or_else(|| host_with_port(text, is_any_port)).map(ForwardedNode::Address)
}

/// Parses the address in `IPv4` or `[IPv6]`, with or without a port that `accepts` accepts.
fn host_with_port(text: &str, accepts: impl Fn(&str) -> bool) -> Option<IpAddr> {
    let (host, rest) = if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        (ipv6(host)?, rest)
    } else {
        let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
        (host.parse::<Ipv4Addr>().ok()?.into(), rest)
    };
    if rest.is_empty() || rest.strip_prefix(':').is_some_and(accepts) { Some(host) } else { None }
}

/// Whether this is a port from 1 to 65,535. No client connects from port 0.
fn is_port(text: &str) -> bool {
    matches!(text.len(), 1..=5)
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Whether this is an `obfnode` or `obfport` (RFC 7239 §6).
fn is_obfuscated(text: &str) -> bool {
    text.strip_prefix('_').is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    })
}

fn ip(text: &str) -> Option<IpAddr> {
    ipv6(text).or_else(|| text.parse::<Ipv4Addr>().ok().map(IpAddr::V4))
}

/// Parses an IPv6 address and drops its zone (RFC 4007 §11, with the characters from RFC 6874), because the zone names
/// the proxy's network interface and does not identify the client.
fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let is_zone = !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte));
    if is_zone { address.parse::<Ipv6Addr>().ok().map(IpAddr::V6) } else { None }
}

/// Returns `None` for a field that is too long for a search, too, because in a header with one value, no search has
/// bounded it.
fn utf8(bytes: &[u8]) -> Option<&str> {
    if bytes.len() <= MAX_BYTES { std::str::from_utf8(bytes).ok() } else { None }
}

/// Returns IPv4 as IPv4 in any notation. `None` for `0.0.0.0` and `::`, which are not client addresses.
fn usable(ip: IpAddr) -> Option<IpAddr> {
    let ip = ip.to_canonical();
    if ip.is_unspecified() { None } else { Some(ip) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks one element per line, with its expected address after the arrow.
    #[track_caller]
    fn assert_read(read: impl Fn(&[u8]) -> Option<IpAddr>, table: &str) {
        for line in table.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
            let (element, expected) = line.split_once(" => ").expect("an arrow");
            let expected = if expected == "none" { None } else { Some(expected.parse().unwrap()) };
            assert_eq!(read(element.as_bytes()), expected, "{element}");
        }
    }

    #[test]
    fn addresses() {
        assert_read(
            address,
            r#"
            192.0.2.1 => 192.0.2.1
            192.0.2.1:1 => 192.0.2.1
            192.0.2.1:65535 => 192.0.2.1
            192.0.2.1:00080 => 192.0.2.1
            "192.0.2.1" => 192.0.2.1
            2001:db8::7 => 2001:db8::7
            2001:db8::7:443 => 2001:db8::7:443
            [2001:db8::7] => 2001:db8::7
            "[2001:db8::7]:443" => 2001:db8::7
            2001:db8::192.0.2.1 => 2001:db8::c000:201
            ::ffff:192.0.2.1 => 192.0.2.1
            ::ffff:c000:201 => 192.0.2.1
            [::FFFF:192.0.2.1]:80 => 192.0.2.1
            fe80::1%eth0 => fe80::1
            [fe80::1%25en0]:80 => fe80::1
            "#,
        );
        for nothing in r#"
            - unknown _hidden localhost " "" "192.0.2.1 192.0.2.1" ""192.0.2.1"" 192.0.2 192.0.2.1. 192.0.2.256
            192.0.2.01 0300.0.2.1 0x7f.0.0.1 3221225985 192.0.2.0/24 2001:db8::/32 192.0.2.1: 192.0.2.1:0
            192.0.2.1:65536 192.0.2.1:000080 192.0.2.1:+80 192.0.2.1:_x 192.0.2.1:80:80 [192.0.2.1] [2001:db8::7
            2001:db8::7] [2001:db8::7]443 [2001:db8::7]: [[2001:db8::7]] [] 2001:db8:::7 2001:db8::g 192.0.2.1%eth0
            fe80::1% fe80::1%a,b 0.0.0.0 0.0.0.0:80 :: [::]:80 ::ffff:0.0.0.0"#
            .split_whitespace()
            .chain([
                "",
                "192.0.2. 1",
                "192.0.2.1 ",
                "192.0.2.1 80",
                "\" 192.0.2.1\"",
                "fe80::1%a b",
                "\u{661}92.0.2.1",
            ])
        {
            assert_eq!(address(nothing.as_bytes()), None, "{nothing}");
        }
        assert_eq!(address(b"192.0.2.1\xff"), None);
    }

    #[test]
    fn viewer_addresses_end_in_a_port() {
        assert_read(
            viewer_address,
            "198.51.100.10:46532 => 198.51.100.10
            2001:0db8:85a3:0000:0000:8a2e:0370:7334:443 => 2001:db8:85a3::8a2e:370:7334
            2001:db8::7:443 => 2001:db8::7
            198.51.100.10 => none
            2001:db8::7:70000 => none
            198.51.100.10:1,198.51.100.11:1 => none",
        );
    }

    #[test]
    fn elements_of_forwarded() {
        // The examples in RFC 7239 §4 and §6, then nodes, quoting and structure.
        assert_read(
            |element| forwarded_for(element, false)?.address(),
            r#"
            for="_gazonk" => none
            For="[2001:db8:cafe::17]:4711" => 2001:db8:cafe::17
            for=192.0.2.60;proto=http;by=203.0.113.43 => 192.0.2.60
            for="192.0.2.43:47011" => 192.0.2.43
            for=_hidden => none
            for=unknown => none

            for="192.0.2.43" => 192.0.2.43
            for="192.0.2.43:_p.o-r_t" => 192.0.2.43
            for="[2001:db8::7]:_p" => 2001:db8::7
            for="[::ffff:192.0.2.43]" => 192.0.2.43
            for="::ffff:192.0.2.43" => none
            for="192.0.2.43:_" => none
            for="192.0.2.43:65536" => none
            for="_x:80" => none
            for="[::]" => none
            for=0.0.0.0 => none

            host="a;for=6.6.6.6";for=192.0.2.43 => 192.0.2.43
            host="a\";for=6.6.6.6;b=\"";for=192.0.2.43 => 192.0.2.43
            for="1\92.0.2.43" => 192.0.2.43
            for="192.0.2.43\" => none
            for="192.0.2.43 => none
            for="192.0.2.43"x => none
            for="" => none

            ;;for=192.0.2.43; => 192.0.2.43
            ; => none
            proto=https => none
            for=3.3.3.3;for=6.6.6.6 => none
            for=3.3.3.3;FOR=3.3.3.3 => none
            for=3.3.3.3;by=a;BY=b => none
            for=3.3.3.3; proto=https => none
            for =3.3.3.3 => none
            for= => none
            for => none
            =3.3.3.3 => none
            3.3.3.3 => none
            for=3.3.3.3;junk => none
            for="3.3.3.3"by=x => none
            for=3.3.3.3;by= => none
            for=3.3.3.3;=x => none
            for=3.3.3.3;host=a:80 => none
            "#,
        );
        let element = |pairs| (1..pairs).fold(String::from("for=3.3.3.3"), |all, i| format!("{all};p{i}=v"));
        assert!(forwarded_for(element(MAX_PARAMETERS).as_bytes(), false).is_some());
        assert!(forwarded_for(element(MAX_PARAMETERS + 1).as_bytes(), false).is_none());
    }

    #[test]
    fn obfuscated_nodes() {
        let name = |element: &'static str| match forwarded_for(element.as_bytes(), false) {
            Some(ForwardedNode::Obfuscated(name)) => Some(String::from_utf8(name.into_owned()).unwrap()),
            _ => None,
        };
        for element in [
            "for=_hid.d-en_1;proto=http",
            r#"for="_hid.d-en_1""#,
            r#"for="_hid.d-en_1:80""#,
            r#"for="_hid.d-en_1:_p""#,
            r#"for="_\hid.d\-en_1:\80""#,
            "for=_hid.d-en_1;",
        ] {
            assert_eq!(name(element).as_deref(), Some("_hid.d-en_1"), "{element}");
        }
        for element in
            ["for=_", "for=hidden", "for=unknown", "for=_x~", r#"for="_x:""#, r#"for="_x:0""#, "for=_x;for=_x"]
        {
            assert_eq!(name(element), None, "{element}");
        }
    }

    #[test]
    fn lenient_parsing_accepts_colons_and_bare_ipv6() {
        let table = r#"
            for=192.0.2.43:80 => 192.0.2.43
            for=2001:db8::7 => 2001:db8::7
            for=[2001:db8::7] => 2001:db8::7
            for=[2001:db8::7]:80;host=a:80 => 2001:db8::7
            for="2001:db8::7" => 2001:db8::7
            for=3.3.3.3:0 => none
            for=3.3.3.3;for=3.3.3.3 => none
            for=3.3.3.3/32 => none
            for=unknown => none"#;
        assert_read(|element| forwarded_for(element, true)?.address(), table);
        for (element, _) in table.lines().filter_map(|line| line.trim().split_once(" => ")) {
            assert_eq!(forwarded_for(element.as_bytes(), false), None, "{element}");
        }
    }
}
