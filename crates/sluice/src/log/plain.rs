//! The combined and the common log format, as nginx and Apache write them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use memchr::{memchr, memchr2};

use super::time::TimeCache;
use super::{Entry, Headers, Unreadable};

/// How to read the header fields behind the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderFields {
    /// Whether a line without them is an error.
    pub(super) required: bool,
    /// Whether any policy or report reads them.
    pub(super) wanted: bool,
}

/// Parses `ADDRESS - USER [TIME] "METHOD PATH HTTP/1.1" STATUS BYTES "REFERER" "AGENT"`. More fields may follow.
pub(super) fn parse<'a>(line: &'a [u8], times: &mut TimeCache, fields: HeaderFields) -> Result<Entry<'a>, Unreadable> {
    let (client, rest) = word(line).ok_or_else(|| Unreadable::new("there is no address followed by a space"))?;
    let client = address(client)?;
    let (_, rest) = word(rest).ok_or_else(|| Unreadable::new("there is no field after the address"))?;
    let (user, nanos, rest) = user_and_time(rest, times)?;
    let (request, rest) = quoted(rest).ok_or_else(|| Unreadable::new("there is no \"request\" after the time"))?;
    let (method, target) = request_line(request.text)?;
    let (status, rest) = last_word(rest);
    let status =
        self::status(status).ok_or_else(|| Unreadable::new("there is no status, such as 200, after the request"))?;
    let (length, rest) = last_word(rest);
    let length = number(length).ok_or_else(|| Unreadable::new("there is no number of bytes after the status"))?;
    Ok(Entry {
        nanos,
        client,
        user: text_of(user)?,
        method: request.unescaped(method),
        target: request.unescaped(target),
        status,
        length,
        headers: headers(rest, fields)?,
    })
}

/// Parses `HOST:PORT ADDRESS - USER [TIME] …`, Apache's `vhost_combined`.
pub(super) fn parse_with_host<'a>(
    line: &'a [u8],
    times: &mut TimeCache,
    fields: HeaderFields,
) -> Result<Entry<'a>, Unreadable> {
    let is_host = |host: &[u8]| {
        host.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']'))
    };
    let (host, rest) = word(line)
        .filter(|(host, _)| is_host(host))
        .ok_or_else(|| Unreadable::new("there is no host followed by an address"))?;
    let mut entry = parse(rest, times, fields)?;
    if fields.wanted {
        if let Ok(host) = std::str::from_utf8(host) {
            // The port is the server's, and not part of the header field.
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            entry.headers.push(("host".into(), Cow::Borrowed(name.as_bytes())));
        }
    }
    Ok(entry)
}

/// Splits `USER [TIME]`. A user's name may have spaces and brackets, so the first text in brackets that is a time ends
/// it.
fn user_and_time<'a>(text: &'a [u8], times: &mut TimeCache) -> Result<(&'a [u8], u64, &'a [u8]), Unreadable> {
    /// Bounds the search in a line that is full of brackets.
    const MOST_TRIES: usize = 16;
    const LEAST_TIME: usize = "1700000000".len();
    let mut from = 0;
    let mut problem = None;
    for _ in 0..MOST_TRIES {
        let Some(at) = memchr(b'[', &text[from..]).map(|at| from + at) else { break };
        from = at + 1;
        if at == 0 || text[at - 1] != b' ' {
            continue;
        }
        match until(&text[from..], b']') {
            // A time may be a number, but a text this short is part of a name.
            Some((time, _)) if time.len() < LEAST_TIME => continue,
            Some((time, rest)) => match times.read(time) {
                Ok(nanos) => return Ok((&text[..at - 1], nanos, rest)),
                Err(error) => problem.get_or_insert(error),
            },
            None => problem.get_or_insert(Unreadable::new("the [time] does not end")),
        };
    }
    Err(problem.unwrap_or_else(|| Unreadable::new("there is no [time]")))
}

/// Parses `"REFERER" "AGENT"`.
fn headers(rest: &[u8], fields: HeaderFields) -> Result<Headers<'_>, Unreadable> {
    let mut headers = Headers::new();
    if !fields.required && !fields.wanted {
        return Ok(headers);
    }
    let referer = quoted(rest);
    if fields.required && referer.is_none() {
        return Err(Unreadable::new("there is no \"referer\" after the bytes"));
    }
    let agent = referer.and_then(|(_, rest)| quoted(rest));
    if fields.required && agent.is_none() {
        return Err(Unreadable::new("there is no \"agent\" after the referer"));
    }
    if fields.wanted {
        for (name, value) in [("referer", referer), ("user-agent", agent)] {
            if let Some((value, _)) = value.filter(|(value, _)| !matches!(value.text, b"" | b"-")) {
                headers.push((name.into(), value.unescaped(value.text)));
            }
        }
    }
    Ok(headers)
}

/// Splits at the first `byte`, and leaves that byte out.
fn until(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr(byte, text)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Splits at the first space, as [`until`] does. Faster if it is near.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

/// Splits a word off, behind spaces. It may be the last one.
fn last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    word(text).unwrap_or((text, b""))
}

