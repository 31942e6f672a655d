//! Redis: against real servers, and against servers that fail.

mod deadlines;
mod faults;
mod queue;
mod store;
mod topologies;

#[path = "../support/mod.rs"]
mod support;
