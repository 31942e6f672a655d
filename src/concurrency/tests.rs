//! The counts and the wait lists: random schedules against a model, many threads, full tables, and waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::limiter::{Limiter, LimiterExt};
use crate::values::{Answer, Ask, Decision, Mode, PartitionKey};

#[test]
fn threads_never_exceed_the_limit() {
    const LIMIT: u64 = 5;
    let limiter = Concurrency::new(LIMIT);
    let now = AtomicU64::new(0);
    let granted = AtomicU64::new(0);
    let key = PartitionKey::from("hot");
    thread::scope(|scope| {
        for thread in 0..32_u64 {
            let limiter = &limiter;
            let key = &key;
            let now = &now;
            let granted = &granted;
            scope.spawn(move || {
                for round in 0..100_000_u64 {
                    let cost = 1 + (thread + round) % 2;
                    if let Some(permit) = limiter.try_acquire(key, cost) {
                        let in_flight = now.fetch_add(cost, Ordering::Relaxed) + cost;
                        assert!(in_flight <= LIMIT, "{in_flight} units are in flight");
                        granted.fetch_add(1, Ordering::Relaxed);
                        now.fetch_sub(cost, Ordering::Relaxed);
                        drop(permit);
                    }
                }
            });
        }
    });
    // How many of the threads' requests pass depends on which thread is preempted while it holds units. Afterwards, all
    // fit.
    println!("{} were granted", granted.into_inner());
    assert_eq!(limiter.stats().in_flight, Some(0));
    let permits: Vec<_> = (0..LIMIT).map(|_| limiter.try_acquire(&key, 1).expect("no unit was lost")).collect();
    assert!(limiter.try_acquire(&key, 1).is_none());
    drop(permits);
}

/// Keys come and go, so that slots change hands all the time.
#[test]
fn threads_sharing_slots_lose_no_unit() {
    let limiter = Concurrency::new(1).max_keys(8);
    let now: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..8_usize {
            let limiter = &limiter;
            let now = &now;
            scope.spawn(move || {
                for round in 0..50_000_usize {
                    let number = (thread * 31 + round * 17) % now.len();
                    if let Some(permit) = limiter.try_acquire(&PartitionKey::from(number as u64), 1) {
                        assert_eq!(now[number].fetch_add(1, Ordering::Relaxed), 0, "two requests of key {number}");
                        now[number].fetch_sub(1, Ordering::Relaxed);
                        drop(permit);
                    }
                }
            });
        }
    });
    let stats = limiter.stats();
    assert_eq!((stats.in_flight, stats.table.unwrap().live_keys), (Some(0), 0));
}

/// It keeps all others.
#[test]
fn a_full_table_rejects_new_keys() {
    let limiter = Concurrency::new(2).max_keys(8);
    let key = |number: u64| PartitionKey::from(number);
    let held: Vec<_> = (0..1_000).filter_map(|number| Some((number, limiter.try_acquire(&key(number), 1)?))).collect();
    // Two slots for each key of the capacity.
    assert_eq!(held.len(), 16);
    let stats = limiter.stats();
    assert_eq!((stats.in_flight, stats.table.unwrap().turned_away), (Some(16), 1_000 - 16));
    let rejected = limiter.decide(&Ask::charge(&key(9_999), 1)).at_once().unwrap();
    assert!(rejected.is_until_released() && rejected.retry_after().is_none());
    for (number, _) in &held {
        let second = limiter.try_acquire(&key(*number), 1);
        assert!(
            second.is_some() && limiter.try_acquire(&key(*number), 1).is_none(),
            "key {number} counts one in flight"
        );
    }
    drop(held);
    assert_eq!(limiter.stats().in_flight, Some(0));
    assert!(limiter.try_acquire(&key(9_999), 1).is_some());
}

