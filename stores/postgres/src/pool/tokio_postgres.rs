//! What the pools of `tokio-postgres` share: parameters, rows and errors.

#[cfg(feature = "deadpool")]
use tokio_postgres::Statement;
use tokio_postgres::error::Error;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Column, Row};

use super::{Answer, Value};
use crate::fault::{FaultKind, PostgresFault};

/// Sends a prepared statement.
#[cfg(feature = "deadpool")]
pub(super) async fn query(client: &Client, statement: &Statement, parameters: &[Value]) -> Answer {
    let parameters: Vec<_> = parameters.iter().map(|value| parameter(value).0).collect();
    let rows = client.query(statement, &parameters).await?;
    rows.iter().map(values).collect()
}

/// Sends a statement that is not prepared, in one round trip.
#[cfg(feature = "bb8")]
pub(super) async fn query_unprepared(client: &Client, statement: &str, parameters: &[Value]) -> Answer {
    let parameters: Vec<_> = parameters.iter().map(parameter).collect();
    let rows = client.query_typed(statement, &parameters).await?;
    rows.iter().map(values).collect()
}

fn parameter(value: &Value) -> (&(dyn ToSql + Sync), Type) {
    match value {
        Value::Int(number) => (number, Type::INT8),
        Value::Text(text) => (text, Type::TEXT),
    }
}

fn values(row: &Row) -> Result<Vec<Value>, PostgresFault> {
    let value = |(index, column): (usize, &Column)| {
        let value = match *column.type_() {
            Type::INT8 => row.try_get(index).map(Value::Int),
            _ => row.try_get(index).map(Value::Text),
        };
        value.map_err(|error| PostgresFault::new(FaultKind::Unintelligible, error.to_string()))
    };
    row.columns().iter().enumerate().map(value).collect()
}

impl From<Error> for PostgresFault {
    fn from(error: Error) -> Self {
        match error.as_db_error() {
            Some(failure) => Self::of_server(failure.code().code(), failure.message()),
            None => Self::of_connection(&error),
        }
    }
}
