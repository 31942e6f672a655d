//! A leaky queue over many processes: the schedule of each key is on Redis, and its waiters are in the processes that
//! they came to.
//!
//! - `script` has the two scripts that the server runs, and computes decisions from their replies.
//! - `process` calls them, keeps a negative cache of keys with a backlog, and holds the waiters of this process, which
//!   return what they reserved if they leave.

mod process;
mod redis_queue;
mod script;

pub use self::redis_queue::RedisQueue;
