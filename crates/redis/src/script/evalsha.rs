//! One run of a script (an `EVALSHA`) as data: the script, its keys and its arguments.
//! [`connection`](crate::connection) sends it.

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::key::Key;

/// A script that the server caches under its hash.
pub(crate) struct Script {
    pub(crate) source: &'static str,
    hash: OnceLock<String>,
    /// Whether it decides on any number of requests with equal arguments, each by itself, so that calls may share a
    /// run.
    pub(crate) is_bundled: bool,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new(), is_bundled: false }
    }

    pub(crate) const fn bundled(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new(), is_bundled: true }
    }

    /// Returns the SHA-1 of the source, in hexadecimal, as `EVALSHA` takes it.
    pub(crate) fn hash(&self) -> &str {
        self.hash.get_or_init(|| ::redis::Script::new(self.source).get_hash().to_owned())
    }
}

/// One run of a script. In a cluster, all its keys are in one slot.
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    pub(crate) keys: SmallVec<[Key; 1]>,
    /// Whole numbers below 2^53, which a script reads exactly. A quota's numbers are text to it, and may be greater.
    pub(crate) args: SmallVec<[u64; 8]>,
    /// Behind the numbers: texts that were read from keys, and their replacements.
    pub(crate) texts: Vec<Vec<u8>>,
}

impl ScriptCall {
    /// A run without texts.
    pub(crate) fn new<const K: usize, const N: usize>(script: &'static Script, keys: [Key; K], args: [u64; N]) -> Self {
        Self { script, keys: keys.into_iter().collect(), args: SmallVec::from_slice(&args), texts: Vec::new() }
    }
}
