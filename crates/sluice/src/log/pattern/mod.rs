//! Formats that a string describes, such as nginx's `log_format`.

mod syntax;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr2};

use super::plain::{address, closing_quote, number, request_line, status, text_of, unescaped};
use super::time::{TimeCache, from_seconds};
use super::{Entry, Headers, Unreadable, cookie, forwarded};

/// Literals and fields alternate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pieces: Vec<Piece>,
    /// The first piece that a line may omit.
    optional: usize,
    /// The parts of the time, in `strftime` notation, with [`SEPARATOR`] between them.
    time_parts: String,
    /// Whether `X-Forwarded-For` is the client, because the format has no address.
    is_forwarded: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    /// A field, and how the string spells it.
    Field(Field, String),
}

/// The meaning of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Ignored,
    Client,
    User,
    /// A whole time.
    Time,
    /// The time part with this number, in which a delimiter occurs this many times.
    TimePart(usize, usize),
    /// A fraction of a second, whose last digit is this many nanoseconds.
    Fraction(u64),
    /// `GET /path HTTP/1.1`
    Request,
    Method,
    /// The path with the query.
    Target,
    /// The path, behind which there is a field for the query.
    Path,
    /// The query, perhaps with its question mark.
    Query,
    Status,
    Bytes,
    Header(String),
    /// The cookie with this name.
    Cookie(String),
}

type MethodAndTarget<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// Separates the parts of a time. It occurs in no log.
const SEPARATOR: char = '\u{1f}';

/// If a text contains a delimiter, such as a name with spaces, the field may end at any of this many places.
const MOST_ENDS: usize = 8;
/// All steps for one line, so that a line full of delimiters takes no longer than others.
const MOST_STEPS: usize = 1_000;

