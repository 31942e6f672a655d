//! [`NodeSettings`]: the settings for all nodes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The settings for all nodes.
#[derive(Debug)]
pub(super) struct NodeSettings {
    /// A whole decision's timeout. A node that has not answered a call by then has failed.
    pub(super) timeout: Duration,
    /// The timeout for connecting, which may continue in the background.
    pub(super) connect_timeout: Duration,
    /// The maximum number of calls from one runtime to one node.
    pub(super) max_in_flight: usize,
    /// Whether the first connected server's eviction settings were checked, or are being checked.
    pub(super) eviction_checked: AtomicBool,
    #[cfg(test)]
    pub(super) connector: Option<super::connector::Connector>,
}
