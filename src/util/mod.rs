//! Helpers that several rooms need, one of each.

#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) mod base64;
pub(crate) mod keyed_hash;
pub(crate) mod log;
pub(crate) mod sync;
