//! Connections to Redis: routing, timeouts, circuit breaking.
//!
//! The `redis` crate speaks the protocol, over one connection per node. This module decides when to connect, how long
//! to wait, which node to call, and when to make no call, because a client that repeats a call whose answer it missed
//! would charge twice.

mod address;
mod builder;
mod bundle;
mod call_metrics;
mod command;
mod connections;
#[cfg(test)]
mod connector;
mod eviction_check;
mod fault;
mod log;
mod node;
mod node_call;
mod node_map;
mod refresh;
mod sentinels;
mod settings;
mod shared_task;
#[cfg(test)]
mod tests;
mod topology;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::Value;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

#[cfg(test)]
pub(crate) use self::command::evalsha;
#[cfg(test)]
pub(crate) use self::connector::Connector;

pub use self::builder::RedisBuilder;
pub(crate) use self::bundle::ScriptCaller;
pub(crate) use self::fault::RedisFault;
pub use self::fault::{Fault, FaultKind};

use tower_sluice::LimiterError;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::{CallLimits, GaveUp, Server};

use self::builder::Servers;
use self::bundle::BundleState;
use self::call_metrics::CallMetrics;
use self::node_call::NodeReply;
use self::settings::NodeSettings;
use self::topology::Topology;
use crate::script::{Key, ScriptCall};

/// A Redis server, or several that act as one, on which processes share budgets. Redis 6.2 or newer (tested with 7.0),
/// or Valkey, with 64 bits: the Lua in a 32-bit server cannot print times in microseconds, and the calls fail.
///
/// Clones share their connections. There is one connection per node and Tokio runtime. The runtime that needs a
/// connection makes it, and drives it from then on. So a runtime that is blocked, or that is not driven, delays its own
/// calls and no others. A server with one runtime per core has one connection per core to each node.
///
/// # When Redis fails
///
/// - A decision takes no longer than the [`timeout`](RedisBuilder::timeout). A call that may have been carried out is
///   never repeated.
/// - Each node has a circuit breaker. It opens after five failures in a row, or when half of at least twenty calls in
///   the last ten seconds failed, and then calls fail at once. But all calls that had begun before the first failure
///   count as one wave, and two waves are needed. So if the server pauses for up to two timeouts, the calls in that
///   time fail, but the breaker stays closed, and a dead node's breaker is open after two timeouts. After a random
///   pause, up to 100 ms at first, one call probes the node, and no other request waits for it. When the probe
///   succeeds, the breaker closes. While probes fail, pauses grow to up to 5 s; to up to 1 s if the node answers with
///   an error (`LOADING`, `OOM`).
/// - A call that is cancelled, or that has less than the timeout left when its node is called, is watched in the
///   background until the node has had the whole timeout, and its outcome then counts.
/// - All failures to connect count, including a login that the server does not accept.
/// - Only [`max_in_flight`](RedisBuilder::max_in_flight) calls may wait for a node.
///
/// # Permissions
///
/// An ACL user needs `+eval +evalsha +get +set +del +time +pttl` and the keys `~sluice:*` (or of your
/// [`prefix`](RedisBuilder::prefix)), and with [`SharedConcurrency`](tower_sluice::SharedConcurrency) or
/// [`SharedBalance`](tower_sluice::SharedBalance) `+hget +hgetall +hset +hdel +pexpireat` as well; in a cluster,
/// `+cluster|slots +asking`; for a database other than 0, `+select`. With `+config|get`, a warning is logged if the
/// server may evict keys.
///
/// # One node of a cluster
///
/// You may name a cluster with one node as a [`single`](Self::single) server. Once it has answered that it wants a
/// call's keys in one slot, policies whose keys are in different slots are decided in a call each. If the cluster has
/// several nodes, calls for the other nodes' keys fail with an error that says so.
///
/// # TLS
///
/// `rediss://` verifies the server against the authorities that the system trusts. For your own authority, name a file
/// with its certificate in the environment, `SSL_CERT_FILE=authority.pem`, which replaces the system's, or add it to
/// the system's. You cannot set client certificates yet; where they are required, connect through a TLS proxy on the
/// same machine. `#insecure` behind an address, which would accept any certificate, is refused.
///
/// # Addresses
///
/// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, where all but the host is optional; `rediss://` for TLS (feature
/// `tls`; your program must have installed a `CryptoProvider` of `rustls`); `unix:///PATH`.
#[derive(Clone)]
pub struct Redis(Arc<RedisInner>);