#[test]
fn max_keys_fit_in_16_bytes_each() {
    const KEYS: usize = 100_000;
    let limiter = Concurrency::new(1).max_keys(KEYS);
    let permits: Vec<_> = (0..KEYS as u64)
        .map(|number| limiter.try_acquire(&PartitionKey::from(number), 1).expect("there is room"))
        .collect();
    let table = limiter.stats().table.unwrap();
    assert_eq!((table.live_keys, table.turned_away), (KEYS as u64, 0));
    assert!(limiter.size_in_bytes() <= 17 * KEYS, "{} bytes", limiter.size_in_bytes());
    drop(permits);
}

#[test]
fn decisions_have_units_and_no_time() {
    let limiter = Concurrency::new(4);
    let key = PartitionKey::from("a");
    let decide = |cost| limiter.decide(&Ask::charge(&key, cost)).at_once().unwrap();
    let first = decide(3);
    assert_eq!((first.is_allowed(), first.limit(), first.remaining()), (true, 4, 1));
    let peeked = limiter.decide(&Ask::peek(&key, 1)).at_once().unwrap();
    assert_eq!((peeked.is_allowed(), peeked.remaining()), (true, 0));
    let second = decide(2);
    assert_eq!((second.is_until_released(), second.remaining(), second.retry_after()), (true, 1, None));
    let never = decide(5);
    assert!(!never.is_allowed() && !never.is_until_released());
    let free = decide(0);
    assert_eq!((free.is_allowed(), free.remaining(), free.receipt()), (true, 1, Receipt::NONE));
    limiter.refund(&Ask::charge(&key, 3), first.receipt(), 3);
    assert_eq!(decide(4).remaining(), 0);
    // A receipt from another limiter releases nothing.
    limiter.refund(&Ask::charge(&key, 4), Receipt::new(0), 4);
    limiter.refund(&Ask::charge(&key, 4), Receipt::NONE, 4);
    assert!(!decide(1).is_allowed());
}

#[test]
fn an_heir_keeps_counting_units_in_flight() {
    let old = Concurrency::new(4);
    let key = PartitionKey::from("a");
    let permits: Vec<_> = (0..3).map(|_| old.try_acquire(&key, 1).unwrap()).collect();
    let new = Concurrency::new(2).max_keys(7);
    let inheritance = new.inherit(&old).unwrap();
    assert!(inheritance.keeps_capacity);
    inheritance.finish();
    assert!(new.try_acquire(&key, 1).is_none());
    drop(permits);
    assert!(new.try_acquire(&key, 2).is_some());
    assert_eq!(new.stats().in_flight, Some(0));
    // A limiter that has its own counts keeps them.
    let used = Concurrency::new(1);
    drop(used.try_acquire(&key, 1));
    assert!(used.inherit(&old).is_none());
}

#[test]
fn key_limits_change_between_requests() {
    let limiter = Concurrency::new(4);
    let key = PartitionKey::from("a");
    let charge = |limit| limiter.decide(&Ask::charge(&key, 1).limited_to(limit)).at_once().unwrap();
    let held = [charge(Some(6)), charge(Some(6)), charge(None)];
    assert!(held.iter().all(Decision::is_allowed));
    // Lowered: requests in flight stay, and none is admitted until enough of them are over.
    let full = charge(Some(2));
    assert_eq!((full.is_until_released(), full.limit(), full.remaining()), (true, 2, 0));
    let release = |decision: &Decision| limiter.refund(&Ask::charge(&key, 1), decision.receipt(), 1);
    release(&held[0]);
    assert!(charge(Some(2)).is_until_released());
    release(&held[1]);
    assert_eq!(charge(Some(2)).remaining(), 0);
    // Other requests of the key, and other keys, have the limiter's.
    assert_eq!((charge(None).limit(), charge(None).remaining()), (4, 0));
    assert!(charge(Some(u64::MAX)).is_allowed(), "as many as there can be");
    let peeked = limiter.decide(&Ask::peek(&key, 1).limited_to(Some(9))).at_once().unwrap();
    assert_eq!((peeked.limit(), peeked.remaining()), (9, 3));
}

