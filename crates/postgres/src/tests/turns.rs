//! A process has at most one statement in flight for a key.

use tower_sluice::algorithm::{FixedWindow, TokenBucket};

use super::*;
use crate::joint::{JointCall, KeyPart};

/// Twenty requests for one client's policies wait for a lock. All but one waited on the server, each with a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_statement_per_process_waits() {
    let server = PostgresServer::start();
    let postgres = process(pool_of(&server.url(), 8)).await;
    let charge = Transition::Charge { cost: 1, count: 1 };
    apply(&postgres, &FixedWindow::new(greatest()), 1, charge).await.unwrap();
    let lock_pool = pool_of(&server.url(), 1);
    let mut connection = lock_pool.get().await.unwrap();
    let lock = connection.transaction().await.unwrap();
    lock.execute(&format!("SELECT FROM {} FOR UPDATE", postgres.table_name()), &[]).await.unwrap();
    let several = (0..20_u128).map(|number| {
        let part = |id: u128| KeyPart::new(&FixedWindow::new(greatest()), format!("{id:032x}"), "test", 1);
        let call = JointCall {
            postgres: postgres.clone(),
            parts: vec![part(1), part(2 + number % 3)],
            sets: Some(vec![0b11]),
        };
        tokio::spawn(async move { call.decide().await.map(|outcome| outcome.charged) })
    });
    let several: Vec<_> = several.collect();
    let one = row(&postgres, &FixedWindow::new(greatest()), 1);
    let one = tokio::spawn(async move { one.apply(charge, Instant::now() + MINUTE).await });
    let waiting = || server.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
    timing::eventually("one waits", async || waiting() == "1").await;
    // The others would wait there by now, since later ones are answered.
    for key in 10..40 {
        apply(&postgres, &TokenBucket::new(greatest()), key, charge).await.unwrap();
    }
    assert_eq!(waiting(), "1");
    lock.rollback().await.unwrap();
    for asked in several {
        assert_eq!(asked.await.unwrap().unwrap(), 1);
    }
    assert_eq!(one.await.unwrap().unwrap().charged, 1);
    let used = format!("SELECT sum(used) FROM {}", postgres.table_name());
    // Buckets do not use a window's units.
    assert_eq!(server.run(&used), "42");
}
