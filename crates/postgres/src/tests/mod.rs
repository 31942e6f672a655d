//! Tests against a server.

mod accounts;
mod conformance;
#[path = "../../../../src/values/counterexamples.rs"]
mod counterexamples;
mod drivers;
#[path = "../../../../tests/support/effort.rs"]
#[allow(unreachable_pub, reason = "shared with other tests")]
pub(crate) mod effort;
mod exact;
mod faults;
mod in_flight;
mod joint;
mod layer;
mod network;
mod plans;
#[cfg(feature = "sqlx")]
mod pooler;
mod proofs;
#[path = "../../../../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod proxy;
mod queue;
mod records;
#[path = "../../../../tests/support/postgres.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod server;
mod shared;
mod standing;
mod sweep;
#[path = "../../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod timing;
mod traces;
mod turns;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use tokio::time::Instant;
use tokio_postgres::NoTls;
use tower_sluice::algorithm::Algorithm;
use tower_sluice::store::remote::{Applied, Transition};
use tower_sluice::{LimiterError, LimiterExt, Quota, RateLimiter};

use self::server::PostgresServer;
use crate::backend::KeyRow;
use crate::{FaultKind, Kept, Postgres, PostgresFault, PostgresStore, PostgresTable};

const MINUTE: Duration = Duration::from_secs(60);

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A limiter over a store.
type Over<A> = RateLimiter<A, PostgresTable<<A as Algorithm>::State>>;

/// A month's greatest quota.
fn greatest() -> Quota {
    Quota::per(Quota::MAX_UNITS, Duration::from_secs(30 * 86_400))
}

fn quota() -> Quota {
    Quota::per(7, MINUTE)
}

/// A pool with this number of connections.
fn pool_of(url: &str, connections: usize) -> Pool {
    let manager = Manager::new(url.parse().expect("an address"), NoTls);
    Pool::builder(manager).max_size(connections).build().expect("no timeouts")
}

/// A pool with this number of connections to the server that tests share.
fn pool(connections: usize) -> Pool {
    pool_of(&PostgresServer::shared().url(), connections)
}

/// One process, which has all the time it needs, and a separate table.
async fn process(pool: impl crate::Pool) -> Postgres {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let table = format!("table_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let postgres = Postgres::new(pool).table(&table).timeout(MINUTE);
    postgres.migrate().await.expect("a server");
    postgres
}

/// One process's limiter.
fn limiter<A: Kept>(postgres: &Postgres, algorithm: A) -> Over<A> {
    RateLimiter::new(algorithm, PostgresStore::new(postgres, "test"))
}

/// The row whose key has this number.
fn row<A: Kept>(postgres: &Postgres, algorithm: &A, key: u128) -> KeyRow<A> {
    let (postgres, algorithm) = (postgres.clone(), algorithm.clone());
    KeyRow { postgres, limiter: "test".into(), lost: Arc::default(), algorithm, key: format!("{key:032x}") }
}

/// Applies a transition to it, past a store's tables.
async fn apply<A: Kept>(
    postgres: &Postgres,
    algorithm: &A,
    key: u128,
    transition: Transition,
) -> Result<Applied<A::State>, PostgresFault> {
    row(postgres, algorithm, key).apply(transition, Instant::now() + MINUTE).await
}

/// The fault's kind.
fn kind(error: &LimiterError) -> FaultKind {
    let fault = error.source().and_then(|source| source.downcast_ref::<PostgresFault>());
    fault.expect("a fault of PostgreSQL is the source").kind()
}

/// Whether a test with several cases runs this one: `scripts/stress` draws one in ten, and another in each round.
fn is_drawn(case: u64) -> bool {
    std::env::var_os("STRESS").is_none() || tower_sluice::testing::Random::of_trial(case).below(10) == 0
}
