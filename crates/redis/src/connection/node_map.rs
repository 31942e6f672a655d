//! [`NodeMap`]: which node has which slots, by the answers from a cluster or from sentinels.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use ::redis::{Cmd, ConnectionInfo, FromRedisValue, Value};
use tokio::time::Instant;
use tower_sluice::internal::{Lock, random};

use super::fault::RedisFault as _;
use super::fault::{Fault, FaultKind};
use super::node::Node;
use super::refresh::Refresh;
use super::sentinels::Sentinels;
use super::settings::NodeSettings;
use super::{address, log};
use crate::script::SLOTS;

/// The primaries, each with some of the slots: many in a cluster, a single one with sentinels.
pub(super) struct NodeMap {
    source: MapSource,
    /// User, password, database and TLS for nodes that are not among the seeds.
    like: ConnectionInfo,
    settings: Arc<NodeSettings>,
    map: RwLock<Arc<[SlotRange]>>,
    /// By address. Includes replicas: when a primary is gone, they know its successor.
    nodes: Lock<BTreeMap<String, Arc<Node>>>,
    refresh: Refresh,
}

/// Where the map comes from.
enum MapSource {
    /// A cluster, with the nodes that are known from the beginning.
    Seeds(Vec<Arc<Node>>),
    Sentinels(Sentinels),
}

/// One node's adjacent slots. In the map, ranges are sorted, and do not overlap.
#[derive(Clone)]
struct SlotRange {
    first: u16,
    last: u16,
    node: Arc<Node>,
}

/// A range of slots, and all nodes that have it, the primary first.
type Assignment = (SlotRange, Vec<Arc<Node>>);

impl NodeMap {
    pub(super) fn for_cluster(seeds: Vec<ConnectionInfo>, settings: Arc<NodeSettings>) -> Result<Arc<Self>, Fault> {
        let like = seeds.first().cloned().ok_or_else(|| Fault::new(FaultKind::Misconfigured, "no address is given"))?;
        let seeds: Vec<_> = seeds.into_iter().map(|it| Node::new(it, settings.clone())).collect::<Result<_, _>>()?;
        Ok(Self::new(MapSource::Seeds(seeds), like, settings))
    }

    pub(super) fn for_sentinels(
        master: String,
        sentinels: Vec<ConnectionInfo>,
        like: ConnectionInfo,
        settings: Arc<NodeSettings>,
    ) -> Result<Arc<Self>, Fault> {
        let sentinels = Sentinels::new(master, sentinels, settings.connect_timeout)?;
        Ok(Self::new(MapSource::Sentinels(sentinels), like, settings))
    }

