//! A client that obeys its partner: outgoing calls wait in line, at the pace that the partner's responses report.
//!
//! - `service` sends a call when its turn has come, and again if the partner rejected it. `layer` sets it up.
//! - `line` has the calls that wait for one partner, in order, and `partners` has all lines.
//! - `pace` computes when the next call may depart; `shared` does so on Redis, for several processes.
//! - `fields` reads a response, with a parser for structured fields (`structured`).

mod error;
mod fields;
mod layer;
mod line;
mod pace;
mod partners;
mod service;
#[cfg_attr(not(feature = "redis"), path = "unshared.rs")]
mod shared;
mod structured;
#[cfg(test)]
mod tests;

pub use self::error::PacerError;
pub use self::layer::PacerLayer;
pub use self::service::{Pacer, PacerFuture};
