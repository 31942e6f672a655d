//! The common part of pools over `tokio-postgres`: connections, parameters, rows and errors.

use std::collections::HashMap;

use tokio_postgres::error::Error;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Column, Row, Statement};

use super::{Answer, Running, Session, Value};
use crate::fault::{self, FaultKind, PostgresFault};

/// A connection's client, in the type that its pool makes.
pub(super) trait Owner: Send + Sync + Sized + 'static {
    fn client(&self) -> &Client;

    /// Closes the connection, although its statement has not ended.
    fn abandon(self, _has_backend: bool) {}
}

/// A connection, and the statements that it has prepared.
pub(super) struct Connection<O> {
    owner: O,
    prepared: HashMap<String, Statement>,
}

impl<O> Connection<O> {
    pub(super) fn new(owner: O) -> Self {
        Self { owner, prepared: HashMap::new() }
    }
}

impl<O: Owner> Connection<O> {
    async fn query_prepared(&mut self, text: &str, parameters: &[Value]) -> Answer {
        let client = self.owner.client();
        if !self.prepared.contains_key(text) {
            let statement = client.prepare(text).await.map_err(fault_of)?;
            self.prepared.insert(text.to_owned(), statement);
        }
        let parameters: Vec<_> = parameters.iter().map(|value| parameter(value).0).collect();
        let rows = client.query(&self.prepared[text], &parameters).await.map_err(fault_of)?;
        rows.iter().map(values).collect()
    }

    /// Takes one round trip.
    async fn query_unprepared(&self, text: &str, parameters: &[Value]) -> Answer {
        let parameters: Vec<_> = parameters.iter().map(parameter).collect();
        let rows = self.owner.client().query_typed(text, &parameters).await.map_err(fault_of)?;
        rows.iter().map(values).collect()
    }
}

impl<O: Owner> Session for Connection<O> {
    fn query<'a>(&'a mut self, text: &'a str, parameters: &'a [Value], is_prepared: bool) -> Running<'a> {
        if is_prepared {
            Box::pin(self.query_prepared(text, parameters))
        } else {
            Box::pin(self.query_unprepared(text, parameters))
        }
    }

    fn is_closed(&self) -> bool {
        self.owner.client().is_closed()
    }

    fn abandon(self: Box<Self>, has_backend: bool) {
        self.owner.abandon(has_backend);
    }
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

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn fault_of(error: Error) -> PostgresFault {
    match error.as_db_error() {
        Some(failure) => fault::of_server(failure.code().code(), failure.message(), failure.routine()),
        None => fault::of_connection(&error),
    }
}