struct RedisInner {
    topology: Topology,
    settings: Arc<NodeSettings>,
    prefix: String,
    secret: Vec<u8>,
    calls: CallMetrics,
    /// The bundles for all queues: queues with the same quota may share calls.
    queue_bundles: Arc<BundleState>,
    /// Whether a server that was not opened as a cluster wants a call's keys in one slot, because it is a cluster's
    /// only node.
    is_split: AtomicBool,
}

/// How often a call is sent again at most, because of a redirection or for another reason. While the nodes agree, there
/// is one redirection.
const MAX_HOPS: u32 = 5;

/// How long to wait for keys that are being moved, before the one further attempt. Small keys arrive within this time,
/// and it leaves enough of a decision's 50 ms for the attempt.
const ON_THE_WAY: Duration = Duration::from_millis(5);

impl Redis {
    /// Uses one server, with the default settings. Does not connect yet.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::open`].
    pub fn open(url: impl Into<String>) -> Result<Self, Fault> {
        Self::single(url).open()
    }

    /// Uses one server.
    pub fn single(url: impl Into<String>) -> RedisBuilder {
        RedisBuilder::new(Servers::Single(url.into()))
    }

    /// Uses a primary with replicas, and the sentinels that watch over them.
    ///
    /// `master` is the primary's name on the sentinels; or a URL with this name as its host, if you need a password, a
    /// database or TLS: `redis://USER:PASSWORD@NAME/DATABASE`. `urls` are the sentinels' URLs.
    ///
    /// The sentinels are asked at first, and when calls fail. A primary that is cut off from them, but not from this
    /// process, is used while it accepts writes, and its charges after its successor's promotion are lost. Set
    /// `min-replicas-to-write` on the servers to bound the loss.
    pub fn sentinel<U: Into<String>>(master: impl Into<String>, urls: impl IntoIterator<Item = U>) -> RedisBuilder {
        RedisBuilder::new(Servers::Sentinel(master.into(), urls.into_iter().map(Into::into).collect()))
    }

