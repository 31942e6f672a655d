//! [`Pool`]: the drivers, each behind one function.

#[cfg(feature = "bb8")]
mod bb8;
#[cfg(feature = "deadpool")]
mod deadpool;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(any(feature = "bb8", feature = "deadpool"))]
mod tokio_postgres;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::fault::PostgresFault;

/// A pool of connections: of `deadpool-postgres` (feature `deadpool`, on by default), of `bb8` with `bb8-postgres`
/// (feature `bb8`), or of `sqlx` (feature `sqlx`).
///
/// It may be the program's own, or one for the limits alone, which no other work can use up.
pub trait Pool: sealed::Run {}

impl<P: sealed::Run> Pool for P {}

/// The rows of an answer.
pub(crate) type Answer = Result<Vec<Vec<Value>>, PostgresFault>;

/// A call of the driver.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// A parameter, or a field of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An `int8`.
    Int(Option<i64>),
    /// A `text`.
    Text(Option<String>),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(Some(number))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

/// Keeps other crates from implementing [`Pool`], so that it can change.
pub(crate) mod sealed {
    use super::{Duration, Running, Value, fmt};

    /// Sends statements.
    pub trait Run: fmt::Debug + Send + Sync + 'static {
        /// Sends a statement over one of the connections, for which it waits no longer than `wait`. If this is dropped
        /// while the statement runs, no other one is sent over its connection.
        #[doc(hidden)]
        fn run<'a>(&'a self, statement: &'a str, parameters: &'a [Value], wait: Duration) -> Running<'a>;
    }
}
