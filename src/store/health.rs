//! [`NodeHealth`]: whether a server that holds budgets is called.

use std::sync::Arc;
use std::time::Duration;

/// The state of a node, which is a store's server, shard or endpoint with its own circuit breaker.
///
/// [`Stats::nodes`](super::Stats::nodes) has one for each node of a limiter's store. Your own
/// [`Backend`](crate::store::remote::Backend) returns its server's nodes:
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::store::{BreakerState, NodeHealth};
///
/// let breaker = BreakerState::Open { probe_in: Some(Duration::from_millis(70)) };
/// let shard = NodeHealth::new("shard-3", breaker).with_in_flight(2);
/// assert_eq!((shard.name(), shard.breaker(), shard.in_flight()), ("shard-3", breaker, Some(2)));
/// assert_eq!(shard.is_connected(), None, "not known");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct NodeHealth {
    name: Arc<str>,
    breaker: BreakerState,
    in_flight: Option<usize>,
    is_connected: Option<bool>,
}

/// The state of a node's circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls fail at once, until one call is let through as a probe.
    Open {
        /// The time after which the next call is the probe, if it is known. Zero once it has passed.
        probe_in: Option<Duration>,
    },
    /// One call probes whether the node has recovered; the others fail at once.
    HalfOpen,
}

impl NodeHealth {
    /// Creates the state of the node that is called `name` in log lines and metrics.
    ///
    /// Each of a store's nodes has a different name. It must not depend on client input, since each name is a series.
    pub fn new(name: impl Into<Arc<str>>, breaker: BreakerState) -> Self {
        Self { name: name.into(), breaker, in_flight: None, is_connected: None }
    }

    /// Sets how many calls to the node are in flight.
    pub fn with_in_flight(self, calls: usize) -> Self {
        Self { in_flight: Some(calls), ..self }
    }

    /// Sets whether this process has a connection to the node.
    pub fn with_connected(self, is_connected: bool) -> Self {
        Self { is_connected: Some(is_connected), ..self }
    }

    /// Returns the node's name. For a Redis node, this is its address: `HOST:PORT`, or a socket's path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its circuit breaker's state.
    #[must_use]
    pub const fn breaker(&self) -> BreakerState {
        self.breaker
    }

    /// Returns how many of this process's calls to the node are in flight, on all runtimes, if that is known.
    #[must_use]
    pub const fn in_flight(&self) -> Option<usize> {
        self.in_flight
    }

    /// Returns whether any of this process's runtimes has a connection to the node, if that is known.
    #[must_use]
    pub const fn is_connected(&self) -> Option<bool> {
        self.is_connected
    }
}
