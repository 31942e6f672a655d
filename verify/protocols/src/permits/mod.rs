//! Requests in flight: a server with scripts or with records, processes with counts of their own, and a network between
//! them.
//!
//! A process's counts are [`LocalEntry`], the file of the crate. The scripts, and the steps on records, are in
//! [`server`]. The rest of the transitions, here, name what they stand for.
//!
//! # Time
//!
//! A lease is four ticks, so that a renewal is due after two, and a call ends within one. What is neither late nor lost
//! ends in the tick in which it was sent; a task that has something to do does it before the next tick. All times are
//! kept relative to now, and numbers of fields by their order: so the states are finitely many although time goes on
//! for ever, and what holds in all of them holds for ever.
//!
//! # What is left out
//!
//! A request that is cancelled while it asks goes on in the background, and is over when it is admitted
//! (`PendingTake::drop`): for the counts, that is a request that ends at once. Costs are one unit. The runtimes of a
//! process are one.

#[path = "../../../../src/concurrency/shared/local_counts/entry.rs"]
mod entry;
mod properties;
mod server;
mod world;

mod tests;
