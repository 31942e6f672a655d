//! Access logs: one request per line, in the combined or common format, or in JSON.

mod json;
mod plain;
mod source;
#[cfg(test)]
mod tests;
mod time;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use clap::ValueEnum;
use smallvec::SmallVec;

use self::plain::HeaderFields;
pub(crate) use self::source::{LONGEST_LINE, Line, Source};
use self::time::TimeCache;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// `ADDRESS - USER [TIME] "METHOD PATH HTTP/1.1" STATUS BYTES "REFERER" "AGENT"`, of nginx and Apache
    Combined,
    /// The same without referer and agent
    Common,
    /// An object per line, as Caddy and Traefik write them, or nginx by a `log_format`
    Json,
    /// JSON if a line begins with a brace, otherwise combined or common
    Auto,
}

/// A request as a line of a log has it. It borrows from the line.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// Nanoseconds since the Unix epoch.
    pub(crate) nanos: u64,
    /// `None` if the log has none, such as for a client on a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// The name of an authenticated user.
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) method: Cow<'a, [u8]>,
    /// The path and the query.
    pub(crate) target: Cow<'a, [u8]>,
    pub(crate) status: u16,
    /// The bytes of the response's body.
    pub(crate) length: u64,
    /// Header fields of the request. Values that no header can have are left out.
    pub(crate) headers: Headers<'a>,
}

/// Names, in lower case, with their values. Plain logs have two of them.
pub(crate) type Headers<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, [u8]>); 2]>;

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

/// Parses the lines of a log. Lines of the same second share the work of reading the time.
#[derive(Debug)]
pub(crate) struct Parser {
    format: Format,
    /// Whether anybody reads the referer and the agent of plain lines.
    has_headers: bool,
    times: TimeCache,
}

impl Parser {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, has_headers: true, times: TimeCache::default() }
    }

    /// Without `has_headers`, the entries of plain lines have no header fields.
    pub(crate) fn with_headers(self, has_headers: bool) -> Self {
        Self { has_headers, ..self }
    }

    /// Parses a line, without its end.
    ///
    /// # Errors
    ///
    /// If it is not a request in the format.
    pub(crate) fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Unreadable> {
        let is_json = match self.format {
            Format::Json => true,
            Format::Auto => line.trim_ascii_start().starts_with(b"{"),
            Format::Combined | Format::Common => false,
        };
        if is_json {
            return json::parse(line);
        }
        let fields = HeaderFields { required: self.format == Format::Combined, wanted: self.has_headers };
        plain::parse(line, &mut self.times, fields)
    }
}
