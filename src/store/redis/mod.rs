//! Budgets that many processes share, on Redis.
//!
//! The path of a request: `store` answers from a lease or the negative cache, or makes a `query`, which `single_flight`
//! lets share a call with others; `batch` puts the charges of several limiters into one call. `script` has the Lua
//! scripts and computes decisions from their replies; `script_call` is one run of a script, as data; `connection` finds
//! the node and gets the call to it.

mod batch;
mod connection;
mod key;
mod key_cache;
mod leases;
mod negative_cache;
mod query;
mod script;
mod script_call;
#[cfg(test)]
#[path = "../../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod servers;
mod single_flight;
mod store;

pub use self::connection::{BreakerState, Fault, FaultKind, NodeHealth, Redis, RedisBuilder};
pub use self::script::{Scripted, UnfitQuota};
pub use self::store::RedisStore;

// For the queue.
pub(crate) use self::key::{Key, Names, Tag};
pub(crate) use self::negative_cache::{NegativeCache, Observation};
pub(crate) use self::query::{failed, in_background};
#[cfg(test)]
pub(crate) use self::script::manual_server;
pub(crate) use self::script::{BadReply, Grid, ScriptReply, Span, whole};
pub(crate) use self::script_call::{Call, Script};
