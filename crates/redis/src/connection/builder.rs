//! [`RedisBuilder`]: the servers and their settings.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tower_sluice::store::remote::Calls;

use super::call_metrics::CallMetrics;
use super::fault::{Fault, FaultKind};
use super::node::Node;
use super::node_map::NodeMap;
use super::settings::NodeSettings;
use super::topology::Topology;
use super::{Redis, RedisInner, address};

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
    #[cfg(test)]
    connector: Option<super::connector::Connector>,
}

/// The addresses as they were given.
#[derive(Clone)]
pub(super) enum Servers {
    Single(String),
    /// The primary's name, or a URL with it, and the sentinels' URLs.
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
            #[cfg(test)]
            connector: None,
        }
    }

    /// Connects with `connector` instead of the system's network.
    #[cfg(test)]
    pub(crate) fn over(mut self, connector: super::connector::Connector) -> Self {
        self.connector = Some(connector);
        self
    }

    /// Sets how long a decision may take in total, for any number of calls; 50 ms by default, and a day at the most.
    /// With zero, Redis is never called. If Redis has not answered by then, the [policy](tower_sluice::FailureMode)
    /// decides about the request, and a charge that Redis may have made stays.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long it may take to connect; 1 s by default, and a day at the most. A decision does not wait that long:
    /// connecting continues in the background, for later decisions. A sentinel has the same time to connect and to
    /// answer.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how many calls from one Tokio runtime to one server may be in flight at a time, at least 1; 4,096 by
    /// default: about the number of calls that a server answers within the timeout. Further calls wait for one of them
    /// to end, for half of their decision's remaining time, and then fail.
    pub const fn max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = if calls == 0 { 1 } else { calls };
        self
    }

    /// Sets the prefix for the names of all keys; `sluice` by default. Limiters with the same name share their budgets
    /// if their prefix is the same, too.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets a secret for the hashes that represent clients in key names, so that a reader of the server cannot find out
    /// the clients by trying. All processes that share budgets need the same secret. Empty by default.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = secret.into();
        self
    }

    /// Checks the addresses. Connections are made when they are needed.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Misconfigured`] if there is no address, or an address cannot be parsed; if an address is
    /// `rediss://`, and the feature `tls` is off, no `CryptoProvider` is installed, or it
    /// ends in `#insecure`; or if the prefix has a brace.
    pub fn open(self) -> Result<Redis, Fault> {
        let settings = Arc::new(NodeSettings {
            timeout: self.timeout.min(Calls::LONGEST_TIMEOUT),
            connect_timeout: self.connect_timeout.min(Calls::LONGEST_TIMEOUT),
            max_in_flight: self.max_in_flight,
            eviction_checked: AtomicBool::new(false),
            #[cfg(test)]
            connector: self.connector,
        });
        if self.prefix.contains(['{', '}']) {
            return Err(Fault::new(
                FaultKind::Misconfigured,
                "the prefix has a brace, and a cluster would hash it as part of the key; leave it out",
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
                    return Err(Fault::new(FaultKind::Misconfigured, "no address of a sentinel is given"));
                }
                let url = if master.contains("://") { master.clone() } else { format!("redis://{master}") };
                let like = address::for_calls(address::parse(&url)?);
                let Some(master) = address::host(&like).map(str::to_owned) else {
                    return Err(Fault::new(FaultKind::Misconfigured, "a primary has a name, and not a path"));
                };
                Topology::Mapped(NodeMap::for_sentinels(master, sentinels, like, settings.clone())?)
            }
            Servers::Cluster(urls) => {
                let seeds = parse(urls)?.into_iter().map(address::for_calls).collect();
                Topology::Mapped(NodeMap::for_cluster(seeds, settings.clone())?)
            }
        };
        let Self { prefix, secret, .. } = self;
        let is_split = AtomicBool::new(false);
        Ok(Redis(Arc::new(RedisInner {
            topology,
            settings,
            prefix,
            secret,
            calls: CallMetrics::default(),
            queue_bundles: Arc::default(),
            is_split,
        })))
    }
}

impl fmt::Debug for RedisBuilder {
    // Leaves out the addresses, which may hold passwords, and the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builder_that_cannot_open_is_misconfigured() {
        let no_urls: [&str; 0] = [];
        for (builder, problem) in [
            (Redis::single("http://host"), "redis://HOST:6379"),
            (Redis::cluster(no_urls), "no address"),
            (Redis::sentinel("main", no_urls), "no address"),
            (Redis::sentinel("unix:///main", ["redis://host"]), "a name"),
            (Redis::single("redis://host").prefix("{a}"), "a brace"),
        ] {
            let fault = builder.open().unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Misconfigured, "{fault}");
            assert!(fault.to_string().contains(problem), "{fault}");
        }
    }

    #[test]
    fn passwords_and_the_secret_are_not_shown() {
        let builder = Redis::single("redis://:hunter2@host").secret("hunter3");
        assert!(!format!("{builder:?}").contains("hunter"), "{builder:?}");
    }
}
