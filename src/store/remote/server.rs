//! [`Server`]: the methods that limiters need from any server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backend::{GaveUp, deadline_in};
use crate::store::NodeHealth;
use crate::values::LimiterError;

/// A server as a process sees it. It may keep [`Records`](super::Records), [`Accounts`](super::Accounts), [units in
/// flight](super::InFlight), [departure times](super::Departures). Its data has names, which processes agree on.
pub trait Server: Send + Sync + 'static {
    /// Returns how long a decision may take in total: its calls, and the wait for them.
    fn timeout(&self) -> Duration;

    /// Returns whether both keep the same data, so that a limiter over this inherits from one over the other.
    fn is_same_as(&self, other: &Self) -> bool
    where
        Self: Sized;

    /// Returns the secret for the hashes that stand for keys, so that a reader of the server's data cannot find the
    /// keys by trying. Processes that share limits agree on it. Empty by default.
    fn secret(&self) -> &[u8] {
        &[]
    }

    /// Returns the state of each server node, for metrics: circuit breaker and calls in flight. By default it reports
    /// no node.
    ///
    /// Called when metrics are collected, and never on the path of a request. It reports from this process's memory,
    /// and makes no call. Nodes have distinct names. [`Calls::health`](super::Calls::health) returns one node's state.
    fn health(&self) -> Vec<NodeHealth> {
        Vec::new()
    }

    /// Returns the error for a request that this process gave up. By default it has the reason as its source.
    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        LimiterError::new(reason.to_string()).with_source(reason)
    }
}

/// Returns when a decision that begins now must be over.
pub(crate) fn deadline_of(server: &impl Server) -> Instant {
    deadline_in(server.timeout())
}

/// Shares the server.
impl<S: Server> Server for Arc<S> {
    fn timeout(&self) -> Duration {
        S::timeout(self)
    }

    fn is_same_as(&self, other: &Self) -> bool {
        S::is_same_as(self, other)
    }

    fn secret(&self) -> &[u8] {
        S::secret(self)
    }

    fn health(&self) -> Vec<NodeHealth> {
        S::health(self)
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        S::gave_up(self, reason)
    }
}