    fn new(source: MapSource, like: ConnectionInfo, settings: Arc<NodeSettings>) -> Arc<Self> {
        let nodes = Lock::new(index_by_address(source.seeds().iter().cloned()));
        let map = RwLock::new(Arc::from([]));
        let refresh = Refresh::default();
        Arc::new(Self { source, like, settings, map, nodes, refresh })
    }

    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self.source, MapSource::Seeds(_))
    }

    /// Returns the node that has a slot. Asks for it first if that is unknown.
    pub(super) async fn node(self: &Arc<Self>, slot: u16, deadline: Instant) -> Result<Arc<Node>, Fault> {
        if let Some(node) = self.owner(|| slot) {
            return Ok(node);
        }
        self.refresh_now(deadline).await?;
        self.owner(|| slot).ok_or_else(|| Fault::new(FaultKind::ClusterDown, format!("no node has slot {slot}")))
    }

    /// Returns the node at `HOST:PORT`, to which `source` redirected.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Misconfigured`] unless this is a cluster: other nodes do not redirect.
    /// [`FaultKind::Unintelligible`] if the address cannot be read.
    pub(super) fn node_at(&self, text: &str, source: &Node) -> Result<Arc<Node>, Fault> {
        if !self.is_cluster() {
            return Err(not_opened_as_cluster());
        }
        let Some((host, port)) = address::host_and_port(text) else {
            return Err(Fault::new(FaultKind::Unintelligible, format!("redirected to `{text}`")));
        };
        self.node_of(host, port, source.server())
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().values().cloned().collect()
    }

    pub(super) async fn refresh_now(self: &Arc<Self>, deadline: Instant) -> Result<(), Fault> {
        self.refresh.run(deadline, || self.clone().ask()).await
    }

    pub(super) fn refresh_soon(self: &Arc<Self>) {
        self.refresh.start(|| self.clone().ask());
    }

    /// Returns the node that has a slot, if that is known. `slot` is only called if there is a choice.
    pub(super) fn owner(&self, slot: impl FnOnce() -> u16) -> Option<Arc<Node>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let [SlotRange { first: 0, last: LAST, node }] = &*map {
            return Some(node.clone());
        }
        let slot = slot();
        let range = map.get(map.partition_point(|range| range.last < slot))?;
        (range.first <= slot).then(|| range.node.clone())
    }

    async fn ask(self: Arc<Self>) -> Result<(), Fault> {
        let MapSource::Sentinels(sentinels) = &self.source else { return self.ask_any_node().await };
        let (host, port) = sentinels.ask().await?;
        let node = self.node_of(&host, port, &self.like)?;
        self.adopt(vec![(SlotRange { first: 0, last: LAST, node: node.clone() }, vec![node])]);
        Ok(())
    }

    /// Asks one node after the other until one answers: healthy nodes first, in a random order, so that processes that
    /// lost a node together ask different ones.
    async fn ask_any_node(&self) -> Result<(), Fault> {
        let mut nodes = self.nodes();
        let first = usize::try_from(random() % nodes.len().max(1) as u64).expect("less than the number of nodes");
        nodes.rotate_left(first);
        nodes.sort_by_cached_key(|node| !node.is_healthy());
        let mut faults = Vec::new();
        for node in nodes {
            // A healthy node that does not answer within twice a call's time will not answer: it hangs, or the network
            // drops packets. Other nodes may have to be connected first.
            let patience = if node.is_healthy() { self.settings.timeout * 2 } else { self.settings.connect_timeout };
            let mut question = Cmd::new();
            question.arg("CLUSTER").arg("SLOTS");
            match node.ask(question, Instant::now() + patience).await.and_then(|answer| self.read(answer, &node)) {
                Ok(map) => {
                    self.adopt(map);
                    return Ok(());
                }
                Err(fault) => faults.push(fault.naming(node.address())),
            }
        }
        Err(Fault::most_telling(faults))
    }

    /// Reads `[[first, last, [host, port, …], replica…]…]`.
    fn read(&self, answer: Value, source: &Node) -> Result<Vec<Assignment>, Fault> {
        let unclear = || Fault::new(FaultKind::Unintelligible, "the answer to CLUSTER SLOTS");
        let rows = Vec::<Vec<Value>>::from_redis_value(answer).map_err(|_| unclear())?;
        let mut map = Vec::with_capacity(rows.len());
        for row in rows {
            let [Value::Int(first), Value::Int(last), nodes @ ..] = row.as_slice() else {
                return Err(unclear());
            };
            let nodes: Vec<_> = nodes.iter().map(|node| self.read_node(node, source)).collect::<Result<_, _>>()?;
            let (Some(first), Some(last), Some(node)) = (slot(*first), slot(*last), nodes.first()) else {
                return Err(unclear());
            };
            map.push((SlotRange { first, last, node: node.clone() }, nodes));
        }
        if map.is_empty() {
            return Err(Fault::new(FaultKind::ClusterDown, "the node knows of no slots"));
        }
        map.sort_by_key(|(range, _)| range.first);
        let is_in_order = map.iter().all(|(range, _)| range.first <= range.last)
            && map.windows(2).all(|pair| pair[0].0.last < pair[1].0.first);
        if is_in_order { Ok(map) } else { Err(unclear()) }
    }

    fn read_node(&self, node: &Value, source: &Node) -> Result<Arc<Node>, Fault> {
        let unclear = || Fault::new(FaultKind::Unintelligible, "a node in the answer to CLUSTER SLOTS");
        let Value::Array(fields) = node else {
            return Err(unclear());
        };
        let [host, Value::Int(port), ..] = fields.as_slice() else {
            return Err(unclear());
        };
        let host = Option::<String>::from_redis_value(host.clone()).map_err(|_| unclear())?.unwrap_or_default();
        self.node_of(&host, u16::try_from(*port).map_err(|_| unclear())?, source.server())
    }

    /// Returns the node at an address that `source` reported: a known node, or a new one. If the host is missing or
    /// unknown, takes the host from `source`.
    fn node_of(&self, host: &str, port: u16, source: &ConnectionInfo) -> Result<Arc<Node>, Fault> {
        let host = if matches!(host, "" | "?") { address::host(source).unwrap_or_default() } else { host };
        let server = address::moved_to(&self.like, host.to_owned(), port);
        let address = server.addr().to_string();
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&address) {
            return Ok(node.clone());
        }
        let node = Node::new(server, self.settings.clone())?;
        nodes.insert(address, node.clone());
        Ok(node)
    }

    /// Replaces the map, and forgets the nodes that are not in it, except the seeds.
    fn adopt(&self, map: Vec<Assignment>) {
        let mut nodes = index_by_address(self.source.seeds().iter().cloned());
        nodes.extend(index_by_address(map.iter().flat_map(|(_, nodes)| nodes.iter().cloned())));
        let mut ranges: Vec<SlotRange> = Vec::with_capacity(map.len());
        for (range, _) in map {
            match ranges.last_mut() {
                // One node's adjacent ranges are merged.
                Some(previous) if previous.last + 1 == range.first && Arc::ptr_eq(&previous.node, &range.node) => {
                    previous.last = range.last;
                }
                _ => ranges.push(range),
            }
        }
        let text = |ranges: &[SlotRange]| {
            let ranges = ranges.iter().map(|it| match it {
                SlotRange { first: 0, last: LAST, node } => node.address().to_string(),
                SlotRange { first, last, node } => format!("{first}-{last} {}", node.address()),
            });
            ranges.collect::<Vec<_>>().join(", ")
        };
        let after = text(&ranges);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let before = text(&map);
        *map = ranges.into();
        drop(map);
        *self.nodes.lock() = nodes;
        if !before.is_empty() && before != after {
            log::topology_changed(&after);
        }
    }
}

