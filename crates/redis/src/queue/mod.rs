//! A leaky queue over many processes: the schedule of each key is on Redis, and each waiter is in the process at which
//! it arrived.
//!
//! - `script` has the two scripts that the server runs, and computes decisions from their replies.
//! - `process` calls them, keeps a negative cache of keys with a backlog, and holds the waiters of this process, which
//!   return their reservations if they leave.

mod process;
mod redis_queue;
mod script;

pub use self::redis_queue::RedisQueue;

use tower_sluice::LimiterError;

fn closed() -> LimiterError {
    LimiterError::closed("the queue was closed")
}

fn no_runtime() -> LimiterError {
    LimiterError::new("a queue waits on tokio's timer: call it from within a tokio runtime")
}
