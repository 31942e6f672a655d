//! Helpers that several rooms share: base64, the keyed hash, logging, and the loom shim.

#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) mod base64;
pub(crate) mod keyed_hash;
pub(crate) mod log;
pub(crate) mod sync;
