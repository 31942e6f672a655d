//! Prepaid units, in the records beside the table.

use tower_sluice::SharedBalance;
use tower_sluice::limiter::Credit;
use tower_sluice::testing::{check_accounts, seed_of};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_keep_accounts() {
    check_accounts(process(pool(8)).await.records(), seed_of(22)).await;
}

/// Two processes, with separate pools, receive each payment several times, and charge the key meanwhile. Some of their
/// calls are given up at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn payments_to_two_processes_count_once() {
    const INVOICES: u64 = 30;
    const TASKS: u64 = 8;
    let first = process(pool(4)).await;
    let second = first.clone().with_pool(pool(4));
    let balances = [&first, &second].map(|postgres| Arc::new(SharedBalance::new(postgres.records(), "bought")));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let balance = Arc::clone(&balances[usize::try_from(task % 2).unwrap()]);
        tasks.push(tokio::spawn(async move {
            let (key, mut used) = ("alice".into(), 0);
            for number in 0..INVOICES {
                let credit = || Credit::units(10).reference(format!("invoice-{number}"));
                let patience = Duration::from_micros((number * 97 + task * 31) % 4_000);
                if tokio::time::timeout(patience, balance.credit(&key, credit())).await.is_err() {
                    let _ = balance.credit(&key, credit()).await.unwrap();
                }
                used += u64::from(balance.acquire(&key, 1).await.unwrap().is_allowed());
            }
            used
        }));
    }
    let mut used = 0;
    for task in tasks {
        used += task.await.unwrap();
    }
    let left = balances[0].acquire(&"alice".into(), 0).await.unwrap().remaining();
    assert_eq!((used, left), (INVOICES * TASKS, INVOICES * (10 - TASKS)));
}
