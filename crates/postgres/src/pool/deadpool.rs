//! A `deadpool-postgres` pool.

use deadpool::managed::Manager as _;
use deadpool_postgres::{ClientWrapper, Pool};
use tokio_postgres::Client;

use super::sealed::Connect;
use super::tokio_postgres::{Connection, Owner, fault_of};
use super::{Connecting, Session};
use crate::fault::{FaultKind, PostgresFault};

impl Connect for Pool {
    fn max_connections(&self) -> usize {
        self.status().max_size
    }

    fn connect(&self) -> Connecting<'_> {
        Box::pin(async move {
            if self.is_closed() {
                return Err(PostgresFault::new(FaultKind::Unreachable, "the pool was closed"));
            }
            let client = self.manager().create().await.map_err(fault_of)?;
            Ok(Box::new(Connection::new(client)) as Box<dyn Session>)
        })
    }
}

/// Dropping it aborts its connection's task, which closes the socket.
impl Owner for ClientWrapper {
    fn client(&self) -> &Client {
        self
    }
}
