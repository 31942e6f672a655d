//! Requests in flight: a server with scripts or with records, processes with their own counts, and a network between
//! them.
//!
//! A process's counts are [`LocalEntry`], the crate's file. The scripts, and the steps on records, are in [`server`].
//! The other transitions, here, name the code that they stand for.
//!
//! # Time
//!
//! A lease is four ticks, so a renewal is due after two, and a call ends within one. A call that is not late or lost
//! ends in the tick in which it was sent, and a task with work does it before the next tick. All times are kept
//! relative to now, and field numbers by their order. So there are finitely many states although time goes on for ever,
//! and properties that hold in all states hold for ever.
//!
//! # What is left out
//!
//! A request that is cancelled while it asks goes on in the background, and is over when it is admitted
//! (`PendingTake::drop`). For the counts, it is a request that ends at once. Each request costs one unit. A process has
//! one runtime.

#[path = "../../../../src/concurrency/shared/local_counts/entry.rs"]
mod entry;
mod properties;
mod server;
mod world;

mod tests;
