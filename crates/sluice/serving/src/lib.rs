//! Code that the program `sluice` and the example server share: connections, metrics, snapshots, and the guard for the
//! admin service.

pub mod admin;
pub mod connections;
pub mod metrics;
pub mod snapshots;
