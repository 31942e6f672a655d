//! A client that obeys its partner: outgoing calls wait in line, at the pace that the partner's responses report.
//!
//! - `call` sends a call when it is its turn, and again if the partner rejected it. `service` is its form as a service,
//!   `reqwest_client` its form for reqwest's clients, and `layer` sets it up.
//! - `line` has the calls that wait for one partner, in order, and `partners` has all lines.
//! - `pace` computes when the next call may depart. `shared` does so on Redis, for several processes.
//! - `health` counts the calls that a partner accepts, and decides by the settings in `throttle` whether a call is sent
//!   at all. `attempt` asks it and reports to it, and `meter` counts and logs.
//! - `fields` reads a response, with a parser for structured fields (`structured`); `statuses` says which responses are
//!   rejections.

mod attempt;
mod call;
mod error;
mod fields;
mod health;
mod layer;
mod line;
mod log;
mod meter;
mod pace;
mod partners;
#[cfg(feature = "reqwest")]
mod reqwest_client;
mod service;
#[cfg_attr(not(feature = "redis"), path = "unshared.rs")]
mod shared;
mod statuses;
mod structured;
#[cfg(test)]
mod tests;
mod throttle;
#[cfg(not(feature = "reqwest"))]
mod without_reqwest;

pub use self::error::PacerError;
pub use self::layer::PacerLayer;
pub use self::service::{Pacer, PacerFuture};
pub use self::statuses::WaitStatuses;
pub use self::throttle::AdaptiveThrottle;
