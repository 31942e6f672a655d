//! Charges by hand to a window, entered by processes that are killed.

use tower_sluice::algorithm::FixedWindow;
use tower_sluice::limiter::Debit;
use tower_sluice::{LimitsHandle, PartitionKey, Policy, RateLimitLayer};

use super::killed::run_and_kill;
use super::server::PostgresServer;
use super::*;

/// The variable that makes [`this_process_charges`] do so.
const URL: &str = "SLUICE_TEST_CHARGES";

const JOBS: u64 = 200;

const UNITS: u64 = 7;

/// The first half of the jobs uses it up, and the others become a debt.
const LIMIT: u64 = JOBS * UNITS / 2;

fn handle(url: &str) -> LimitsHandle {
    let limiter = limiter(&process(&pool(url, 2)), FixedWindow::new(quota(LIMIT)));
    RateLimitLayer::new(Policy::new("jobs", limiter)).handle()
}

async fn charge(handle: &LimitsHandle, number: u64) -> Duration {
    let debit = Debit::units(UNITS).reference(format!("job-{number}"));
    handle.charge("jobs", &PartitionKey::from("alice"), debit).await.unwrap().decision().reset_after()
}

/// The program that each process in the test below runs, until it is killed. Otherwise, does nothing.
#[tokio::test]
async fn this_process_charges() {
    let Ok(url) = std::env::var(URL) else { return };
    let handle = handle(&url);
    for number in (0..JOBS).cycle() {
        charge(&handle, number).await;
        println!("\nentered {number}");
    }
}

/// Two processes at a time charge for the same jobs, in the same order, and are killed at any moment.
#[tokio::test]
async fn killed_processes_charge_jobs_once() {
    let server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    run_and_kill(&server, "by_hand::this_process_charges", URL, JOBS);
    let handle = handle(&server.url());
    let mut reset_after = Duration::ZERO;
    for number in 0..JOBS {
        reset_after = charge(&handle, number).await;
    }
    // The units in this window and in the next are used up.
    assert!((100 * DAY..=200 * DAY).contains(&reset_after), "{reset_after:?}");
    assert_eq!(server.run("SELECT used FROM sluice_state"), LIMIT.to_string());
    assert_eq!(server.run("SELECT count(*) FROM sluice_state_records"), JOBS.to_string(), "each job has a record");
}
