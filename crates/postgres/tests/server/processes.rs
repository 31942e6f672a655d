//! Many processes and connections admit exactly the limit together.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
#[cfg(feature = "calendar")]
use tower_sluice::algorithm::CalendarWindow;
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::{FailureMode, Policy, RateLimitLayer};

use super::server::PostgresServer;
use super::timing::some_attempt_async;
use super::*;

const PROCESSES: usize = 8;

const LIMIT: u64 = 777;

/// The variables that make [`this_process_asks`] do so.
const URL: &str = "SLUICE_TEST_ASKS";
const ALGORITHM: &str = "SLUICE_TEST_ASKS_BY";

/// A separate process, which runs this test binary and makes a thousand requests.
struct Asking {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Asking {
    fn start(server: &PostgresServer, algorithm: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::this_process_asks", "--nocapture"])
            .envs([(URL, server.url()), (ALGORITHM, algorithm.to_owned())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads lines until a line begins with `begins`, and returns the rest of that line.
    fn read(&mut self, begins: &str) -> String {
        let found = self.lines.by_ref().find_map(|line| line.unwrap().strip_prefix(begins).map(str::to_owned));
        found.expect("the process has not ended")
    }

    fn begin(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"begin\n").unwrap();
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program that an [`Asking`] runs. Otherwise, does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn this_process_asks() {
    let Ok(url) = std::env::var(URL) else { return };
    match std::env::var(ALGORITHM).unwrap().as_str() {
        "bucket" => ask_a_thousand(&url, TokenBucket::new(quota(LIMIT))).await,
        "fixed window" => ask_a_thousand(&url, FixedWindow::new(quota(LIMIT))).await,
        "sliding window" => ask_a_thousand(&url, SlidingWindow::new(quota(LIMIT))).await,
        #[cfg(feature = "calendar")]
        "calendar" => ask_a_thousand(&url, CalendarWindow::monthly(LIMIT)).await,
        "all of them" => ask_a_thousand_of_all(&url).await,
        other => panic!("{other}"),
    }
}

/// Prints that this process is ready, and waits until it may begin.
async fn wait_to_begin() {
    println!("\nready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
}

/// Makes a thousand requests through a layer, which charges the limits of all algorithms in one statement.
async fn ask_a_thousand_of_all(url: &str) {
    let postgres = process(&pool(url, 8));
    let store = |name: &str| PostgresStore::new(&postgres, name);
    // One of them has less room than the others, and no other one is charged without it. A failure is no admission.
    let policy = |policy: Policy| policy.key(client()).on_failure(FailureMode::Reject);
    let layer = RateLimitLayer::new([
        policy(Policy::new("sliding", RateLimiter::new(SlidingWindow::new(quota(LIMIT + 2)), store("sliding")))),
        policy(Policy::new("bucket", RateLimiter::new(TokenBucket::new(quota(LIMIT + 1)), store("bucket")))),
        policy(Policy::new("fixed", RateLimiter::new(FixedWindow::new(quota(LIMIT)), store("fixed")))),
        #[cfg(feature = "calendar")]
        policy(Policy::new("month", RateLimiter::new(CalendarWindow::monthly(LIMIT + 3), store("month")))),
    ]);
    wait_to_begin().await;
    let asking: Vec<_> = (0..1_000)
        .map(|_| {
            let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
            let asked = layer.layer(inner).oneshot(Request::builder().header(CLIENT, "shared").body(()).unwrap());
            tokio::spawn(async move {
                let response = asked.await.unwrap();
                assert!(matches!(response.status().as_u16(), 200 | 429), "{}", response.status());
                response.status() == 200
            })
        })
        .collect();
    let mut admitted = 0;
    for asked in asking {
        admitted += u64::from(asked.await.unwrap());
    }
    println!("\nadmitted {admitted}");
}

async fn ask_a_thousand<A: Kept>(url: &str, algorithm: A) {
    let postgres = process(&pool(url, 8));
    // Half of them take one statement each, and the others share statements when they come together.
    let limiters =
        [Arc::new(limiter(&postgres, algorithm.clone())), Arc::new(limiter_without_coalescing(&postgres, algorithm))];
    assert!(limiters[0].peek(&"shared".into(), 1).await.unwrap().is_allowed());
    wait_to_begin().await;
    let asking: Vec<_> = (0..1_000)
        .map(|number| {
            let limiter = Arc::clone(&limiters[number % 2]);
            tokio::spawn(async move { ask(&limiter, "shared").await.unwrap().is_allowed() })
        })
        .collect();
    let mut admitted = 0;
    for asked in asking {
        admitted += u64::from(asked.await.unwrap());
    }
    println!("\nadmitted {admitted}");
}

/// Returns how many requests each process admitted.
async fn admitted_by_processes(algorithm: &str) -> Vec<u64> {
    let server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| Asking::start(&server, algorithm)).collect();
    for process in &mut processes {
        process.read("ready");
    }
    for process in &mut processes {
        process.begin();
    }
    let admitted: Vec<u64> = processes.iter_mut().map(|process| process.read("admitted ").parse().unwrap()).collect();
    // A bucket does not count units, but its debt shows how many were charged.
    let owed = "ceil((number - extract(epoch FROM changed) * 1000000000 * quota_limit) / quota_period)";
    let used = server.run(&format!("SELECT DISTINCT coalesce(nullif(used, 0), {owed}) FROM sluice_state"));
    assert_eq!(used, LIMIT.to_string(), "{algorithm}: {admitted:?}");
    assert_eq!(server.run("SELECT sum(deadlocks) FROM pg_stat_database"), "0");
    admitted
}

/// All runs must be exact, and in one of them, several processes must have admitted something.
async fn processes_admit_the_limit(algorithm: &str) {
    some_attempt_async("several processes share the limit", async || {
        let admitted = admitted_by_processes(algorithm).await;
        assert_eq!(admitted.iter().sum::<u64>(), LIMIT, "{algorithm}: {admitted:?}");
        let sharing = admitted.iter().filter(|admitted| **admitted > 0).count();
        if sharing > 1 { Ok(()) } else { Err(format!("{admitted:?}")) }
    })
    .await;
}

#[tokio::test]
async fn eight_processes_admit_exactly_a_bucket() {
    processes_admit_the_limit("bucket").await;
}

#[tokio::test]
async fn eight_processes_admit_exactly_a_fixed_window() {
    processes_admit_the_limit("fixed window").await;
}

#[tokio::test]
async fn eight_processes_admit_exactly_a_sliding_window() {
    processes_admit_the_limit("sliding window").await;
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn eight_processes_admit_exactly_a_month() {
    processes_admit_the_limit("calendar").await;
}

#[tokio::test]
async fn eight_processes_admit_exactly_several_policies() {
    processes_admit_the_limit("all of them").await;
}

/// Each of 64 connections waits for the same row's lock, all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_admits_exactly_its_limit() {
    const CONNECTIONS: usize = 64;
    const EACH: u64 = 100;
    const LIMIT: u64 = 5_000;
    let server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    // Each is a separate process, because the statements of one process take turns.
    let asking: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let postgres = process(&pool(&server.url(), 1));
            let limiter = limiter_without_coalescing(&postgres, FixedWindow::new(quota(LIMIT)));
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..EACH {
                    admitted += u64::from(ask(&limiter, "hot").await.unwrap().is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in asking {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, LIMIT);
    assert_eq!(server.run("SELECT used FROM sluice_state"), LIMIT.to_string());
    assert_eq!(server.run("SELECT sum(deadlocks) FROM pg_stat_database"), "0");
}
