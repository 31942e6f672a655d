//! A pool of `bb8`, with the connections of `bb8-postgres`.
//!
//! These remember no prepared statement, and have no place to remember one. So each statement is parsed and planned
//! again, in the same round trip. And a pool takes every connection back, also one that was given up.

use std::fmt;
use std::time::Duration;

use bb8::{Pool, RunError};
use bb8_postgres::PostgresConnectionManager;
use tokio::time::timeout;
use tokio_postgres::Socket;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

use super::sealed::Run;
use super::{Running, Value, to_its_end, tokio_postgres as driver};
use crate::fault::PostgresFault;

impl<T> Run for Pool<PostgresConnectionManager<T>>
where
    T: MakeTlsConnect<Socket> + Clone + fmt::Debug + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn run<'a>(&'a self, statement: &'a str, parameters: &'a [Value], wait: Duration) -> Running<'a> {
        Box::pin(async move {
            let client = match timeout(wait, self.get_owned()).await {
                Ok(Ok(client)) => client,
                Ok(Err(RunError::User(error))) => return Err(PostgresFault::from(error).before_the_statement()),
                Ok(Err(RunError::TimedOut)) | Err(_) => {
                    let size = self.state().connections as usize;
                    return Err(PostgresFault::no_connection(size, self.config().max_size as usize));
                }
            };
            let (statement, parameters) = (statement.to_owned(), parameters.to_vec());
            to_its_end(async move { driver::query_unprepared(&client, &statement, &parameters).await }).await
        })
    }
}
