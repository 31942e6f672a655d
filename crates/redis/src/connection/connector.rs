//! The seam for the simulation: opens streams in place of connections over the system's network.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, ConnectionInfo, RedisResult};
use tokio::io::DuplexStream;

/// Opens a stream to an address.
#[derive(Clone)]
pub(crate) struct Connector(pub(crate) Arc<OpeningFuture>);

type OpeningFuture = dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>> + Send + Sync;

impl Connector {
    /// Like `Client::get_multiplexed_async_connection_with_config`, on a stream in the simulation.
    pub(super) async fn connect(
        &self,
        server: &ConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let stream = (self.0)(server.addr().to_string()).await?;
        let (connection, driver) =
            MultiplexedConnection::new_with_config(server.redis_settings(), stream, config.clone()).await?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}
