//! [`RedisBuilder`]: which servers, and with which settings.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::address;
use super::call_metrics::CallMetrics;
use super::cluster::Cluster;
use super::fault::{Fault, Reason};
use super::node::{Node, Settings};
use super::sentinel::Sentinel;
use super::topology::Topology;
use super::{Inner, Redis};

/// The servers and their settings. Made by [`Redis::single`], [`Redis::sentinel`] and [`Redis::cluster`].
#[derive(Clone)]
#[must_use = "a builder does nothing before `open`"]
pub struct RedisBuilder {
    servers: Servers,
    timeout: Duration,
    connect_timeout: Duration,
    max_in_flight: usize,
    prefix: String,
    secret: Vec<u8>,
}

#[derive(Clone)]
pub(super) enum Servers {
    Single(String),
    Sentinel(String, Vec<String>),
    Cluster(Vec<String>),
}

impl RedisBuilder {
    pub(super) fn new(servers: Servers) -> Self {
        Self {
            servers,
            timeout: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 4_096,
            prefix: "sluice".to_owned(),
            secret: Vec::new(),
        }
    }

    /// Sets how long a decision may take, all in all, however many calls it needs; 50 ms by default. If Redis has not
    /// answered by then, the [policy](crate::FailureMode) decides what happens, and what Redis may have charged stays
    /// charged.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long it may take to connect; 1 s by default. A decision does not wait that long: connecting continues
    /// in the background, for later decisions.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how many calls of one Tokio runtime to one server may be in flight at a time, at least 1; 4,096 by default:
    /// about as many as a server answers within the timeout. Further calls wait for one of them to end, for half of the
    /// time that their decision has left, and fail then.
    pub const fn max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = if calls == 0 { 1 } else { calls };
        self
    }

    /// Sets what the names of all keys begin with; `sluice` by default. Limiters with the same name share their budgets
    /// if their prefix is the same, too.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets a secret for the hashes that stand for clients in the names of keys, so that a reader of the server cannot
    /// find out by trying which clients they are. All processes that share budgets need the same secret. Empty by
    /// default.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = secret.into();
        self
    }

    /// Checks the addresses. Connections are made when they are needed.
    ///
    /// # Errors
    ///
    /// [`Reason::Misconfigured`] if an address cannot be parsed, or needs a feature that is off, or if there is none.
    pub fn open(self) -> Result<Redis, Fault> {
        let settings = Arc::new(Settings {
            timeout: self.timeout,
            connect_timeout: self.connect_timeout,
            max_in_flight: self.max_in_flight,
            eviction_checked: AtomicBool::new(false),
        });
        if self.prefix.contains(['{', '}']) {
            return Err(Fault::new(
                Reason::Misconfigured,
                "the prefix has a brace, by which a cluster would take it for a key; permit it out",
            ));
        }
        let parse = |urls: &[String]| urls.iter().map(|url| address::parse(url)).collect::<Result<Vec<_>, _>>();
        let topology = match &self.servers {
            Servers::Single(url) => {
                Topology::Single(Node::new(address::for_calls(address::parse(url)?), settings.clone())?)
            }
            Servers::Sentinel(master, urls) => {
                let sentinels = parse(urls)?;
                if sentinels.is_empty() {
                    return Err(Fault::new(Reason::Misconfigured, "no address of a sentinel is given"));
                }
                let url = if master.contains("://") { master.clone() } else { format!("redis://{master}") };
                let like = address::for_calls(address::parse(&url)?);
                let master = address::host(&like).unwrap_or_default().to_owned();
                Topology::Sentinel(Sentinel::new(master, sentinels, like, settings.clone())?)
            }
            Servers::Cluster(urls) => {
                let seeds = parse(urls)?.into_iter().map(address::for_calls).collect();
                Topology::Cluster(Cluster::new(seeds, settings.clone())?)
            }
        };
        let Self { prefix, secret, .. } = self;
        let is_split = AtomicBool::new(false);
        Ok(Redis(Arc::new(Inner { topology, settings, prefix, secret, calls: CallMetrics::new(), is_split })))
    }
}

impl fmt::Debug for RedisBuilder {
    /// Addresses may hold passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
