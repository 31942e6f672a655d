//! No statement reads the whole table, even if it was planned for a table of another size.

use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::store::remote::{KeyRead, Standing};

use super::*;
use crate::joint::{JointCall, KeyPart};
use crate::pool::Value;

/// Sends each statement once, and returns how many there were.
async fn send_all(postgres: &Postgres, round: u128) -> u64 {
    let bucket = TokenBucket::new(Quota::per_day(1_000_000));
    let window = FixedWindow::new(Quota::per_day(1_000_000));
    let charge = Transition::Charge { cost: 1, count: 1 };
    let charged = apply(postgres, &bucket, 1, charge).await.unwrap();
    let receipt = bucket.decide(charged.old, charged.now, 1).0.receipt();
    let transitions = [
        charge,
        Transition::Read,
        Transition::Refund { cost: 1, receipt },
        Transition::Owe { units: 5 },
        Transition::Ban { span: MINUTE, growth: None },
        Transition::Reset,
        Transition::Owe { units: 5 },
        Transition::Reset,
    ];
    for transition in transitions {
        apply(postgres, &bucket, 1, transition).await.unwrap();
    }
    // To a key without a row, and to one with a row.
    for job in 0..2 {
        let row = row(postgres, &bucket, 1);
        let reference = format!("test:{round}:h{job}");
        let KeyRead { now, state, version, .. } = row.read_to_replace(Some(reference.clone())).await.unwrap();
        let (standing, state) = Standing::default().charge(&bucket, state, now, 5);
        let written = row.written(now, standing, state.as_ref(), version);
        assert!(row.replace(written, Some((reference, None))).await.unwrap());
    }
    apply(postgres, &bucket, 1, Transition::Reset).await.unwrap();
    let parts = || {
        let part = |id: u128| KeyPart::new(&window, format!("{id:032x}"), "test", 1);
        let new = KeyPart::new(&bucket, format!("{:032x}", 1_000 + round), "test", 1);
        vec![part(2), part(3), new]
    };
    for sets in [Some(vec![0b111, 0b001]), None] {
        JointCall { postgres: postgres.clone(), parts: parts(), sets }.decide().await.unwrap();
    }
    let pair = parts()[..2].to_vec();
    JointCall { postgres: postgres.clone(), parts: pair, sets: Some(vec![0b11]) }.decide().await.unwrap();
    postgres.sweep(&"0".repeat(32), 10).await.unwrap();
    22
}

async fn number(postgres: &Postgres, text: &str) -> i64 {
    match postgres.query(text).await.unwrap()[0][0] {
        Value::Int(Some(number)) => number,
        _ => panic!("no number"),
    }
}

/// The statements were planned while the table was tiny, and known to be. Then another process fills it. Statements on
/// several keys, refunds and reads took 14,000 pages each.
#[tokio::test]
async fn no_statement_reads_the_whole_table() {
    let server = PostgresServer::start();
    for (name, postgres) in super::drivers::over_each_pool(&server.url(), 1).await {
        let table = postgres.table_name().to_owned();
        let others = postgres.clone().with_pool(pool_of(&server.url(), 1));
        for table in [&table, &format!("{table}_records")] {
            server.run(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)"));
        }
        send_all(&postgres, 0).await;
        server.run(&format!("VACUUM ANALYZE {table}"));
        server.run(&format!("VACUUM ANALYZE {table}_records"));
        // After five executions, the server may keep a plan for all parameters.
        for round in 1..10 {
            send_all(&postgres, round).await;
        }
        server.run(&format!(
            "INSERT INTO {table} (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, \
             charged, expires) SELECT md5(n::text)::uuid, 'test', 1, 1, 1, 0, 0, 0, now(), 0, 'infinity' \
             FROM generate_series(1, 50000) n"
        ));
        server.run(&format!(
            "INSERT INTO {table}_records SELECT md5(n::text), '', 'infinity' FROM generate_series(1, 50000) n"
        ));
        let both = format!("relname IN ('{table}', '{table}_records')");
        let pages = format!(
            "SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::int8 \
             FROM pg_statio_user_tables WHERE {both}"
        );
        let scans = format!("SELECT sum(seq_scan)::int8 FROM pg_stat_user_tables WHERE {both}");
        // The connections that have filled the tables report their own reads when they end.
        let filled = format!("SELECT sum(n_tup_ins)::int8 FROM pg_stat_user_tables WHERE {both}");
        timing::eventually("the rows are reported", async || number(&others, &filled).await >= 100_000).await;
        let before = (number(&others, &pages).await, number(&others, &scans).await);
        let mut statements = 0;
        for round in 10..20 {
            statements += send_all(&postgres, round).await;
        }
        // A connection reports its reads when it ends, at the latest.
        drop(postgres);
        let ours =
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        timing::eventually("the connection has ended", async || server.run(ours) == "0").await;
        let after = (number(&others, &pages).await, number(&others, &scans).await);
        let (pages, scans) = (after.0 - before.0, after.1 - before.1);
        assert_eq!(scans, 0, "{name} has read the whole table");
        // The whole table has some 1,000.
        let per_statement = u64::try_from(pages).unwrap() / statements;
        assert!((1..60).contains(&per_statement), "{name} has read {per_statement} pages per statement");
    }
}
