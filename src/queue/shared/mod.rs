//! A leaky queue over many processes: the schedule of each key is on a server, and each waiter is in the process at
//! which it arrived.
//!
//! - `terms` computes what a request asks the server for, and the decision from its answer.
//! - `process` asks it, keeps a negative cache of keys with a backlog, and holds the waiters of this process, which
//!   return their reservations if they leave.
//! - `shared_queue` has the bounds, and answers the modes of a question.

mod process;
mod shared_queue;
pub(crate) mod terms;
#[cfg(all(test, not(sluice_loom)))]
mod tests;

pub use self::shared_queue::SharedQueue;
