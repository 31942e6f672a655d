//! Queues that processes share, over a map.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::store::remote::{GaveUp, KeyValue, KeyValueRecords};
use tower_sluice::testing::{check_departures, check_modes, seed_of, simulate};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, LimiterExt, PartitionKey, Quota, SharedQueue};

/// A map behind a network.
#[derive(Default)]
struct Map {
    values: Mutex<HashMap<String, Vec<u8>>>,
    /// How long a call takes each way.
    way: Duration,
    calls: AtomicU32,
    is_down: AtomicBool,
}

#[derive(Debug)]
struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is down")
    }
}

impl std::error::Error for Down {}

impl Map {
    fn far(way: Duration) -> Arc<Self> {
        Arc::new(Self { way, ..Self::default() })
    }

    async fn travel(&self) {
        if self.way.is_zero() { tokio::task::yield_now().await } else { sleep(self.way).await }
    }

    async fn arrive(&self) -> Result<(), Down> {
        self.travel().await;
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_down.load(Ordering::Relaxed) { Err(Down) } else { Ok(()) }
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl KeyValue for Map {
    type Error = Down;

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Down> {
        self.arrive().await?;
        let value = self.values.lock().unwrap().get(key).cloned();
        self.travel().await;
        Ok(value)
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        _: Duration,
    ) -> Result<bool, Down> {
        self.arrive().await?;
        let is_swapped = {
            let mut values = self.values.lock().unwrap();
            let is_swapped = values.get(key).map(Vec::as_slice) == old;
            match new {
                Some(new) if is_swapped => drop(values.insert(key.to_owned(), new.to_vec())),
                None if is_swapped => drop(values.remove(key)),
                _ => {}
            }
            is_swapped
        };
        self.travel().await;
        Ok(is_swapped)
    }
}

/// A clock for all processes, which follows tokio's.
struct Paused;

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        thread_local! {
            static BEGIN: LazyCell<Instant> = LazyCell::new(Instant::now);
        }
        let passed = BEGIN.with(|begin| begin.elapsed());
        Timestamp::from_nanos(1_700_000_000_000_000_000).saturating_add(passed)
    }
}

const SECOND: Duration = Duration::from_secs(1);

type Queue = SharedQueue<KeyValueRecords<Map, Paused>>;

/// One process's queue, on paused time.
fn process(map: &Arc<Map>, quota: Quota) -> Arc<Queue> {
    process_with(map, quota, 2_000, 10_000_000 * SECOND)
}

fn process_with(map: &Arc<Map>, quota: Quota, max_queue: usize, max_wait: Duration) -> Arc<Queue> {
    simulate(Some((1, || Paused.now())));
    let records = KeyValueRecords::new(Arc::clone(map), "limits").with_clock(Paused).bounded(SECOND, 1_000);
    Arc::new(SharedQueue::new(records, "test", quota).max_queue(max_queue).max_wait(max_wait))
}

fn key() -> PartitionKey {
    PartitionKey::from("a")
}

async fn ask(queue: &Queue) -> Decision {
    queue.decide(&Ask::charge(&key(), 1)).decided().await.unwrap()
}

/// Makes a reservation without waiting for its turn.
async fn take(queue: &Queue) -> Decision {
    queue.decide(&Ask::charge(&key(), 1).to(Mode::Shadow)).decided().await.unwrap()
}

