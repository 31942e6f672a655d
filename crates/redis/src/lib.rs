#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod balance;
mod connection;
#[cfg(feature = "file")]
pub mod file;
mod in_flight;
mod queue;
mod records;
mod script;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub mod shared_state;
// Lua prints whole numbers up to 2^53 where `long` has 64 bits; the scripts need such a server.
#[cfg(all(test, target_pointer_width = "64"))]
mod simulation;
mod store;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod support;

pub use self::connection::{Fault, FaultKind, Redis, RedisBuilder};
pub use self::records::RedisRecords;
pub use self::script::{Scripted, UnfitQuota};
pub use self::store::{RedisStore, RedisTable};
