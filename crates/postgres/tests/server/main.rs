//! Several processes on one table, and servers that are killed, stand still, or are misconfigured.
#![cfg(feature = "deadpool")]

mod accounts;
mod by_hand;
mod clocks;
mod crashes;
mod faults;
mod in_flight;
mod killed;
#[cfg(feature = "file")]
mod prepared;
mod processes;
#[path = "../../../../tests/support/postgres.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod server;
mod statements;
#[path = "../../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod timing;

use std::error::Error;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use http::HeaderName;
use tokio_postgres::NoTls;
use tower_sluice::algorithm::Algorithm;
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::Ask;
use tower_sluice::{Decision, Limiter, LimiterError, LimiterExt, Quota, RateLimiter};
use tower_sluice_postgres::{Kept, Postgres, PostgresFault, PostgresStore, PostgresTable};

/// A timeout that no call misses, even on a busy machine.
const PLENTY: Duration = Duration::from_secs(600);

const DAY: Duration = Duration::from_secs(86_400);

type Over<A> = RateLimiter<A, PostgresTable<<A as Algorithm>::State>>;

/// Limits to `limit` units in 100 days: a bucket earns nothing during a test, and a window hardly ever ends.
fn quota(limit: u64) -> Quota {
    Quota::per(limit, 100 * DAY)
}

fn pool(url: &str, connections: usize) -> Pool {
    let manager = Manager::new(url.parse().expect("an address"), NoTls);
    Pool::builder(manager).max_size(connections).build().expect("no timeouts")
}

/// One process, which has all the time it needs.
fn process(pool: &Pool) -> Postgres {
    Postgres::new(pool.clone()).timeout(PLENTY)
}

fn limiter<A: Kept>(postgres: &Postgres, algorithm: A) -> Over<A> {
    RateLimiter::new(algorithm, PostgresStore::new(postgres, "test"))
}

/// A limiter that sends a statement for every request.
fn limiter_without_coalescing<A: Kept>(postgres: &Postgres, algorithm: A) -> Over<A> {
    RateLimiter::new(algorithm, PostgresStore::new(postgres, "test").without_coalescing())
}

async fn ask<A: Kept>(limiter: &Over<A>, key: &str) -> Result<Decision, LimiterError> {
    limiter.decide(&Ask::charge(&key.into(), 1)).decided().await
}

/// The header that names a request's client.
const CLIENT: HeaderName = HeaderName::from_static("x-client");

fn client() -> HeaderKey {
    HeaderKey::new(CLIENT)
}

/// PostgreSQL's fault in place of a decision.
fn fault(error: &LimiterError) -> &PostgresFault {
    error.source().and_then(<dyn Error>::downcast_ref).unwrap_or_else(|| panic!("another error: {error}"))
}