/// Returns how many reservations are left.
async fn left(queue: &Queue) -> u64 {
    queue.decide(&Ask::charge(&key(), 0)).decided().await.unwrap().remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_keep_departures_as_plain_lists() {
    let map: Arc<Map> = Arc::default();
    let records = || KeyValueRecords::new(Arc::clone(&map), "limits").bounded(60 * SECOND, 1_000);
    check_departures([records(), records()], seed_of(31)).await;
}

#[tokio::test]
async fn each_mode_is_answered_as_described() {
    let records = KeyValueRecords::new(Arc::new(Map::default()), "limits");
    check_modes(&SharedQueue::new(records, "test", Quota::per_day(20).burst(20))).await;
}

/// The server is 3 ms away, and 50 requests come to two processes, one or two at a time.
#[tokio::test(start_paused = true)]
async fn two_processes_depart_at_exact_intervals() {
    let map = Map::far(Duration::from_millis(3));
    // A third of a second is not a whole number of nanoseconds.
    let quota = Quota::per_second(3);
    let queues = [process(&map, quota), process(&map, quota)];
    let began = Instant::now();
    let mut waiters = Vec::new();
    for index in 0..50 {
        let queue = Arc::clone(&queues[index % 3 % 2]);
        waiters.push(tokio::spawn(async move {
            let decision = ask(&queue).await;
            (decision, began.elapsed())
        }));
        sleep(Duration::from_millis(40)).await;
    }
    for (index, waiter) in (0_u64..).zip(waiters) {
        let (decision, left_at) = waiter.await.unwrap();
        assert!(decision.is_allowed());
        // The first one begins the schedule when it is read at the server, and its answer takes 9 ms more.
        let turn = Duration::from_millis(3) + Duration::from_nanos((index * 1_000_000_000).div_ceil(3));
        let earliest = if index == 0 { Duration::from_millis(12) } else { turn };
        // The process sees the server's time 3 ms later, and tokio counts milliseconds.
        let latest = earliest + Duration::from_millis(5);
        assert!((earliest..=latest).contains(&left_at), "{index} left at {left_at:?}, and its turn was {turn:?}");
    }
    assert_eq!(queues.map(|queue| queue.waiting()), [0, 0]);
}

/// Each of two processes sends a thousand requests, and the timeout is fifty calls long.
#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_calls() {
    let map = Map::far(Duration::from_millis(10));
    let queues = [process(&map, Quota::per_second(10)), process(&map, Quota::per_second(10))];
    let tasks: Vec<_> = (0..2_000)
        .map(|index| {
            let queue = Arc::clone(&queues[index % 2]);
            tokio::spawn(async move { take(&queue).await.delay() })
        })
        .collect();
    let mut delays = Vec::new();
    for task in tasks {
        delays.push(task.await.unwrap());
    }
    delays.sort_unstable();
    let took = Duration::from_millis(200);
    for (index, delay) in (0_u32..).zip(delays) {
        let turn = SECOND / 10 * index;
        assert!((turn.saturating_sub(took)..=turn).contains(&delay), "{index} waits {delay:?}");
    }
    assert!(map.calls() <= 20, "{} calls", map.calls());
}

/// Requests that are dropped during the call, while they wait for another's call, and while they wait for their turn.
#[tokio::test(start_paused = true)]
async fn requests_that_leave_keep_no_reservation() {
    let map = Map::far(Duration::from_millis(10));
    let [queue, elsewhere] = [0; 2].map(|_| process(&map, Quota::per_hour(1)));
    let _ = take(&queue).await;
    assert_eq!(left(&elsewhere).await, 2_000);
    for stays in [5, 15, 25, 35, 45, 55, 65, 1_000] {
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let (queue, stays) = (Arc::clone(&queue), Duration::from_millis(stays + number * 3));
                tokio::spawn(async move { tokio::time::timeout(stays, ask(&queue)).await.is_err() })
            })
            .collect();
        for waiter in waiters {
            assert!(waiter.await.unwrap(), "its turn is hours away");
        }
        sleep(SECOND).await;
        assert_eq!(left(&elsewhere).await, 2_000, "after {stays} ms");
        assert_eq!(queue.waiting(), 0);
    }
}

/// Other requests use its calls, too.
#[tokio::test(start_paused = true)]
async fn a_leaving_request_leaves_its_calls_running() {
    let map = Map::far(Duration::from_millis(10));
    let queue = process(&map, Quota::per_hour(1));
    let spawn = || {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { take_result(&queue).await })
    };
    // These come during its calls, and share the next ones, which the first of them begins.
    let first = spawn();
    sleep(Duration::from_millis(5)).await;
    let begins = spawn();
    sleep(Duration::from_millis(1)).await;
    let others = [spawn(), spawn()];
    sleep(Duration::from_millis(44)).await;
    assert!(first.is_finished());
    begins.abort();
    for other in others {
        assert!(other.await.unwrap().unwrap().is_allowed());
    }
    sleep(SECOND).await;
    assert_eq!(left(&queue).await, 1_998, "it keeps no reservation");
}

