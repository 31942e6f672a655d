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

use tokio::time::timeout;

use crate::fault::{FaultKind, PostgresFault};

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

/// How long a statement may go on after its request has given it up.
const LONGEST: Duration = Duration::from_secs(10);

/// Awaits the statement of a query, which owns its connection. If this is dropped, the statement goes on in the
/// background: its connection comes back to the pool when it has ended, or is closed if that takes too long. Otherwise
/// the next statement would wait behind it; and if every timeout closed a connection, a server that is slow would have
/// to make new ones all the time.
async fn to_its_end(query: impl Future<Output = Answer> + Send + 'static) -> Answer {
    let query = tokio::spawn(async { timeout(LONGEST, query).await.unwrap_or(Err(FaultKind::TimedOut.into())) });
    query.await.unwrap_or_else(|_| Err(FaultKind::Cancelled.into()))
}

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
        /// while the statement runs, no other one is sent over its connection until it has ended.
        #[doc(hidden)]
        fn run<'a>(&'a self, statement: &'a str, parameters: &'a [Value], wait: Duration) -> Running<'a>;
    }
}
