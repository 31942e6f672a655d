//! A Redis cluster: which node has which slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ::redis::{Cmd, ConnectionInfo, FromRedisValue, Value};
use tokio::time::Instant;

use super::address;
use super::fault::{Fault, Reason};
use super::node::{Node, Settings};
use super::refresh::Refresh;
use crate::util::log;

/// Many primaries, each with some of the slots.
pub(super) struct Cluster {
    seeds: Vec<Arc<Node>>,
    /// User, password and TLS for all nodes.
    like: ConnectionInfo,
    settings: Arc<Settings>,
    map: RwLock<Arc<[Range]>>,
    /// Replicas as well: when a primary is gone, they know its successor.
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    refresh: Refresh,
}

/// Adjacent slots of one node. Sorted, and they do not overlap.
#[derive(Clone)]
struct Range {
    first: u16,
    last: u16,
    node: Arc<Node>,
}

/// A range of slots, and all nodes that have it: the primary first.
type Assignment = (Range, Vec<Arc<Node>>);

impl Cluster {
    pub(super) fn new(seeds: Vec<ConnectionInfo>, settings: Arc<Settings>) -> Result<Arc<Self>, Fault> {
        let like = seeds.first().cloned().ok_or_else(|| Fault::new(Reason::Misconfigured, "no address is given"))?;
        let seeds: Vec<_> = seeds.into_iter().map(|it| Node::new(it, settings.clone())).collect::<Result<_, _>>()?;
        let nodes = Mutex::new(by_address(seeds.iter().cloned()));
        let (map, refresh) = (RwLock::new(Arc::from([])), Refresh::default());
        Ok(Arc::new(Self { seeds, like, settings, map, nodes, refresh }))
    }

    pub(super) async fn node(self: &Arc<Self>, slot: u16, deadline: Instant) -> Result<Arc<Node>, Fault> {
        if let Some(node) = self.owner(slot) {
            return Ok(node);
        }
        self.refresh_now(deadline).await?;
        self.owner(slot).ok_or_else(|| Fault::new(Reason::ClusterDown, format!("no node has slot {slot}")))
    }

    /// Returns the node at `HOST:PORT`, as reported by `source`.
    pub(super) fn node_at(&self, text: &str, source: &Node) -> Result<Arc<Node>, Fault> {
        let Some((host, port)) = address::host_and_port(text) else {
            return Err(Fault::new(Reason::Unintelligible, format!("redirected to `{text}`")));
        };
        self.node_of(host, port, source.server())
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.lock().values().cloned().collect()
    }

    pub(super) async fn refresh_now(self: &Arc<Self>, deadline: Instant) -> Result<(), Fault> {
        self.refresh.run(deadline, || self.clone().ask_any_node()).await
    }

    pub(super) fn refresh_soon(self: &Arc<Self>) {
        self.refresh.start(|| self.clone().ask_any_node());
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let range = map.get(map.partition_point(|range| range.last < slot))?;
        (range.first <= slot).then(|| range.node.clone())
    }

    /// Asks one node after the other until one answers, healthy nodes first.
    async fn ask_any_node(self: Arc<Self>) -> Result<(), Fault> {
        let mut nodes = self.nodes();
        nodes.sort_by_key(|node| !node.is_healthy());
        let mut fault = Fault::from(Reason::Unreachable);
        for node in nodes {
            // A healthy node that does not answer swallows packets, so there is no point in a longer wait.
            let patience = if node.is_healthy() { self.settings.timeout * 2 } else { self.settings.connect_timeout };
            let mut question = Cmd::new();
            question.arg("CLUSTER").arg("SLOTS");
            match node.ask(question, Instant::now() + patience).await.and_then(|answer| self.read(answer, &node)) {
                Ok(map) => {
                    self.adopt(map);
                    return Ok(());
                }
                Err(other) => fault = other,
            }
        }
        Err(fault)
    }

    /// Reads `[[first, last, [host, port, …], replica…]…]`.
    fn read(&self, answer: Value, source: &Node) -> Result<Vec<Assignment>, Fault> {
        let unclear = || Fault::new(Reason::Unintelligible, "the answer to CLUSTER SLOTS");
        let rows = Vec::<Vec<Value>>::from_redis_value(answer).map_err(|_| unclear())?;
        let mut map = Vec::with_capacity(rows.len());
        for row in rows {
            let [Value::Int(first), Value::Int(last), nodes @ ..] = row.as_slice() else {
                return Err(unclear());
            };
            let nodes: Vec<_> = nodes.iter().map(|node| self.read_node(node, source)).collect::<Result<_, _>>()?;
            let (Ok(first), Ok(last), Some(node)) = (u16::try_from(*first), u16::try_from(*last), nodes.first()) else {
                return Err(unclear());
            };
            map.push((Range { first, last, node: node.clone() }, nodes));
        }
        if map.is_empty() {
            return Err(Fault::new(Reason::ClusterDown, format!("{} knows of no slots", source.address())));
        }
        map.sort_by_key(|(range, _)| range.first);
        Ok(map)
    }

    fn read_node(&self, node: &Value, source: &Node) -> Result<Arc<Node>, Fault> {
        let unclear = || Fault::new(Reason::Unintelligible, "a node in the answer to CLUSTER SLOTS");
        let Value::Array(fields) = node else {
            return Err(unclear());
        };
        let [host, Value::Int(port), ..] = fields.as_slice() else {
            return Err(unclear());
        };
        let host = Option::<String>::from_redis_value(host.clone()).map_err(|_| unclear())?.unwrap_or_default();
        self.node_of(&host, u16::try_from(*port).map_err(|_| unclear())?, source.server())
    }

    /// A host that is missing or unknown is that of `source`.
    fn node_of(&self, host: &str, port: u16, source: &ConnectionInfo) -> Result<Arc<Node>, Fault> {
        let host = if matches!(host, "" | "?") { address::host(source).unwrap_or_default() } else { host };
        let server = address::moved_to(&self.like, host.to_owned(), port);
        let address = server.addr().to_string();
        let mut nodes = self.lock();
        if let Some(node) = nodes.get(&address) {
            return Ok(node.clone());
        }
        let node = Node::new(server, self.settings.clone())?;
        nodes.insert(address, node.clone());
        Ok(node)
    }

    fn adopt(&self, map: Vec<Assignment>) {
        let mut nodes = by_address(self.seeds.iter().cloned());
        nodes.extend(by_address(map.iter().flat_map(|(_, nodes)| nodes.iter().cloned())));
        let mut ranges: Vec<Range> = Vec::with_capacity(map.len());
        for (range, _) in map {
            match ranges.last_mut() {
                // Adjacent ranges of one node are merged.
                Some(last) if last.last + 1 == range.first && Arc::ptr_eq(&last.node, &range.node) => {
                    last.last = range.last
                }
                _ => ranges.push(range),
            }
        }
        let text = |ranges: &[Range]| {
            let ranges = ranges.iter().map(|it| format!("{}-{} {}", it.first, it.last, it.node.address()));
            ranges.collect::<Vec<_>>().join(", ")
        };
        let after = text(&ranges);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let before = text(&map);
        *map = ranges.into();
        drop(map);
        *self.lock() = nodes;
        if !before.is_empty() && before != after {
            log::redis_topology_changed(&after);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_address(nodes: impl Iterator<Item = Arc<Node>>) -> HashMap<String, Arc<Node>> {
    nodes.map(|node| (node.address().to_string(), node)).collect()
}
