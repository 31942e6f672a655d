//! A primary that sentinels watch over.

use std::sync::{Arc, PoisonError, RwLock};

use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::address;
use super::fault::{Fault, FaultKind};
use super::node::{Node, Settings};
use super::refresh::Refresh;
use crate::util::log;

/// A primary with replicas, and sentinels that know which of them it is.
pub(super) struct Sentinel {
    master: String,
    sentinels: Vec<Client>,
    /// User, password, database and TLS for the primary, whichever server that is.
    like: ConnectionInfo,
    settings: Arc<Settings>,
    primary: RwLock<Option<Arc<Node>>>,
    refresh: Refresh,
}

impl Sentinel {
    pub(super) fn new(
        master: String,
        sentinels: Vec<ConnectionInfo>,
        like: ConnectionInfo,
        settings: Arc<Settings>,
    ) -> Result<Arc<Self>, Fault> {
        let sentinels = sentinels.into_iter().map(Client::open).collect::<Result<_, _>>();
        let sentinels = sentinels.map_err(|error| Fault::new(FaultKind::Misconfigured, error.to_string()))?;
        let (primary, refresh) = (RwLock::new(None), Refresh::default());
        Ok(Arc::new(Self { master, sentinels, like, settings, primary, refresh }))
    }

    /// Returns the primary. Asks the sentinels first if it is unknown.
    pub(super) async fn node(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Node>, Fault> {
        if let Some(node) = self.primary() {
            return Ok(node);
        }
        self.refresh_now(deadline).await?;
        self.primary().ok_or_else(|| FaultKind::Unreachable.into())
    }

    /// Returns the primary, if it is known.
    pub(super) fn primary(&self) -> Option<Arc<Node>> {
        self.primary.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn refresh_now(self: &Arc<Self>, deadline: Instant) -> Result<(), Fault> {
        self.refresh.run(deadline, || self.clone().ask_sentinels()).await
    }

    pub(super) fn refresh_soon(self: &Arc<Self>) {
        self.refresh.start(|| self.clone().ask_sentinels());
    }

    /// Asks all sentinels at once, and trusts the first that names a primary. It may be behind the others, and name the
    /// old one. If that is a replica by now, or cannot be called, calls to it fail, and the sentinels are asked again.
    ///
    /// An old primary that is cut off from the other servers, but not from this process, still accepts writes. No call
    /// fails then, so it is used until it hears of its successor, and what it has charged since is lost. With
    /// `min-replicas-to-write` on the servers, it rejects the calls, its breaker opens, and the sentinels are asked.
    async fn ask_sentinels(self: Arc<Self>) -> Result<(), Fault> {
        let mut answers = JoinSet::new();
        for index in 0..self.sentinels.len() {
            let this = self.clone();
            answers.spawn(async move { this.ask(&this.sentinels[index]).await });
        }
        let mut faults = Vec::new();
        while let Some(answer) = answers.join_next().await {
            match answer {
                Ok(Ok((host, port))) => return self.set_primary(host, port),
                Ok(Err(fault)) => faults.push(fault),
                // The task panicked, or this runtime is being shut down. The other sentinels may still answer.
                Err(_) => faults.push(FaultKind::Cancelled.into()),
            }
        }
        Err(Fault::most_telling(faults))
    }

    /// Asks one sentinel for the address of the primary. To connect and to answer, it has the time in which a node must
    /// be connected. A fault names the sentinel.
    async fn ask(&self, sentinel: &Client) -> Result<(String, u16), Fault> {
        let answer = timeout(self.settings.connect_timeout, self.ask_without_timeout(sentinel)).await;
        let answer = answer.unwrap_or_else(|_| Err(FaultKind::TimedOut.into()));
        answer.map_err(|fault| fault.naming(&format!("sentinel {}", sentinel.get_connection_info().addr())))
    }

    /// Asks on a connection for this one question.
    async fn ask_without_timeout(&self, sentinel: &Client) -> Result<(String, u16), Fault> {
        // No timeouts of the `redis` crate: it reports them as connections that failed.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = sentinel.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(|error| Fault::connecting(&error))?;
        let mut question = Cmd::new();
        question.arg("SENTINEL").arg("get-master-addr-by-name").arg(&self.master);
        let answer = connection.send_packed_command(&question).await.map_err(|error| Fault::underway(&error))?;
        if let Value::ServerError(error) = answer {
            return Err(Fault::answered_to_question(&error));
        }
        let answer = Option::<(String, u16)>::from_redis_value(answer)
            .map_err(|error| Fault::new(FaultKind::Unintelligible, error.to_string()))?;
        answer.ok_or_else(|| {
            Fault::new(FaultKind::Misconfigured, format!("it knows no primary of the name `{}`", self.master))
        })
    }

    fn set_primary(&self, host: String, port: u16) -> Result<(), Fault> {
        let server = address::moved_to(&self.like, host, port);
        let mut primary = self.primary.write().unwrap_or_else(PoisonError::into_inner);
        let address = server.addr().to_string();
        if primary.as_ref().is_some_and(|node| **node.address() == address) {
            return Ok(());
        }
        let before = primary.replace(Node::new(server, self.settings.clone())?);
        drop(primary);
        if before.is_some() {
            log::redis_topology_changed(&address);
        }
        Ok(())
    }
}
