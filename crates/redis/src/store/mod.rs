//! Budgets that many processes share, on Redis.
//!
//! A request's path:
//!
//! 1. `store` has the settings. The table that is made from them (`store::remote` of `tower-sluice`) answers from a
//!    lease or from the negative cache, and otherwise makes a query, which may share a call with others for its key.
//! 2. `backend` holds a `conversation` about the key. So do `batch`, about several limiters' keys, and `charge_once`,
//!    about requests whose retries may be free. `by_hand` charges a key for an operator.
//! 3. `bundle`, in [`connection`](crate::connection), makes the calls. While others are in flight, it sends calls that
//!    differ only in their keys as one.
//! 4. [`script`](crate::script) has the Lua scripts: it makes the calls, and reads the replies.
//! 5. [`connection`](crate::connection) finds the node and sends it the call.

mod backend;
mod batch;
mod by_hand;
mod charge_once;
pub(crate) mod conversation;
#[allow(clippy::module_inception, reason = "the store among its parts")]
mod store;

pub use self::store::{RedisStore, RedisTable};

pub(crate) use self::backend::failed;