/// As for a customer whose plan is paused.
#[test]
fn a_zero_limit_rejects_without_waiting() {
    let limiter = Concurrency::new(4);
    let key = PartitionKey::from("a");
    for mode in [Mode::Charge, Mode::Shadow, Mode::Peek] {
        for cost in [0, 1] {
            let ask = Ask::charge(&key, cost).to(mode).limited_to(Some(0));
            let rejected = limiter.decide(&ask).at_once().unwrap();
            assert!(rejected.is_suspended() && !rejected.is_allowed() && rejected.retry_after().is_none());
            assert_eq!((rejected.limit(), rejected.remaining()), (0, 0));
        }
    }
    assert_eq!(limiter.stats().in_flight, Some(0));
}

#[test]
#[should_panic(expected = "would admit nothing")]
fn a_zero_limit_is_a_mistake() {
    let _ = Concurrency::new(0);
}

mod waits {
    use std::collections::{BTreeMap, VecDeque};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::testing::Random;
    use crate::util::trace::Trace;
    use crate::values::{LimiterError, Pending};

    fn poll(pending: &mut Pending) -> Option<Result<Decision, LimiterError>> {
        match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn charge(limiter: &Concurrency, key: &PartitionKey, cost: u64) -> Answer {
        limiter.decide(&Ask::charge(key, cost))
    }

    fn pending(check: Answer) -> Pending {
        match check {
            Answer::Pending(pending) => pending,
            Answer::Ready(result) => panic!("{result:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_within_their_bound() {
        let limiter = Concurrency::new(1).max_queue(2).max_wait(Duration::from_secs(5));
        let key = PartitionKey::from("a");
        let permit = limiter.acquire(&key, 1).await.unwrap().admitted().unwrap();
        let mut second = pending(charge(&limiter, &key, 1));
        let mut third = pending(charge(&limiter, &key, 1));
        assert!(charge(&limiter, &key, 1).at_once().is_some_and(|decision| decision.is_until_released()), "no room");
        assert!(limiter.try_acquire(&key, 1).is_none());
        assert_eq!(limiter.stats().backlog.unwrap().waiting(), 2);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(poll(&mut third).is_none() && poll(&mut second).is_none());
        drop(permit);
        assert!(poll(&mut third).is_none(), "the second is first");
        assert_eq!(second.await.unwrap().delay(), Duration::from_secs(2));
        let third = third.await.unwrap();
        assert!(third.is_until_released());
        assert_eq!(limiter.stats().backlog.unwrap().waiting(), 0);
        limiter.check_invariants();
    }

    #[tokio::test(start_paused = true)]
    async fn patience_bounds_the_wait() {
        let limiter = Concurrency::new(1).max_queue(2);
        let key = PartitionKey::from("a");
        let _permit = limiter.try_acquire(&key, 1).unwrap();
        let begun = tokio::time::Instant::now();
        let ask = Ask::charge(&key, 1).within(Some(Duration::from_millis(300)));
        assert!(limiter.decide(&ask).decided().await.unwrap().is_until_released());
        assert_eq!(begun.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_waiters_pass_their_units_on() {
        let limiter = Concurrency::new(1).max_queue(2);
        let key = PartitionKey::from("a");
        let permit = limiter.try_acquire(&key, 1).unwrap();
        let second = pending(charge(&limiter, &key, 1));
        let third = pending(charge(&limiter, &key, 1));
        drop(permit);
        drop(second);
        let third = third.await.unwrap();
        assert!(third.is_allowed() && limiter.try_acquire(&key, 1).is_none());
        limiter.refund(&Ask::charge(&key, 1), third.receipt(), 1);
        assert_eq!(limiter.stats().in_flight, Some(0));
    }

    /// Tokio panics without a timer, and the waiter has left by then.
    #[test]
    fn missing_timers_lose_no_unit() {
        let limiter = Concurrency::new(1).max_queue(9);
        let key = PartitionKey::from("a");
        let permit = limiter.try_acquire(&key, 1).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let waits = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(charge(&limiter, &key, 1))));
        assert!(waits.is_err(), "there is no timer");
        assert_eq!(limiter.stats().backlog.unwrap().waiting(), 0);
        drop(permit);
        assert_eq!(limiter.stats().in_flight, Some(0));
        limiter.check_invariants();
    }

    #[tokio::test(start_paused = true)]
    async fn small_costs_do_not_starve_great_ones() {
        let limiter = Concurrency::new(3).max_queue(9);
        let key = PartitionKey::from("a");
        let first = limiter.try_acquire(&key, 1).unwrap();
        let second = limiter.try_acquire(&key, 1).unwrap();
        let great = limiter.acquire(&key, 3);
        let small = limiter.acquire(&key, 1);
        assert!(limiter.try_acquire(&key, 1).is_none(), "one is free, and others wait for it");
        drop((first, second));
        let great = great.await.unwrap().admitted().unwrap();
        assert_eq!((great.units(), limiter.stats().in_flight), (3, Some(3)));
        drop(great);
        assert!(small.await.unwrap().is_allowed());
    }

    #[tokio::test(start_paused = true)]
    async fn live_changes_keep_key_limits() {
        let old = Concurrency::new(1).max_queue(9);
        let key = PartitionKey::from("a");
        let held = old.try_acquire(&key, 1).unwrap();
        let mut own = pending(old.decide(&Ask::charge(&key, 1).limited_to(Some(1))));
        let mut usual = pending(charge(&old, &key, 1));
        let new = Concurrency::new(3).max_queue(9);
        new.inherit(&old).unwrap().finish();
        assert!(poll(&mut own).is_none() && poll(&mut usual).is_none(), "the first has a limit of one");
        drop(held);
        assert_eq!(own.await.unwrap().limit(), 1);
        assert!(usual.await.unwrap().is_allowed());
        new.check_invariants();
    }

    /// A request that waits: its number, its cost and its limit.
    type Waiting = (usize, u64, u64);

    /// First come, first served: the first passes if it fits under its own limit, and otherwise no request does.
    fn serve(line: &mut VecDeque<Waiting>, units: &mut u64) -> Vec<usize> {
        let mut served = Vec::new();
        while let Some((number, cost, _)) = line.front().copied().filter(|(_, cost, limit)| *units + cost <= *limit) {
            line.pop_front();
            *units += cost;
            served.push(number);
        }
        served
    }

    /// Requests with their own limits come, are over, and leave the line, in any order.
    #[tokio::test(start_paused = true)]
    async fn own_limits_agree_with_the_model() {
        let mut random = Random::of_trial(1);
        let pick = |random: &mut Random, count: usize| usize::try_from(random.below(count as u64)).unwrap();
        let mut waited = 0;
        let mut trace = Trace::of(100);
        while trace.goes_on([("requests that wait", waited > 1_000)]) {
            let limiter = Concurrency::new(4).max_keys(8).max_queue(1_000);
            let key = PartitionKey::from("a");
            let mut waiting = BTreeMap::new();
            let mut held = Vec::new();
            let (mut line, mut units) = (VecDeque::new(), 0);
            for number in 0..200_usize {
                let due = match random.below(5) {
                    0 | 1 => {
                        let limit = 1 + random.below(6);
                        let cost = 1 + random.below(limit.min(3));
                        match limiter.decide(&Ask::charge(&key, cost).limited_to(Some(limit))) {
                            Answer::Ready(decision) => {
                                assert!(line.is_empty() && units + cost <= limit);
                                units += cost;
                                held.push((cost, decision.unwrap()));
                            }
                            Answer::Pending(mut pending) => {
                                assert!(!line.is_empty() || units + cost > limit);
                                assert!(poll(&mut pending).is_none());
                                line.push_back((number, cost, limit));
                                waiting.insert(number, (cost, pending));
                                waited += 1;
                            }
                        }
                        Vec::new()
                    }
                    2 | 3 if !held.is_empty() => {
                        let (cost, decision) = held.swap_remove(pick(&mut random, held.len()));
                        limiter.refund(&Ask::charge(&key, cost), decision.receipt(), cost);
                        units -= cost;
                        serve(&mut line, &mut units)
                    }
                    4 if !line.is_empty() => {
                        let (number, ..) = line.remove(pick(&mut random, line.len())).unwrap();
                        waiting.remove(&number);
                        serve(&mut line, &mut units)
                    }
                    _ => Vec::new(),
                };
                for number in due {
                    let (cost, mut pending) = waiting.remove(&number).unwrap();
                    let decision = poll(&mut pending).expect("its turn has come").unwrap();
                    held.push((cost, decision));
                }
                assert!(waiting.values_mut().all(|(_, pending)| poll(pending).is_none()));
                assert_eq!(limiter.stats().in_flight, Some(units));
                limiter.check_invariants();
            }
        }
    }

    /// Later requests do not wait.
    #[tokio::test(start_paused = true)]
    async fn a_closed_limiter_ends_all_waits() {
        let limiter = Concurrency::new(1).max_queue(9);
        let key = PartitionKey::from("a");
        let other = PartitionKey::from("b");
        let permit = limiter.try_acquire(&key, 1).unwrap();
        let waiting = pending(charge(&limiter, &key, 1));
        limiter.close();
        assert!(waiting.await.unwrap_err().is_closed());
        assert!(charge(&limiter, &key, 1).decided().await.unwrap_err().is_closed());
        assert!(limiter.try_acquire(&other, 1).is_some());
        drop(permit);
        assert!(limiter.try_acquire(&key, 1).is_some());
        limiter.check_invariants();
    }

    #[test]
    fn unpolled_futures_hold_nothing() {
        let limiter = Concurrency::new(1).max_queue(9);
        let key = PartitionKey::from("a");
        drop(limiter.acquire(&key, 1));
        assert_eq!(limiter.stats().in_flight, Some(0));
        let permit = limiter.acquire(&key, 1);
        assert_eq!(limiter.stats().in_flight, Some(1), "it is taken in the call");
        drop(permit);
        assert_eq!(limiter.stats().in_flight, Some(0));
    }

    #[test]
    fn outside_of_a_runtime_nothing_waits() {
        let limiter = Concurrency::new(1).max_queue(9);
        let key = PartitionKey::from("a");
        let _permit = limiter.try_acquire(&key, 1).unwrap();
        let Answer::Ready(Err(error)) = charge(&limiter, &key, 1) else { panic!("it cannot wait") };
        assert!(error.to_string().contains("tokio runtime"), "{error}");
        assert_eq!(limiter.stats().backlog.unwrap().waiting(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 8)]
    async fn waiters_on_many_threads_are_all_served() {
        let limiter = Arc::new(Concurrency::new(3).max_queue(1_000));
        let key = PartitionKey::from("hot");
        let now = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                let key = key.clone();
                let now = Arc::clone(&now);
                tokio::spawn(async move {
                    for round in 0..500_u64 {
                        let cost = 1 + round % 3;
                        let permit =
                            limiter.acquire(&key, cost).await.unwrap().admitted().expect("there is room to wait");
                        assert!(now.fetch_add(cost, Ordering::Relaxed) + cost <= 3);
                        tokio::task::yield_now().await;
                        now.fetch_sub(cost, Ordering::Relaxed);
                        drop(permit);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(limiter.stats().in_flight, Some(0));
        limiter.check_invariants();
    }
}
