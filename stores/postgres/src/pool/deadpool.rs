//! A pool of `deadpool-postgres`.

use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError};
use tokio::time::timeout;

use super::sealed::Run;
use super::{Running, Value, to_its_end, tokio_postgres as driver};
use crate::fault::{FaultKind, PostgresFault};

impl Run for Pool {
    fn run<'a>(&'a self, statement: &'a str, parameters: &'a [Value], wait: Duration) -> Running<'a> {
        Box::pin(async move {
            let client = match timeout(wait, self.get()).await {
                Ok(Ok(client)) => client,
                Ok(Err(PoolError::Backend(error))) => return Err(PostgresFault::from(error).before_the_statement()),
                Ok(Err(PoolError::Closed)) => {
                    return Err(PostgresFault::new(FaultKind::PoolExhausted, "the pool was closed"));
                }
                Ok(Err(error)) => return Err(PostgresFault::new(FaultKind::PoolExhausted, error.to_string())),
                Err(_) => {
                    let status = self.status();
                    return Err(PostgresFault::no_connection(status.size, status.max_size));
                }
            };
            let (statement, parameters) = (statement.to_owned(), parameters.to_vec());
            to_its_end(async move {
                let mut lent = Lent(Some(client));
                let client = lent.0.as_ref().expect("it is taken out at the end");
                let answer = match client.prepare_cached(&statement).await {
                    Ok(prepared) => driver::query(client, &prepared, &parameters).await,
                    Err(error) => Err(error.into()),
                };
                drop(lent.0.take());
                answer
            })
            .await
        })
    }
}

/// A connection that is closed, and leaves the pool, unless its statement has ended.
struct Lent(Option<Object>);

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}
