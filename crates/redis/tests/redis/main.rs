//! Redis: against real servers, and against servers that fail.

mod alternatives;
mod balance;
mod bundles;
mod calendar;
mod charge_once;
mod crossings;
mod deadlines;
mod faults;
mod in_flight;
mod modes;
mod offenders;
mod overrides;
mod own_quotas;
mod permissions;
mod queue;
mod runtimes;
mod standing;
mod store;
mod topologies;
mod wide_units;

#[path = "../support/mod.rs"]
mod support;
