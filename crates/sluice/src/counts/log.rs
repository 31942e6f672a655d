//! [`LogCounts`]: the lines and requests of a log.

use std::net::IpAddr;

use crate::log::{Disorder, Lines, Place, Unreadable};

/// The lines and requests of a log.
#[derive(Default)]
pub(crate) struct LogCounts {
    /// In the order in which they begin.
    pub(crate) files: Vec<String>,
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    pub(crate) unreadable: u64,
    pub(crate) first_unreadable: Option<FirstUnreadable>,
    /// How far a line may be out of order, in nanoseconds.
    pub(crate) window: u64,
    /// The shortest window that was used because memory was short.
    pub(crate) shortest_window: Option<u64>,
    pub(crate) disorder: Disorder,
    /// The times of the first and the last request.
    pub(crate) span: Option<(u64, u64)>,
    /// The client that sent all requests so far. `None` before the first.
    pub(crate) only_client: Option<OnlyClient>,
}

/// Whether all requests come from one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnlyClient {
    One(IpAddr),
    Several,
}

pub(crate) struct FirstUnreadable {
    pub(crate) place: Place,
    pub(crate) problem: String,
    /// The beginning of the line, without control characters that a terminal would obey.
    pub(crate) text: String,
}

impl Lines for LogCounts {
    fn note_line(&mut self) {
        self.lines += 1;
    }

    fn note_unreadable(&mut self, place: Place, problem: &Unreadable, line: &[u8]) {
        self.unreadable += 1;
        if self.first_unreadable.as_ref().is_none_or(|first| place < first.place) {
            let text = shortened(line);
            self.first_unreadable = Some(FirstUnreadable { place, problem: problem.to_string(), text });
        }
    }
}

impl LogCounts {
    /// Returns a file's name.
    pub(crate) fn file(&self, place: Place) -> &str {
        self.files.get(place.file).map_or("", String::as_str)
    }

    /// Describes a line. The file is named only if there are several.
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

/// Returns the beginning of a line, without characters that a terminal would obey.
fn shortened(line: &[u8]) -> String {
    const MOST: usize = 80;
    let mut text = String::new();
    for (index, byte) in line.iter().enumerate() {
        if index == MOST {
            text.push('…');
            break;
        }
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            byte => text.extend(byte.escape_ascii().map(char::from)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_without_control_characters() {
        assert_eq!(shortened(b"\x1b[31m\xff \"\\"), "\\x1b[31m\\xff \"\\");
        assert_eq!(shortened(&[b'a'; 200]).chars().count(), 81);
    }
}
