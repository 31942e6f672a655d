//! Budgets that many processes share, on Redis.
//!
//! The path of a request:
//!
//! 1. `store` has the settings. The table that is made from them (`store::remote`) answers from a lease or from the
//!    negative cache, and otherwise makes a query, which may share a call with others for its key.
//! 2. `backend` holds a `conversation` about the key. So do `batch`, about the keys of several limiters, and
//!    `charge_once`, about requests whose retries may be free. `by_hand` charges a key for an operator.
//! 3. `bundle` makes the calls. While others are in flight, it sends calls that differ only in their keys as one.
//! 4. `script` has the Lua scripts: it makes the calls, and reads the replies. A call names its keys as `key` spells
//!    them, and is plain data, see `evalsha`.
//! 5. `connection` finds the node and sends it the call.
//!
//! Beside this path, `reports` passes on to each process what the others have rejected.

mod backend;
mod batch;
mod bundle;
mod by_hand;
mod charge_once;
mod connection;
mod conversation;
mod evalsha;
mod key;
#[cfg(test)]
#[path = "../../../tests/support/manual_redis.rs"]
mod manual_redis;
mod reports;
mod script;
#[cfg(test)]
#[path = "../../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod servers;
#[cfg(test)]
#[path = "../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod timing;
// Lua prints whole numbers of up to 2^53 where `long` has 64 bits; the scripts need such a server.
#[cfg(all(test, target_pointer_width = "64"))]
mod simulation;
mod store;

pub use self::connection::{Fault, FaultKind, Redis, RedisBuilder};
pub use self::script::{Scripted, UnfitQuota};
pub use self::store::{RedisStore, RedisTable};

// For the queue, and for requests in flight.
pub(crate) use self::backend::{failed, in_background};
pub(crate) use self::bundle::ScriptCaller;
pub(crate) use self::evalsha::{Script, ScriptCall};
pub(crate) use self::key::{Key, KeyNames};
pub(crate) use self::reports::RedisReports;
pub(crate) use self::script::{BadReply, Grid, MicrosSpan, NO_MARK, ScriptReply, whole};
#[cfg(test)]
pub(crate) use self::script::{manual_server, random, variant};
