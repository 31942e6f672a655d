//! Servers and pools that are misconfigured, or that others block. Each fault has a name and a cure, and the policy
//! decides whether to admit the request.

use std::convert::Infallible;

use http::{Request, Response};
use tokio_postgres::Client;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::FixedWindow;
use tower_sluice::{FailureMode, Policy, RateLimitLayer, Verdict};
use tower_sluice_postgres::FaultKind;

use super::server::PostgresServer;
use super::timing::eventually;
use super::*;

/// The timeout for calls that should fail for lack of time.
const SHORT: Duration = Duration::from_millis(200);

fn at_most_ten(postgres: &Postgres) -> Over<FixedWindow> {
    limiter_without_coalescing(postgres, FixedWindow::new(quota(10)))
}

/// A separate database with a table, and a client to it that is not ours.
async fn database() -> (String, Client) {
    let url = PostgresServer::shared().database();
    process(&pool(&url, 1)).migrate().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    (url, client)
}

/// Lets another session lock the table's rows, to the end of its transaction.
async fn lock(client: &Client) {
    client.batch_execute("BEGIN; SELECT FROM sluice_state FOR UPDATE").await.unwrap();
}

/// Waits until this many statements wait for a lock.
async fn waiting(client: &Client, statements: i64) {
    let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("statements wait for a lock", async || {
        // Within a transaction, this would show the same all the time.
        client.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
        client.query_one(text, &[]).await.unwrap().get::<_, i64>(0) >= statements
    })
    .await;
}

/// Sends one request through a layer. Returns its status, and whether the fallback decided.
async fn send(postgres: &Postgres, mode: FailureMode) -> (u16, bool) {
    let policy = Policy::new("p", at_most_ten(postgres)).key(client()).on_failure(mode);
    let layer = RateLimitLayer::builder(policy).verdict().build();
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let request = Request::builder().header(CLIENT, "key").body(()).unwrap();
    let response = layer.layer(inner).oneshot(request).await.unwrap();
    let verdict = response.extensions().get::<Verdict>().expect("the layer attaches its verdict");
    (response.status().as_u16(), verdict.policies().iter().any(|policy| policy.fell_back()))
}

/// Checks a decision's fault, the advice in its message, and the fate of requests.
async fn fails(postgres: &Postgres, kind: FaultKind, cure: &str) {
    let error = ask(&at_most_ten(postgres), "key").await.unwrap_err();
    let text = fault(&error).to_string();
    assert_eq!(fault(&error).kind(), kind, "{text}");
    assert!(text.contains(cure) && !text.contains('\n'), "{text:?} does not name the cure: {cure}");
    assert_eq!(send(postgres, FailureMode::Allow).await, (200, false), "{text}");
    assert_eq!(send(postgres, FailureMode::Reject).await, (503, false), "{text}");
    assert_eq!(send(postgres, FailureMode::LocalFallback).await, (200, true), "{text}");
}

