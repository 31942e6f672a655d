//! [`LimiterKeys`]: the keys of one limiter on a server, and the requests of this process that change them.

use std::fmt;

use super::records::Turns;
use super::tag::{KeyTag, Tags};
use crate::values::PartitionKey;

/// The keys of one limiter. Shared by all requests of this process.
pub(crate) struct LimiterKeys {
    limiter: Box<str>,
    tags: Tags,
    turns: Turns,
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
        Self { limiter: limiter.into(), tags: Tags::new(secret), turns: Turns::default() }
    }

    pub(crate) fn limiter(&self) -> &str {
        &self.limiter
    }

    pub(crate) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.tags.of(key)
    }

    pub(crate) const fn key(&self, tag: KeyTag) -> RemoteKey<'_> {
        RemoteKey { keys: self, tag }
    }
}

impl RemoteKey<'_> {
    /// Returns the name of the limiter.
    #[must_use]
    pub fn limiter(&self) -> &str {
        &self.keys.limiter
    }

    /// Returns the hash that stands for the client's key: half of a SHA-256, with the secret of the server.
    #[must_use]
    pub const fn hash(&self) -> u128 {
        self.tag.to_bits()
    }

    /// Returns the name of its record, `LIMITER:HASH:KIND`. `kind` separates the records of a key.
    pub(crate) fn record(&self, kind: char) -> String {
        let hash = self.tag.text();
        let hash = std::str::from_utf8(&hash).expect("base64");
        format!("{}:{hash}:{kind}", self.keys.limiter)
    }

    /// The requests of this process that change records of the limiter.
    pub(crate) const fn turns(&self) -> &Turns {
        &self.keys.turns
    }
}

impl fmt::Debug for RemoteKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = format_args!("{:032x}", self.hash());
        f.debug_struct("RemoteKey").field("limiter", &self.limiter()).field("hash", &hash).finish()
    }
}
