//! What a store on a server needs beyond its server.

mod backoff;
mod circuit_breaker;
mod key_cache;
mod leases;
mod negative_cache;
mod single_flight;
mod tag;

pub use self::circuit_breaker::BreakerState;

pub(crate) use self::backoff::pause as pause_after;
pub(crate) use self::circuit_breaker::{CallPermit, CircuitBreaker};
pub(crate) use self::leases::{Lease, LeaseAction, LeaseReceipt, Leases, Price, Unspent};
pub(crate) use self::negative_cache::{NegativeCache, Observation};
pub(crate) use self::single_flight::{
    BATCH, Collector, FlightKey, FollowerOutcome, Group, Join, PendingFollower, SingleFlight,
};
pub(crate) use self::tag::{Tag, Tags};
