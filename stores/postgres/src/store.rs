//! [`PostgresStore`]: the settings of one limiter.

use std::time::Duration;

use tower_sluice::store::OpenStore;
use tower_sluice::store::remote::{RemoteStore, RemoteTable};

use crate::backend::PostgresBackend;
use crate::kept::Kept;
use crate::postgres::Postgres;

/// The settings of a limiter whose keys are on PostgreSQL, where all processes that name it alike share them.
///
/// [`RateLimiter::new`](tower_sluice::RateLimiter::new) makes the limiter from an algorithm and from these.
#[derive(Debug)]
#[must_use]
pub struct PostgresStore(RemoteStore<PostgresBackend>);

impl PostgresStore {
    /// Creates the settings of the one limiter that is called `name`: limiters that share a table need different names,
    /// and limiters of several processes that share their budgets need the same. With another algorithm, a limiter of
    /// the same name has other keys.
    ///
    /// # Panics
    ///
    /// If `name` is longer than 255 bytes.
    #[track_caller]
    pub fn new(postgres: &Postgres, name: &str) -> Self {
        assert!(name.len() <= 255, "the name of a limiter on PostgreSQL has 255 bytes at the most, not {}", name.len());
        Self(RemoteStore::new(PostgresBackend::new(postgres, name)))
    }

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls: see
    /// [`RemoteStore::leasing`].
    ///
    /// # Panics
    ///
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024.
    #[track_caller]
    pub fn leasing(self, most: u32, lifetime: Duration) -> Self {
        Self(self.0.leasing(most, lifetime))
    }

    /// Makes a call of its own for every request that is not decided without one: see
    /// [`RemoteStore::without_coalescing`].
    pub fn without_coalescing(self) -> Self {
        Self(self.0.without_coalescing())
    }
}

/// The keys of one limiter on PostgreSQL, made from a [`PostgresStore`].
pub type PostgresTable<S> = RemoteTable<S, PostgresBackend>;

impl<A: Kept> OpenStore<A> for PostgresStore {
    type Table = PostgresTable<A::State>;

    /// # Panics
    ///
    /// If PostgreSQL cannot keep this algorithm: see [`Unfit`](crate::Unfit).
    #[track_caller]
    fn open(self, algorithm: &A) -> Self::Table {
        let secret = self.0.backend().secret(A::KIND);
        self.0.secret(&secret).open(algorithm)
    }
}
