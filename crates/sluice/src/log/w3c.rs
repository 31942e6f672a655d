//! The W3C extended format, which IIS and CloudFront write: `#Fields:` names the columns.

use std::borrow::Cow;

use super::plain::{address, number, status};
use super::time;
use super::{Entry, Headers, Unreadable, forwarded};
use crate::path::percent_decoded;

/// The columns in the lines that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns(Vec<Column>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    Ignored,
    Date,
    Time,
    Client,
    Forwarded,
    User,
    Method,
    Path,
    Query,
    /// With the query.
    Target,
    Status,
    Bytes,
    Header(String),
}

impl Columns {
    /// Reads the names behind `#Fields:`.
    pub(super) fn new(names: &str) -> Self {
        Self(names.split_ascii_whitespace().map(column).collect())
    }

    /// Returns a column that every log needs, and that is missing here.
    pub(super) fn missing(&self) -> Option<&'static str> {
        let has = |wanted: &[Column]| self.0.iter().any(|column| wanted.contains(column));
        if !has(&[Column::Date]) || !has(&[Column::Time]) {
            return Some("date and time");
        }
        (!has(&[Column::Path, Column::Target])).then_some("cs-uri-stem")
    }

    pub(super) fn parse<'a>(&self, line: &'a [u8], has_headers: bool) -> Result<Entry<'a>, Unreadable> {
        let mut values: Vec<&[u8]> = Vec::with_capacity(self.0.len());
        split(line, &mut values);
        if values.len() < self.0.len() {
            let (count, columns) = (values.len(), self.0.len());
            return Err(Unreadable::new(format!("it has {count} columns, and #Fields: has {columns}")));
        }
        let find = |wanted: Column| {
            let index = self.0.iter().position(|column| *column == wanted)?;
            Some(values[index]).filter(|value| !matches!(*value, b"" | b"-"))
        };
        let (date, clock) = (find(Column::Date).unwrap_or_default(), find(Column::Time).unwrap_or_default());
        let nanos = time::any(&[date, clock].join(&b' '))?;
        let forwarded = find(Column::Forwarded).and_then(forwarded);
        let client = match find(Column::Client) {
            Some(client) => address(client)?,
            None => forwarded,
        };
        let target = match (find(Column::Target), find(Column::Path)) {
            (Some(target), _) => Cow::Borrowed(target),
            (None, Some(path)) => match find(Column::Query) {
                Some(query) => Cow::Owned([path, b"?", query].concat()),
                None => Cow::Borrowed(path),
            },
            (None, None) => return Err(Unreadable::new("there is no path")),
        };
        let status = match find(Column::Status) {
            Some(text) => status(text).ok_or_else(|| Unreadable::new("sc-status is no status, such as 200"))?,
            None => 200,
        };
        let user = find(Column::User).and_then(|user| std::str::from_utf8(user).ok());
        let mut headers = Headers::new();
        if has_headers {
            for (column, value) in self.0.iter().zip(&values) {
                if let Column::Header(name) = column {
                    if !matches!(*value, b"" | b"-") {
                        headers.push((Cow::Owned(name.clone()), decoded(value)));
                    }
                }
            }
        }
        Ok(Entry {
            nanos,
            client,
            user: user.map(Cow::Borrowed),
            method: Cow::Borrowed(find(Column::Method).unwrap_or(b"GET")),
            target,
            status,
            length: find(Column::Bytes).and_then(number).unwrap_or(0),
            headers,
        })
    }
}

fn column(name: &str) -> Column {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "date" => Column::Date,
        "time" => Column::Time,
        "c-ip" => Column::Client,
        "x-forwarded-for" => Column::Forwarded,
        "cs-username" => Column::User,
        "cs-method" => Column::Method,
        "cs-uri-stem" => Column::Path,
        "cs-uri-query" => Column::Query,
        "cs-uri" => Column::Target,
        "sc-status" => Column::Status,
        "sc-bytes" => Column::Bytes,
        // CloudFront's `cs(Host)` is the distribution's name.
        "cs-host" | "x-host-header" => Column::Header("host".to_owned()),
        "cs(host)" => Column::Ignored,
        lower => match lower.strip_prefix("cs(").and_then(|rest| rest.strip_suffix(')')) {
            Some("x-forwarded-for") => Column::Forwarded,
            Some(header) => Column::Header(header.to_owned()),
            None => Column::Ignored,
        },
    }
}

/// Splits at tabs if there are any, otherwise at spaces. A text with spaces may be in quotation marks.
fn split<'a>(line: &'a [u8], values: &mut Vec<&'a [u8]>) {
    if line.contains(&b'\t') {
        values.extend(line.split(|byte| *byte == b'\t'));
        return;
    }
    let mut rest = line.trim_ascii();
    while !rest.is_empty() {
        let quoted = rest.strip_prefix(b"\"").and_then(|inside| {
            let end = memchr::memchr(b'"', inside)?;
            Some((&inside[..end], &inside[end + 1..]))
        });
        let (value, behind) = quoted.unwrap_or_else(|| {
            let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
            rest.split_at(end)
        });
        values.push(value);
        rest = behind.trim_ascii_start();
    }
}

/// Undoes the escapes of CloudFront (`%20`, also twice: `%2520`) and IIS (`+` is a space).
fn decoded(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.contains(&b'%') {
        let spaced = value.contains(&b'+') && !value.contains(&b' ');
        return match spaced {
            true => Cow::Owned(value.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect()),
            false => Cow::Borrowed(value),
        };
    }
    let once = percent_decoded(value);
    Cow::Owned(if once.windows(3).any(|part| part[0] == b'%' && is_hex(part)) { percent_decoded(&once) } else { once })
}

fn is_hex(part: &[u8]) -> bool {
    part[1..].iter().all(u8::is_ascii_hexdigit)
}
