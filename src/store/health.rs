//! [`NodeHealth`]: whether a server that holds budgets is called.

use std::sync::Arc;
use std::time::Duration;

/// The state of a node: a server, shard or endpoint of a store that has a circuit breaker of its own.
///
/// [`Stats::nodes`](super::Stats::nodes) has one for each node of a limiter's store. A
/// [`Backend`](crate::store::remote::Backend) of your own returns the nodes of its server:
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

/// The state of the circuit breaker of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls fail at once, until one call is let through as a probe.
    Open {
        /// The time after which the next call is the probe, if it is known; zero once it has passed.
        probe_in: Option<Duration>,
    },
    /// One call probes whether the node has recovered; the others fail at once.
    HalfOpen,
}

impl NodeHealth {
    /// Creates the state of the node that is called `name` in log lines and metrics.
    ///
    /// Each node of a store has another name. It must not depend on what clients send, since each name is a series.
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

    /// Returns the name of the node. For a node of Redis, this is its address: `HOST:PORT`, or the path of a socket.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the state of its circuit breaker.
    #[must_use]
    pub const fn breaker(&self) -> BreakerState {
        self.breaker
    }

    /// Returns how many calls of this process to the node are in flight, on all runtimes, if that is known.
    #[must_use]
    pub const fn in_flight(&self) -> Option<usize> {
        self.in_flight
    }

    /// Returns whether any runtime of this process has a connection to the node, if that is known.
    #[must_use]
    pub const fn is_connected(&self) -> Option<bool> {
        self.is_connected
    }
}
