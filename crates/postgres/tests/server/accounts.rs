//! Prepaid units, entered by processes that are killed.

use tower_sluice::SharedBalance;
use tower_sluice::limiter::Credit;
use tower_sluice_postgres::PostgresRecords;

use super::killed::run_and_kill;
use super::server::PostgresServer;
use super::*;

/// The variable that makes [`this_process_credits`] do so.
const URL: &str = "SLUICE_TEST_CREDITS";

const INVOICES: u64 = 200;

const UNITS: u64 = 7;

fn balance(url: &str) -> SharedBalance<PostgresRecords> {
    SharedBalance::new(process(&pool(url, 2)).records(), "bought")
}

async fn credit(balance: &SharedBalance<PostgresRecords>, number: u64) -> u64 {
    let credit = Credit::units(UNITS).reference(format!("invoice-{number}"));
    balance.credit(&"alice".into(), credit).await.unwrap().remaining()
}

/// The program that each process in the test below runs, until it is killed. Otherwise, does nothing.
#[tokio::test]
async fn this_process_credits() {
    let Ok(url) = std::env::var(URL) else { return };
    let balance = balance(&url);
    for number in (0..INVOICES).cycle() {
        credit(&balance, number).await;
        println!("\nentered {number}");
    }
}

/// Two processes at a time enter the same payments, in the same order, and are killed at any moment.
#[tokio::test]
async fn killed_processes_enter_payments_once() {
    let server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    run_and_kill(&server, "accounts::this_process_credits", URL, INVOICES);
    let balance = balance(&server.url());
    let mut left = 0;
    for number in 0..INVOICES {
        left = credit(&balance, number).await;
    }
    assert_eq!(left, INVOICES * UNITS);
    let references = server.run("SELECT count(*) FROM sluice_state_records WHERE name LIKE '%:h%'");
    assert_eq!(references, INVOICES.to_string(), "each payment has a record");
}
