//! Access logs: one request per line, in the formats of servers and proxies.

mod block;
mod decompress;
mod files;
mod format;
mod json;
mod known;
mod neighbours;
mod order;
mod pattern;
mod plain;
mod source;
mod syslog;
#[cfg(test)]
mod tests;
mod time;
mod w3c;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use self::files::{Files, Lines, ReadError, Reading};
pub(crate) use self::format::Format;
pub(crate) use self::neighbours::{Disorder, Misplaced};
use self::plain::HeaderFields;
pub(crate) use self::source::{LONGEST_LINE, Line, Source};
use self::time::TimeCache;
use self::w3c::Columns;

/// A request, as a log line describes it. It borrows from the line.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// Nanoseconds since the Unix epoch.
    pub(crate) nanos: u64,
    /// `None` if the log has no address, such as for a client on a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// The name of an authenticated user.
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) method: Cow<'a, [u8]>,
    /// The path and the query.
    pub(crate) target: Cow<'a, [u8]>,
    pub(crate) status: u16,
    /// The length of the response body, in bytes.
    pub(crate) length: u64,
    /// The request's header fields. Values that no header can have are left out.
    pub(crate) headers: Headers<'a>,
}

/// Names, in lower case, with their values. Plain logs have two.
pub(crate) type Headers<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, [u8]>); 2]>;

/// A line in a file. Files are numbered in the order in which they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) line: u64,
}

/// Why a line is not a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(Cow<'static, str>);

impl Unreadable {
    pub(crate) fn new(problem: impl Into<Cow<'static, str>>) -> Self {
        Self(problem.into())
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses a file's lines. Lines in the same second share the work of reading the time.
#[derive(Debug)]
pub(crate) struct Parser {
    format: Format,
    /// Whether any policy or report reads header fields.
    has_headers: bool,
    times: TimeCache,
    /// The columns that `#Fields:` names.
    columns: Option<Arc<Columns>>,
    json: Arc<json::Names>,
}

impl Parser {
    pub(crate) fn new(format: Format) -> Self {
        let columns = if let Format::W3c(columns) = &format { columns.clone() } else { None };
        let json = if let Format::Json(names) = &format { Arc::clone(names) } else { Arc::default() };
        Self { format, has_headers: true, times: TimeCache::default(), columns, json }
    }

    /// Without `has_headers`, entries have no header fields, unless the line is JSON.
    pub(crate) fn with_headers(self, has_headers: bool) -> Self {
        Self { has_headers, ..self }
    }

    /// Parses a line, without its end. Returns `None` for a line that describes others.
    ///
    /// # Errors
    ///
    /// If it isn't a request in the format.
    pub(crate) fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Option<Entry<'a>>, Unreadable> {
        let problem = match self.parse_message(line) {
            Ok(entry) => return Ok(entry),
            Err(problem) => problem,
        };
        for message in syslog::messages(line) {
            if let Ok(entry) = self.parse_message(message) {
                return Ok(entry);
            }
        }
        Err(problem)
    }

    /// Parses a line without a prefix.
    fn parse_message<'a>(&mut self, line: &'a [u8]) -> Result<Option<Entry<'a>>, Unreadable> {
        let (times, has_headers) = (&mut self.times, self.has_headers);
        let fields = HeaderFields { required: false, wanted: has_headers };
        let is_json = || line.trim_ascii_start().starts_with(b"{");
        let entry = match &self.format {
            Format::Auto if is_json() => json::parse(line, &self.json),
            Format::Auto => return self.parse_any(line),
            Format::Combined => plain::parse(line, times, HeaderFields { required: true, ..fields }),
            Format::Common => plain::parse(line, times, fields),
            Format::VhostCombined => plain::parse_with_host(line, times, HeaderFields { required: true, ..fields }),
            Format::Json(_) => json::parse(line, &self.json),
            Format::Traefik | Format::Envoy if is_json() => json::parse(line, &self.json),
            Format::Traefik => plain::parse(line, times, fields),
            Format::Envoy => known::ENVOY.parse(line, times, has_headers),
            Format::Alb => known::ALB.parse(line, times, has_headers),
            Format::Haproxy => known::haproxy(line, times),
            Format::W3c(_) => return self.parse_w3c(line),
            Format::Pattern(pattern) => pattern.parse(line, times, has_headers),
        };
        entry.map(Some)
    }

    /// Detects a line's format and parses it. No line fits two of these formats.
    fn parse_any<'a>(&mut self, line: &'a [u8]) -> Result<Option<Entry<'a>>, Unreadable> {
        if line.starts_with(b"#") || self.columns.is_some() {
            return self.parse_w3c(line);
        }
        let (times, has_headers) = (&mut self.times, self.has_headers);
        let fields = HeaderFields { required: false, wanted: has_headers };
        let problem = match plain::parse(line, times, fields) {
            Ok(entry) => return Ok(Some(entry)),
            Err(problem) => problem,
        };
        let other = if line.starts_with(b"[") {
            known::ENVOY.parse(line, times, has_headers)
        } else {
            known::haproxy(line, times)
                .or_else(|_| plain::parse_with_host(line, times, fields).and_then(with_client))
                .or_else(|_| known::ALB.parse(line, times, has_headers))
        };
        other.map(Some).map_err(|_| match () {
            () if !time::is_in(line) => Unreadable::new(
                "it has no time, which a replay needs: let the server log one (morgan: combined; uvicorn: %(asctime)s in \
                 --log-config), or print its log with times (docker logs -t, journalctl -o short-iso), and describe the \
                 lines by --log-format",
            ),
            // Perhaps a name in place of the address.
            () if line.windows(5).any(|part| matches!(part, [b' ', b'[', b'0'..=b'9', b'0'..=b'9', b'/'])) => problem,
            () => Unreadable::new(
                "it is in no format that is recognised; describe it in nginx's notation, such as --log-format \
                 '$time $_ $client \"$request\" $status', in which $_ skips a field, or in Apache's for another form of \
                 time",
            ),
        })
    }

    fn parse_w3c<'a>(&mut self, line: &'a [u8]) -> Result<Option<Entry<'a>>, Unreadable> {
        if let Some(directive) = line.strip_prefix(b"#") {
            if let Some(names) = directive.strip_prefix(b"Fields:") {
                let columns = Columns::new(&String::from_utf8_lossy(names));
                if let Some(missing) = columns.missing() {
                    return Err(Unreadable::new(format!("#Fields: lacks {missing}")));
                }
                self.columns = Some(Arc::new(columns));
            }
            return Ok(None);
        }
        match &self.columns {
            Some(columns) => columns.parse(line, self.has_headers).map(Some),
            None => Err(Unreadable::new(
                "no line #Fields: is before it; name its columns, such as --log-format 'w3c:date time c-ip cs-method …'",
            )),
        }
    }
}

/// A line whose second field isn't an address is not a virtual host's.
fn with_client(entry: Entry<'_>) -> Result<Entry<'_>, Unreadable> {
    if entry.client.is_some() { Ok(entry) } else { Err(Unreadable::new("there is no address")) }
}

/// Returns the header field for a cookie that is logged by itself.
fn cookie(name: &str, value: &[u8]) -> (Cow<'static, str>, Cow<'static, [u8]>) {
    ("cookie".into(), Cow::Owned([name.as_bytes(), b"=", value].concat()))
}

/// Reads the last address in `X-Forwarded-For`, which the nearest proxy has seen. Clients can forge the others.
fn forwarded(list: &[u8]) -> Option<IpAddr> {
    let last = list.rsplit(|byte| *byte == b',').next()?;
    plain::address(last.trim_ascii()).ok().flatten()
}
