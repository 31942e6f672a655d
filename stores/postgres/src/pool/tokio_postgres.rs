//! What the pools of `tokio-postgres` share: parameters, rows and errors.

use tokio_postgres::error::Error;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::{Answer, Value};
use crate::fault::{FaultKind, PostgresFault};

/// Sends a prepared statement.
pub(super) async fn query(client: &Client, statement: &Statement, parameters: &[Value]) -> Answer {
    let parameters: Vec<_> = parameters.iter().map(parameter).collect();
    let rows = client.query(statement, &parameters).await?;
    rows.iter().map(values).collect()
}

fn parameter(value: &Value) -> &(dyn ToSql + Sync) {
    match value {
        Value::Int(number) => number,
        Value::Text(text) => text,
    }
}

fn values(row: &Row) -> Result<Vec<Value>, PostgresFault> {
    let value = |(index, column): (usize, &tokio_postgres::Column)| {
        let value = if *column.type_() == Type::INT8 {
            row.try_get(index).map(Value::Int)
        } else {
            row.try_get(index).map(Value::Text)
        };
        value.map_err(|error| PostgresFault::new(FaultKind::Unintelligible, error.to_string()))
    };
    row.columns().iter().enumerate().map(value).collect()
}

impl From<Error> for PostgresFault {
    fn from(error: Error) -> Self {
        match error.as_db_error() {
            Some(error) => Self::of_server(error.code().code(), error.message()),
            None if error.is_closed() => Self::of_connection(&error),
            None => Self::of_connection(&error),
        }
    }
}
