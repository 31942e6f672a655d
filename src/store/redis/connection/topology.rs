//! Which node is responsible for a key.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::cluster::Cluster;
use super::fault::{Fault, FaultKind};
use super::node::Node;
use super::sentinel::Sentinel;

/// The nodes, and how to find the one that is responsible for a key.
///
/// A single server is lent, not cloned (`Cow`): a counter of references that each call changes would be contended by
/// all threads.
pub(super) enum Topology {
    Single(Arc<Node>),
    Sentinel(Arc<Sentinel>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Returns the node that has a slot. Asks the sentinels or the cluster first if that is unknown.
    pub(super) async fn node(&self, slot: u16, deadline: Instant) -> Result<Cow<'_, Arc<Node>>, Fault> {
        match self {
            Self::Single(node) => Ok(Cow::Borrowed(node)),
            Self::Sentinel(sentinel) => sentinel.node(deadline).await.map(Cow::Owned),
            Self::Cluster(cluster) => cluster.node(slot, deadline).await.map(Cow::Owned),
        }
    }

    /// Returns the node that has a slot, if that is known without a call. Only in a cluster is the slot worked out.
    pub(super) fn known_node(&self, slot: impl FnOnce() -> u16) -> Option<Cow<'_, Arc<Node>>> {
        match self {
            Self::Single(node) => Some(Cow::Borrowed(node)),
            Self::Sentinel(sentinel) => sentinel.primary().map(Cow::Owned),
            Self::Cluster(cluster) => cluster.owner(slot()).map(Cow::Owned),
        }
    }

    /// Returns the node to which `source` redirected.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Misconfigured`] unless this is a cluster: only nodes of one redirect, so `source` should have been
    /// named as such. [`FaultKind::Unintelligible`] if the address cannot be read.
    pub(super) fn node_at(&self, address: &str, source: &Node) -> Result<Arc<Node>, Fault> {
        match self {
            Self::Cluster(cluster) => cluster.node_at(address, source),
            Self::Single(_) | Self::Sentinel(_) => {
                Err(Fault::new(FaultKind::Misconfigured, "this is a node of a cluster: use Redis::cluster"))
            }
        }
    }

    /// Prepares another attempt after `node` turned out to be a replica. Asks the sentinels or the cluster again, and
    /// waits for the answer; a single server is connected anew by the next call.
    pub(super) async fn refresh_now(&self, node: &Node, deadline: Instant) -> Result<(), Fault> {
        match self {
            Self::Single(_) => {
                // The name may resolve to another server by now.
                node.forget_connection();
                Ok(())
            }
            Self::Sentinel(sentinel) => sentinel.refresh_now(deadline).await,
            Self::Cluster(cluster) => cluster.refresh_now(deadline).await,
        }
    }

    /// Asks the sentinels or the cluster again, in the background. A single server has neither. Cheap enough to be
    /// called on each failure.
    pub(super) fn refresh_soon(&self) {
        match self {
            Self::Single(_) => {}
            Self::Sentinel(sentinel) => sentinel.refresh_soon(),
            Self::Cluster(cluster) => cluster.refresh_soon(),
        }
    }

    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the nodes that are known.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::Single(node) => vec![node.clone()],
            Self::Sentinel(sentinel) => sentinel.primary().into_iter().collect(),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }
}
