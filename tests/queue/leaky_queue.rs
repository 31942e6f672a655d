//! The leaky queue on paused time: order, pace, bounds, and leaving.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::effort::rounds;
use crate::support::queue::settle;
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};
use tower_sluice::limiter::{Answer, Ask, Backlog, Mode, Pending, Shape};
use tower_sluice::testing::{IntervalChecker, Random, seeds};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, LeakyQueue, Limiter, PartitionKey, Quota};

const MS: Duration = Duration::from_millis(1);

pub(super) fn key(name: &str) -> PartitionKey {
    name.into()
}

/// A queue that releases one request every 10 ms.
pub(super) fn every_10_ms() -> LeakyQueue {
    LeakyQueue::new(Quota::per_second(100)).max_queue(5)
}

pub(super) fn pending(check: Answer) -> Pending {
    match check {
        Answer::Pending(pending) => pending,
        Answer::Ready(result) => panic!("expected to wait, but got {result:?}"),
    }
}

pub(super) fn ready(check: Answer) -> Decision {
    match check {
        Answer::Ready(result) => result.expect("a queue on a live runtime decides"),
        Answer::Pending(_) => panic!("expected an answer at once, but have to wait"),
    }
}

async fn advance_in_steps(span: Duration) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        advance(MS.min(end - Instant::now())).await;
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_depart_in_order_of_arrival() {
    let queue = Arc::new(every_10_ms());
    let start = Instant::now();
    let departures = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..6_u64)
        .map(|number| {
            let check = queue.decide(&Ask::charge(&key("a"), 1));
            let departures = Arc::clone(&departures);
            tokio::spawn(async move {
                let decision = check.decided().await.unwrap();
                departures.lock().unwrap().push((number, start.elapsed()));
                assert_eq!(decision.delay(), MS * 10 * u32::try_from(number).unwrap());
            })
        })
        .collect();
    assert_eq!(queue.waiting(), 5);
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let expected: Vec<_> = (0..6).map(|number| (number, Duration::from_millis(number * 10))).collect();
    assert_eq!(*departures.lock().unwrap(), expected);
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_advertises_the_exact_retry() {
    let queue = every_10_ms();
    advance(MS * 3).await;
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let waiting: Vec<_> = (0..5).map(|_| pending(queue.decide(&Ask::charge(&key("a"), 1)))).collect();

    let rejected = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    assert!(!rejected.is_allowed());
    assert_eq!(rejected.remaining(), 0);
    assert_eq!(rejected.retry_after(), Some(MS * 10));

    advance(MS * 10 - Duration::from_nanos(1)).await;
    assert_eq!(ready(queue.decide(&Ask::charge(&key("a"), 1))).retry_after(), Some(Duration::from_nanos(1)));
    advance(Duration::from_nanos(1)).await;
    // The head's time has come, so there is room even if its timer has not fired yet.
    let last = pending(queue.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(queue.waiting(), 5);
    drop((waiting, last));
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_max_wait_is_rejected() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_queue(1_000).max_wait(MS * 25);
    let first = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!((first.limit(), first.remaining()), (3, 2));
    let _waiting =
        [pending(queue.decide(&Ask::charge(&key("a"), 1))), pending(queue.decide(&Ask::charge(&key("a"), 1)))];
    let rejected = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(rejected.retry_after(), Some(MS * 5));
    advance(MS * 5 - Duration::from_nanos(1)).await;
    assert!(!ready(queue.decide(&Ask::charge(&key("a"), 1))).is_allowed());
    advance(Duration::from_nanos(1)).await;
    drop(pending(queue.decide(&Ask::charge(&key("a"), 1))));
}

/// A request that would give up before its turn is rejected at once, instead of waiting in vain.
#[tokio::test(start_paused = true)]
async fn a_request_beyond_its_patience_is_rejected() {
    const TICK: Duration = Duration::from_nanos(1);
    let queue = every_10_ms();
    let check = |patience| queue.decide(&Ask::charge(&key("a"), 1).within(Some(patience)));
    // A free turn needs no patience.
    assert_eq!(ready(check(Duration::ZERO)).delay(), Duration::ZERO);
    // A turn at the very end of the patience comes too late.
    let rejected = ready(check(MS * 10));
    assert_eq!((rejected.is_allowed(), rejected.remaining(), rejected.retry_after()), (false, 0, Some(TICK)));
    assert_eq!(queue.decide(&Ask::peek(&key("a"), 1).within(Some(MS * 10))).at_once(), Some(rejected));
    let turn = pending(check(MS * 10 + TICK));
    assert_eq!(queue.waiting(), 1);

    // Two intervals to wait, and patience for half an interval.
    let rejected = ready(check(MS * 5));
    assert_eq!(rejected.retry_after(), Some(MS * 15 + TICK));
    advance_in_steps(MS * 15).await;
    assert_eq!(turn.await.unwrap().delay(), MS * 10);
    assert_eq!(ready(check(MS * 5)).retry_after(), Some(TICK));
    advance(TICK).await;
    assert!(queue.decide(&Ask::peek(&key("a"), 1).within(Some(MS * 5))).at_once().unwrap().is_allowed());
    drop(pending(check(MS * 5)));
}

#[tokio::test(start_paused = true)]
async fn patience_does_not_extend_max_wait() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_wait(MS * 5);
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let patient = ready(queue.decide(&Ask::charge(&key("a"), 1).within(Some(Duration::MAX))));
    assert_eq!(patient, ready(queue.decide(&Ask::charge(&key("a"), 1))));
    assert_eq!(patient.retry_after(), Some(MS * 5));
    // A cost that is never admitted now is not admitted later either.
    assert_eq!(ready(queue.decide(&Ask::charge(&key("a"), 3).within(Some(MS)))).retry_after(), None);
}

