//! An `sqlx` pool.

use sqlx::error::Error;
use sqlx::postgres::{PgConnection, PgDatabaseError, PgPool, PgRow};
use sqlx::{Column, ConnectOptions, Row, TypeInfo};

use super::sealed::Connect;
use super::{Connecting, Running, Session, Value};
use crate::fault::{self, FaultKind, PostgresFault};

impl Connect for PgPool {
    fn max_connections(&self) -> usize {
        self.options().get_max_connections() as usize
    }

    fn connect(&self) -> Connecting<'_> {
        Box::pin(async move {
            if self.is_closed() {
                return Err(PostgresFault::new(FaultKind::Unreachable, "the pool was closed"));
            }
            let connection = self.connect_options().connect().await.map_err(fault_of)?;
            Ok(Box::new(connection) as Box<dyn Session>)
        })
    }
}

impl Session for PgConnection {
    fn query<'a>(&'a mut self, text: &'a str, parameters: &'a [Value], is_prepared: bool) -> Running<'a> {
        Box::pin(async move {
            let query = parameters.iter().fold(sqlx::query(text), |query, value| match value {
                Value::Int(number) => query.bind(*number),
                Value::Text(text) => query.bind(text.as_deref()),
            });
            let rows = query.persistent(is_prepared).fetch_all(self).await.map_err(fault_of)?;
            rows.iter().map(values).collect()
        })
    }

    /// The driver does not report it.
    fn is_closed(&self) -> bool {
        false
    }

    fn abandon(self: Box<Self>, _: bool) {}
}

fn values(row: &PgRow) -> Result<Vec<Value>, PostgresFault> {
    let value = |index: usize| match row.column(index).type_info().name() {
        "INT8" => row.try_get(index).map(Value::Int),
        _ => row.try_get(index).map(Value::Text),
    };
    (0..row.len()).map(|index| value(index).map_err(fault_of)).collect()
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn fault_of(error: Error) -> PostgresFault {
    match &error {
        Error::Database(failure) => {
            let routine = failure.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::routine);
            fault::of_server(&failure.code().unwrap_or_default(), failure.message(), routine)
        }
        Error::ColumnDecode { .. } | Error::Decode(_) | Error::ColumnIndexOutOfBounds { .. } => {
            PostgresFault::new(FaultKind::Unintelligible, error.to_string())
        }
        _ => fault::of_connection(&error),
    }
}
