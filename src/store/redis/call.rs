use std::sync::OnceLock;

use smallvec::SmallVec;

use super::key::Key;

/// A script that the server keeps under its hash.
pub(super) struct Script {
    pub(super) source: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(super) const fn new(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new() }
    }

    /// The SHA-1 of the source, in hexadecimal, as `EVALSHA` takes it.
    pub(super) fn hash(&self) -> &str {
        self.hash.get_or_init(|| ::redis::Script::new(self.source).get_hash().to_owned())
    }
}

/// One run of a script: what is sent in one round trip. Its keys all lie in one slot, unless there is no cluster.
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: SmallVec<[Key; 1]>,
    /// Numbers only, all below 2^53, so that a script reads them exactly.
    pub(super) args: SmallVec<[u64; 8]>,
}