/// The bound is lifted when the next waiter leaves.
#[tokio::test(start_paused = true)]
async fn the_bound_over_all_keys_holds() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_queue(10).max_waiters(3);
    let (mut nows, mut waiting) = (0, Vec::new());
    for name in ["a", "b", "c"] {
        nows += u64::from(ready(queue.decide(&Ask::charge(&key(name), 1))).is_allowed());
        waiting.push(pending(queue.decide(&Ask::charge(&key(name), 1))));
    }
    assert_eq!(nows, 3);
    let rejected = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(rejected.retry_after(), Some(MS * 10));
    // A key that need not wait is not subject to the bound.
    assert!(ready(queue.decide(&Ask::charge(&key("d"), 1))).is_allowed());
    advance_in_steps(MS * 10).await;
    drop(pending(queue.decide(&Ask::charge(&key("a"), 1))));
}

#[tokio::test(start_paused = true)]
async fn waiters_move_up_when_one_leaves() {
    for leaver in 0..3 {
        let queue = every_10_ms();
        let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
        let mut waiting: Vec<_> = (0..3).map(|_| Some(pending(queue.decide(&Ask::charge(&key("a"), 1))))).collect();
        drop(waiting[leaver].take());
        assert_eq!(queue.waiting(), 2);
        let mut delays = Vec::new();
        for waiter in waiting.into_iter().flatten() {
            delays.push(waiter.await.unwrap().delay());
        }
        assert_eq!(delays, [MS * 10, MS * 20], "waiter {leaver} left");
    }
}

/// The driver once slept until the turn of a head that had left, and missed an earlier turn, because it took an empty
/// FIFO for the next one due.
#[tokio::test(start_paused = true)]
async fn a_leaving_head_delays_no_other_key() {
    let queue = every_10_ms();
    let _b = ready(queue.decide(&Ask::charge(&key("b"), 1)));
    advance(MS * 6).await;
    let _a = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let due_at_16 = pending(queue.decide(&Ask::charge(&key("a"), 1)));
    settle().await;
    drop(due_at_16);
    assert_eq!(pending(queue.decide(&Ask::charge(&key("b"), 1))).await.unwrap().delay(), MS * 4);
}

