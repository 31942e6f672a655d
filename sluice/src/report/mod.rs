//! The report of a replay.

mod compare;
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

use self::timeline::Axis;
use crate::replay::Replay;

/// The time that all plots show, so that they can be compared.
fn axis(replays: &[Replay]) -> Axis {
    let routes = replays.iter().flat_map(|replay| &replay.limited);
    Axis::of(routes.flat_map(|route| &route.policies).map(|policy| &policy.timeline))
}

/// What a log had.
#[derive(Default)]
pub(crate) struct LogReport {
    /// Each with the number of lines before it.
    files: Vec<(String, u64)>,
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
    /// Notes that the lines of a file follow.
    pub(crate) fn note_file(&mut self, name: String) {
        self.files.push((name, self.lines));
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, _)| name.as_str())
    }

    /// The file of a line, and the number of the line in it. Lines are counted over all files.
    pub(crate) fn place(&self, line: u64) -> (&str, u64) {
        let file = self.files.iter().rev().find(|(_, before)| *before < line);
        file.map_or(("", line), |(name, before)| (name, line - before))
    }

    /// The same in words. With one file, its name is known.
    pub(crate) fn place_in_words(&self, line: u64) -> String {
        match self.place(line) {
            (name, line) if self.files.len() > 1 => format!("{name}, line {line}"),
            (_, line) => format!("line {line}"),
        }
    }

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