/// Checks that nothing was charged, and that nothing is in the way any more.
async fn recovers(url: &str) {
    assert_eq!(ask(&at_most_ten(&process(&pool(url, 1))), "key").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn a_missing_table_has_a_cure() {
    let url = PostgresServer::shared().database();
    let postgres = process(&pool(&url, 1));
    fails(&postgres, FaultKind::NoTable, "run the migration").await;
    postgres.migrate().await.unwrap();
    recovers(&url).await;
}

#[tokio::test]
async fn an_outdated_table_has_a_cure() {
    let (url, client) = database().await;
    client.batch_execute("ALTER TABLE sluice_state RENAME bans TO something").await.unwrap();
    let limiter = at_most_ten(&process(&pool(&url, 1)));
    assert!(ask(&limiter, "key").await.unwrap().is_allowed(), "it needs no such column");
    client.batch_execute("ALTER TABLE sluice_state DROP COLUMN charged; DELETE FROM sluice_state").await.unwrap();
    fails(&process(&pool(&url, 1)), FaultKind::WrongTable, "run the migration").await;
}

#[tokio::test]
async fn altered_columns_have_a_cure() {
    for altered in [
        "ALTER TABLE sluice_state ALTER used TYPE text",
        "ALTER TABLE sluice_state DROP CONSTRAINT sluice_state_pkey",
        "ALTER TABLE sluice_state ALTER changed TYPE bigint USING 0",
    ] {
        let (url, client) = database().await;
        client.batch_execute(altered).await.unwrap();
        fails(&process(&pool(&url, 1)), FaultKind::WrongTable, "drop the table and run the migration").await;
        client.batch_execute("DROP TABLE sluice_state").await.unwrap();
        process(&pool(&url, 1)).migrate().await.unwrap();
        recovers(&url).await;
    }
}

#[tokio::test]
async fn an_unsupported_letter_is_an_encoding_fault() {
    let server = PostgresServer::shared();
    server.run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
    let url = format!("{}latin", server.url().strip_suffix("postgres").unwrap());
    let postgres = process(&pool(&url, 1));
    postgres.migrate().await.unwrap();
    let limiter = RateLimiter::new(FixedWindow::new(quota(10)), PostgresStore::new(&postgres, "an €"));
    let error = ask(&limiter, "key").await.unwrap_err();
    assert_eq!(fault(&error).kind(), FaultKind::Encoding, "{error}");
    let text = fault(&error).to_string();
    assert!(text.contains("whose encoding is UTF8"), "{text}");
}

#[test]
#[should_panic(expected = "has a NUL")]
fn a_name_with_a_nul_fails() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _enter = runtime.enter();
    let postgres = Postgres::new(pool("postgres://postgres@127.0.0.1:1/none", 1));
    let _ = PostgresStore::new(&postgres, "per\0client");
}

/// A process has prepared its statements, and then an operator changes the table.
#[tokio::test]
async fn a_table_changed_meanwhile_fails() {
    let (url, client) = database().await;
    let limiter = at_most_ten(&process(&pool(&url, 1)));
    assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 9);
    client.batch_execute("ALTER TABLE sluice_state ADD COLUMN ours integer; ANALYZE sluice_state").await.unwrap();
    assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 8);
    client.batch_execute("ALTER TABLE sluice_state SET LOGGED; REINDEX TABLE sluice_state").await.unwrap();
    assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 7);
    client.batch_execute("TRUNCATE sluice_state").await.unwrap();
    assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn a_role_without_permission_fails() {
    let (url, client) = database().await;
    let role = format!("weak_{}", std::process::id());
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let as_role = url.replace("postgres@", &format!("{role}@"));
    fails(&process(&pool(&as_role, 1)), FaultKind::NoPermission, "grant it SELECT, INSERT, UPDATE and DELETE").await;
    client.batch_execute(&format!("GRANT SELECT ON sluice_state TO {role}")).await.unwrap();
    fails(&process(&pool(&as_role, 1)), FaultKind::NoPermission, "grant it SELECT, INSERT, UPDATE and DELETE").await;
    let grant = format!("GRANT INSERT, UPDATE, DELETE ON sluice_state TO {role}");
    client.batch_execute(&grant).await.unwrap();
    recovers(&as_role).await;
}

#[tokio::test]
async fn a_missing_role_fails() {
    let (url, _) = database().await;
    let as_nobody = url.replace("postgres@", "nobody_of_that_name@");
    fails(&process(&pool(&as_nobody, 1)), FaultKind::NoPermission, "check its password").await;
    recovers(&url).await;
}

#[tokio::test]
async fn a_read_only_server_fails() {
    let (url, client) = database().await;
    let set = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', \
               current_database()); END $$";
    client.batch_execute(set).await.unwrap();
    let postgres = process(&pool(&url, 1));
    fails(&postgres, FaultKind::ReadOnly, "connect to the primary").await;
    assert!(at_most_ten(&postgres).peek(&"key".into(), 1).await.unwrap().is_allowed(), "a read needs no writes");
    client.batch_execute(&set.replace("= on", "= off")).await.unwrap();
    recovers(&url).await;
}

/// A forgotten session has locked the row.
#[tokio::test]
async fn a_statement_cancelled_by_the_server_fails() {
    for setting in ["statement_timeout", "lock_timeout"] {
        let (url, client) = database().await;
        let limiter = at_most_ten(&process(&pool(&url, 1)));
        assert!(ask(&limiter, "key").await.unwrap().is_allowed());
        lock(&client).await;
        let hasty = format!("{url}?options=-c%20{setting}%3D20");
        fails(&process(&pool(&hasty, 1)), FaultKind::StatementTimeout, "raise statement_timeout").await;
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 8, "{setting}: nothing was charged");
    }
}

