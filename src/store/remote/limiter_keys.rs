//! [`LimiterKeys`]: one limiter's keys on a server, and this process's requests that change them.

use std::fmt;

use super::departures::Line;
use super::records::Turns;
use super::tag::{KeyTag, Tags};
use crate::values::PartitionKey;

/// One limiter's keys. All this process's requests share them.
pub(crate) struct LimiterKeys {
    limiter: Box<str>,
    tags: Tags,
    turns: Turns,
    line: Line,
}

/// A limiter's key on a server, for a step such as [`InFlight::take`](super::InFlight::take).
#[derive(Clone, Copy)]
pub struct RemoteKey<'a> {
    keys: &'a LimiterKeys,
    tag: KeyTag,
}

impl LimiterKeys {
    /// The keys of the limiter that is called `limiter`, with the secret for their hashes.
    pub(crate) fn new(secret: &[u8], limiter: &str) -> Self {
        Self { limiter: limiter.into(), tags: Tags::new(secret), turns: Turns::default(), line: Line::default() }
    }

    pub(crate) fn limiter(&self) -> &str {
        &self.limiter
    }

    /// Its keys' hashes.
    pub(crate) const fn tags(&self) -> &Tags {
        &self.tags
    }

    pub(crate) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.tags.of(key)
    }

    pub(crate) const fn key(&self, tag: KeyTag) -> RemoteKey<'_> {
        RemoteKey { keys: self, tag }
    }

    /// Returns the name for a record that does not belong to a key. Every tag is longer than the beginning of an item.
    pub(crate) fn item(&self, item: &str) -> String {
        format!("{}:{item}", self.limiter)
    }

    /// This process's requests that change the limiter's records.
    pub(crate) const fn turns(&self) -> &Turns {
        &self.turns
    }
}

impl<'a> RemoteKey<'a> {
    /// Returns the limiter's name.
    #[must_use]
    pub fn limiter(&self) -> &'a str {
        &self.keys.limiter
    }

    /// Returns the hash that stands for the client's key: half of a SHA-256, with the server's secret. So no text from
    /// a client ever reaches the server.
    #[must_use]
    pub const fn tag(&self) -> KeyTag {
        self.tag
    }

    /// Returns the name of its record, `LIMITER:HASH:KIND`. `kind` separates a key's records.
    pub(crate) fn record(&self, kind: char) -> String {
        self.record_of(kind, "")
    }

    /// Returns the name of one of several records with this kind.
    pub(crate) fn record_of(&self, kind: char, part: impl fmt::Display) -> String {
        format!("{}:{}:{kind}{part}", self.keys.limiter, self.tag)
    }

    /// This process's requests that change the limiter's records.
    pub(crate) const fn turns(&self) -> &'a Turns {
        &self.keys.turns
    }

    /// This process's requests that wait for reservations in a queue.
    pub(super) const fn line(&self) -> &'a Line {
        &self.keys.line
    }
}

impl fmt::Debug for RemoteKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey").field("limiter", &self.limiter()).field("tag", &self.tag).finish()
    }
}
