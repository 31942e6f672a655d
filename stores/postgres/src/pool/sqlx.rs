//! A pool of `sqlx`, which prepares each statement once per connection.

use std::time::Duration;

use sqlx::error::Error;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Column, Postgres, Row, TypeInfo};
use tokio::time::timeout;

use super::sealed::Run;
use super::{Running, Value, to_its_end};
use crate::fault::{FaultKind, PostgresFault};

impl Run for PgPool {
    fn run<'a>(&'a self, statement: &'a str, parameters: &'a [Value], wait: Duration) -> Running<'a> {
        Box::pin(async move {
            let connection = match timeout(wait, self.acquire()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(Error::PoolTimedOut)) | Err(_) => {
                    let most = self.options().get_max_connections();
                    return Err(PostgresFault::no_connection(self.size() as usize, most as usize));
                }
                Ok(Err(error)) => return Err(PostgresFault::from(error).before_the_statement()),
            };
            let (statement, parameters) = (statement.to_owned(), parameters.to_vec());
            to_its_end(async move {
                let mut lent = Lent(Some(connection));
                let connection = lent.0.as_mut().expect("it is taken out at the end");
                let query = parameters.iter().fold(sqlx::query(&statement), |query, value| match value {
                    Value::Int(number) => query.bind(*number),
                    Value::Text(text) => query.bind(text.as_deref()),
                });
                let answer = query.fetch_all(&mut **connection).await;
                drop(lent.0.take());
                answer?.iter().map(values).collect()
            })
            .await
        })
    }
}

/// A connection that is closed, and leaves the pool, unless its statement has ended.
struct Lent(Option<PoolConnection<Postgres>>);

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(mut connection) = self.0.take() {
            connection.close_on_drop();
        }
    }
}

fn values(row: &PgRow) -> Result<Vec<Value>, PostgresFault> {
    let value = |index: usize| match row.column(index).type_info().name() {
        "INT8" => row.try_get(index).map(Value::Int),
        _ => row.try_get(index).map(Value::Text),
    };
    (0..row.len()).map(|index| value(index).map_err(PostgresFault::from)).collect()
}

impl From<Error> for PostgresFault {
    fn from(error: Error) -> Self {
        match &error {
            Error::Database(failure) => Self::of_server(&failure.code().unwrap_or_default(), failure.message()),
            Error::PoolClosed => Self::new(FaultKind::PoolExhausted, error.to_string()),
            Error::ColumnDecode { .. } | Error::Decode(_) | Error::ColumnIndexOutOfBounds { .. } => {
                Self::new(FaultKind::Unintelligible, error.to_string())
            }
            _ => Self::of_connection(&error),
        }
    }
}
