//! The combined and the common log format, of nginx and Apache.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use memchr::{memchr, memchr2};

use super::time::TimeCache;
use super::{Entry, Headers, Unreadable};

/// What is read of the fields behind the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderFields {
    /// Whether a line without them is an error.
    pub(super) required: bool,
    /// Whether anybody reads them.
    pub(super) wanted: bool,
}

/// Parses `ADDRESS - USER [TIME] "METHOD PATH HTTP/1.1" STATUS BYTES "REFERER" "AGENT"`. More fields may follow.
pub(super) fn parse<'a>(line: &'a [u8], times: &mut TimeCache, fields: HeaderFields) -> Result<Entry<'a>, Unreadable> {
    let (client, rest) = word(line).ok_or_else(|| Unreadable::new("there is no address followed by a space"))?;
    let client = address(client)?;
    let (_, rest) = word(rest).ok_or_else(|| Unreadable::new("there is no field after the address"))?;
    // The name of a user may have spaces.
    let (user, rest) = until_time(rest).ok_or_else(|| Unreadable::new("there is no [time]"))?;
    let (time, rest) = until(rest, b']').ok_or_else(|| Unreadable::new("the [time] does not end"))?;
    let nanos = times.read(time)?;
    let (request, rest) = quoted(rest).ok_or_else(|| Unreadable::new("there is no \"request\" after the time"))?;
    let (method, target) = request_line(request.text)?;
    let (status, rest) = last_word(rest);
    let status = number(status).and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (100..600).contains(status));
    let status = status.ok_or_else(|| Unreadable::new("there is no status from 100 to 599 after the request"))?;
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

/// Splits at the first `byte`, which is in neither part.
fn until(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr(byte, text)?;
    Some((&text[..at], &text[at + 1..]))
}

fn until_time(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0;
    loop {
        let at = from + memchr(b'[', &text[from..])?;
        if at > 0 && text[at - 1] == b' ' {
            return Some((&text[..at - 1], &text[at + 1..]));
        }
        from = at + 1;
    }
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

/// Splits off what is in quotation marks, behind spaces. A mark behind a backslash is part of it.
fn quoted(text: &[u8]) -> Option<(Quoted<'_>, &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[at] == b'"' {
            return Some((Quoted { text: &text[..at], is_escaped: from > 0 }, &text[at + 1..]));
        }
        from = at + 2;
    }
}

impl<'a> Quoted<'a> {
    /// The text, or a part of it, as it was before the server escaped it.
    fn unescaped(self, part: &'a [u8]) -> Cow<'a, [u8]> {
        if self.is_escaped { unescaped(part) } else { Cow::Borrowed(part) }
    }
}

/// Reads an address. `-` stands for a client without one.
pub(super) fn address(text: &[u8]) -> Result<Option<IpAddr>, Unreadable> {
    if let Some(address) = ipv4(text) {
        return Ok(Some(address.into()));
    }
    if text == b"-" || text == b"unix:" {
        return Ok(None);
    }
    let address = std::str::from_utf8(text).ok().and_then(|text| text.trim_matches(['[', ']']).parse().ok());
    let problem = "the first field is no address of a client, such as 203.0.113.7; let the server log addresses, and no names of hosts";
    address.map(Some).ok_or_else(|| Unreadable::new(problem))
}

/// The form of nearly all lines.
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

/// Reads a number of bytes; `-` is none.
fn number(text: &[u8]) -> Option<u64> {
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
fn request_line(text: &[u8]) -> Result<(&[u8], &[u8]), Unreadable> {
    let no_request = || Unreadable::new("the request is not of the form \"GET /path HTTP/1.1\"");
    let (method, rest) = word(text).ok_or_else(no_request)?;
    let target = until(rest, b' ').map_or(rest, |(target, _)| target);
    if method.is_empty() || target.is_empty() { Err(no_request()) } else { Ok((method, target)) }
}

fn text_of(field: &[u8]) -> Result<Option<Cow<'_, str>>, Unreadable> {
    if field.is_empty() || field == b"-" {
        return Ok(None);
    }
    let text = match unescaped(field) {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    text.map(Some).ok_or_else(|| Unreadable::new("the name of the user is not UTF-8"))
}

/// Undoes the escapes of the servers: `\"`, `\\`, and `\x16` for bytes that are not printed.
fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
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
