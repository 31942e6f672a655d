//! One Redis server: its circuit breaker, and its connections.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisResult, Value};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, timeout, timeout_at};
use tower_sluice::internal::Lock;
use tower_sluice::internal::remote::CallGate;
use tower_sluice::store::NodeHealth;

use super::connections::{ConnectionHandle, Connections, EndOfConnection};
use super::eviction_check;
use super::fault::RedisFault as _;
use super::fault::{Fault, FaultKind};
use super::settings::NodeSettings;
use super::shared_task::Work;

/// One server.
pub(super) struct Node {
    pub(super) gate: Arc<CallGate>,
    server: ConnectionInfo,
    client: Client,
    pub(super) settings: Arc<NodeSettings>,
    pub(super) connections: Lock<Connections>,
}

impl Node {
    pub(super) fn new(server: ConnectionInfo, settings: Arc<NodeSettings>) -> Result<Arc<Self>, Fault> {
        let address = server.addr().to_string().into();
        let client =
            Client::open(server.clone()).map_err(|error| Fault::new(FaultKind::Misconfigured, error.to_string()))?;
        let gate = CallGate::new(address, settings.timeout);
        Ok(Arc::new(Self { gate, server, client, settings, connections: Lock::default() }))
    }

    pub(super) fn address(&self) -> &Arc<str> {
        self.gate.name()
    }

    pub(super) const fn server(&self) -> &ConnectionInfo {
        &self.server
    }

    /// Asks a question about the topology. It is not part of a call: the circuit breaker does not prevent or count it.
    pub(super) async fn ask(self: &Arc<Self>, question: Cmd, deadline: Instant) -> Result<Value, Fault> {
        let live = self.connections.lock().take_handle();
        let handle = match live {
            Some(handle) => handle,
            None => self.connect(deadline).await?,
        };
        let (_, answer) = timeout_at(deadline, handle.send(question, false)).await.map_err(|_| FaultKind::TimedOut)?;
        match answer? {
            Value::ServerError(error) => Err(Fault::answered_to_question(&error)),
            value => Ok(value),
        }
    }

    /// Checks that the node answers. If calls were stopped because it did not answer, they start again.
    pub(super) async fn ping(self: &Arc<Self>, deadline: Instant) -> Result<(), Fault> {
        self.ask(::redis::cmd("TIME"), deadline).await?;
        self.gate.answered();
        Ok(())
    }

    /// Makes each runtime's next call open a new connection.
    pub(super) fn forget_connection(&self) {
        let removed = self.connections.lock().remove_all();
        drop(removed);
    }

    pub(super) fn health(&self) -> NodeHealth {
        self.gate.health().with_connected(self.connections.lock().is_alive())
    }

    /// Whether it is likely to answer.
    pub(super) fn is_healthy(&self) -> bool {
        !self.gate.is_failing() && self.connections.lock().is_alive()
    }

    /// Connects this runtime, unless it is connected already, and returns a handle. Callers share one attempt, which
    /// continues after the deadline.
    pub(super) async fn connect(self: &Arc<Self>, deadline: Instant) -> Result<ConnectionHandle, Fault> {
        let runtime = Handle::try_current().map_err(|_| FaultKind::NoRuntime)?.id();
        let connecting = Arc::clone(&self.connections.lock().for_runtime(runtime, &self.settings).connecting);
        connecting
            .run(deadline, || {
                // Another caller's attempt may have ended since this one found no connection.
                if self.connections.lock().has_live(runtime) {
                    return Err(Ok(()));
                }
                Ok(Box::pin(self.clone().make_connection(runtime)) as Work)
            })
            .await?;
        self.connections.lock().take_handle().ok_or_else(|| FaultKind::Disconnected.into())
    }

    async fn make_connection(self: Arc<Self>, runtime: Id) -> Result<(), Fault> {
        let alive = Arc::new(AtomicBool::new(true));
        // We use no timeouts in the `redis` crate, which reports them as failed connections.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(EndOfConnection(alive.clone()));
        let connection = match timeout(self.settings.connect_timeout, self.open(&config)).await {
            Err(_) => return Err(Fault::new(FaultKind::TimedOut, format!("connecting to {}", self.address()))),
            Ok(Err(error)) => return Err(Fault::connecting(&error)),
            Ok(Ok(connection)) => connection,
        };
        self.gate.connected();
        let replaced = self.connections.lock().add(runtime, connection.clone(), alive, &self.settings);
        drop(replaced);
        if !self.settings.eviction_checked.swap(true, Ordering::Relaxed) {
            tokio::spawn(eviction_check::warn_if_keys_may_be_evicted(connection, self.settings.connect_timeout));
        }
        Ok(())
    }

    async fn open(&self, config: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        #[cfg(test)]
        if let Some(connector) = &self.settings.connector {
            return connector.connect(&self.server, config).await;
        }
        self.client.get_multiplexed_async_connection_with_config(config).await
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.health().fmt(f)
    }
}
