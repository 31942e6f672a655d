//! Balances that processes share, over a map. PostgreSQL and Redis have their own tests beside them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::limiter::LimiterExt;
use crate::store::remote::{KeyValue, KeyValueRecords};
use crate::util::lock::Lock;
use crate::values::time::{ManualClock, Timestamp};
use crate::values::{Debit, Quota};

const SECOND: Duration = Duration::from_secs(1);

/// A server that other tasks reach between any two of our calls.
#[derive(Default)]
struct Map {
    values: Lock<HashMap<String, Vec<u8>>>,
    calls: AtomicUsize,
    /// How long a call takes.
    took: Duration,
}

impl Map {
    async fn arrive(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        if !self.took.is_zero() {
            tokio::time::sleep(self.took).await;
        }
    }

    /// Returns how many calls were made since the last time.
    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

impl KeyValue for Map {
    type Error = Infallible;

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
        self.arrive().await;
        Ok(self.values.lock().get(key).cloned())
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        _: Duration,
    ) -> Result<bool, Infallible> {
        self.arrive().await;
        let mut values = self.values.lock();
        if values.get(key).map(Vec::as_slice) != old {
            return Ok(false);
        }
        match new {
            Some(new) => values.insert(key.to_owned(), new.to_vec()),
            None => values.remove(key),
        };
        Ok(true)
    }
}

type MapRecords = KeyValueRecords<Map, ManualClock>;

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789))
}

fn records(map: &Arc<Map>, clock: &ManualClock) -> MapRecords {
    KeyValueRecords::new(Arc::clone(map), "map").bounded(SECOND * 60, 1_000).with_clock(clock.clone())
}

/// One process's balance.
fn balance(map: &Arc<Map>, clock: &ManualClock) -> SharedBalance<MapRecords> {
    SharedBalance::new(records(map, clock), "bought")
}

async fn charge(balance: &SharedBalance<MapRecords>, key: &PartitionKey, cost: u64) -> Decision {
    balance.decide(&Ask::charge(key, cost)).decided().await.unwrap()
}

async fn left(balance: &SharedBalance<MapRecords>, key: &PartitionKey) -> u64 {
    charge(balance, key, 0).await.remaining()
}

