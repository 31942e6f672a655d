//! Queues: requests wait for their turns instead of being rejected.
//!
//! - [`LeakyQueue`] and [`SlowDown`] keep their waiters in this process. The first is the leaky bucket as a queue, with
//!   departures that are evenly spaced; the second delays requests for longer the more their key sends. Both are a
//!   `LocalQueue`. `schedule` computes when each waiter departs, without threads and timers. `monitor` also knows which
//!   runtimes have drivers. `driver` has both behind one lock, and a waiter's future. The drivers are tasks, one on
//!   each runtime that has waiters, and sleep on a `timer`.
//! - [`SharedQueue`] keeps the schedule on a server, and each waiter in the process at which it arrived.

mod driver;
mod leaky_queue;
mod local;
mod log;
#[cfg(all(test, sluice_loom))]
mod models;
mod monitor;
mod schedule;
pub(crate) mod shared;
mod slow_down;
mod timer;

use crate::values::LimiterError;

pub use self::leaky_queue::LeakyQueue;
pub use self::shared::SharedQueue;
pub use self::slow_down::SlowDown;

fn closed() -> LimiterError {
    LimiterError::closed("the queue was closed")
}

fn no_runtime() -> LimiterError {
    LimiterError::new("a queue waits on tokio's timer: call it from within a tokio runtime")
}

fn no_timer() -> LimiterError {
    LimiterError::new("this tokio runtime was shut down, or has no timer, on which a queue waits")
}

fn too_many_runtimes() -> LimiterError {
    LimiterError::new("a queue supports waiters on at most 65,536 tokio runtimes")
}