/// The fields in a line.
#[derive(Default)]
struct Found<'a> {
    client: Option<IpAddr>,
    forwarded: Option<IpAddr>,
    user: &'a [u8],
    nanos: Option<u64>,
    parts: [&'a [u8]; 4],
    fraction: u64,
    request: &'a [u8],
    method: &'a [u8],
    target: &'a [u8],
    path: &'a [u8],
    query: &'a [u8],
    status: Option<u16>,
    length: u64,
    /// By piece number.
    headers: Vec<(usize, &'a [u8])>,
    steps: usize,
    /// The piece that no try has passed, and the line from there on.
    failed: (usize, &'a [u8]),
}

impl Pattern {
    /// Reads a format string in the notation of nginx, Apache, Envoy, HAProxy or gunicorn.
    ///
    /// # Errors
    ///
    /// If it isn't a format string, or lacks the time or the path.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        syntax::read(text)
    }

    /// Parses a line.
    pub(super) fn parse<'a>(
        &self,
        line: &'a [u8],
        times: &mut TimeCache,
        has_headers: bool,
    ) -> Result<Entry<'a>, Unreadable> {
        let mut found = Found::default();
        if !self.walk(0, line, times, &mut found) {
            return Err(self.problem(&found));
        }
        let nanos = match found.nanos {
            Some(nanos) => nanos,
            None => self.joined_time(&found)?,
        };
        let nanos = nanos.saturating_add(found.fraction);
        let (method, target) = found.method_and_target()?;
        let client = if self.is_forwarded { found.forwarded } else { found.client };
        let headers = if has_headers { self.headers(&found) } else { Headers::new() };
        Ok(Entry {
            nanos,
            client,
            user: text_of(found.user)?,
            method,
            target,
            // The log has no status, so the response is taken for a success.
            status: found.status.unwrap_or(200),
            length: found.length,
            headers,
        })
    }

    fn headers<'a>(&self, found: &Found<'a>) -> Headers<'a> {
        let mut headers = Headers::new();
        for (piece, value) in &found.headers {
            let value = Some(*value).filter(|value| !matches!(*value, b"" | b"-")).map(unescaped);
            let Some((value, Piece::Field(field, _))) = value.zip(self.pieces.get(*piece)) else { continue };
            match field {
                Field::Header(name) => headers.push((Cow::Owned(name.clone()), value)),
                Field::Cookie(name) => headers.push(cookie(name, &value)),
                _ => {}
            }
        }
        headers
    }

    /// Matches the pieces from `index` on. A field ends where the next literal begins. If the rest does not match then,
    /// we try the literal's next occurrence.
    fn walk<'a>(&self, index: usize, rest: &'a [u8], times: &mut TimeCache, found: &mut Found<'a>) -> bool {
        let Some(piece) = self.pieces.get(index) else { return true };
        found.steps += 1;
        if found.steps > MOST_STEPS {
            return false;
        }
        if index >= found.failed.0 {
            found.failed = (index, rest);
        }
        let matched = match piece {
            Piece::Literal(literal) => {
                behind(rest, literal).is_some_and(|rest| self.walk(index + 1, rest, times, found))
            }
            Piece::Field(field, _) => {
                let mut ends = self.ends(index, field, rest);
                loop {
                    let Some(end) = ends.next() else { break false };
                    // Otherwise, a time would lose the offset behind its space.
                    if *field == Field::Time && is_offset(&rest[end..]) {
                        continue;
                    }
                    if found.set(field, index, &rest[..end], times) && self.walk(index + 1, &rest[end..], times, found)
                    {
                        break true;
                    }
                }
            }
        };
        matched || index >= self.optional
    }

    /// The lengths that a field at the beginning of `rest` may have.
    fn ends<'b>(&'b self, index: usize, field: &Field, rest: &'b [u8]) -> impl Iterator<Item = usize> + use<'b> {
        let skipped = if let Field::TimePart(_, delimiters) = field { *delimiters } else { 0 };
        let literal = match self.pieces.get(index + 1) {
            Some(Piece::Literal(literal)) => Some(literal),
            _ => None,
        };
        let is_quoted = literal.is_some_and(|literal| literal[0] == b'"')
            && index.checked_sub(1).is_some_and(
                |before| matches!(&self.pieces[before], Piece::Literal(before) if before.ends_with(b"\"")),
            );
        let mut from = if is_quoted { closing_quote(rest).map_or(rest.len(), |(at, _)| at) } else { 0 };
        let last = literal.is_none().then(|| match field {
            Field::Ignored | Field::Time | Field::TimePart(..) | Field::User => rest.len(),
            Field::Header(_) | Field::Cookie(_) => rest.len(),
            _ => memchr2(b' ', b'\t', rest).unwrap_or(rest.len()),
        });
        let mut is_over = false;
        let ends = std::iter::from_fn(move || {
            if let Some(last) = last {
                return (!std::mem::replace(&mut is_over, true)).then_some(last);
            }
            let literal = literal?;
            while from < rest.len() {
                let at = from + next(&rest[from..], literal[0])?;
                // A field without quotation marks cannot contain one, so it cannot swallow the next field.
                if !is_quoted && rest[from..at].contains(&b'"') {
                    return None;
                }
                from = at + 1;
                if behind(&rest[at..], literal).is_some() {
                    // A field is empty, or padded with spaces. If it is padded, it is the next word.
                    if at == 0 && literal[0] == b' ' {
                        from += rest.iter().skip(1).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                    }
                    return Some(at);
                }
            }
            None
        });
        ends.skip(skipped).take(MOST_ENDS)
    }

    fn problem(&self, found: &Found<'_>) -> Unreadable {
        const SHOWN: usize = 40;
        let (index, rest) = found.failed;
        let rest = &rest[..rest.len().min(SHOWN)];
        let rest =
            if rest.is_empty() { "the end of the line".to_owned() } else { format!("`{}`", rest.escape_ascii()) };
        Unreadable::new(match self.pieces.get(index) {
            Some(Piece::Literal(literal)) => format!("in place of `{}` is {rest}", literal.escape_ascii()),
            Some(Piece::Field(field, name)) => match self.pieces.get(index + 1) {
                Some(Piece::Literal(literal)) if self.ends(index, field, found.failed.1).next().is_none() => {
                    format!("no `{}` is behind {name} in {rest}", literal.escape_ascii())
                }
                _ if *field == Field::Time => format!(
                    "{name} cannot be read from {rest}; describe another form of time as strftime does, in Apache's \
                     notation: %{{%d.%m.%Y %H:%M:%S}}t"
                ),
                _ => format!("{name} cannot be read from {rest}"),
            },
            None => "it does not match the format".to_owned(),
        })
    }

    /// Reads a time that has several parts.
    fn joined_time(&self, found: &Found<'_>) -> Result<u64, Unreadable> {
        let unreadable = |error: &dyn std::fmt::Display| Unreadable::new(format!("the time: {error}"));
        let count = self.time_parts.split(SEPARATOR).count();
        let parts: Result<Vec<_>, _> = found.parts[..count].iter().map(|part| std::str::from_utf8(part)).collect();
        let text = parts.map_err(|error| unreadable(&error))?.join(&SEPARATOR.to_string());
        let time = jiff::fmt::strtime::parse(&self.time_parts, &text).map_err(|error| unreadable(&error))?;
        // Without an offset, the time is in UTC.
        let time = match time.to_timestamp() {
            Ok(time) => time,
            Err(_) => time
                .to_datetime()
                .and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC))
                .map_err(|error| unreadable(&error))?
                .timestamp(),
        };
        from_seconds(time.as_second(), u32::try_from(time.subsec_nanosecond()).unwrap_or(0))
    }
}

