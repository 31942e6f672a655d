//! Tests against a server.

mod conformance;
#[path = "../../../../tests/support/effort.rs"]
#[allow(unreachable_pub, reason = "shared with other tests")]
mod effort;
mod traces;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use tokio_postgres::NoTls;
use tower_sluice::Quota;

use crate::Postgres;

/// The greatest quota of a month.
fn greatest() -> Quota {
    Quota::per(Quota::MAX_UNITS, Duration::from_secs(30 * 86_400))
}

fn quota() -> Quota {
    Quota::per(7, Duration::from_secs(60))
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A pool of so many connections.
fn pool(connections: usize) -> Pool {
    let url = std::env::var("SLUICE_POSTGRES").expect("the address of a server");
    let manager = Manager::new(url.parse().expect("an address"), NoTls);
    Pool::builder(manager).max_size(connections).build().expect("no timeouts")
}

/// The name of a table that no other test has.
fn new_table() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// One process, which has all the time it needs, and a table of its own.
async fn process(pool: &Pool) -> Postgres {
    let postgres = Postgres::new(pool.clone()).table(&new_table()).timeout(Duration::from_secs(60));
    postgres.migrate().await.expect("a server");
    postgres
}
