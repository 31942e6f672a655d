//! Which node is responsible for a key.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::fault::Fault;
use super::node::Node;
use super::node_map::{NodeMap, not_opened_as_cluster};

/// The nodes. Finds the node that is responsible for a key.
///
/// A single server is lent, not cloned (`Cow`), because all threads would contend for a reference counter that each
/// call changes.
pub(super) enum Topology {
    Single(Arc<Node>),
    Mapped(Arc<NodeMap>),
}

impl Topology {
    /// Returns the node that has a slot. Asks the sentinels or the cluster first if that is unknown.
    pub(super) async fn node(&self, slot: u16, deadline: Instant) -> Result<Cow<'_, Arc<Node>>, Fault> {
        match self {
            Self::Single(node) => Ok(Cow::Borrowed(node)),
            Self::Mapped(map) => map.node(slot, deadline).await.map(Cow::Owned),
        }
    }

    /// Returns the node that has a slot, if that is known without a call. `slot` is only called in a cluster.
    pub(super) fn known_node(&self, slot: impl FnOnce() -> u16) -> Option<Cow<'_, Arc<Node>>> {
        match self {
            Self::Single(node) => Some(Cow::Borrowed(node)),
            Self::Mapped(map) => map.owner(slot).map(Cow::Owned),
        }
    }

    /// Returns the node to which `source` redirected, see [`NodeMap::node_at`].
    pub(super) fn node_at(&self, address: &str, source: &Node) -> Result<Arc<Node>, Fault> {
        match self {
            Self::Single(_) => Err(not_opened_as_cluster()),
            Self::Mapped(map) => map.node_at(address, source),
        }
    }

    /// Prepares another attempt after `node` turned out to be a replica. Asks the sentinels or the cluster again, and
    /// waits for the answer; a single server is connected again by the next call.
    pub(super) async fn refresh_now(&self, node: &Node, deadline: Instant) -> Result<(), Fault> {
        match self {
            Self::Single(_) => {
                // The name may resolve to another server by now.
                node.forget_connection();
                Ok(())
            }
            Self::Mapped(map) => map.refresh_now(deadline).await,
        }
    }

    /// Asks the sentinels or the cluster again, in the background. A single server needs no refresh. Cheap enough to be
    /// called on each failure.
    pub(super) fn refresh_soon(&self) {
        if let Self::Mapped(map) = self {
            map.refresh_soon();
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Mapped(map) if map.is_cluster())
    }

    /// Returns the nodes that are known.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::Single(node) => vec![node.clone()],
            Self::Mapped(map) => map.nodes(),
        }
    }
}
