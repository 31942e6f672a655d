//! Redis: against real servers, and against servers that fail.

mod bundles;
mod calendar;
mod charge_once;
mod deadlines;
mod debts;
mod faults;
mod in_flight;
mod own_quotas;
mod pacer;
mod permissions;
mod queue;
mod runtimes;
mod store;
mod topologies;

#[path = "../support/mod.rs"]
mod support;
