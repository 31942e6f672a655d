//! [`LimiterKeys`]: the keys of one limiter on a server, and the requests of this process that change them.

use std::fmt;

use super::departures::Line;
use super::records::Turns;
use super::tag::{KeyTag, Tags};
use crate::values::PartitionKey;

/// The keys of one limiter. Shared by all requests of this process.
pub(crate) struct LimiterKeys {
    limiter: Box<str>,
    tags: Tags,
    turns: Turns,
    line: Line,
}

/// A key of a limiter on a server, for a step such as [`InFlight::take`](super::InFlight::take).
#[derive(Clone, Copy)]
pub struct RemoteKey<'a> {
    keys: &'a LimiterKeys,
    tag: KeyTag,
}

impl LimiterKeys {
    /// The keys of the limiter that is called `limiter`, with the secret of their hashes.
    pub(crate) fn new(secret: &[u8], limiter: &str) -> Self {
        Self { limiter: limiter.into(), tags: Tags::new(secret), turns: Turns::default(), line: Line::default() }
    }

    pub(crate) fn limiter(&self) -> &str {
        &self.limiter
    }

    /// The hashes of its keys.
    pub(crate) const fn tags(&self) -> &Tags {
        &self.tags
    }

    pub(crate) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.tags.of(key)
    }

    pub(crate) const fn key(&self, tag: KeyTag) -> RemoteKey<'_> {
        RemoteKey { keys: self, tag }
    }

    /// Returns the name of a record that is no key's. No tag is as short as the begin of an item.
    pub(crate) fn item(&self, item: &str) -> String {
        format!("{}:{item}", self.limiter)
    }

    /// The requests of this process that change records of the limiter.
    pub(crate) const fn turns(&self) -> &Turns {
        &self.turns
    }
}

impl<'a> RemoteKey<'a> {
    /// Returns the name of the limiter.
    #[must_use]
    pub fn limiter(&self) -> &'a str {
        &self.keys.limiter
    }

    /// Returns the hash that stands for the client's key: half of a SHA-256, with the secret of the server. So no text
    /// from a client ever reaches the server.
    #[must_use]
    pub const fn tag(&self) -> KeyTag {
        self.tag
    }

    /// Returns the name of its record, `LIMITER:HASH:KIND`. `kind` separates the records of a key.
    pub(crate) fn record(&self, kind: char) -> String {
        self.record_of(kind, "")
    }

    /// Returns the name of one of several records of a kind.
    pub(crate) fn record_of(&self, kind: char, part: impl fmt::Display) -> String {
        format!("{}:{}:{kind}{part}", self.keys.limiter, self.tag)
    }

    /// The requests of this process that change records of the limiter.
    pub(crate) const fn turns(&self) -> &'a Turns {
        &self.keys.turns
    }

    /// The requests of this process that wait for reservations in a queue.
    pub(super) const fn line(&self) -> &'a Line {
        &self.keys.line
    }
}

impl fmt::Debug for RemoteKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey").field("limiter", &self.limiter()).field("tag", &self.tag).finish()
    }
}
