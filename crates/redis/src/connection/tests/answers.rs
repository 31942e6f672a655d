//! Errors that servers answer.

use std::thread;

use super::servers::await_until;
use super::*;

/// Its script is not killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_a_fault() {
    let server = RedisServer::with(&["--busy-reply-threshold", "50"]);
    let redis = patient(&server);
    assert_eq!(charge(&redis, "a").await, Ok(1));
    let mut other = server.connection();
    let script = thread::spawn(move || {
        let mut endless = ::redis::cmd("EVAL");
        endless.arg("while true do end").arg(0).query::<()>(&mut other).expect_err("it is killed")
    });
    let is_busy = || server.try_run::<()>(&["PING"]).is_err_and(|error| error.code() == Some("BUSY"));
    await_until("it is busy", is_busy);
    let reasons = fails_until_open(&redis, "a").await;
    assert_eq!(reasons, [FaultKind::Busy; 5]);
    assert!(is_busy(), "the script still runs");
    server.run::<()>(&["SCRIPT", "KILL"]);
    assert!(script.join().unwrap().to_string().contains("killed"));
    recovers(&redis, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_script_is_sent_once() {
    let mut server = RedisServer::start();
    let redis = patient(&server);
    for sum in 1..=5 {
        server.run::<()>(&["SCRIPT", "FLUSH"]);
        assert_eq!(charge(&redis, "a").await, Ok(sum));
    }
    assert!(server.info("cmdstat_eval").starts_with("calls=5,"), "{}", server.info("cmdstat_eval"));
    assert_eq!(charge(&redis, "a").await, Ok(6));
    assert!(server.info("cmdstat_eval").starts_with("calls=5,"), "by its hash, as long as it is known");
    // Many at once: each is charged once.
    server.run::<()>(&["SCRIPT", "FLUSH"]);
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move { charge(&redis, "b").await })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
    assert_eq!(charged(&server, "b"), 200);
    assert_eq!(server.info("number_of_cached_scripts"), "1");
    server.restart();
    recovers(&redis, "c").await;
    assert_eq!(state(&redis), BreakerState::Closed);
}

