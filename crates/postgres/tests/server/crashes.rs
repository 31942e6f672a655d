//! Servers that are killed or stand still under load. A decision that fails is an error, and never a rejection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::store::BreakerState;
use tower_sluice_postgres::FaultKind;

use super::server::PostgresServer;
use super::timing::{eventually, some_attempt_async};
use super::*;

/// With a timeout that a busy machine does not miss all the time.
const TIMEOUT: Duration = Duration::from_millis(500);

/// More than these tests ask for.
const MUCH: u64 = 1_000_000_000;

/// Tasks that repeatedly ask for one unit of one key.
struct Load {
    counts: Arc<Counts>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    ends: AtomicBool,
    admitted: AtomicU64,
    /// Requests without a decision whose statement was certainly not carried out, and all others.
    uncharged: AtomicU64,
    unknown: AtomicU64,
}

impl Load {
    fn on<A: Kept>(postgres: &Postgres, algorithm: A) -> Self {
        let counts = Arc::new(Counts::default());
        let limiter = Arc::new(limiter_without_coalescing(postgres, algorithm));
        let task = |_| {
            let (limiter, counts) = (Arc::clone(&limiter), Arc::clone(&counts));
            tokio::spawn(async move {
                while !counts.ends.load(Ordering::Relaxed) {
                    match ask(&limiter, "key").await {
                        Ok(decision) => {
                            assert!(decision.is_allowed(), "there are units left, and it is rejected: {decision:?}");
                            counts.admitted.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => counts.fail(fault(&error)),
                    }
                    tokio::task::yield_now().await;
                }
            })
        };
        Self { tasks: (0..8).map(task).collect(), counts: Arc::clone(&counts) }
    }

    fn failures(&self) -> u64 {
        self.counts.uncharged.load(Ordering::Relaxed) + self.counts.unknown.load(Ordering::Relaxed)
    }

    fn admitted(&self) -> u64 {
        self.counts.admitted.load(Ordering::Relaxed)
    }

    /// Waits until there are many more decisions.
    async fn goes_on(&self) {
        let before = self.admitted();
        eventually("the server decides", async || self.admitted() > before + 500).await;
    }

    /// Ends the load. Returns how many requests were admitted, and how many failed with an unknown outcome.
    async fn end(self) -> (u64, u64) {
        self.counts.ends.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        (self.counts.admitted.load(Ordering::Relaxed), self.counts.unknown.load(Ordering::Relaxed))
    }
}

impl Counts {
    fn fail(&self, fault: &PostgresFault) {
        match fault.kind() {
            // Nothing was charged.
            FaultKind::Unreachable
            | FaultKind::BreakerOpen
            | FaultKind::PoolExhausted
            | FaultKind::StatementTimeout => &self.uncharged,
            FaultKind::ConnectionLost | FaultKind::TimedOut | FaultKind::ShuttingDown => &self.unknown,
            other => panic!("{other:?}: {fault}"),
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills the server under load and starts it again, a few times, with a table that survives that.
async fn no_charge_is_lost<A: Kept>(algorithm: A, used: &str) {
    let mut server = PostgresServer::start();
    let postgres = Postgres::new(pool(&server.url(), 8)).timeout(TIMEOUT);
    postgres.migrate().await.unwrap();
    server.run("ALTER TABLE sluice_state SET LOGGED");
    let load = Load::on(&postgres, algorithm);
    for _ in 0..3 {
        load.goes_on().await;
        let failures = load.failures();
        server.kill();
        eventually("each task notices it", async || load.failures() >= failures + 16).await;
        assert_ne!(postgres.health().breaker(), BreakerState::Closed);
        server.restart();
    }
    load.goes_on().await;
    let (admitted, unknown) = load.end().await;
    let used: u64 = server.run(used).parse().unwrap();
    assert!((admitted..=admitted + unknown).contains(&used), "{used} used, {admitted} admitted, {unknown} unknown");
    assert_eq!(postgres.health().breaker(), BreakerState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_keeps_a_windows_charges() {
    no_charge_is_lost(FixedWindow::new(quota(MUCH)), "SELECT used FROM sluice_state").await;
}

/// A bucket earns one unit in 100 days, so its debt shows how many were charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_keeps_a_buckets_charges() {
    let used = "SELECT ceil((number - extract(epoch FROM changed) * 1000000000) / quota_period) FROM sluice_state";
    no_charge_is_lost(TokenBucket::new(quota(1).burst(MUCH)), used).await;
}

/// All keys have their full budgets then, as the migration says.
#[tokio::test]
async fn a_crash_empties_an_unlogged_table() {
    let mut server = PostgresServer::start();
    let postgres = process(&pool(&server.url(), 1));
    postgres.migrate().await.unwrap();
    let limiter = limiter(&postgres, FixedWindow::new(quota(10)));
    let decides = || eventually("the server decides", async || ask(&limiter, "key").await.is_ok());
    assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 9);
    server.kill();
    assert!(ask(&limiter, "key").await.is_err());
    server.restart();
    assert_eq!(server.run("SELECT count(*) FROM sluice_state"), "0");
    decides().await;
    assert_eq!(limiter.peek(&"key".into(), 0).await.unwrap().remaining(), 9, "the key had its full budget");
}

/// A statement goes to a server that does not answer, and its caller does not wait for longer than the timeout. Once
/// the server continues, it decides again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_server_fails_decisions_in_time() {
    let mut server = PostgresServer::start();
    let postgres = Postgres::new(pool(&server.url(), 8)).timeout(TIMEOUT);
    postgres.migrate().await.unwrap();
    let limiter = limiter_without_coalescing(&postgres, FixedWindow::new(quota(MUCH)));
    eventually("the server decides", async || ask(&limiter, "key").await.is_ok()).await;
    server.suspend();
    // The limiter has a connection, over which it asks.
    some_attempt_async("a decision fails within its timeout", async || {
        let begun = Instant::now();
        let error = ask(&limiter, "key").await.unwrap_err();
        let took = begun.elapsed();
        let kind = fault(&error).kind();
        let fails = [FaultKind::TimedOut, FaultKind::Unreachable, FaultKind::BreakerOpen, FaultKind::StatementTimeout];
        assert!(fails.contains(&kind), "{error}");
        if took < TIMEOUT * 2 { Ok(()) } else { Err(format!("{took:?}")) }
    })
    .await;
    eventually("the breaker opens", async || {
        assert!(ask(&limiter, "key").await.is_err());
        postgres.health().breaker() != BreakerState::Closed
    })
    .await;
    if let BreakerState::Open { probe_in: Some(pause) } = postgres.health().breaker() {
        assert!(pause <= Duration::from_secs(5), "{pause:?}");
    }
    server.resume();
    let load = Load::on(&postgres, FixedWindow::new(quota(MUCH)));
    load.goes_on().await;
    assert_eq!(postgres.health().breaker(), BreakerState::Closed);
    load.end().await;
}

/// An operator ends a connection. The statement that ran over it fails, and the store makes another one.
#[tokio::test]
async fn an_ended_connection_is_replaced() {
    let server = PostgresServer::start();
    let postgres = process(&pool(&server.url(), 1));
    postgres.migrate().await.unwrap();
    let limiter = limiter(&postgres, FixedWindow::new(quota(10)));
    for used in 1..=5 {
        assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 10 - used);
        let ended = "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name <> 'psql'";
        assert_eq!(server.run(&format!("{ended} AND backend_type = 'client backend'")), "t");
        let others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
        eventually("it has ended", async || server.run(others) == "1").await;
        // The store finds out before it hands the connection out, or with the statement.
        eventually("there is another connection", async || limiter.peek(&"key".into(), 0).await.is_ok()).await;
    }
}
