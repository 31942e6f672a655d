//! A leaky queue over many processes: the schedule of each key is on Redis, and its waiters are in the processes that
//! they came to.
//!
//! - `script` has the two scripts that the server runs, and computes decisions from their replies.
//! - `remote` calls them, and keeps a negative cache of keys with a backlog.
//! - `waiter` holds the waiters of this process, and returns what they reserved if they leave.

mod redis_queue;
mod remote;
mod script;
mod waiter;

pub use self::redis_queue::RedisQueue;
