//! Requests in flight that many processes count together, on Redis: each process has a lease on its units.
//!
//! - `script` has the scripts that the server runs.
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
mod script;
mod waiting;

pub use self::limiter::RedisConcurrency;

use tower_sluice::{Decision, LimiterError};

/// The decision on a request whose cost exceeds the `remaining` units of its key.
const fn rejected(limit: u64, remaining: u64) -> Decision {
    Decision::reject_until_released(limit, remaining)
}

fn closed() -> LimiterError {
    LimiterError::closed("the limiter was closed, and no request waits any more")
}
