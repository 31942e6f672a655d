//! All drivers make the decisions that `deadpool` makes.

#[cfg(any(feature = "bb8", feature = "sqlx"))]
use tower_sluice::algorithm::{SlidingWindow, TokenBucket};

#[cfg(any(feature = "bb8", feature = "sqlx"))]
use super::conformance::check_over;
#[cfg(any(feature = "bb8", feature = "sqlx"))]
use super::traces::trace;
use super::*;

#[cfg(any(feature = "bb8", feature = "sqlx"))]
async fn check(pool: impl crate::Pool + Clone) {
    trace(process(pool.clone()).await, &[quota(), greatest()].map(TokenBucket::new), 1, 500).await;
    trace(process(pool.clone()).await, &[quota(), greatest()].map(SlidingWindow::new), 2, 500).await;
    check_over(pool, TokenBucket::new(quota()), 3).await;
}

#[cfg(feature = "bb8")]
pub(super) async fn bb8_pool(url: &str, connections: u32) -> bb8::Pool<bb8_postgres::PostgresConnectionManager<NoTls>> {
    let manager = bb8_postgres::PostgresConnectionManager::new(url.parse().expect("an address"), NoTls);
    bb8::Pool::builder().max_size(connections).build(manager).await.expect("no idle connections to make")
}

#[cfg(feature = "bb8")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bb8_pool_decides_alike() {
    check(bb8_pool(&PostgresServer::shared().url(), 8).await).await;
}

#[cfg(feature = "sqlx")]
pub(super) fn sqlx_pool(url: &str, connections: u32) -> sqlx::PgPool {
    sqlx::pool::PoolOptions::new().max_connections(connections).connect_lazy(url).expect("an address")
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlx_pool_decides_alike() {
    check(sqlx_pool(&PostgresServer::shared().url(), 8)).await;
}

/// A process over each pool, with a separate table.
#[cfg_attr(not(any(feature = "bb8", feature = "sqlx")), allow(unused_mut, clippy::vec_init_then_push))]
pub(super) async fn over_each_pool(url: &str, connections: u32) -> Vec<(&'static str, Postgres)> {
    let mut all = Vec::new();
    all.push(("deadpool", process(pool_of(url, connections as usize)).await));
    #[cfg(feature = "bb8")]
    all.push(("bb8", process(bb8_pool(url, connections).await).await));
    #[cfg(feature = "sqlx")]
    all.push(("sqlx", process(sqlx_pool(url, connections)).await));
    all
}

/// A process over a pool with this name.
pub(super) async fn over(name: &str, url: &str, connections: u32) -> Postgres {
    match name {
        #[cfg(feature = "bb8")]
        "bb8" => Postgres::new(bb8_pool(url, connections).await),
        #[cfg(feature = "sqlx")]
        "sqlx" => Postgres::new(sqlx_pool(url, connections)),
        _ => Postgres::new(pool_of(url, connections as usize)),
    }
}
