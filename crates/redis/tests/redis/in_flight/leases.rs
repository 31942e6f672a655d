//! Processes that die or stand still, and the renewal of leases. A lease's end is read from the server, by whose clock
//! it ends, so the tests do not depend on this machine's speed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// Short, since the tests wait for its end.
const LEASE: Duration = SECOND;

const LIMIT: u64 = 4;

/// The variable that makes [`this_process_holds_units`] do so.
const URL: &str = "SLUICE_TEST_HOLDS_UNITS_ON";

/// A separate process, which runs this test binary and holds three units.
struct Holder(Child);

impl Holder {
    fn start(server: &RedisServer) -> Self {
        let test = "in_flight::leases::this_process_holds_units";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(URL, server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("holds three")), "it ended");
        Self(child)
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
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
    let limiter = SharedConcurrency::new(connect(Redis::single(url)), "test", LIMIT).lease(LEASE);
    let _permit = take_in_the_end(&limiter, 3).await;
    println!("\nholds three");
    tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await.unwrap().unwrap();
}

/// Takes all units as soon as the server grants them: not before the lease of the process that holds three has ended,
/// and at the first attempt after that.
async fn take_all_after_the_lease<'a>(server: &RedisServer, limiter: &'a SharedConcurrency<Redis>) -> Taken<'a> {
    loop {
        let (end, began) = (fields(server).iter().map(|(_, end)| *end).max(), server_time(server));
        if let Some(permit) = take(limiter, LIMIT).await {
            assert!(end.is_none_or(|end| end <= server_time(server)), "before the lease has ended");
            return permit;
        }
        assert!(end.is_some_and(|end| began < end), "the lease has ended, and the units are not free");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn units_of_killed_processes_return() {
    let server = RedisServer::start();
    let limiter = process(&server, LIMIT, HOUR);
    let mut holder = Holder::start(&server);
    assert_eq!(counted(&server), 3);
    holder.signal("-KILL");
    until("it is dead", || holder.has_ended()).await;
    let (dead, end) = (server_time(&server), fields(&server).iter().map(|(_, end)| *end).max().unwrap());
    assert!(end <= dead + 1_000_000, "one lease after it died, at most");
    drop(take_all_after_the_lease(&server, &limiter).await);
    until("they are released", || fields(&server).is_empty()).await;
}

#[tokio::test]
async fn a_stalled_process_reports_its_units_again() {
    let server = RedisServer::start();
    let limiter = process(&server, LIMIT, HOUR);
    let holder = Holder::start(&server);
    holder.signal("-STOP");
    let permit = take_all_after_the_lease(&server, &limiter).await;
    assert_eq!(counted(&server), 4);
    holder.signal("-CONT");
    // Its requests are in flight in truth: an overrun by its own units.
    until("both are counted", || counted(&server) == 7).await;
    drop(permit);
    until("four are released", || counted(&server) == 3).await;
    let last = take(&limiter, 1).await;
    assert!(last.is_some());
    let theirs = fields(&server).iter().find(|(units, _)| *units == 3).map(|(_, end)| *end);
    let another = take(&limiter, 1).await;
    assert!(another.is_none() || theirs.is_none_or(|end| end <= server_time(&server)), "four are in flight");
}

#[tokio::test]
async fn units_count_while_they_are_held() {
    some_attempt_async("this machine does not stand still for half a lease", async || {
        let server = RedisServer::start();
        let [limiter, other] = [LEASE, HOUR].map(|lease| process(&server, LIMIT, lease));
        let permit = take_in_the_end(&limiter, 3).await;
        // Three leases, even if this machine is busy meanwhile.
        let end = server_time(&server) + 3_000_000;
        while server_time(&server) < end {
            let held = fields(&server);
            let taken = take(&other, 2).await;
            if held.iter().all(|(_, end)| *end <= server_time(&server)) {
                return Err("the lease has ended".to_owned());
            }
            assert!(taken.is_none(), "units are counted until their lease ends");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(permit);
        until("they are released", || fields(&server).is_empty()).await;
        Ok(())
    })
    .await;
}

/// Only units held for longer than half a lease are renewed. The end of one request does not affect units that others
/// renew.
#[tokio::test]
async fn short_requests_are_not_renewed() {
    let server = RedisServer::start();
    let limiter = process(&server, LIMIT, 60 * SECOND);
    drop(take(&limiter, 1).await);
    until("it is released", || counted(&server) == 0).await;
    let before = calls(&server);
    for _ in 0..50 {
        drop(take(&limiter, 1).await);
    }
    until("all are released", || counted(&server) == 0 && calls(&server) == before + 100).await;
    tokio::time::sleep(SECOND / 10).await;
    assert_eq!(calls(&server), before + 100);
}
