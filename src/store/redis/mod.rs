//! Budgets that many processes share, on Redis.
//!
//! The path of a request:
//!
//! 1. `store` answers from a lease (`leases`) or from the `negative_cache`; both are tables by `key_cache`.
//! 2. Otherwise it makes a `query`, which `single_flight` lets share a call with others for its key. `batch` puts the
//!    charges of several limiters into one call. `charge_once` decides on requests whose retries may be free.
//! 3. `bundle` makes calls for different keys as one, while others are in flight.
//! 4. `script` has the Lua scripts: it makes the calls, and computes decisions from the replies. A call names its keys
//!    as `key` spells them, and is plain data, see `evalsha`.
//! 5. `connection` finds the node and sends it the call.

mod backend;
mod batch;
mod bundle;
mod charge_once;
mod connection;
mod conversation;
mod evalsha;
mod key;
mod script;
#[cfg(test)]
#[path = "../../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod servers;
#[cfg(test)]
#[path = "../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod timing;
// Lua prints whole numbers of up to 2^53 where `long` has 64 bits; the scripts count on a server of which that is true.
#[cfg(all(test, target_pointer_width = "64"))]
mod simulation;
mod store;

pub use self::connection::{Fault, FaultKind, Redis, RedisBuilder};
pub use self::script::{Scripted, UnfitQuota};
pub use self::store::{RedisStore, RedisTable};

// For the queue, and for requests in flight.
pub(crate) use self::backend::{failed, in_background};
pub(crate) use self::evalsha::{Call, Script};
pub(crate) use self::key::{Key, Names};
pub(crate) use self::script::{BadReply, Grid, ScriptReply, Span, whole};
#[cfg(test)]
pub(crate) use self::script::{manual_server, random, variant};
