//! [`Pool`]: the drivers. Each makes connections, and sends statements over them.

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

use crate::fault::PostgresFault;

/// A pool of connections: by `deadpool-postgres` (feature `deadpool`, on by default), by `bb8` with `bb8-postgres`
/// (feature `bb8`), or by `sqlx` (feature `sqlx`).
///
/// The store takes the address, the credentials, TLS, and the number of connections from it. With these it makes its
/// own connections, at most the number that the pool allows, and does not give them to the rest of the program. So the
/// program's slow queries take no connection from the limits, a connection that takes longer than a request waits is
/// still made, and settings for the limits' statements affect no other statement.
///
/// Hooks that a pool runs when it makes a connection (`post_create` in deadpool, `after_connect` in sqlx) are not run.
/// A connection customizer in bb8 is.
pub trait Pool: sealed::Connect {}

impl<P: sealed::Connect> Pool for P {}

/// An answer's rows.
pub(crate) type Answer = Result<Vec<Vec<Value>>, PostgresFault>;

/// A statement that a driver carries out.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// A connection that a driver makes.
pub(crate) type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Session>, PostgresFault>> + Send + 'a>>;

/// A parameter, or a field in a row.
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

pub(crate) use self::sealed::{Connect, Session};

/// Keeps other crates from implementing [`Pool`], so that it can change.
pub(crate) mod sealed {
    use super::{Connecting, Running, Value, fmt};

    /// Makes connections.
    pub trait Connect: fmt::Debug + Send + Sync + 'static {
        /// How many connections the pool may have.
        #[doc(hidden)]
        fn max_connections(&self) -> usize;

        /// Makes a connection. If the future is dropped, the connection is not made.
        #[doc(hidden)]
        fn connect(&self) -> Connecting<'_>;
    }

    /// A connection. Dropping it closes it.
    pub trait Session: Send {
        /// Sends a statement. It is prepared once per connection if `is_prepared`, and otherwise parsed each time.
        /// After an answer, the connection is ready for the next statement. If the future is dropped, the connection
        /// must be [abandoned](Self::abandon).
        #[doc(hidden)]
        fn query<'a>(&'a mut self, text: &'a str, parameters: &'a [Value], is_prepared: bool) -> Running<'a>;

        /// Whether the driver has noticed that the connection was closed.
        #[doc(hidden)]
        fn is_closed(&self) -> bool;

        /// Closes the connection, although its statement has not ended. `has_backend` says that its backend serves no
        /// other client.
        #[doc(hidden)]
        fn abandon(self: Box<Self>, has_backend: bool);
    }
}