/// A fair semaphore would hand the turn to a future that is not polled, and all others would wait for ever (Oxide RFD
/// 609, "futurelock").
#[tokio::test(start_paused = true)]
async fn an_unpolled_waiter_loses_only_its_turn() {
    let queue = every_10_ms();
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let unpolled = pending(queue.decide(&Ask::charge(&key("a"), 1)));
    let mut leaked = pending(queue.decide(&Ask::charge(&key("a"), 1)));
    assert!(leaked.as_mut().now_or_never().is_none());
    std::mem::forget(leaked);
    let polled = pending(queue.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(polled.await.unwrap().delay(), MS * 30);
    drop(unpolled);
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unused_turn_goes_to_the_next() {
    let queue = every_10_ms();
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let released = pending(queue.decide(&Ask::charge(&key("a"), 1)));
    let next = tokio::spawn(pending(queue.decide(&Ask::charge(&key("a"), 1))));
    advance_in_steps(MS * 14).await;
    // Granted at 10 ms and dropped at 14: four of its ten milliseconds are spent, so the next request departs now
    // instead of at 20, and not a moment sooner.
    drop(released);
    assert_eq!(next.await.unwrap().unwrap().delay(), MS * 14);
    // The one after that departs an interval later, as always.
    assert_eq!(queue.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().delay(), MS * 10);
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_delay_one_another() {
    let queue = every_10_ms();
    let _now = ready(queue.decide(&Ask::charge(&key("hot"), 1)));
    let _hot: Vec<_> = (0..5).map(|_| pending(queue.decide(&Ask::charge(&key("hot"), 1)))).collect();
    assert_eq!(ready(queue.decide(&Ask::charge(&key("cold"), 1))).delay(), Duration::ZERO);
    assert_eq!(pending(queue.decide(&Ask::charge(&key("cold"), 1))).await.unwrap().delay(), MS * 10);
}

/// A request's cost delays the requests behind it.
#[tokio::test(start_paused = true)]
async fn a_burst_departs_at_once() {
    let queue = LeakyQueue::new(Quota::per_second(100).burst(3)).max_queue(5);
    for _ in 0..3 {
        assert_eq!(ready(queue.decide(&Ask::charge(&key("a"), 1))).delay(), Duration::ZERO);
    }
    assert_eq!(pending(queue.decide(&Ask::charge(&key("a"), 1))).await.unwrap().delay(), MS * 10);

    let queue = every_10_ms();
    let _three = ready(queue.decide(&Ask::charge(&key("a"), 3)));
    let two = tokio::spawn(pending(queue.decide(&Ask::charge(&key("a"), 2))));
    let last = tokio::spawn(pending(queue.decide(&Ask::charge(&key("a"), 1))));
    assert_eq!(two.await.unwrap().unwrap().delay(), MS * 30);
    assert_eq!(last.await.unwrap().unwrap().delay(), MS * 50);
    // A cost of zero does not wait.
    assert!(ready(queue.decide(&Ask::charge(&key("a"), 0))).is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_stall_causes_no_later_burst() {
    let queue = LeakyQueue::new(Quota::per_second(1_000)).max_queue(500);
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let _waiting: Vec<_> = (0..500).map(|_| pending(queue.decide(&Ask::charge(&key("a"), 1)))).collect();
    settle().await;
    // Nothing runs for 300 ms, in which 300 would have departed.
    advance(MS * 300).await;
    settle().await;
    let left = 500 - queue.waiting();
    assert!((50..=52).contains(&left), "{left} left at once: fifty milliseconds' worth and one are allowed");
}

/// A shadow joins it, but does not wait.
#[tokio::test(start_paused = true)]
async fn a_peek_never_joins_the_queue() {
    let queue = every_10_ms();
    assert_eq!(queue.decide(&Ask::peek(&key("a"), 1)).at_once().unwrap().delay(), Duration::ZERO);
    assert_eq!(queue.decide(&Ask::peek(&key("a"), 0)).at_once().unwrap().remaining(), 6);
    for number in 0..6 {
        let foretold = queue.decide(&Ask::peek(&key("a"), 1)).at_once().unwrap();
        let rehearsed = ready(queue.decide(&Ask::charge(&key("a"), 1).to(Mode::Shadow)));
        assert_eq!(rehearsed.delay(), MS * 10 * number);
        assert_eq!((foretold.delay(), foretold.remaining()), (rehearsed.delay(), rehearsed.remaining()));
        assert_eq!(rehearsed.remaining(), u64::from(5 - number));
    }
    assert!(!ready(queue.decide(&Ask::charge(&key("a"), 1).to(Mode::Shadow))).is_allowed());
    assert_eq!(queue.waiting(), 5);
    advance_in_steps(MS * 50).await;
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_next_release_covers_all_keys() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_wait(MS * 900);
    let stats = || (queue.waiting(), queue.next_release());
    assert_eq!(stats(), (0, None));
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(stats(), (0, None), "it has left");
    let late = [pending(queue.decide(&Ask::charge(&key("a"), 50))), pending(queue.decide(&Ask::charge(&key("a"), 1)))];
    assert_eq!(stats(), (2, Some(MS * 10)));
    advance(MS * 4).await;
    let _now = ready(queue.decide(&Ask::charge(&key("b"), 1)));
    let other = pending(queue.decide(&Ask::charge(&key("b"), 1)));
    assert_eq!(stats(), (3, Some(MS * 6)));
    assert_eq!(queue.stats().backlog, Some(Backlog::new(3, Some(MS * 6))));
    drop(late);
    assert_eq!(stats(), (1, Some(MS * 10)));
    // It is due, and the driver has not run.
    advance(MS * 30).await;
    assert_eq!(stats(), (1, Some(Duration::ZERO)));
    assert!(other.await.unwrap().is_allowed());
    assert_eq!(stats(), (0, None));
}

/// The bound over all keys once failed whenever the driver was late, which is when it is needed.
#[tokio::test(start_paused = true)]
async fn the_bound_holds_without_a_driver() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_waiters(3);
    let crowd = || {
        (0..1_000_u64)
            .map(|key| queue.decide(&Ask::charge(&key.into(), 1)))
            .filter(|check| matches!(check, Answer::Pending(_)))
    };
    for key in 0..1_000_u64 {
        assert!(ready(queue.decide(&Ask::charge(&key.into(), 1))).is_allowed());
    }
    let _waiting: Vec<_> = crowd().collect();
    assert_eq!(queue.waiting(), 3);
    // All are due, and the driver has not run.
    advance(MS * 15).await;
    for key in 0..1_000_u64 {
        let _now = queue.decide(&Ask::charge(&key.into(), 1));
    }
    let _more: Vec<_> = crowd().collect();
    assert_eq!(queue.waiting(), 3);
    let rejected = ready(queue.decide(&Ask::charge(&5_u64.into(), 1)));
    assert_eq!((rejected.is_allowed(), rejected.remaining()), (false, 0));
}

/// Such a cost would block its key for longer than the longest wait.
#[tokio::test(start_paused = true)]
async fn a_cost_beyond_max_wait_is_rejected() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_wait(MS * 50);
    assert_eq!(queue.describe().max_cost(), Some(6));
    assert_eq!(ready(queue.decide(&Ask::charge(&key("a"), 7))).retry_after(), None);
    assert!(!ready(queue.decide(&Ask::charge(&key("a"), u64::from(u32::MAX)))).is_allowed());
    assert!(ready(queue.decide(&Ask::charge(&key("a"), 6))).is_allowed());
    assert!(
        matches!(queue.decide(&Ask::charge(&key("a"), 1)), Answer::Ready(Ok(rejected)) if rejected.retry_after() == Some(MS * 10))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_get_exactly_the_turns() {
    for _ in 0..50 {
        // At one per hour, nothing is paid during the test.
        let queue = LeakyQueue::new(Quota::per_hour(1)).max_queue(100).max_wait(Duration::MAX);
        let runtime = tokio::runtime::Handle::current();
        let turns = std::thread::scope(|scope| {
            let ask = || {
                let _guard = runtime.enter();
                let checks: Vec<_> = (0..200).map(|_| queue.decide(&Ask::charge(&key("a"), 1))).collect();
                checks.into_iter().filter(|check| !matches!(check, Answer::Ready(Ok(d)) if !d.is_allowed())).collect()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<Vec<Answer>>>()
        });
        assert_eq!(turns.iter().map(Vec::len).sum::<usize>(), 101);
        assert_eq!(queue.waiting(), 100);
        queue.check_invariants();
        drop(turns);
        queue.check_invariants();
        assert_eq!(queue.waiting(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_advertises_an_equivalent_bucket() {
    let terms = |queue: LeakyQueue| {
        let terms = Arc::new(queue).describe().terms().unwrap();
        assert_eq!(terms.shape(), Some(Shape::Bucket));
        assert_eq!((terms.limit(), terms.quota().unwrap().period()), (100, Duration::from_secs(1)));
        terms.quota().unwrap().max_burst()
    };
    // One request departs at once, and five wait, as its decisions say.
    assert_eq!(terms(every_10_ms()), 6);
    assert_eq!(every_10_ms().decide(&Ask::peek(&key("a"), 1)).at_once().unwrap().limit(), 6);
    assert_eq!(terms(LeakyQueue::new(Quota::per_second(100).burst(3)).max_queue(5)), 8);
    // Requests that would wait for longer than max_wait do not count.
    assert_eq!(terms(every_10_ms().max_wait(20 * MS)), 3);
    assert_eq!(terms(every_10_ms().max_queue(0)), 1);
}

/// The preview answers for a request that would be the last to wait, regardless of the keys that the others wait for.
#[tokio::test(start_paused = true)]
async fn a_preview_counts_waiters_of_all_keys() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_queue(10).max_waiters(3);
    let _waiters: Vec<_> = ["a", "b"]
        .map(|name| {
            assert!(queue.decide(&Ask::charge(&key(name), 1)).at_once().unwrap().is_allowed());
            queue.decide(&Ask::charge(&key(name), 1))
        })
        .into();
    assert_eq!(queue.waiting(), 2);
    let preview = queue.decide(&Ask::peek(&key("a"), 1)).at_once().unwrap();
    assert_eq!((preview.is_allowed(), preview.delay(), preview.remaining()), (true, MS * 20, 0));
}

/// Drives a queue by seeded requests whose costs reach twice its burst, and checks each interval of its departures. A
/// cost above the burst departs alone, so the bound is then that cost.
#[tokio::test(start_paused = true)]
async fn every_interval_keeps_the_bound() {
    for seed in seeds(rounds(60, 600)) {
        let mut random = Random::new(seed);
        let burst = 1 + random.below(6);
        let greatest = 1 + random.below(2 * burst);
        let quota = Quota::per_second(100).burst(burst);
        let queue = LeakyQueue::new(quota).max_queue(8);
        // The driver may catch up on one millisecond, which is the tick of tokio's timer.
        let mut departures = IntervalChecker::new(quota, burst.max(greatest) + 1);
        let mut waiting = Vec::new();
        let mut costs = VecDeque::new();
        for now in 0..400 {
            if random.below(3) == 0 {
                let cost = 1 + random.below(greatest);
                match queue.decide(&Ask::charge(&key("a"), cost)) {
                    Answer::Ready(decision) if !decision.as_ref().unwrap().is_allowed() => {}
                    answer => {
                        costs.push_back(cost);
                        waiting.push(tokio::spawn(answer.decided()));
                    }
                }
            }
            settle().await;
            while waiting.first().is_some_and(JoinHandle::is_finished) {
                let decision = waiting.remove(0).await.unwrap().unwrap();
                assert!(decision.is_allowed(), "seed {seed} at {now} ms: a waiter is never rejected");
                departures.admit(Timestamp::from_nanos(now * 1_000_000), costs.pop_front().unwrap());
            }
            queue.check_invariants();
            advance(MS).await;
        }
    }
}

/// A head with a great cost waits until more debt is paid than the request behind it needs.
#[tokio::test(start_paused = true)]
async fn a_cost_departs_when_it_fits() {
    let queue = LeakyQueue::new(Quota::per_second(1).burst(3)).max_queue(5).max_wait(Duration::from_secs(60));
    let ask = |cost| queue.decide(&Ask::charge(&key("a"), cost));
    assert!(ready(ask(1)).is_allowed() && ready(ask(1)).is_allowed());
    let (great, last) = (pending(ask(30)), pending(ask(1)));
    advance(Duration::from_secs(2)).await;
    settle().await;
    assert_eq!(great.now_or_never().unwrap().unwrap().delay(), Duration::from_secs(2));
    // 30 units are owed, and a unit fits when two are left.
    advance(Duration::from_secs(28)).await;
    settle().await;
    assert_eq!(last.now_or_never().unwrap().unwrap().delay(), Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn the_next_head_may_depart_sooner() {
    let queue = LeakyQueue::new(Quota::per_second(1).burst(3)).max_queue(5).max_wait(Duration::from_secs(60));
    let ask = |cost| queue.decide(&Ask::charge(&key("a"), cost));
    assert!(ready(ask(1)).is_allowed() && ready(ask(1)).is_allowed());
    let (great, mut small) = (pending(ask(3)), pending(ask(1)));
    assert!((&mut small).now_or_never().is_none(), "it waits behind the head");
    drop(great);
    assert_eq!(small.now_or_never().unwrap().unwrap().delay(), Duration::ZERO);
    queue.check_invariants();
}
