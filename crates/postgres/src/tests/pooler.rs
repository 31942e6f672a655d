//! pgbouncer between the store and the server.

use tower_sluice::algorithm::FixedWindow;

use super::server::Pgbouncer;
use super::*;
use crate::pool::Value;

const LIMIT: u64 = 1_000_000;

async fn used(postgres: &Postgres) -> i64 {
    match postgres.query(&format!("SELECT sum(used)::int8 FROM {}", postgres.table_name())).await.unwrap()[0][0] {
        Value::Int(used) => used.unwrap_or(0),
        Value::Text(_) => panic!("no number"),
    }
}

fn window() -> FixedWindow {
    FixedWindow::new(Quota::per(LIMIT, YEAR))
}

/// Two processes prepare statements with the same names over the same connections. Some decisions were made by another
/// process's statement, and their units were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_statement_fails_with_a_message() {
    let server = PostgresServer::start();
    let direct = process(pool_of(&server.url(), 1)).await;
    let pooler = Pgbouncer::start(&server, "transaction");
    let other = |name: &'static str| {
        let pool = super::drivers::sqlx_pool(&pooler.url(), 4);
        let postgres = direct.clone().with_pool(pool);
        RateLimiter::new(window(), PostgresStore::new(&postgres, name).without_coalescing())
    };
    let limiters = [Arc::new(other("one")), Arc::new(other("other"))];
    let (mut admitted, mut is_named) = (0_i64, false);
    timing::eventually("a statement meets another connection", async || {
        let asking: Vec<_> = (0..16_u64)
            .map(|number| {
                let limiter = Arc::clone(&limiters[usize::try_from(number % 2).unwrap()]);
                tokio::spawn(async move {
                    let key = (number / 2).into();
                    if number % 3 == 0 {
                        return limiter.peek(&key, 1).await.map(|_| 0);
                    }
                    limiter.acquire(&key, 1).await.map(|permit| i64::from(permit.is_allowed()))
                })
            })
            .collect();
        for asked in asking {
            match asked.await.unwrap() {
                Ok(units) => admitted += units,
                Err(error) if kind(&error) == FaultKind::BreakerOpen => {}
                Err(error) => {
                    let text = error.source().expect("the fault").to_string();
                    assert_eq!(kind(&error), FaultKind::Pooler, "{text}");
                    assert!(text.contains("call `Postgres::behind_pooler`"), "{text}");
                    is_named = true;
                }
            }
        }
        is_named
    })
    .await;
    assert_eq!(used(&direct).await, admitted, "what was admitted was charged");
}

async fn check(postgres: Postgres, direct: &Postgres) {
    let limiter = Arc::new(RateLimiter::new(window(), PostgresStore::new(&postgres, "test").without_coalescing()));
    let before = used(direct).await;
    let asking: Vec<_> = (0..200_u64)
        .map(|number| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.acquire(&(number % 7).into(), 1).await.unwrap().is_allowed() })
        })
        .collect();
    for asked in asking {
        assert!(asked.await.unwrap());
    }
    assert_eq!(used(direct).await - before, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_pooler_decides_exactly() {
    let server = PostgresServer::start();
    let direct = process(pool_of(&server.url(), 1)).await;
    let pooler = Pgbouncer::start(&server, "transaction");
    check(direct.clone().with_pool(pool_of(&pooler.url(), 4)).behind_pooler(), &direct).await;
    #[cfg(feature = "bb8")]
    check(direct.clone().with_pool(super::drivers::bb8_pool(&pooler.url(), 4).await).behind_pooler(), &direct).await;
    // Nothing was set on the connections that others use, too.
    let settings = "SELECT current_setting('enable_seqscan') || current_setting('statement_timeout')";
    let others = direct.clone().with_pool(pool_of(&pooler.url(), 1));
    assert_eq!(others.query(settings).await.unwrap()[0][0], Value::from("on0".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_needs_nothing() {
    let server = PostgresServer::start();
    let direct = process(pool_of(&server.url(), 1)).await;
    let pooler = Pgbouncer::start(&server, "session");
    for name in ["deadpool", "bb8", "sqlx"] {
        // Fewer than the pooler has, for both its clients.
        let pool = super::drivers::over(name, &pooler.url(), 2).await;
        check(pool.table(direct.table_name()).timeout(MINUTE), &direct).await;
    }
}
