//! Requests in flight that many processes count together, on Redis: each process has a lease of what it holds.
//!
//! - `script` has the scripts that the server runs.
//! - `local_counts` has what this process holds of each key, and says when to renew and what to release.
//! - `process` makes the calls, and `renewers` are the tasks that renew.
//! - `lines` has the requests that wait; `waiting` is what each does, and `pace` when the first of a line asks.

mod limiter;
mod lines;
mod local_counts;
mod pace;
mod process;
mod renewers;
mod script;
mod waiting;

pub use self::limiter::RedisConcurrency;
