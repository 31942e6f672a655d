//! Faults and their names.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use tower_sluice::algorithm::TokenBucket;

use super::*;

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_day(1_000))
}

/// The fault of a decision on a new key.
async fn fault_of(postgres: &Postgres) -> FaultKind {
    static KEY: AtomicU64 = AtomicU64::new(0);
    let key = KEY.fetch_add(1, Ordering::Relaxed);
    let limiter = limiter(postgres, bucket());
    kind(&limiter.acquire(&key.into(), 1).await.expect_err("a fault"))
}

#[tokio::test]
async fn an_unusable_table_has_a_cure() {
    let missing = Postgres::new(pool(1)).table("missing").timeout(MINUTE);
    assert_eq!(fault_of(&missing).await, FaultKind::NoTable);
    let error = limiter(&missing, bucket()).acquire(&"key".into(), 1).await.unwrap_err();
    let fault = error.source().expect("the fault").to_string();
    assert!(fault.contains("run the migration") && fault.contains("SQLSTATE 42P01"), "{fault}");
    let old = process(pool(1)).await;
    PostgresServer::shared().run(&format!("ALTER TABLE {} DROP COLUMN reason", old.table_name()));
    assert_eq!(fault_of(&old).await, FaultKind::WrongTable);
    assert_eq!(missing.health().breaker(), tower_sluice::store::BreakerState::Closed);
}

#[tokio::test]
async fn roles_without_permission_have_a_cure() {
    let server = PostgresServer::start();
    let postgres = process(pool_of(&server.url(), 1)).await;
    server.run("CREATE ROLE reader LOGIN");
    server.run("CREATE ROLE late LOGIN");
    server.run("ALTER ROLE late SET default_transaction_read_only = on");
    server.run(&format!("GRANT SELECT ON {} TO reader", postgres.table_name()));
    server.run(&format!("GRANT ALL ON {} TO late", postgres.table_name()));
    let by =
        |role: &str| postgres.clone().with_pool(pool_of(&server.url().replace("postgres@", &format!("{role}@")), 1));
    assert_eq!(fault_of(&by("reader")).await, FaultKind::NoPermission);
    assert_eq!(fault_of(&by("nobody")).await, FaultKind::NoPermission);
    assert_eq!(fault_of(&by("late")).await, FaultKind::ReadOnly);
}

