//! Processes that hold units in flight and are killed. A lease's end is read from the server, by whose clock it ends,
//! so the test does not depend on this machine's speed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tower_sluice::limiter::Permit;
use tower_sluice::{PartitionKey, SharedConcurrency};
use tower_sluice_postgres::PostgresRecords;

use super::server::PostgresServer;
use super::timing::eventually;
use super::*;

/// Short, since the test waits for its end.
const LEASE: Duration = Duration::from_secs(1);

const HOUR: Duration = Duration::from_secs(3_600);

const LIMIT: u64 = 4;

/// The variable that makes [`this_process_holds_units`] do so.
const URL: &str = "SLUICE_TEST_HOLDS_UNITS_ON";

type Limited = SharedConcurrency<PostgresRecords>;

fn limited(url: &str, lease: Duration) -> Limited {
    SharedConcurrency::new(process(&pool(url, 2)).records(), "test", LIMIT).lease(lease)
}

/// A separate process, which runs this test binary and holds three units.
struct Holder(Child);

impl Holder {
    fn start(server: &PostgresServer) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "in_flight::this_process_holds_units", "--nocapture"])
            .env(URL, server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("holds three")), "it ended");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program that a [`Holder`] runs, until its standard input ends with the process that started it. Otherwise, does
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn this_process_holds_units() {
    let Ok(url) = std::env::var(URL) else { return };
    let limiter = limited(&url, LEASE);
    let mut permit = None;
    // With a short lease, calls have short timeouts.
    eventually("the units are free", async || {
        permit = limiter.acquire(&PartitionKey::from("a"), 3).await.ok().and_then(Permit::admitted);
        permit.is_some()
    })
    .await;
    println!("\nholds three");
    tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await.unwrap().unwrap();
}

/// The nanosecond on the server's clock.
fn server_time(server: &PostgresServer) -> u64 {
    server.run("SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint").parse().unwrap()
}

/// When the key's last lease ends, if there is one.
fn lease_end(server: &PostgresServer) -> Option<u64> {
    let value = server.run("SELECT encode(value, 'hex') FROM sluice_state_records");
    // After a head of 9 bytes, each field has 40, and its fourth number is the end.
    let fields = value.get(18..)?.as_bytes().chunks(80);
    fields.map(|field| u64::from_str_radix(std::str::from_utf8(&field[48..64]).unwrap(), 16).unwrap()).max()
}

#[tokio::test]
async fn units_of_killed_processes_return() {
    let server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    let limiter = limited(&server.url(), HOUR);
    let mut holder = Holder::start(&server);
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let (dead, end) = (server_time(&server), lease_end(&server).expect("it holds three"));
    assert!(end <= dead + 1_000_000_000, "one lease after it died, at most");
    loop {
        let began = server_time(&server);
        if limiter.acquire(&PartitionKey::from("a"), LIMIT).await.unwrap().admitted().is_some() {
            assert!(end <= server_time(&server), "before the lease has ended");
            return;
        }
        assert!(began < end, "the lease has ended, and the units are not free");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