/// A change takes more than half the timeout, so the first requests that wait for the next change have too little time
/// for it. The others have enough.
#[tokio::test(start_paused = true)]
async fn slow_calls_fail_only_late_requests() {
    let map = Map::far(Duration::from_millis(150));
    let queue = process(&map, Quota::per_second(10));
    let mut tasks = Vec::new();
    for _ in 0..200 {
        let queue = Arc::clone(&queue);
        tasks.push(tokio::spawn(async move { take_result(&queue).await }));
        sleep(SECOND / 20).await;
    }
    let mut answered = 0;
    for task in tasks {
        answered += u32::from(task.await.unwrap().is_ok());
    }
    assert!(answered > 100, "{answered}");
}

/// All leave at once, as when a process shuts down, so their reservations share calls, too.
#[tokio::test(start_paused = true)]
async fn a_thousand_leavers_return_their_reservations() {
    let map = Map::far(Duration::from_millis(1));
    let [queue, elsewhere] = [0; 2].map(|_| process(&map, Quota::per_hour(1)));
    let _ = take(&queue).await;
    let waiters: Vec<_> = (0..1_000)
        .map(|_| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { ask(&queue).await })
        })
        .collect();
    sleep(SECOND).await;
    assert_eq!(left(&elsewhere).await, 1_000);
    waiters.iter().for_each(|waiter| waiter.abort());
    sleep(SECOND).await;
    assert_eq!(left(&elsewhere).await, 2_000);
}

/// As during a deployment that changes the bounds.
#[tokio::test(start_paused = true)]
async fn processes_with_other_bounds_keep_the_interval() {
    let map = Map::far(Duration::ZERO);
    let quota = Quota::per_second(1);
    let processes = [50_u8, 2].map(|most| {
        let wait = u32::from(most) * SECOND;
        (process_with(&map, quota, most.into(), wait), wait)
    });
    let began = Instant::now();
    let mut departures = Vec::new();
    for number in 0..120 {
        for (queue, wait) in &processes {
            let decision = take(queue).await;
            if decision.is_allowed() {
                departures.push(began.elapsed() + decision.delay());
            } else {
                assert_eq!(decision.retry_after(), Some(decision.reset_after() - *wait), "{number}");
            }
        }
        // At first the queue gets longer, and then it runs empty.
        sleep(if number < 60 { SECOND / 4 } else { 2 * SECOND }).await;
    }
    assert!(departures.len() > 120, "{}", departures.len());
    departures.sort_unstable();
    for pair in departures.windows(2) {
        assert!(pair[1] - pair[0] >= SECOND - Duration::from_millis(1), "{pair:?}");
    }
}

#[test]
fn a_queue_needs_a_runtime() {
    let records = KeyValueRecords::new(Arc::new(Map::default()), "limits");
    let queue = SharedQueue::new(records, "test", Quota::per_second(1));
    let key = key();
    let error =
        queue.decide(&Ask::charge(&key, 1).to(Mode::Shadow)).decided().now_or_never().expect("at once").unwrap_err();
    let reason = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<GaveUp>());
    assert_eq!(reason, Some(&GaveUp::NoRuntime));
}

