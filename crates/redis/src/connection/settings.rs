//! [`NodeSettings`]: the settings of all nodes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The settings of all nodes.
#[derive(Debug)]
pub(super) struct NodeSettings {
    /// The timeout of a whole decision. A node that has not answered a call by then has failed.
    pub(super) timeout: Duration,
    /// The timeout of connecting, which may continue in the background.
    pub(super) connect_timeout: Duration,
    /// The most calls of one runtime to one node.
    pub(super) max_in_flight: usize,
    /// Whether the eviction settings of the first connected server were checked, or are being checked.
    pub(super) eviction_checked: AtomicBool,
    #[cfg(test)]
    pub(super) connector: Option<super::connector::Connector>,
}
