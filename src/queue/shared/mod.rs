//! A leaky queue over many processes: each key's schedule is on a server, and each waiter is in the process at which it
//! arrived.
//!
//! - `terms` computes a request's question to the server, and the decision from its answer.
//! - `process` asks it, keeps a negative cache of keys with a backlog, and holds this process's waiters, which return
//!   their reservations if they leave.
//! - `shared_queue` has the bounds, and answers each mode.

mod process;
mod shared_queue;
pub(crate) mod terms;
#[cfg(all(test, not(sluice_loom)))]
mod tests;

pub use self::shared_queue::SharedQueue;