async fn debit(
    balance: &SharedBalance<MapRecords>,
    key: &PartitionKey,
    debit: Debit,
) -> Result<Adjusted, LimiterError> {
    let description = balance.describe();
    let ask = Ask::charge(key, debit.units);
    description.adjusts().unwrap().charge(&ask, debit.reference.as_deref()).await
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn a_map_keeps_accounts() {
    let trials = crate::util::effort::rounds(3, 50);
    for seed in crate::testing::seeds(trials) {
        let map = Arc::new(Map::default());
        crate::testing::check_accounts(records(&map, &clock()), seed).await;
    }
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn it_answers_the_described_modes() {
    let balance = balance(&Arc::default(), &clock());
    for key in ["asked in all modes", "asked in one mode"] {
        let _ = balance.credit(&key.into(), Credit::units(20)).await.unwrap();
    }
    crate::testing::check_modes(&balance).await;
    assert!(balance.peek(&"alice".into(), 1).await.unwrap_err().is_unsupported());
}

#[tokio::test(start_paused = true)]
async fn steps_make_the_documented_calls() {
    let map = Arc::new(Map::default());
    let balance = balance(&map, &clock());
    let key = PartitionKey::from("alice");
    let _ = balance.credit(&key, Credit::units(5)).await.unwrap();
    assert_eq!(map.calls(), 2, "a credit");
    assert!(charge(&balance, &key, 5).await.is_allowed());
    assert_eq!(map.calls(), 2, "a decision");
    assert!(!charge(&balance, &key, 1).await.is_allowed());
    assert_eq!(map.calls(), 1, "a rejection");
    let payment = || Credit::units(5).reference("invoice-17");
    let _ = balance.credit(&key, payment()).await.unwrap();
    assert_eq!(map.calls(), 5, "a credit with a reference");
    let _ = balance.credit(&key, payment()).await.unwrap();
    assert_eq!(map.calls(), 2, "it is repeated");
    assert_eq!(map.values.lock().len(), 2, "an account and a reference");
    let account = map.values.lock().iter().find(|(name, _)| name.ends_with(":l")).unwrap().1.len();
    assert_eq!(account, 36, "bytes of a key with one lot");
}

#[tokio::test(start_paused = true)]
async fn units_are_gone_at_their_millisecond() {
    let (map, clock) = (Arc::new(Map::default()), clock());
    let [one, other] = [(); 2].map(|()| balance(&map, &clock));
    let key = PartitionKey::from("alice");
    let _ = one.credit(&key, Credit::units(5)).await.unwrap();
    let _ = other.credit(&key, Credit::units(3).expires_in(SECOND)).await.unwrap();
    let paid = charge(&one, &key, 4).await;
    other.refund(&Ask::charge(&key, 4), paid.receipt(), 4);
    tokio::time::sleep(SECOND).await;
    assert_eq!(left(&one, &key).await, 8, "another process gives them back");
    let end = Timestamp::from_nanos(1_700_000_001_124_000_000);
    clock.set(Timestamp::from_nanos(end.as_nanos() - 1));
    assert_eq!(charge(&one, &key, 0).await.reset_after(), Duration::ZERO, "some never expire");
    assert_eq!(left(&one, &key).await, 8);
    clock.set(end);
    assert_eq!(left(&other, &key).await, 5);
    assert_eq!(charge(&other, &key, 6).await.retry_after(), None);
}

#[tokio::test(start_paused = true)]
async fn a_reference_is_entered_once() {
    let (map, clock) = (Arc::new(Map::default()), clock());
    let [one, other] = [(); 2].map(|()| balance(&map, &clock));
    let [alice, bob] = ["alice", "bob"].map(PartitionKey::from);
    let paid = |units| Credit::units(units).reference("invoice-17");
    assert_eq!(one.credit(&alice, paid(5)).await.unwrap().remaining(), 5);
    assert_eq!(other.credit(&alice, paid(6)).await.unwrap().remaining(), 5);
    assert_eq!(other.credit(&bob, paid(6)).await.unwrap().remaining(), 6, "another key");
    let job = || Debit::units(1).reference("invoice-17");
    assert!(!debit(&other, &alice, job()).await.unwrap().is_repeated, "no credit");
    assert!(debit(&one, &alice, job()).await.unwrap().is_repeated);
    assert_eq!(left(&other, &alice).await, 4);
}

/// A process that has charged the key may owe more than the key has, and requests are rejected until that is paid.
#[tokio::test(start_paused = true)]
async fn credits_pay_a_debt() {
    let balance = balance(&Arc::default(), &clock());
    let key = PartitionKey::from("alice");
    let _ = balance.credit(&key, Credit::units(10)).await.unwrap();
    assert_eq!(debit(&balance, &key, 25.into()).await.unwrap().decision.remaining(), 0);
    assert_eq!(balance.credit(&key, Credit::units(12)).await.unwrap().remaining(), 0, "three are owed");
    assert_eq!(balance.credit(&key, Credit::units(12)).await.unwrap().remaining(), 9);
    let _ = debit(&balance, &key, 10.into()).await.unwrap();
    let _ = balance.decide(&Ask::reset(&key)).decided().await.unwrap();
    assert_eq!(balance.credit(&key, Credit::units(2)).await.unwrap().remaining(), 2);
    assert!(debit(&balance, &key, Quota::MAX_UNITS.into()).await.is_ok());
    assert!(debit(&balance, &key, 3.into()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_keeps_its_units() {
    let map = Arc::new(Map::default());
    let balance = balance(&map, &clock());
    let key = PartitionKey::from("alice");
    let _ = balance.credit(&key, Credit::units(5)).await.unwrap();
    for turns in 0..12 {
        let answer = balance.decide(&Ask::charge(&key, 5)).decided();
        let is_late = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = is_late => {}
            decision = answer => balance.refund(&Ask::charge(&key, 5), decision.unwrap().receipt(), 5),
        }
        tokio::time::sleep(SECOND).await;
        assert_eq!(left(&balance, &key).await, 5, "after {turns} turns");
    }
    drop(balance.decide(&Ask::charge(&key, 9).to(Mode::UpTo)));
    tokio::time::sleep(SECOND).await;
    assert_eq!(left(&balance, &key).await, 0, "charged even so");
}

/// Killed processes leave their references in the account. Later entries take them out.
#[tokio::test(start_paused = true)]
async fn open_references_are_few_and_finished() {
    let map = Arc::new(Map::default());
    let balance = balance(&map, &clock());
    let key = PartitionKey::from("alice");
    let account = || map.values.lock().iter().find(|(name, _)| name.ends_with(":l")).map(|it| it.1.clone());
    let mut most = 0;
    for number in 0..40 {
        let before = account();
        let mut credit = Box::pin(balance.credit(&key, Credit::units(1).reference(format!("invoice-{number}"))));
        // Until the account has the reference, and no further.
        while account() == before {
            assert!((&mut credit).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        drop(credit);
        tokio::time::sleep(SECOND).await;
        most = most.max(account().unwrap().len());
    }
    assert_eq!(most, 36 + 4 * 24, "four are open at most");
    for number in 0..40 {
        let repeated = balance.credit(&key, Credit::units(1).reference(format!("invoice-{number}"))).await.unwrap();
        assert_eq!(repeated.remaining(), 40);
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_value_is_an_error() {
    let map = Arc::new(Map::default());
    let balance = balance(&map, &clock());
    let key = PartitionKey::from("alice");
    let _ = balance.credit(&key, Credit::units(5)).await.unwrap();
    map.values.lock().values_mut().for_each(|value| *value = b"another program's".to_vec());
    let error = charge_error(&balance, &key).await;
    assert!(error.to_string().contains("holds no balance"), "{error}");
}

async fn charge_error(balance: &SharedBalance<MapRecords>, key: &PartitionKey) -> LimiterError {
    balance.decide(&Ask::charge(key, 1)).decided().await.unwrap_err()
}

#[test]
fn a_decision_without_a_runtime_fails() {
    let balance = balance(&Arc::default(), &clock());
    let key = PartitionKey::from("alice");
    for mode in [Mode::Charge, Mode::UpTo] {
        assert!(matches!(balance.decide(&Ask::charge(&key, 1).to(mode)), Answer::Ready(Err(_))));
    }
}

/// More requests come than the server has time for. A request pays if it is served, and otherwise does not.
#[tokio::test(start_paused = true)]
async fn only_served_requests_pay_under_overload() {
    let map = Arc::new(Map { took: Duration::from_millis(5), ..Map::default() });
    let clock = clock();
    let records = KeyValueRecords::new(Arc::clone(&map), "map").bounded(Duration::from_millis(100), 1_000);
    let balance = Arc::new(SharedBalance::new(records.with_clock(clock.clone()), "bought"));
    let key = PartitionKey::from("a");
    let _ = balance.credit(&key, Credit::units(10_000)).await.unwrap();
    let mut requests = Vec::new();
    // A request takes 10 ms of the server's time, so it can serve 100 in a second.
    for _ in 0..1_300 {
        let (balance, key) = (Arc::clone(&balance), key.clone());
        requests.push(tokio::spawn(async move {
            balance.decide(&Ask::charge(&key, 1)).decided().await.is_ok_and(|decision| decision.is_allowed())
        }));
        tokio::time::sleep(Duration::from_micros(7_692)).await;
    }
    let mut served = 0;
    for request in requests {
        served += u64::from(request.await.unwrap());
    }
    assert!(served > 700, "{served} of 1,300 were served");
    assert_eq!(left(&balance, &key).await, 10_000 - served);
}
