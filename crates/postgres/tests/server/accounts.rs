//! Units that were bought, which processes enter that are killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tower_sluice::SharedBalance;
use tower_sluice::limiter::Credit;
use tower_sluice::testing::Random;
use tower_sluice_postgres::PostgresRecords;

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

/// What a process of the test below runs, until it is killed. Otherwise, nothing.
#[tokio::test]
async fn this_process_credits() {
    let Ok(url) = std::env::var(URL) else { return };
    let balance = balance(&url);
    for number in (0..INVOICES).cycle() {
        credit(&balance, number).await;
        println!("\ncredited {number}");
    }
}

fn start(server: &PostgresServer) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "accounts::this_process_credits", "--nocapture"])
        .env(URL, server.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Two processes at a time enter the same payments, in the same order, and are killed at any moment.
#[tokio::test]
async fn payments_entered_by_killed_processes_count_once() {
    let server = PostgresServer::start();
    process(&pool(&server.url(), 1)).migrate().await.unwrap();
    let mut random = Random::of_trial(0);
    for _ in 0..10 {
        let mut processes = [start(&server), start(&server)];
        for process in &mut processes {
            let credits = random.below(INVOICES / 2);
            let lines = BufReader::new(process.stdout.take().unwrap()).lines();
            let credited = lines.map_while(Result::ok).filter(|line| line.starts_with("credited"));
            assert!(credited.take(usize::try_from(credits).unwrap() + 1).count() > 0, "it has credited something");
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
    let balance = balance(&server.url());
    let mut left = 0;
    for number in 0..INVOICES {
        left = credit(&balance, number).await;
    }
    assert_eq!(left, INVOICES * UNITS);
    let references = server.run("SELECT count(*) FROM sluice_state_records WHERE name LIKE '%:h%'");
    assert_eq!(references, INVOICES.to_string(), "each payment has a record");
}
