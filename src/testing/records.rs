//! The conformance suite for servers that keep records.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Random;
use super::backend::assert_distinct_names;
use crate::store::remote::{CallLimits, Record, Records};

/// Checks a server that keeps records: reads and swaps match a plain map; if swaps begin at once with the value that
/// was read, one is applied; and eight tasks that each add one to a number, again and again, lose no addition. The
/// nodes whose [health](crate::store::remote::Server::health) it reports, if any, have distinct names.
///
/// The records of `records` are all new. Takes some 3,000 calls.
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_records<R: Records>(records: R, seed: u64) {
    let records = Arc::new(records);
    check_trace(&*records, &mut Random::new(seed)).await;
    check_swaps_at_once(&records).await;
    check_additions(&records).await;
    assert_distinct_names(&records.health());
}

/// Long enough for a machine that is busy.
fn limits() -> CallLimits {
    CallLimits { deadline: Instant::now() + Duration::from_secs(60), requests: 1 }
}

const LONG: Duration = Duration::from_secs(3_600);

async fn read<R: Records>(records: &R, name: &str) -> Record {
    records.read(name, limits()).await.expect("no read fails")
}

async fn swap<R: Records>(records: &R, name: &str, old: Option<&[u8]>, new: Option<&[u8]>) -> bool {
    let lifetime = if name.len() % 2 == 0 { LONG } else { Duration::MAX };
    records.swap(name, old, new, lifetime, limits()).await.expect("no swap fails")
}

/// All bytes occur in values, which are empty, one byte or many bytes long.
fn some_value(random: &mut Random) -> Option<Vec<u8>> {
    let length = random.pick(&[0, 1, 2, 40, 300, 4_000]);
    let byte = |random: &mut Random| u8::try_from(random.below(256)).expect("a byte");
    (random.below(4) > 0).then(|| (0..length).map(|_| byte(random)).collect())
}

async fn check_trace<R: Records>(records: &R, random: &mut Random) {
    let mut model: HashMap<String, Vec<u8>> = HashMap::new();
    let mut last = crate::values::time::Timestamp::ZERO;
    for step in 0..1_000 {
        let name = format!("trace:{}:x", "n".repeat(1 + usize::try_from(random.below(5)).expect("few")));
        let Record { value, now } = read(records, &name).await;
        assert_eq!(value.as_ref(), model.get(&name), "step {step}: {name} has another value than was written last");
        assert!(now >= last, "step {step}: the time has gone back from {last:?} to {now:?}");
        last = now;
        let expects_another = random.below(4) == 0;
        let old = if expects_another { some_value(random) } else { value.clone() };
        let new = some_value(random);
        let swapped = swap(records, &name, old.as_deref(), new.as_deref()).await;
        assert_eq!(swapped, old == value, "step {step}: {name} is swapped if its value is the one that is expected");
        match new.filter(|_| swapped) {
            Some(new) => drop(model.insert(name, new)),
            None if swapped => drop(model.remove(&name)),
            None => {}
        }
    }
}

const TASKS: usize = 8;

async fn check_swaps_at_once<R: Records>(records: &Arc<R>) {
    for round in 0..40 {
        let name = format!("race:{}:x", round / 2);
        let old = read(&**records, &name).await.value;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (records, name, old) = (Arc::clone(records), name.clone(), old.clone());
                let new = vec![u8::try_from(round).expect("few"), u8::try_from(task).expect("few")];
                tokio::spawn(async move { swap(&*records, &name, old.as_deref(), Some(&new)).await })
            })
            .collect();
        let mut applied = 0;
        for task in tasks {
            applied += usize::from(task.await.expect("no task panics"));
        }
        assert_eq!(applied, 1, "round {round}: of {TASKS} swaps that expect one value, one is applied");
    }
}

async fn check_additions<R: Records>(records: &Arc<R>) {
    const ADDITIONS: u64 = 20;
    let number = |value: &Option<Vec<u8>>| {
        value.as_ref().map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().expect("eight bytes")))
    };
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let records = Arc::clone(records);
            tokio::spawn(async move {
                for _ in 0..ADDITIONS {
                    loop {
                        let old = read(&*records, "sum:1:x").await.value;
                        let new = (number(&old) + 1).to_be_bytes();
                        if swap(&*records, "sum:1:x", old.as_deref(), Some(&new)).await {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    let sum = number(&read(&**records, "sum:1:x").await.value);
    assert_eq!(sum, ADDITIONS * TASKS as u64, "an addition is lost");
}
