//! The report of a replay.

mod compare;
mod demand;
mod disorder;
mod hints;
mod json;
mod keys;
mod plot;
mod policy;
mod svg;
mod text;
mod timeline;
mod units;

pub(crate) use self::json::to_json;
pub(crate) use self::policy::{PolicyReport, WithoutKey};
pub(crate) use self::svg::to_svg;
pub(crate) use self::text::{Options, print};

use std::net::IpAddr;

use self::timeline::Axis;
use crate::log::{Disorder, Lines, Place, Unreadable};
use crate::replay::Replay;

/// The time that all plots show, so that they can be compared.
fn axis(replays: &[Replay]) -> Axis {
    let routes = replays.iter().flat_map(|replay| &replay.limited);
    Axis::of(routes.flat_map(|route| &route.policies).map(|policy| &policy.timeline))
}

/// What a log had.
#[derive(Default)]
pub(crate) struct LogReport {
    /// In the order of their begin.
    pub(crate) files: Vec<String>,
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    pub(crate) unreadable: u64,
    pub(crate) first_unreadable: Option<FirstUnreadable>,
    /// How far a line may be out of order, in nanoseconds.
    pub(crate) window: u64,
    /// How far it may have been, for lack of memory.
    pub(crate) shortest_window: Option<u64>,
    pub(crate) disorder: Disorder,
    /// The time of the first request, and of the last.
    pub(crate) span: Option<(u64, u64)>,
    /// The client of all requests so far; `None` before the first.
    pub(crate) only_client: Option<OnlyClient>,
}

/// Whether all requests are of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnlyClient {
    One(IpAddr),
    Several,
}

pub(crate) struct FirstUnreadable {
    pub(crate) place: Place,
    pub(crate) problem: String,
    /// Its begin, without what a terminal would obey.
    pub(crate) text: String,
}

impl Lines for LogReport {
    fn note_line(&mut self) {
        self.lines += 1;
    }

    fn note_unreadable(&mut self, place: Place, problem: &Unreadable, line: &[u8]) {
        self.unreadable += 1;
        if self.first_unreadable.as_ref().is_none_or(|first| place < first.place) {
            let text = units::shortened(line);
            self.first_unreadable = Some(FirstUnreadable { place, problem: problem.to_string(), text });
        }
    }
}

impl LogReport {
    /// The name of a file.
    pub(crate) fn file(&self, place: Place) -> &str {
        self.files.get(place.file).map_or("", String::as_str)
    }

    /// A line in words. With one file, its name is known.
    pub(crate) fn place_in_words(&self, place: Place) -> String {
        if self.files.len() > 1 {
            format!("{}, line {}", self.file(place), place.line)
        } else {
            format!("line {}", place.line)
        }
    }

    pub(crate) fn note_request(&mut self, now: u64, client: Option<IpAddr>) {
        self.requests += 1;
        self.only_client = match (self.only_client, client) {
            (None, Some(client)) => Some(OnlyClient::One(client)),
            (Some(OnlyClient::One(first)), Some(client)) if first == client => self.only_client,
            _ => Some(OnlyClient::Several),
        };
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
    }
}