/// If two transactions change one row, the later one fails unless it is under READ COMMITTED.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_isolation_has_a_cure() {
    let server = PostgresServer::start();
    let postgres = process(pool_of(&server.url(), 1)).await;
    server.run("ALTER ROLE postgres SET default_transaction_isolation = 'repeatable read'");
    let task = || {
        let postgres = postgres.clone().with_pool(pool_of(&server.url(), 1));
        tokio::spawn(async move {
            for _ in 0..1_000 {
                apply(&postgres, &bucket(), 1, Transition::Charge { cost: 1, count: 1 }).await?;
            }
            Ok::<_, PostgresFault>(())
        })
    };
    let (one, other) = (task(), task());
    let faults = [one.await.unwrap(), other.await.unwrap()];
    let kinds = faults.iter().filter_map(|ended| ended.as_ref().err().map(PostgresFault::kind));
    assert!(kinds.clone().count() > 0 && kinds.clone().all(|kind| kind == FaultKind::Serialization), "{faults:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_used_again() {
    let mut server = PostgresServer::start();
    let url = server.url();
    #[cfg_attr(not(any(feature = "bb8", feature = "sqlx")), allow(unused_mut))]
    let mut all = vec![process(pool_of(&url, 2)).await];
    #[cfg(feature = "bb8")]
    all.push(process(drivers::bb8_pool(&url, 2).await).await);
    #[cfg(feature = "sqlx")]
    all.push(process(drivers::sqlx_pool(&url, 2)).await);
    for postgres in &all {
        apply(postgres, &bucket(), 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
    }
    server.kill();
    for postgres in all.clone().into_iter().map(|postgres| postgres.timeout(Duration::from_millis(200))) {
        let kind = fault_of(&postgres).await;
        assert!(matches!(kind, FaultKind::Unreachable | FaultKind::ConnectionLost), "{kind:?}");
    }
    server.restart();
    for postgres in &all {
        // A crash has emptied the table, and left it there.
        let postgres = postgres.clone().timeout(Duration::from_secs(5));
        timing::eventually("the server is used again", async || {
            let charge = Transition::Charge { cost: 1_000, count: 1 };
            apply(&postgres, &bucket(), 2, charge).await.is_ok_and(|applied| applied.charged == 1)
        })
        .await;
    }
}

/// A connection whose statement has not ended is not used for another one.
#[tokio::test]
async fn a_locked_row_delays_only_its_requests() {
    let server = PostgresServer::start();
    let url = server.url();
    let lock_pool = pool_of(&url, 1);
    #[cfg_attr(not(any(feature = "bb8", feature = "sqlx")), allow(unused_mut))]
    let mut all = vec![process(pool_of(&url, 4)).await];
    #[cfg(feature = "bb8")]
    all.push(process(drivers::bb8_pool(&url, 4).await).await);
    #[cfg(feature = "sqlx")]
    all.push(process(drivers::sqlx_pool(&url, 4)).await);
    for postgres in all {
        apply(&postgres, &bucket(), 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
        let mut connection = lock_pool.get().await.unwrap();
        let lock = connection.transaction().await.unwrap();
        lock.execute(&format!("SELECT FROM {} FOR UPDATE", postgres.table_name()), &[]).await.unwrap();
        {
            let row = row(&postgres, &bucket(), 1);
            let mut waiting = pin!(row.apply(Transition::Charge { cost: 1, count: 1 }, Instant::now() + MINUTE));
            timing::eventually("it waits for the lock", async || {
                assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                server.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "1"
            })
            .await;
        }
        for key in 2..12 {
            apply(&postgres, &bucket(), key, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
        }
        lock.rollback().await.unwrap();
        timing::eventually("nothing waits", async || {
            server.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "0"
        })
        .await;
    }
}

#[tokio::test]
async fn statements_cancelled_by_the_server_are_named() {
    let server =
        PostgresServer::with(&["lock_timeout = '10ms'", "max_connections = 10", "superuser_reserved_connections = 0"]);
    let postgres = process(pool_of(&server.url(), 2)).await;
    apply(&postgres, &bucket(), 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
    let lock_pool = pool_of(&server.url(), 20);
    let mut connection = lock_pool.get().await.unwrap();
    let lock = connection.transaction().await.unwrap();
    lock.execute(&format!("SELECT FROM {} FOR UPDATE", postgres.table_name()), &[]).await.unwrap();
    let charge = Transition::Charge { cost: 1, count: 1 };
    assert_eq!(apply(&postgres, &bucket(), 1, charge).await.unwrap_err().kind(), FaultKind::StatementTimeout);
    lock.rollback().await.unwrap();
    let mut connections = Vec::new();
    while let Ok(connection) = lock_pool.get().await {
        connections.push(connection);
    }
    let another = postgres.clone().with_pool(pool_of(&server.url(), 1));
    assert_eq!(fault_of(&another).await, FaultKind::TooManyConnections);
}

/// Statements that wait for locks have all connections. We count that as a server fault, so the breaker opens.
#[tokio::test]
async fn an_exhausted_pool_opens_the_breaker() {
    let server = PostgresServer::start();
    let postgres = process(pool_of(&server.url(), 1)).await.timeout(Duration::from_millis(200));
    let lock_pool = pool_of(&server.url(), 1);
    let mut connection = lock_pool.get().await.unwrap();
    let lock = connection.transaction().await.unwrap();
    lock.execute(&format!("LOCK TABLE {}", postgres.table_name()), &[]).await.unwrap();
    let mut seen = Vec::new();
    timing::eventually("the pool is exhausted, and the breaker opens", async || {
        let asking: Vec<_> = (0..10)
            .map(|_| {
                tokio::spawn({
                    let postgres = postgres.clone();
                    async move { fault_of(&postgres).await }
                })
            })
            .collect();
        for asked in asking {
            seen.push(asked.await.unwrap());
        }
        seen.contains(&FaultKind::PoolExhausted) && seen.contains(&FaultKind::BreakerOpen)
    })
    .await;
    lock.rollback().await.unwrap();
    timing::eventually("it is used again", async || {
        apply(&postgres, &bucket(), 1, Transition::Charge { cost: 1, count: 1 }).await.is_ok()
    })
    .await;
}

/// It is used again once it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_opens_the_breaker() {
    let mut server = PostgresServer::start();
    let postgres = process(pool_of(&server.url(), 4)).await.timeout(Duration::from_millis(100));
    let limiter = limiter(&postgres, bucket());
    timing::eventually("it answers", async || limiter.acquire(&"first".into(), 1).await.is_ok()).await;
    server.suspend();
    timing::eventually("the breaker opens", async || {
        let kinds = [FaultKind::TimedOut, FaultKind::Unreachable, FaultKind::PoolExhausted, FaultKind::BreakerOpen];
        let kind = fault_of(&postgres).await;
        assert!(kinds.contains(&kind), "{kind:?}");
        kind == FaultKind::BreakerOpen
    })
    .await;
    server.resume();
    timing::eventually("it is used again", async || limiter.acquire(&"second".into(), 1).await.is_ok()).await;
}
