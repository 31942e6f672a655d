use std::sync::OnceLock;

use smallvec::SmallVec;

use super::key::Key;

/// A script that the server keeps under its hash.
pub(crate) struct Script {
    pub(crate) source: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new() }
    }

    /// The SHA-1 of the source, in hexadecimal, as `EVALSHA` takes it.
    pub(crate) fn hash(&self) -> &str {
        self.hash.get_or_init(|| ::redis::Script::new(self.source).get_hash().to_owned())
    }
}

/// One run of a script: what is sent in one round trip. Its keys all lie in one slot, unless there is no cluster.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) keys: SmallVec<[Key; 1]>,
    /// Numbers only, all below 2^53, so that a script reads them exactly.
    pub(crate) args: SmallVec<[u64; 8]>,
}
