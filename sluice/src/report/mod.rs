//! The report of a replay.

mod demand;
mod json;
mod keys;
mod plot;
mod policy;
mod svg;
mod text;
mod timeline;
mod units;

pub(crate) use self::json::to_json;
pub(crate) use self::policy::PolicyReport;
pub(crate) use self::svg::to_svg;
pub(crate) use self::text::{Options, print};

/// What a log had.
#[derive(Default)]
pub(crate) struct LogReport {
    pub(crate) files: Vec<String>,
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    pub(crate) unreadable: u64,
    pub(crate) first_unreadable: Option<FirstUnreadable>,
    /// Lines whose time is before that of an earlier one.
    pub(crate) past: u64,
    /// By how much at most, in nanoseconds.
    pub(crate) furthest_past: u64,
    /// The time of the first request, and of the last.
    pub(crate) span: Option<(u64, u64)>,
}

pub(crate) struct FirstUnreadable {
    pub(crate) line: u64,
    pub(crate) problem: String,
    /// Its begin, without what a terminal would obey.
    pub(crate) text: String,
}

impl LogReport {
    pub(crate) fn note_request(&mut self, now: u64) {
        self.requests += 1;
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
    }

    pub(crate) fn note_past(&mut self, nanos: u64, now: u64) {
        self.past += 1;
        self.furthest_past = self.furthest_past.max(now - nanos);
    }

    pub(crate) fn note_unreadable(&mut self, problem: &dyn std::fmt::Display, line: &[u8]) {
        self.unreadable += 1;
        if self.first_unreadable.is_none() {
            let text = units::shortened(line);
            self.first_unreadable = Some(FirstUnreadable { line: self.lines, problem: problem.to_string(), text });
        }
    }
}
