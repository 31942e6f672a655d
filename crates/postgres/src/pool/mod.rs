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

/// A pool of connections: of `deadpool-postgres` (feature `deadpool`, on by default), of `bb8` with `bb8-postgres`
/// (feature `bb8`), or of `sqlx` (feature `sqlx`).
///
/// The store takes from it the address, the credentials, TLS, and how many connections there may be. It makes
/// connections of its own with these, at most as many as the pool may have, and gives none of them to the rest of the
/// program. So the program's slow queries take no connection from the limits, a connection that takes longer than a
/// request waits is still made, and settings for the limits' statements reach no other statement.
///
/// Hooks that a pool runs when it makes a connection (`post_create` of deadpool, `after_connect` of sqlx) are not run.
/// A connection customizer of bb8 is.
pub trait Pool: sealed::Connect {}

impl<P: sealed::Connect> Pool for P {}

/// The rows of an answer.
pub(crate) type Answer = Result<Vec<Vec<Value>>, PostgresFault>;

/// A statement that a driver carries out.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// A connection that a driver makes.
pub(crate) type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Session>, PostgresFault>> + Send + 'a>>;

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

pub(crate) use self::sealed::{Connect, Session};

/// Keeps other crates from implementing [`Pool`], so that it can change.
pub(crate) mod sealed {
    use super::{Connecting, Running, Value, fmt};

    /// Makes connections.
    pub trait Connect: fmt::Debug + Send + Sync + 'static {
        /// How many connections the pool may have.
        #[doc(hidden)]
        fn max_connections(&self) -> usize;

        /// Makes a connection. If this is dropped, none is made.
        #[doc(hidden)]
        fn connect(&self) -> Connecting<'_>;
    }

    /// A connection. Dropping it closes it.
    pub trait Session: Send {
        /// Sends a statement: prepared once per connection if `is_prepared`, and otherwise parsed anew. After an
        /// answer, the connection is ready for the next statement. If this is dropped, the connection must be
        /// [abandoned](Self::abandon).
        #[doc(hidden)]
        fn query<'a>(&'a mut self, text: &'a str, parameters: &'a [Value], is_prepared: bool) -> Running<'a>;

        /// Whether the driver has noticed that it was closed.
        #[doc(hidden)]
        fn is_closed(&self) -> bool;

        /// Closes it, although its statement has not ended. `has_backend` says that its backend serves no other client.
        #[doc(hidden)]
        fn abandon(self: Box<Self>, has_backend: bool);
    }
}