impl MapSource {
    fn seeds(&self) -> &[Arc<Node>] {
        match self {
            Self::Seeds(nodes) => nodes,
            Self::Sentinels(_) => &[],
        }
    }
}

/// The last slot.
const LAST: u16 = SLOTS - 1;

/// The fault for a server that redirects, and was not named as a cluster's node.
pub(super) fn not_opened_as_cluster() -> Fault {
    Fault::new(FaultKind::Misconfigured, "this is a node of a cluster: use Redis::cluster")
}

/// Returns the slot with this number, if there is one.
fn slot(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| *slot < SLOTS)
}

fn index_by_address(nodes: impl Iterator<Item = Arc<Node>>) -> BTreeMap<String, Arc<Node>> {
    nodes.map(|node| (node.address().to_string(), node)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    fn cluster() -> Arc<NodeMap> {
        let seed = address::parse("redis://10.0.0.1:6379").unwrap();
        let timeout = Duration::from_millis(50);
        let settings = NodeSettings {
            timeout,
            connect_timeout: timeout,
            max_in_flight: 1,
            eviction_checked: AtomicBool::new(false),
            connector: None,
        };
        NodeMap::for_cluster(vec![seed], Arc::new(settings)).unwrap()
    }

    /// An answer to `CLUSTER SLOTS`, with a port for each range.
    fn answer(ranges: &[(i64, i64, i64)]) -> Value {
        let rows = ranges.iter().map(|(first, last, port)| {
            let node = Value::Array(vec![Value::BulkString(b"10.0.0.1".to_vec()), Value::Int(*port)]);
            Value::Array(vec![Value::Int(*first), Value::Int(*last), node])
        });
        Value::Array(rows.collect())
    }

    fn owner(cluster: &NodeMap, slot: u16) -> Option<String> {
        cluster.owner(|| slot).map(|node| node.address().to_string())
    }

    #[test]
    fn each_slot_has_its_node() {
        let cluster = cluster();
        let answer = answer(&[(200, LAST.into(), 3), (0, 99, 1), (100, 149, 1)]);
        let map = cluster.read(answer, &cluster.source.seeds()[0]).unwrap();
        cluster.adopt(map);
        for (slot, port) in [(0, 1), (99, 1), (100, 1), (149, 1), (200, 3), (LAST, 3)] {
            assert_eq!(owner(&cluster, slot), Some(format!("10.0.0.1:{port}")), "{slot}");
        }
        for slot in [150, 199] {
            assert_eq!(owner(&cluster, slot), None, "{slot}");
        }
        assert_eq!(cluster.map.read().unwrap().len(), 2, "adjacent ranges of one node are merged");
    }

    #[test]
    fn a_senseless_map_is_a_fault() {
        let cluster = cluster();
        // The slot after this one would overflow.
        let greatest = i64::from(u16::MAX);
        for (ranges, kind) in [
            (&[][..], FaultKind::ClusterDown),
            (&[(0, i64::from(SLOTS), 1)], FaultKind::Unintelligible),
            (&[(-1, 5, 1)], FaultKind::Unintelligible),
            (&[(0, greatest, 1), (greatest, greatest, 1)], FaultKind::Unintelligible),
            (&[(9, 5, 1)], FaultKind::Unintelligible),
            (&[(0, 5, 1), (5, 9, 2)], FaultKind::Unintelligible),
            // Greater than any port.
            (&[(0, 5, greatest + 1)], FaultKind::Unintelligible),
        ] {
            let fault = cluster.read(answer(ranges), &cluster.source.seeds()[0]).map(drop).unwrap_err();
            assert_eq!(fault.kind(), kind, "{ranges:?}");
        }
    }
}