/// Requests behind it know already when to depart.
#[tokio::test(start_paused = true)]
async fn an_arrival_takes_a_leavers_place() {
    let map = Map::far(Duration::ZERO);
    let [queue, elsewhere] = [0; 2].map(|_| process(&map, Quota::per_second(1)));
    assert!(take(&queue).await.delay().is_zero());
    let leaves = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { ask(&queue).await }
    });
    sleep(SECOND / 100).await;
    let stays = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { ask(&queue).await }
    });
    sleep(SECOND / 100).await;
    leaves.abort();
    assert!(leaves.await.unwrap_err().is_cancelled());
    sleep(SECOND / 100).await;
    assert!(take(&elsewhere).await.delay() < SECOND, "it departs second");
    assert!(take(&elsewhere).await.delay() > 2 * SECOND, "and this one fourth");
    assert_eq!(stays.await.unwrap().delay().as_millis() / 10, 199);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_waits_and_returns_reservations() {
    let map = Map::far(Duration::ZERO);
    let [queue, elsewhere] = [0; 2].map(|_| process(&map, Quota::per_hour(1)));
    let _ = take(&queue).await;
    let waiter = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.acquire(&key(), 1).await.map(drop) }
    });
    sleep(SECOND).await;
    assert_eq!((queue.waiting(), left(&elsewhere).await), (1, 1_999));
    queue.close();
    assert_eq!(waiter.await.unwrap().unwrap_err().to_string(), "the queue was closed");
    sleep(SECOND).await;
    assert_eq!((queue.waiting(), left(&elsewhere).await), (0, 2_000));
    assert!(queue.acquire(&key(), 1).await.is_err());
}

/// One more is let in only if it need not wait.
#[tokio::test(start_paused = true)]
async fn a_processs_waiters_are_bounded() {
    let map = Map::far(Duration::ZERO);
    simulate(Some((1, || Paused.now())));
    let records = KeyValueRecords::new(Arc::clone(&map), "limits").with_clock(Paused).bounded(SECOND, 1_000);
    let queue = SharedQueue::new(records, "test", Quota::per_second(1).burst(2)).max_queue(10).max_waiters(2);
    let queue = Arc::new(queue);
    let spawn = || {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { ask(&queue).await })
    };
    let at_once = [ask(&queue).await, ask(&queue).await];
    assert!(at_once.iter().all(|decision| decision.is_allowed() && decision.delay().is_zero()));
    let waiters = [spawn(), spawn()];
    sleep(SECOND / 100).await;
    let stats = queue.stats();
    assert_eq!((queue.waiting(), stats.backlog.map(|it| it.waiting()), stats.nodes.len()), (2, Some(2), 1));
    let decision = ask(&queue).await;
    assert_eq!((decision.is_allowed(), decision.retry_after().map(|wait| wait.as_millis())), (false, Some(2_990)));
    for waiter in waiters {
        assert!(waiter.await.unwrap().is_allowed());
    }
    assert_eq!(queue.waiting(), 0);
    sleep(SECOND).await;
    assert!(ask(&queue).await.delay().is_zero());
}

/// A turn that comes when the patience ends comes too late.
#[tokio::test(start_paused = true)]
async fn patience_bounds_a_wait() {
    let map = Map::far(Duration::ZERO);
    let queue = process(&map, Quota::per_second(1));
    let within = async |patience| {
        let key = key();
        queue.decide(&Ask::charge(&key, 1).within(Some(patience))).decided().await.unwrap()
    };
    assert!(within(Duration::ZERO).await.is_allowed(), "it need not wait");
    let rejection = within(SECOND).await;
    assert_eq!((rejection.is_allowed(), rejection.retry_after()), (false, Some(Duration::from_nanos(1))));
    assert!(within(SECOND + Duration::from_nanos(1)).await.is_allowed());
}

/// While the answer to one request is valid, the queue makes no call. It notices a reservation that this process
/// returns.
#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects_without_calls() {
    let map = Map::far(Duration::ZERO);
    let queue = process_with(&map, Quota::per_hour(1), 2, 10_000 * SECOND);
    let mut receipts = Vec::new();
    for _ in 0..3 {
        receipts.push(take(&queue).await.receipt());
    }
    let calls = map.calls();
    let rejection = take(&queue).await;
    assert!(!rejection.is_allowed());
    for _ in 0..100 {
        assert_eq!(take(&queue).await, rejection);
    }
    assert_eq!(map.calls(), calls);
    queue.refund(&Ask::charge(&key(), 1), receipts[1], 1);
    sleep(SECOND / 100).await;
    assert!(take(&queue).await.is_allowed());

    // A cost that is never let in, on a key without a backlog.
    let key = PartitionKey::from("b");
    let too_much = async || queue.decide(&Ask::charge(&key, 99).to(Mode::Shadow)).decided().await.unwrap();
    let rejection = too_much().await;
    assert!(!rejection.is_allowed());
    let calls = map.calls();
    assert_eq!(too_much().await, rejection);
    assert_eq!(map.calls(), calls);
}