/// A field in quotation marks.
#[derive(Clone, Copy)]
struct Quoted<'a> {
    text: &'a [u8],
    /// Whether it has a backslash.
    is_escaped: bool,
}

/// Splits off the text in quotation marks, behind spaces. A mark behind a backslash is part of the text.
fn quoted(text: &[u8]) -> Option<(Quoted<'_>, &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let (end, is_escaped) = closing_quote(text)?;
    Some((Quoted { text: &text[..end], is_escaped }, &text[end + 1..]))
}

/// Finds the quotation mark that ends a text, and whether there is a backslash before it.
pub(super) fn closing_quote(text: &[u8]) -> Option<(usize, bool)> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[at] == b'"' {
            return Some((at, from > 0));
        }
        from = at + 2;
    }
}

impl<'a> Quoted<'a> {
    /// Returns the text, or a part of it, as it was before the server escaped it.
    fn unescaped(self, part: &'a [u8]) -> Cow<'a, [u8]> {
        if self.is_escaped { unescaped(part) } else { Cow::Borrowed(part) }
    }
}

/// Reads an address, perhaps with a port or a zone. `-` stands for a client without an address.
pub(super) fn address(text: &[u8]) -> Result<Option<IpAddr>, Unreadable> {
    if let Some(address) = ipv4(text) {
        return Ok(Some(address.into()));
    }
    if text == b"-" || text.starts_with(b"unix:") {
        return Ok(None);
    }
    let address = std::str::from_utf8(text).ok().and_then(other_address);
    let problem = "the first field is no address of a client, such as 203.0.113.7; let the server log addresses, and no names of hosts";
    address.map(Some).ok_or_else(|| Unreadable::new(problem))
}

/// Reads `2001:db8::1`, `[2001:db8::1]:4711`, `203.0.113.7:4711` and `fe80::1%eth0`.
fn other_address(text: &str) -> Option<IpAddr> {
    if let Some((address, _)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return other_address(address);
    }
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some((address, _zone)) = text.split_once('%') {
        return address.parse().ok();
    }
    text.parse().ok().map(|with_port: SocketAddr| with_port.ip())
}

/// The fast path for nearly all lines.
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut index = 0;
    let mut digits = 0;
    for byte in text {
        match byte {
            b'0'..=b'9' if digits < 3 => {
                let octet: u8 = octets[index];
                octets[index] = octet.checked_mul(10)?.checked_add(byte - b'0')?;
                digits += 1;
            }
            b'.' if digits > 0 && index < 3 => {
                index += 1;
                digits = 0;
            }
            _ => return None,
        }
    }
    (index == 3 && digits > 0).then(|| octets.into())
}

/// Reads a status. A status of 0 (nginx: 000, HAProxy: -1) stands for a client that left before the response, and
/// becomes 499, as nginx logs such requests.
pub(super) fn status(text: &[u8]) -> Option<u16> {
    if text == b"-1" {
        return Some(CLIENT_LEFT);
    }
    match text {
        [b'0'..=b'9', ..] if text.len() <= 3 => match number(text)? {
            0 => Some(CLIENT_LEFT),
            status => u16::try_from(status).ok().filter(|status| *status >= 100),
        },
        _ => None,
    }
}

/// nginx's status for a client that closed its connection before the response.
const CLIENT_LEFT: u16 = 499;

/// Reads a number of bytes; `-` stands for 0.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text == b"-" {
        return Some(0);
    }
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| match byte {
        b'0'..=b'9' => Some(number * 10 + u64::from(byte - b'0')),
        _ => None,
    })
}

/// Reads `GET /path HTTP/1.1`. HTTP/0.9 has no version.
pub(super) fn request_line(text: &[u8]) -> Result<(&[u8], &[u8]), Unreadable> {
    let no_request = || Unreadable::new("the request is not of the form \"GET /path HTTP/1.1\"");
    let (method, rest) = word(text).ok_or_else(no_request)?;
    let target = until(rest, b' ').map_or(rest, |(target, _)| target);
    if method.is_empty() || target.is_empty() { Err(no_request()) } else { Ok((method, target)) }
}

pub(super) fn text_of(field: &[u8]) -> Result<Option<Cow<'_, str>>, Unreadable> {
    if field.is_empty() || field == b"-" {
        return Ok(None);
    }
    let text = match unescaped(field) {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    text.map(Some).ok_or_else(|| Unreadable::new("the name of the user is not UTF-8"))
}

/// Undoes the servers' escapes: `\"`, `\\`, and `\x16` for bytes that are not printed.
pub(super) fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        match behind {
            [b'x', high, low, behind @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(hex(*high) << 4 | hex(*low));
                rest = behind;
            }
            [b't', behind @ ..] => {
                bytes.push(b'\t');
                rest = behind;
            }
            [escaped, behind @ ..] => {
                bytes.push(*escaped);
                rest = behind;
            }
            [] => bytes.push(b'\\'),
        }
    }
    Cow::Owned(bytes)
}

const fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
