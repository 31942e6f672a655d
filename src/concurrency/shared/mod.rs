//! Requests in flight that many processes count together, on a server: each process has a lease on its units.
//!
//! [`InFlight`](crate::store::remote::InFlight) has the steps that the server makes.
//!
//! - `local_counts` has the units that this process holds per key, and computes when to renew and which units to
//!   release.
//! - `process` makes the calls, and `renewers` are the tasks that renew.
//! - `lines` has the requests that wait. `waiting` is each request's wait, and `pace` computes when the first waiter in
//!   a line asks.

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
