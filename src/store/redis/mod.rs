//! Budgets that many processes share, on Redis.

mod asking;
mod call;
mod flights;
mod key;
mod leases;
mod line;
mod lines;
mod link;
mod mirror;
mod script;
#[cfg(test)]
#[path = "../../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod servers;
mod store;
mod together;

pub(crate) use self::asking::in_background;
pub(crate) use self::line::RedisLine;
pub use self::link::{BreakerState, Fault, NodeHealth, Reason, Redis, RedisBuilder};
pub(crate) use self::script::Place;
pub use self::script::{Scripted, UnfitQuota};
pub use self::store::RedisStore;
