//! [`NodeSettings`]: what all nodes have in common.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The settings of all nodes.
#[derive(Debug)]
pub(super) struct NodeSettings {
    /// For a decision, all in all. A node that has not answered a call by then has failed.
    pub(super) timeout: Duration,
    /// For a connection, which may be made in the background.
    pub(super) connect_timeout: Duration,
    /// The most calls of one runtime to one node.
    pub(super) max_in_flight: usize,
    /// Whether the eviction settings of a server were checked, or are being checked: the first that is connected.
    pub(super) eviction_checked: AtomicBool,
    #[cfg(test)]
    pub(super) connector: Option<super::connector::Connector>,
}