#[tokio::test]
async fn a_row_locked_by_others_times_out() {
    let (url, client) = database().await;
    let limiter = at_most_ten(&process(&pool(&url, 1)));
    assert!(ask(&limiter, "key").await.unwrap().is_allowed());
    lock(&client).await;
    let hasty = at_most_ten(&Postgres::new(pool(&url, 4)).timeout(SHORT));
    eventually("the server ends the statement in time", async || {
        let error = ask(&hasty, "key").await.unwrap_err();
        let kind = fault(&error).kind();
        assert!(matches!(kind, FaultKind::StatementTimeout | FaultKind::TimedOut | FaultKind::BreakerOpen), "{error}");
        kind == FaultKind::StatementTimeout
    })
    .await;
    let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("nothing waits", async || {
        client.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
        client.query_one(text, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    client.batch_execute("COMMIT").await.unwrap();
    eventually("it decides again", async || ask(&hasty, "key").await.is_ok()).await;
    assert!(ask(&limiter, "key").await.is_ok());
}

/// The program has all connections in the pool that it shares with the limits.
#[tokio::test]
async fn a_pool_in_use_blocks_no_decision() {
    let (url, _client) = database().await;
    let pool = pool(&url, 1);
    let _used_up = pool.get().await.unwrap();
    assert_eq!(ask(&at_most_ten(&process(&pool)), "key").await.unwrap().remaining(), 9);
}

/// No statement can look up an unlogged table's key on a standby.
#[tokio::test]
async fn a_standby_without_the_unlogged_table() {
    let primary = PostgresServer::with(&["wal_level = replica"]);
    let postgres = process(&pool(&primary.url(), 1));
    postgres.migrate().await.unwrap();
    let standby = primary.standby();
    let postgres = process(&pool(&standby.url(), 1));
    fails(&postgres, FaultKind::ReadOnly, "connect to the primary").await;
    // Its breaker has counted no failure yet.
    let postgres = process(&pool(&standby.url(), 1));
    let limiter = at_most_ten(&postgres);
    for error in [limiter.peek(&"key".into(), 1).await.unwrap_err(), limiter.reset(&"key".into()).await.unwrap_err()] {
        assert_eq!(fault(&error).kind(), FaultKind::ReadOnly, "{error}");
    }
    let policy = |name: &'static str| {
        let limiter = RateLimiter::new(FixedWindow::new(quota(10)), PostgresStore::new(&postgres, name));
        Policy::new(name, limiter).key(client()).on_failure(FailureMode::Reject)
    };
    let layer = RateLimitLayer::new([policy("one"), policy("other")]);
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let request = Request::builder().header(CLIENT, "key").body(()).unwrap();
    let response = layer.layer(inner).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 503);
}

#[tokio::test]
async fn another_isolation_is_a_serialization_fault() {
    for level in ["repeatable%20read", "serializable"] {
        let (url, client) = database().await;
        let limiter = at_most_ten(&process(&pool(&url, 1)));
        assert!(ask(&limiter, "key").await.unwrap().is_allowed());
        client.batch_execute("BEGIN; UPDATE sluice_state SET used = used").await.unwrap();
        let level = level.replace("%20", "%5C%20");
        let strict = format!("{url}?options=-c%20default_transaction_isolation%3D{level}");
        let strict = at_most_ten(&process(&pool(&strict, 1)));
        let asked = tokio::spawn(async move { ask(&strict, "key").await });
        waiting(&client, 1).await;
        client.batch_execute("COMMIT").await.unwrap();
        let error = asked.await.unwrap().unwrap_err();
        assert_eq!(fault(&error).kind(), FaultKind::Serialization, "{error}");
        assert!(fault(&error).to_string().contains("default_transaction_isolation"), "{error}");
        assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 8, "nothing was charged");
    }
}

/// A migration locks the table while it runs.
#[tokio::test]
async fn a_statement_that_an_operator_ends() {
    let (url, client) = database().await;
    let limiter = at_most_ten(&process(&pool(&url, 1)));
    assert!(ask(&limiter, "key").await.unwrap().is_allowed());
    client.batch_execute("BEGIN; LOCK TABLE sluice_state").await.unwrap();
    let limiter = std::sync::Arc::new(limiter);
    for (ends, kind) in
        [("pg_cancel_backend", FaultKind::StatementTimeout), ("pg_terminate_backend", FaultKind::ShuttingDown)]
    {
        let asked = std::sync::Arc::clone(&limiter);
        let asked = tokio::spawn(async move { ask(&asked, "key").await });
        waiting(&client, 1).await;
        let text = format!(
            "SELECT {ends}(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        );
        client.batch_execute(&text).await.unwrap();
        let error = asked.await.unwrap().unwrap_err();
        assert_eq!(fault(&error).kind(), kind, "{error}");
    }
    client.batch_execute("COMMIT").await.unwrap();
    eventually("there is another connection", async || limiter.peek(&"key".into(), 0).await.is_ok()).await;
    assert_eq!(ask(&limiter, "key").await.unwrap().remaining(), 8, "nothing was charged");
}

#[tokio::test]
async fn a_server_with_too_many_connections() {
    let server = PostgresServer::with(&["max_connections = 4", "superuser_reserved_connections = 0"]);
    let postgres = process(&pool(&server.url(), 1));
    postgres.migrate().await.unwrap();
    drop(postgres);
    let mut others = Vec::new();
    eventually("others use all of them up", async || {
        let connected = tokio_postgres::connect(&server.url(), NoTls).await;
        connected.map(|(client, connection)| others.push((client, tokio::spawn(connection)))).is_err()
    })
    .await;
    let full = process(&pool(&server.url(), 1));
    fails(&full, FaultKind::TooManyConnections, "use smaller pools, or raise max_connections").await;
    others.clear();
    eventually("there is a connection", async || at_most_ten(&full).peek(&"key".into(), 0).await.is_ok()).await;
    recovers(&server.url()).await;
}

#[tokio::test]
async fn a_server_that_does_not_run() {
    let mut server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    server.kill();
    fails(&process(&pool(&server.url(), 1)), FaultKind::Unreachable, "check its address and that it runs").await;
    server.restart();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    recovers(&server.url()).await;
}