impl<'a> Found<'a> {
    /// Sets a field, unless its text cannot be one.
    fn set(&mut self, field: &Field, piece: usize, text: &'a [u8], times: &mut TimeCache) -> bool {
        let text = text.trim_ascii();
        match field {
            Field::Ignored => true,
            Field::Client => match address(text) {
                Ok(client) => {
                    self.client = client;
                    true
                }
                Err(_) => false,
            },
            Field::Time => match times.read(text) {
                Ok(nanos) => {
                    self.nanos = Some(nanos);
                    true
                }
                Err(_) => false,
            },
            Field::Status => {
                self.status = status(text);
                self.status.is_some()
            }
            Field::Bytes => match number(text) {
                Some(length) => {
                    self.length = length;
                    true
                }
                None => false,
            },
            Field::Fraction(unit) => match number(text) {
                Some(number) => {
                    self.fraction = number.saturating_mul(*unit).min(999_999_999);
                    true
                }
                None => false,
            },
            Field::TimePart(number, _) => {
                self.parts[*number] = text;
                true
            }
            Field::Header(name) => {
                if name == "x-forwarded-for" {
                    self.forwarded = forwarded(text);
                }
                self.set_header(piece, text)
            }
            Field::Cookie(_) => self.set_header(piece, text),
            Field::User => set(&mut self.user, text),
            Field::Request => set(&mut self.request, text),
            Field::Method => set(&mut self.method, text),
            Field::Target => set(&mut self.target, text),
            Field::Path => set(&mut self.path, text),
            Field::Query => set(&mut self.query, text),
        }
    }

    fn set_header(&mut self, piece: usize, text: &'a [u8]) -> bool {
        self.headers.retain(|(other, _)| *other < piece);
        self.headers.push((piece, text));
        true
    }

    fn method_and_target(&self) -> Result<MethodAndTarget<'a>, Unreadable> {
        if !self.request.is_empty() {
            let (method, target) = request_line(self.request)?;
            return Ok((unescaped(method), unescaped(target)));
        }
        let method = if self.method.is_empty() { b"GET" } else { self.method };
        let target = if !self.target.is_empty() {
            unescaped(self.target)
        } else if matches!(self.query, b"" | b"-" | b"?") {
            unescaped(self.path)
        } else {
            let query = self.query.strip_prefix(b"?").unwrap_or(self.query);
            Cow::Owned([&unescaped(self.path), &b"?"[..], &unescaped(query)].concat())
        };
        if target.is_empty() || *target == b"-"[..] {
            return Err(Unreadable::new("there is no path"));
        }
        Ok((unescaped(method), target))
    }
}

fn set<'a>(field: &mut &'a [u8], text: &'a [u8]) -> bool {
    *field = text;
    true
}

/// Whether the text behind a time is its offset, such as ` +0100`.
fn is_offset(text: &[u8]) -> bool {
    matches!(text, [b' ', b'+' | b'-', digits @ ..] if digits.len() > 3 && digits[..2].iter().all(u8::is_ascii_digit))
}

/// Returns the first place at which a literal may begin.
fn next(text: &[u8], first: u8) -> Option<usize> {
    if first == b' ' { memchr2(b' ', b'\t', text) } else { memchr(first, text) }
}

/// Returns the text behind a literal at its beginning. A space matches a space or a tab.
fn behind<'a>(text: &'a [u8], literal: &[u8]) -> Option<&'a [u8]> {
    let (begin, rest) = text.split_at_checked(literal.len())?;
    let is_equal = |(one, other): (&u8, &u8)| one == other || (*one == b'\t' && *other == b' ');
    begin.iter().zip(literal).all(is_equal).then_some(rest)
}