/// A call fails twice, the second time on a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_a_fault() {
    let primary = RedisServer::start();
    let replica = RedisServer::replica_of(primary.address(), &[]);
    let redis = patient(&replica);
    let before: u32 = replica.info("total_connections_received").parse().unwrap();
    assert_eq!(
        fails_until_open(&redis, "a").await,
        [FaultKind::ReadOnly; 3],
        "each call fails twice, the second time on a new connection"
    );
    let after: u32 = replica.info("total_connections_received").parse().unwrap();
    assert!(after - before <= 8, "{}", after - before);
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    recovers(&redis, "a").await;
    assert_eq!(charged(&replica, "a"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_is_used() {
    let primary = RedisServer::start();
    let replica = RedisServer::replica_of(primary.address(), &[]);
    let redis = patient(&replica);
    assert_eq!(charge(&redis, "a").await, Err(FaultKind::ReadOnly));
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(charge(&redis, "a").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_memory_and_replicas_have_faults() {
    let server = RedisServer::start();
    // A setting with a bad and a good value, and the bad one's fault.
    for (setting, bad, good, reason) in
        [("maxmemory", "1", "0", FaultKind::OutOfMemory), ("min-replicas-to-write", "1", "0", FaultKind::NoReplicas)]
    {
        let redis = patient(&server);
        assert!(charge(&redis, "a").await.is_ok());
        server.run::<()>(&["CONFIG", "SET", setting, bad]);
        assert_eq!(fails_until_open(&redis, "a").await, [reason; 5]);
        server.run::<()>(&["CONFIG", "SET", setting, good]);
        recovers(&redis, "a").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ping_closes_an_unreachable_servers_breaker() {
    let mut server = RedisServer::start();
    let redis = patient(&server);
    server.kill();
    fails_until_open(&redis, "a").await;
    assert_eq!(redis.ping().await.unwrap_err().kind(), FaultKind::Unreachable);
    assert_ne!(state(&redis), BreakerState::Closed);
    server.restart();
    redis.ping().await.unwrap();
    assert_eq!(state(&redis), BreakerState::Closed);
    assert!(charge(&redis, "a").await.is_ok());
}

/// The server had answered with an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ping_keeps_a_failing_servers_breaker() {
    let server = RedisServer::start();
    let redis = patient(&server);
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    fails_until_open(&redis, "a").await;
    redis.ping().await.unwrap();
    assert_ne!(state(&redis), BreakerState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_save_has_its_own_fault() {
    let server = RedisServer::with(&["--save", "3600 1", "--dbfilename", "taken"]);
    let redis = patient(&server);
    assert!(charge(&redis, "a").await.is_ok());
    // A folder cannot be replaced by a file.
    let dir: Vec<String> = server.run(&["CONFIG", "GET", "dir"]);
    std::fs::create_dir_all(format!("{}/taken/full", dir[1])).unwrap();
    server.run::<()>(&["BGSAVE"]);
    await_until("it failed to save", || server.info("rdb_last_bgsave_status") == "err");
    assert_eq!(charge(&redis, "a").await, Err(FaultKind::CannotPersist));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphaned_replica_has_its_own_fault() {
    let mut primary = RedisServer::start();
    let replica = RedisServer::replica_of(primary.address(), &["--replica-serve-stale-data", "no"]);
    primary.kill();
    await_until("it is noticed", || replica.try_run::<()>(&["GET", "a"]).is_err());
    assert_eq!(charge(&patient(&replica), "a").await, Err(FaultKind::MasterDown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_clients_have_their_own_fault() {
    let server = RedisServer::start();
    let mut first = server.connection();
    ::redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).query::<()>(&mut first).unwrap();
    let redis = patient(&server);
    assert_eq!(fails_until_open(&redis, "a").await, [FaultKind::MaxClients; 5]);
    ::redis::cmd("CONFIG").arg(&["SET", "maxclients", "100"]).query::<()>(&mut first).unwrap();
    recovers(&redis, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calls_errors_spare_the_node() {
    static WRONG: Script = Script::new("return redis.call('LPUSH', KEYS[1], 'x')");
    // The server does not name the command that a script may not run.
    static FORBIDDEN: Script = Script::new("local call = redis.call\nreturn call('LPUSH', KEYS[1], 'x')");
    let server = RedisServer::start();
    server.run::<()>(&["ACL", "SETUSER", "narrow", "on", ">geheim", "~nothing", "+@all"]);
    let redis = patient(&server);
    assert_eq!(charge(&redis, "a").await, Ok(1));
    for _ in 0..50 {
        let wrong = ScriptCall { script: &WRONG, ..add("a") };
        let fault = redis.call(&wrong).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Script);
        assert!(fault.to_string().contains("WRONGTYPE"), "{fault}");
    }
    assert_eq!(state(&redis), BreakerState::Closed);
    let url = |login: &str| server.url().replace("//", &format!("//{login}@"));
    let narrow = Redis::single(url("narrow:geheim")).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    for _ in 0..50 {
        assert_eq!(charge(&narrow, "a").await, Err(FaultKind::NoPermission));
    }
    assert_eq!(state(&narrow), BreakerState::Closed);
    server.run::<()>(&["ACL", "SETUSER", "writer", "on", ">geheim", "~*", "+@all", "-lpush"]);
    let writer = Redis::single(url("writer:geheim")).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let fault = writer.call(&ScriptCall { script: &FORBIDDEN, ..add("b") }).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NoPermission);
    assert!(fault.to_string().contains("the user may not run LPUSH in a script"), "{fault}");
    let stranger = Redis::single(url("narrow:geheimnis")).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    assert_eq!(charge(&stranger, "a").await, Err(FaultKind::Unauthenticated));
    for shown in [format!("{narrow:?} {stranger:?}"), stranger.call(&add("a")).await.unwrap_err().to_string()] {
        assert!(!shown.contains("geheim"), "{shown}");
    }
}

/// The server rejects the login, so no script runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_database_is_no_script_fault() {
    let server = RedisServer::with(&["--busy-reply-threshold", "50"]);
    server.run::<()>(&["ACL", "SETUSER", "narrow", "on", ">geheim", "~*", "+@all", "-select"]);
    let open = |url: String| Redis::single(url).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let missing = open(format!("{}99", server.url()));
    assert_eq!(charge(&missing, "a").await, Err(FaultKind::Misconfigured));
    let forbidden = open(format!("{}3", server.url()).replace("//", "//narrow:geheim@"));
    assert_eq!(charge(&forbidden, "a").await, Err(FaultKind::NoPermission));
    let mut other = server.connection();
    let script = thread::spawn(move || {
        ::redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut other).expect_err("it is killed")
    });
    await_until("it is busy", || server.try_run::<()>(&["PING"]).is_err_and(|error| error.code() == Some("BUSY")));
    assert_eq!(charge(&open(format!("{}3", server.url())), "a").await, Err(FaultKind::Busy));
    server.run::<()>(&["SCRIPT", "KILL"]);
    script.join().unwrap();
}

/// So is a plain server as a cluster. Missing servers do not hide this server's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_server_as_sentinel_is_misconfigured() {
    let server = RedisServer::start();
    let nowhere = || format!("redis://127.0.0.1:{}", servers::free_port());
    let urls = [nowhere(), nowhere(), server.url(), nowhere(), nowhere()];
    for builder in [Redis::sentinel("main", urls.clone()), Redis::cluster(urls)] {
        let redis = builder.timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        let fault = redis.call(&add("a")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Misconfigured, "{fault}");
        assert!(fault.to_string().contains(&server.address().to_string()), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_chooses_database_and_socket() {
    let server = RedisServer::with(&["--unixsocket", "socket"]);
    let dir: Vec<String> = server.run(&["CONFIG", "GET", "dir"]);
    let open = |url: String| Redis::single(url).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let third = open(format!("{}3", server.url()));
    assert_eq!(charge(&third, "a").await, Ok(1));
    let socket = open(format!("unix://{}/socket", dir[1]));
    assert_eq!(charge(&socket, "a").await, Ok(1));
    assert_eq!(charge(&patient(&server), "a").await, Ok(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_reply_types_are_returned_unchanged() {
    static KINDS: Script = Script::new("return {1, 'two', false, {ok = 'OK'}}");
    let server = RedisServer::start();
    let call = ScriptCall { script: &KINDS, ..add("a") };
    let answer = patient(&server).call(&call).await.unwrap();
    let expected = [Value::Int(1), Value::BulkString(b"two".to_vec()), Value::Nil, Value::Okay];
    assert_eq!(answer, Value::Array(expected.to_vec()));
}
