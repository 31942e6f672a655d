//! Queues: order, pace, and waiters that leave.

mod change;
mod churn;
mod close;
mod concurrency;
mod keys;
mod leaky_queue;
mod load;
mod lost_runtimes;
mod oracle;
mod order;
mod own_quotas;
mod runtimes;
mod schedules;
mod shared;
mod slow_down;

#[path = "../support/mod.rs"]
mod support;
