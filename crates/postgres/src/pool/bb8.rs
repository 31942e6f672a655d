//! A `bb8` pool, with connections by `bb8-postgres`.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use bb8::Pool;
use bb8_postgres::PostgresConnectionManager;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Socket};

use super::sealed::Connect;
use super::tokio_postgres::{Connection, Owner, fault_of};
use super::{Connecting, Session};

impl<T> Connect for Pool<PostgresConnectionManager<T>>
where
    T: MakeTlsConnect<Socket> + Clone + fmt::Debug + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn max_connections(&self) -> usize {
        self.config().max_size as usize
    }

    fn connect(&self) -> Connecting<'_> {
        Box::pin(async move {
            let client = self.dedicated_connection().await.map_err(fault_of)?;
            Ok(Box::new(Connection::new(client)) as Box<dyn Session>)
        })
    }
}

/// The connection's task belongs to `bb8-postgres`, which keeps the socket open until the last answer has come. So we
/// make an abandoned connection end its own backend after its statement, and the server closes the socket.
impl Owner for Client {
    fn client(&self) -> &Client {
        self
    }

    fn abandon(self, has_backend: bool) {
        if !has_backend {
            return;
        }
        let mut last = pin!(self.simple_query("SELECT pg_terminate_backend(pg_backend_pid())"));
        // The first poll gives the statement to the task. We do not wait for its answer.
        let _ = last.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}
