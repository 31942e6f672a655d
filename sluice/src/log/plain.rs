//! The combined and the common log format, of nginx and Apache.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use memchr::{memchr, memchr2};

use super::time::TimeCache;
use super::{Entry, Unreadable};

/// Parses `ADDRESS - USER [TIME] "METHOD PATH HTTP/1.1" STATUS BYTES "REFERER" "AGENT"`. Without `is_combined`, the
/// last two may be absent. More fields may follow.
pub(super) fn parse<'a>(line: &'a [u8], is_combined: bool, times: &mut TimeCache) -> Result<Entry<'a>, Unreadable> {
    let (client, rest) = until(line, b' ').ok_or_else(|| Unreadable::new("there is no address followed by a space"))?;
    let client = address(client)?;
    let (_, rest) = until(rest, b' ').ok_or_else(|| Unreadable::new("there is no field after the address"))?;
    // The name of a user may have spaces.
    let (user, rest) = until_time(rest).ok_or_else(|| Unreadable::new("there is no [time]"))?;
    let (time, rest) = until(rest, b']').ok_or_else(|| Unreadable::new("the [time] does not end"))?;
    let nanos = times.read(time)?;
    let (request, rest) = quoted(rest).ok_or_else(|| Unreadable::new("there is no \"request\" after the time"))?;
    let (method, target) = request_line(request)?;
    let (status, rest) = word(rest);
    let status = std::str::from_utf8(status).ok().and_then(|status| status.parse().ok());
    let status = status.filter(|status| (100..600).contains(status));
    let status = status.ok_or_else(|| Unreadable::new("there is no status from 100 to 599 after the request"))?;
    let (length, rest) = word(rest);
    let length = number(length).ok_or_else(|| Unreadable::new("there is no number of bytes after the status"))?;

    let mut headers = Vec::new();
    match quoted(rest) {
        Some((referer, rest)) => {
            headers.reserve_exact(2);
            add(&mut headers, "referer", referer);
            match quoted(rest) {
                Some((agent, _)) => add(&mut headers, "user-agent", agent),
                None if is_combined => return Err(Unreadable::new("there is no \"agent\" after the referer")),
                None => {}
            }
        }
        None if is_combined => return Err(Unreadable::new("there is no \"referer\" after the bytes")),
        None => {}
    }
    Ok(Entry { nanos, client, user: text_of(user)?, method, target, status, length, headers })
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

/// Splits a word off, behind spaces.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    until(text, b' ').unwrap_or((text, b""))
}

/// Splits off what is in quotation marks, behind spaces. A mark behind a backslash is part of it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[at] == b'"' {
            return Some((&text[..at], &text[at + 1..]));
        }
        from = at + 2;
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
    let mut parts = text.split(|byte| *byte == b'.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 3 {
            return None;
        }
        let mut number = 0_u16;
        for byte in part {
            number = number * 10 + u16::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?);
        }
        *octet = u8::try_from(number).ok()?;
    }
    parts.next().is_none().then(|| octets.into())
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
fn request_line(text: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), Unreadable> {
    let no_request = || Unreadable::new("the request is not of the form \"GET /path HTTP/1.1\"");
    let (method, rest) = until(text, b' ').ok_or_else(no_request)?;
    let target = until(rest, b' ').map_or(rest, |(target, _)| target);
    if method.is_empty() || target.is_empty() {
        return Err(no_request());
    }
    let text = |part| as_text(part).ok_or_else(no_request);
    Ok((text(method)?, text(target)?))
}

fn text_of(field: &[u8]) -> Result<Option<Cow<'_, str>>, Unreadable> {
    if field.is_empty() || field == b"-" {
        return Ok(None);
    }
    as_text(field).map(Some).ok_or_else(|| Unreadable::new("the name of the user is not UTF-8"))
}

fn as_text(field: &[u8]) -> Option<Cow<'_, str>> {
    match unescaped(field) {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

fn add<'a>(headers: &mut Vec<(Cow<'a, str>, Cow<'a, [u8]>)>, name: &'static str, value: &'a [u8]) {
    if !value.is_empty() && value != b"-" {
        headers.push((name.into(), unescaped(value)));
    }
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
