//! The model: it simulates a part of a load, and scales its costs to the whole load.

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
