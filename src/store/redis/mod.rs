//! Budgets that many processes share, on Redis.

mod batch;
mod call;
mod connection;
mod key;
mod key_cache;
mod leases;
mod negative_cache;
mod query;
mod script;
#[cfg(test)]
#[path = "../../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod servers;
mod single_flight;
mod store;

pub use self::connection::{BreakerState, Fault, NodeHealth, Reason, Redis, RedisBuilder};
pub use self::script::{Scripted, UnfitQuota};
pub use self::store::RedisStore;

// For the queue.
pub(crate) use self::call::{Call, Script};
pub(crate) use self::key::{Key, Names, Tag};
pub(crate) use self::negative_cache::{NegativeCache, Observation};
pub(crate) use self::query::{failed, in_background};
#[cfg(test)]
pub(crate) use self::script::manual_server;
pub(crate) use self::script::{BadReply, Grid, ScriptReply, Span, whole};
