//! The way to the servers, and what to do when it is barred.
//!
//! The `redis` crate speaks the protocol, over one connection per node. When to connect, how long to wait, whom to ask
//! and when not to ask at all is decided here: a client that repeats a call whose answer it missed would charge twice.

mod address;
mod alone;
mod breaker;
mod builder;
mod calls;
mod cluster;
mod command;
mod eviction;
mod fault;
mod jitter;
mod node;
mod refresh;
mod sentinel;
#[cfg(test)]
mod tests;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::Value;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

pub use self::breaker::BreakerState;
pub use self::builder::RedisBuilder;
pub use self::fault::{Fault, Reason};
pub use self::node::NodeHealth;

use self::builder::Servers;
use self::calls::Calls;
use self::node::{Answer, Terms, Times};
use self::topology::Topology;
use super::call::Call;

/// A Redis server, or several that act as one: what budgets are shared through. Redis 6.2 or newer (tested with 7.0), or Valkey.
///
/// Clones are the same Redis, with the same connections. A connection is made when it is needed, on the Tokio runtime
/// of who needs it; when that runtime goes, another connection is made.
///
/// # When Redis fails
///
/// - A decision takes no longer than the [`timeout`](RedisBuilder::timeout). One that may have been carried out is never
///   repeated.
/// - A node that failed five times in a row, or in half of at least twenty calls of the last ten seconds, is left alone:
///   calls fail at once. After a pause, which grows from 100 ms to 5 s while it stays away, one call tries again; when
///   that succeeds, all is as before.
/// - Only [`max_in_flight`](RedisBuilder::max_in_flight) calls may wait for a node.
///
/// # Addresses
///
/// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, all but the host may be left out; `rediss://` for TLS (feature
/// `redis-tls`; your program must have installed a `CryptoProvider` of `rustls`); `unix:///PATH`.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    topology: Topology,
    terms: Arc<Terms>,
    prefix: String,
    secret: Vec<u8>,
    calls: Calls,
}

/// A call is not passed on more often than this.
const MAX_HOPS: u32 = 5;

/// Keys that are on their way are there after this time, or it takes longer than a decision may.
const ON_THE_WAY: Duration = Duration::from_millis(5);

impl Redis {
    /// One server, with the usual settings. Does not connect yet.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::open`].
    pub fn open(url: impl Into<String>) -> Result<Self, Fault> {
        Self::single(url).open()
    }

    /// One server.
    pub fn single(url: impl Into<String>) -> RedisBuilder {
        RedisBuilder::new(Servers::Single(url.into()))
    }

    /// A primary and its replicas, and the sentinels that watch over them.
    ///
    /// `master` is the name that the sentinels know it by; or a URL with this name as its host, if a password, a
    /// database or TLS is needed: `redis://USER:PASSWORD@NAME/DATABASE`. The URLs are those of the sentinels.
    pub fn sentinel<U: Into<String>>(master: impl Into<String>, urls: impl IntoIterator<Item = U>) -> RedisBuilder {
        RedisBuilder::new(Servers::Sentinel(master.into(), urls.into_iter().map(Into::into).collect()))
    }

    /// A cluster, some of whose nodes are at these URLs. User, password and TLS of the first hold for all nodes.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedisBuilder {
        RedisBuilder::new(Servers::Cluster(urls.into_iter().map(Into::into).collect()))
    }

    /// How the nodes are doing that were heard of so far.
    #[must_use]
    pub fn health(&self) -> Vec<NodeHealth> {
        let mut health: Vec<_> = self.0.topology.nodes().iter().map(|node| node.health()).collect();
        health.sort_by(|one, other| one.address().cmp(other.address()));
        health
    }

    /// How long a call may take.
    pub(in crate::store::redis) fn timeout(&self) -> Duration {
        self.0.terms.timeout
    }

    /// Equal for clones only.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether keys of these slots may be in one call.
    pub(in crate::store::redis) fn share_a_node(&self, one: u16, other: u16) -> bool {
        one == other || !self.0.topology.is_cluster()
    }

    pub(in crate::store::redis) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    pub(in crate::store::redis) fn secret(&self) -> &[u8] {
        &self.0.secret
    }

    /// Runs the script, once at the most, within the timeout. If this is dropped, or if no answer came, it may have
    /// run nevertheless.
    pub(in crate::store::redis) async fn call(&self, call: &Call) -> Result<Value, Fault> {
        // Most calls are made within a task, which is quicker to tell.
        if tokio::task::try_id().is_none() && Handle::try_current().is_err() {
            return Err(Reason::NoRuntime.into());
        }
        let start = Instant::now();
        let answer = self.run(call, Times { start, deadline: start + self.0.terms.timeout }).await;
        if answer.as_ref().is_err_and(Fault::doubts_topology) {
            self.0.topology.doubt();
        }
        self.0.calls.note(start, answer.as_ref().err());
        answer
    }

    async fn run(&self, call: &Call, times: Times) -> Result<Value, Fault> {
        let (topology, deadline) = (&self.0.topology, times.deadline);
        let slot = call.keys.first().map_or(0, super::key::Key::slot);
        let mut node = topology.node(slot, deadline).await?;
        let (mut asking, mut may_retry) = (false, true);
        let mut refusal = None;
        for _ in 0..=MAX_HOPS {
            // All but the first two were refused before they ran, and so may be sent again.
            match node.run(call, asking, times).await {
                Ok(Answer::Value(value)) => return Ok(value),
                Ok(Answer::Moved(to)) => {
                    topology.doubt();
                    (node, asking) = (topology.node_at(&to, &node)?, false);
                }
                Ok(Answer::Ask(to)) => (node, asking) = (topology.node_at(&to, &node)?, true),
                Ok(Answer::TryAgain) if may_retry && Instant::now() + ON_THE_WAY < deadline => {
                    may_retry = false;
                    sleep(ON_THE_WAY).await;
                }
                Ok(Answer::TryAgain) => break,
                Err(fault) if may_retry && fault.reason() == Reason::ReadOnly => {
                    may_retry = false;
                    if topology.renew(&node, deadline).await.is_err() {
                        return Err(fault);
                    }
                    node = topology.node(slot, deadline).await?;
                    refusal = Some(fault);
                }
                // Rather why it was not asked again than that.
                Err(fault) if fault.reason() == Reason::BreakerOpen => return Err(refusal.unwrap_or(fault)),
                Err(fault) => return Err(fault),
            }
        }
        Err(Reason::Redirected.into())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("nodes", &self.health()).finish_non_exhaustive()
    }
}
