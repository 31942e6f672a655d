//! Requests in flight that many processes count together, on a server: each process has a lease on its units.
//!
//! The steps that the server makes are those of [`InFlight`](crate::store::remote::InFlight).
//!
//! - `local_counts` has the units that this process holds of each key, and computes when to renew and which units to
//!   release.
//! - `process` makes the calls, and `renewers` are the tasks that renew.
//! - `lines` has the requests that wait. `waiting` is the wait of each, and `pace` computes when the first waiter of a
//!   line asks.

mod limiter;
mod lines;
mod local_counts;
mod pace;
mod process;
mod renewers;
#[cfg(all(test, not(sluice_loom)))]
mod tests;
mod waiting;

pub use self::limiter::SharedConcurrency;
