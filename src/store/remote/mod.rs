//! What a store on a server needs beyond its server.

mod backend;
mod backoff;
mod circuit_breaker;
mod key_cache;
mod leases;
mod negative_cache;
mod query;
mod single_flight;
mod store;
mod tag;

pub use self::backend::{Applied, Backend, CallLimits, GaveUp, Target, Transition};
pub use self::circuit_breaker::BreakerState;
pub use self::store::RemoteStore;

#[cfg(test)]
pub(crate) use self::backend::Decisions;
pub(crate) use self::backoff::pause as pause_after;
pub(crate) use self::circuit_breaker::{CallPermit, CircuitBreaker};
pub(crate) use self::negative_cache::{NegativeCache, Observation};
pub(crate) use self::query::{Answered, KeyQuery, StoreInner};
pub(crate) use self::tag::{Tag, Tags};
