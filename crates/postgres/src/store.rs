//! [`PostgresStore`]: one limiter's settings.

use std::time::Duration;

use tower_sluice::store::OpenStore;
use tower_sluice::store::remote::{RemoteStore, RemoteTable};

use crate::backend::PostgresBackend;
use crate::kept::Kept;
use crate::postgres::Postgres;

/// The settings of a limiter whose keys are on PostgreSQL, where all processes that use the same name share them.
///
/// [`RateLimiter::new`](tower_sluice::RateLimiter::new) makes the limiter from an algorithm and these settings.
///
/// # Quotas
///
/// All quotas fit: limits, bursts and costs up to [`Quota::MAX_UNITS`](tower_sluice::Quota::MAX_UNITS)
/// (999,999,999,999,999), per nanosecond or per century. Staggered windows do not fit: see [`Unfit`](crate::Unfit).
///
/// # Cost
///
/// | a decision | takes |
/// |---|---|
/// | by any algorithm | one statement, which writes the row of the key |
/// | of several policies over one [`Postgres`], all or none | one statement, which writes the rows that are charged |
/// | on a key that is known here as used up | nothing but a look at a table in this process |
/// | on a key that is known here as used up, asked again | one statement that only reads, at most once per half a second and process |
/// | with [leases](Self::leasing) of *n* requests | 1/*n* of a statement for a key in demand |
///
/// A statement took the server 121 to 176 microseconds of processor time, and an upsert that adds one 82 to 109
/// (`scripts/bench --postgres` on an AMD EPYC, 2026-12-01). A statement that is not prepared
/// ([`Postgres::behind_pooler`]) takes longer. A bucket's row and its place in the index took 215 bytes there.
/// Refunds, resets, bans and overrides take one statement each, a debt and a charge by hand two. If a key is in demand
/// everywhere, the server makes one decision after the other, so use leases.
///
/// Requests for one key that come while a call for it is in flight on their runtime share the next call.
///
/// # Expired rows
///
/// For every 16 new keys, a process examines 256 random rows in the background, and deletes those that expired
/// more than a minute ago. At a steady rate of new keys, one row in 16 is such a row. If no new keys come, rows stay.
///
/// # Accuracy
///
/// Exact over all processes, by the server's clock, in whole microseconds, which is read under the row's lock. If that
/// clock is set back, as after a failover, keys keep the debt from their last decision: nothing is admitted twice, and
/// no client is locked out.
///
/// # Another quota
///
/// A limiter with another quota may have the same name, so that processes with the old and the new quota share the
/// state while you roll out a change. Each decision converts it to its own quota, as after a [live
/// change](https://docs.rs/tower-sluice/latest/tower_sluice/trait.Limiter.html#method.inherit): used units stay used.
///
/// # Bans, allowances and debts
///
/// They are in the key's row, and so cost a decision nothing. The row counts bans that
/// [grow](https://docs.rs/tower-sluice/latest/tower_sluice/struct.Penalty.html#method.growing), for all processes
/// together. Refunds for earlier charges do nothing while one of them is in force.
///
/// # Free retries, references of charges by hand, and who is rejected most
///
/// They are [records](crate::PostgresRecords) in the second table, which all processes share: see
/// [`RemoteStore::records`].
///
/// # When PostgreSQL fails, or does not answer
///
/// A [decision](tower_sluice::Limiter::decide) fails within the [timeout](Postgres::timeout), and its error's source is
/// a [`PostgresFault`](crate::PostgresFault). Five failures in a row open the circuit breaker, and decisions fail at
/// once. While it is open, the store makes connections in the background, and the first of them closes it with the next
/// decision. For the local fallback, the limiter also counts in memory the requests that PostgreSQL admits. A statement
/// that may have run is not sent again.
///
/// The server ends a statement that waits for a lock after three quarters of the timeout. Against other transactions
/// that hold locks on the table, such as a person's, set `idle_in_transaction_session_timeout`.
///
/// Transactions must be under READ COMMITTED, the default. If the role has another default, decisions on a busy key
/// fail with [`Serialization`](crate::FaultKind::Serialization).
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged.
#[derive(Debug)]
#[must_use]
pub struct PostgresStore(RemoteStore<PostgresBackend>);

impl PostgresStore {
    /// Creates the settings for the limiter named `name`. Limiters that share a table need different names, and
    /// limiters in several processes that share their budgets need the same name. With another algorithm, a limiter
    /// with the same name has other keys.
    ///
    /// # Panics
    ///
    /// If `name` is longer than 255 bytes, or has a NUL, which PostgreSQL's texts cannot contain.
    #[track_caller]
    pub fn new(postgres: &Postgres, name: &str) -> Self {
        if let Err(problem) = check_name(name) {
            panic!("{problem}");
        }
        Self(RemoteStore::new(PostgresBackend::new(postgres, name)).records(postgres.records(), name))
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

    /// Makes a separate call for every request that the process cannot decide by itself: see
    /// [`RemoteStore::without_coalescing`].
    pub fn without_coalescing(self) -> Self {
        Self(self.0.without_coalescing())
    }
}

/// Checks a limiter's name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.len() > 255 {
        let length = name.len();
        return Err(format!("the name of a limiter on PostgreSQL has 255 bytes at the most, not {length}; shorten it"));
    }
    if name.contains('\0') {
        return Err(format!("no text of PostgreSQL has a NUL, as the name {name:?} does; remove it"));
    }
    Ok(())
}

/// One limiter's keys on PostgreSQL, made from a [`PostgresStore`].
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