/// The namesake must be on the same server.
#[tokio::test(start_paused = true)]
async fn a_queue_inherits_its_namesake() {
    let map = Map::far(Duration::ZERO);
    let quota = Quota::per_second(1);
    let queue = process(&map, quota);
    assert!(process(&map, Quota::per_second(2)).inherit(&*queue).is_some());
    assert!(process(&Map::far(Duration::ZERO), quota).inherit(&*queue).is_none());
    let records = KeyValueRecords::new(Arc::clone(&map), "limits").with_clock(Paused);
    assert!(SharedQueue::new(records, "another", quota).inherit(&*queue).is_none());
    let limiter: &dyn Limiter = &*queue;
    limiter.close();
    assert_eq!(take_result(&queue).await.unwrap_err().to_string(), "the queue was closed");
}

/// The schedule is cut to the bounds, and the correction is kept: arrivals wait for a full queue, and not for a year.
#[tokio::test(start_paused = true)]
async fn a_reversed_clock_blocks_a_queue_length() {
    let map = Map::far(Duration::ZERO);
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    simulate(Some((1, || Paused.now())));
    let [queue, elsewhere] = [0; 2].map(|_| {
        let records = KeyValueRecords::new(Arc::clone(&map), "limits").with_clock(clock.clone()).bounded(SECOND, 1_000);
        SharedQueue::new(records, "test", Quota::per_second(1)).max_queue(5).max_wait(5 * SECOND)
    });
    let key = key();
    let charge = async || queue.decide(&Ask::charge(&key, 1).to(Mode::Shadow)).decided().await.unwrap();
    clock.advance(365 * 86_400 * SECOND);
    assert!(charge().await.is_allowed());
    clock.set(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let before = map.values.lock().unwrap().clone();
    assert!(elsewhere.decide(&Ask::charge(&key, 0)).decided().await.unwrap().is_allowed());
    assert_eq!(*map.values.lock().unwrap(), before, "a look changes nothing");
    // The bounds, and the greatest cost, which is 6.
    assert_eq!(charge().await.retry_after(), Some(6 * SECOND));
    clock.advance(2 * SECOND);
    sleep(2 * SECOND).await;
    assert_eq!(charge().await.retry_after(), Some(4 * SECOND));
}

/// Requests that wait already are not affected.
#[tokio::test(start_paused = true)]
async fn a_dead_server_is_an_error() {
    let map = Map::far(Duration::ZERO);
    let queue = process(&map, Quota::per_second(1));
    let _ = take(&queue).await;
    let waiter = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { ask(&queue).await }
    });
    sleep(SECOND / 100).await;
    map.is_down.store(true, Ordering::Relaxed);
    let fails = queue.decide(&Ask::charge(&key(), 1).to(Mode::Shadow)).decided().await;
    assert_eq!(std::error::Error::source(&fails.unwrap_err()).unwrap().to_string(), "it is down");
    // The fallback knows this process's reservations.
    let fallback = queue.decide(&Ask::charge(&key(), 1).to(Mode::Fallback)).decided().await.unwrap();
    assert!(fallback.delay() > SECOND, "{fallback:?}");
    assert!(waiter.await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_slow_times_out() {
    let map = Map::far(2 * SECOND);
    let queue = process(&map, Quota::per_second(1));
    let began = Instant::now();
    let both = [take_result(&queue), take_result(&queue)];
    for answer in futures_util::future::join_all(both).await {
        let error = answer.unwrap_err();
        let reason = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<GaveUp>());
        assert_eq!(reason, Some(&GaveUp::TimedOut));
    }
    assert_eq!(began.elapsed(), SECOND);
}

async fn take_result(queue: &Queue) -> Result<Decision, tower_sluice::LimiterError> {
    queue.decide(&Ask::charge(&key(), 1).to(Mode::Shadow)).decided().await
}
