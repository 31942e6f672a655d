//! [`Sentinels`]: looks up the primary's address.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::fault::RedisFault as _;
use super::fault::{Fault, FaultKind};

/// The sentinels for a primary with replicas. They know which server is the primary.
#[derive(Clone)]
pub(super) struct Sentinels {
    master: Arc<str>,
    clients: Vec<Client>,
    timeout: Duration,
}

impl Sentinels {
    pub(super) fn new(master: String, servers: Vec<ConnectionInfo>, timeout: Duration) -> Result<Self, Fault> {
        let clients = servers.into_iter().map(Client::open).collect::<Result<_, _>>();
        let clients = clients.map_err(|error| Fault::new(FaultKind::Misconfigured, error.to_string()))?;
        Ok(Self { master: master.into(), clients, timeout })
    }

    /// Asks all sentinels at once, and trusts the first that names a primary. This sentinel may be behind the others,
    /// and name the old primary. If that is a replica by now, or cannot be called, calls to it fail, and the sentinels
    /// are asked again.
    ///
    /// An old primary that is cut off from the other servers, but not from this process, still accepts writes. No call
    /// fails then, so it is used until it hears about its successor, and its charges since the promotion are lost. With
    /// `min-replicas-to-write` on the servers, it rejects the calls, its breaker opens, and the sentinels are asked.
    pub(super) async fn ask(&self) -> Result<(String, u16), Fault> {
        let mut answers = JoinSet::new();
        for sentinel in self.clients.clone() {
            let this = self.clone();
            answers.spawn(async move { this.ask_one(&sentinel).await });
        }
        let mut faults = Vec::new();
        while let Some(answer) = answers.join_next().await {
            match answer {
                Ok(Ok(primary)) => return Ok(primary),
                Ok(Err(fault)) => faults.push(fault),
                // The task panicked, or this runtime is being shut down. The other sentinels may still answer.
                Err(_) => faults.push(FaultKind::Cancelled.into()),
            }
        }
        Err(Fault::most_telling(faults))
    }

    /// Asks one sentinel for the primary's address. The sentinel has a node's connect timeout to connect and to answer.
    /// A fault names the sentinel.
    async fn ask_one(&self, sentinel: &Client) -> Result<(String, u16), Fault> {
        let answer = timeout(self.timeout, self.ask_without_timeout(sentinel)).await;
        let answer = answer.unwrap_or_else(|_| Err(FaultKind::TimedOut.into()));
        answer.map_err(|fault| fault.naming(&format!("sentinel {}", sentinel.get_connection_info().addr())))
    }

    /// Asks on a new connection, only for this question.
    async fn ask_without_timeout(&self, sentinel: &Client) -> Result<(String, u16), Fault> {
        // We use no timeouts in the `redis` crate, which reports them as failed connections.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = sentinel.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(|error| Fault::connecting(&error))?;
        let mut question = Cmd::new();
        question.arg("SENTINEL").arg("get-master-addr-by-name").arg(&*self.master);
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
}
