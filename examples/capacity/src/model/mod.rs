//! The model: a part of a load is simulated, and what it costs is scaled to what the load needs.

mod draw;
pub(crate) mod load;
pub(crate) mod needs;
mod process;
mod sample;
pub(crate) mod server;
pub(crate) mod simulation;
pub(crate) mod tables;
mod tally;
pub(crate) mod traffic;