    /// Uses a cluster with some nodes at these URLs. The first URL's user, password and TLS hold for all nodes that are
    /// not named here.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedisBuilder {
        RedisBuilder::new(Servers::Cluster(urls.into_iter().map(Into::into).collect()))
    }

    /// Checks that the server answers within the [timeout](RedisBuilder::timeout), for a readiness probe; in a cluster,
    /// that all primaries do. Connects if needed, even while circuit breakers are open, and needs only the permissions
    /// above. One round trip.
    ///
    /// An answer closes a circuit breaker that opened because the server was unreachable or did not answer in time, so
    /// that a process without requests reports a recovery, too. It does not close a breaker that opened for another
    /// reason, because a server without memory answers this, too.
    ///
    /// While Redis is unreachable, policies follow their [`FailureMode`](tower_sluice::FailureMode). With the local
    /// fallback, a process that is not ready by this could still serve.
    ///
    /// ```no_run
    /// # async fn ready(redis: tower_sluice_redis::Redis) -> http::StatusCode {
    /// match redis.ping().await {
    ///     Ok(()) => http::StatusCode::OK,
    ///     Err(_) => http::StatusCode::SERVICE_UNAVAILABLE,
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The first fault; outside a Tokio runtime, [`FaultKind::NoRuntime`].
    pub async fn ping(&self) -> Result<(), Fault> {
        if Handle::try_current().is_err() {
            return Err(FaultKind::NoRuntime.into());
        }
        let deadline = self.deadline();
        // Sentinels and clusters are asked for their nodes, if they were not yet.
        self.0.topology.node(0, deadline).await?;
        let nodes = self.0.topology.nodes().into_iter();
        let answers: Vec<_> = nodes.map(|node| tokio::spawn(async move { node.ping(deadline).await })).collect();
        for answer in answers {
            answer.await.map_err(|_| FaultKind::Cancelled)??;
        }
        Ok(())
    }

    /// Returns the state of all nodes known so far.
    #[must_use]
    pub fn health(&self) -> Vec<NodeHealth> {
        let mut health: Vec<_> = self.0.topology.nodes().iter().map(|node| node.health()).collect();
        health.sort_by(|one, other| one.name().cmp(other.name()));
        health
    }

    /// Returns the deadline of a decision that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.0.settings.timeout
    }

    /// Returns how long a decision may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.settings.timeout
    }

    /// Returns a number that only clones share, while any of them lives.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether keys of these slots may be in one call.
    pub(crate) fn share_a_node(&self, one: u16, other: u16) -> bool {
        one == other || self.has_one_node()
    }

    /// Whether any keys may be in one call.
    pub(crate) fn has_one_node(&self) -> bool {
        !(self.0.topology.is_cluster() || self.0.is_split.load(Ordering::Relaxed))
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.0.secret
    }

    /// Runs the script at most once, within its decision's `limits`. A failure counts for each of `limits.requests`
    /// requests. Finds the node, and follows redirections. If the future is dropped, or if no answer came, the script
    /// may have run nevertheless.
    pub(crate) async fn call_by(&self, call: &ScriptCall, limits: CallLimits) -> Result<Value, Fault> {
        let deadline = limits.deadline;
        // Most calls are made within a task, which is quicker to check.
        if tokio::task::try_id().is_none() && Handle::try_current().is_err() {
            return Err(FaultKind::NoRuntime.into());
        }
        let start = Instant::now();
        let topology = &self.0.topology;
        // In a box, so that the future for a decision without a call stays small.
        let answer = Box::pin(async {
            if start >= deadline {
                return Err(FaultKind::TimedOut.into());
            }
            let slot = call.keys.first().map_or(0, Key::slot);
            let mut node = topology.node(slot, deadline).await?;
            let mut asking = false;
            let mut may_retry = true;
            let mut first_fault = None;
            for _ in 0..=MAX_HOPS {
                // All attempts before this one were rejected before they charged, so sending the call again charges
                // once.
                match node.run(call, asking, limits).await {
                    Ok(NodeReply::Value(value)) => return Ok(value),
                    Ok(NodeReply::Moved(to)) => {
                        topology.refresh_soon();
                        node = Cow::Owned(topology.node_at(&to, &node)?);
                        asking = false;
                    }
                    Ok(NodeReply::Ask(to)) => {
                        node = Cow::Owned(topology.node_at(&to, &node)?);
                        asking = true;
                    }
                    Ok(NodeReply::TryAgain) if may_retry && Instant::now() + ON_THE_WAY < deadline => {
                        may_retry = false;
                        sleep(ON_THE_WAY).await;
                    }
                    Ok(NodeReply::TryAgain) => break,
                    Err(fault) if may_retry && fault.kind() == FaultKind::ReadOnly => {
                        may_retry = false;
                        if topology.refresh_now(&node, deadline).await.is_err() {
                            return Err(fault);
                        }
                        node = topology.node(slot, deadline).await?;
                        first_fault = Some(fault);
                    }
                    // The first fault is more useful than the open breaker of the second node.
                    Err(fault) if fault.kind() == FaultKind::BreakerOpen => return Err(first_fault.unwrap_or(fault)),
                    Err(fault) => return Err(fault),
                }
            }
            Err(FaultKind::Redirected.into())
        })
        .await;
        if answer.as_ref().is_err_and(Fault::questions_topology) {
            topology.refresh_soon();
        }
        if answer.as_ref().is_err_and(|fault| fault.kind() == FaultKind::CrossSlot) {
            self.0.is_split.store(true, Ordering::Relaxed);
        }
        self.0.calls.note(start, answer.as_ref().err());
        answer
    }

    /// Whether the node with this slot is known, and its circuit breaker is not closed.
    pub(crate) fn is_failing(&self, slot: impl FnOnce() -> u16) -> bool {
        self.0.topology.known_node(slot).is_some_and(|node| node.gate.is_failing())
    }
}

impl Server for Redis {
    fn timeout(&self) -> Duration {
        Self::timeout(self)
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    fn secret(&self) -> &[u8] {
        Self::secret(self)
    }

    fn health(&self) -> Vec<NodeHealth> {
        Self::health(self)
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        Fault::from(reason).into()
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("nodes", &self.health()).finish_non_exhaustive()
    }
}
