//! Requests in flight that many processes count together, on Redis: each process has a lease of what it holds.
//!
//! - `script` has the scripts that the server runs.
//! - `local_counts` has what this process holds of each key, and says when to renew and what to release.
//! - `process` makes the calls, and `renewers` are the tasks that renew.

mod limiter;
mod local_counts;
mod process;
mod renewers;
mod script;

pub use self::limiter::RedisConcurrency;

pub(super) use self::limiter::Leased;
