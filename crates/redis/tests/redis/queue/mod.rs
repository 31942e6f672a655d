//! A queue on Redis that several processes share.

mod close;
mod layer;
mod leaving;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response};
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::{Ask, Description, Mode};
use tower_sluice::testing::{check_departures, seed_of};
use tower_sluice::{
    Decision, FailureMode, Limiter, LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, SharedQueue,
};
use tower_sluice_redis::{Redis, UnfitQuota};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually as until;
use crate::support::timing::some_attempt_async;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Connects as another process would, with separate connections. The timeout is long, for busy machines.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn queue(server: &RedisServer, quota: Quota) -> SharedQueue<Redis> {
    SharedQueue::new(redis(server), "test", quota).max_wait(100 * HOUR)
}

fn key(name: &str) -> PartitionKey {
    PartitionKey::from(name)
}

async fn ask(queue: &SharedQueue<Redis>, name: &str) -> Decision {
    queue.decide(&Ask::charge(&key(name), 1)).decided().await.unwrap()
}

/// Makes a reservation without waiting for its turn.
async fn take(queue: &SharedQueue<Redis>, name: &str) -> Decision {
    queue.decide(&Ask::charge(&key(name), 1).to(Mode::Shadow)).decided().await.unwrap()
}

/// Returns how many reservations are left.
async fn left(queue: &SharedQueue<Redis>, name: &str) -> u64 {
    queue.decide(&Ask::charge(&key(name), 0)).decided().await.unwrap().remaining()
}

type Waiter = JoinHandle<Result<Decision, LimiterError>>;

/// Returns a waiter whose reservation is made.
async fn join(queue: &SharedQueue<Redis>, name: &str) -> Waiter {
    join_seen_from(queue, queue, name).await
}

/// Reads the remaining reservations from another process, since reading takes a waiter slot there.
async fn join_seen_from(process: &SharedQueue<Redis>, queue: &SharedQueue<Redis>, name: &str) -> Waiter {
    let (before, waits) = (left(process, name).await, queue.decide(&Ask::charge(&key(name), 1)));
    let waiter = tokio::spawn(waits.decided());
    until("it has a reservation", async || left(process, name).await < before).await;
    waiter
}

async fn leave(waiter: Waiter) {
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
}

fn calls(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let count = stats.split(&['=', ','][..]).nth(1);
    count.map_or(0, |count| count.parse().unwrap())
}

/// How often two processes may have verified a cached rejection, on a busy machine: each half a second.
fn verified(since: Instant) -> u64 {
    u64::try_from((since.elapsed().as_millis() / 500 + 1) * 2).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_depart_in_arrival_order() {
    let server = RedisServer::start();
    let interval = Duration::from_millis(80);
    let quota = Quota::per(1, interval);
    let queues = [0, 1].map(|_| Arc::new(queue(&server, quota).max_queue(20)));
    // Connects, and brings the scripts there.
    for queue in &queues {
        let _ = take(queue, "another").await;
    }
    let began = Instant::now();
    let mut waiters = Vec::new();
    for index in 0..12 {
        let (queue, before) = (Arc::clone(&queues[index % 2]), calls(&server));
        waiters.push(tokio::spawn(async move {
            let decision = ask(&queue, "a").await;
            (decision, Instant::now())
        }));
        until("it has arrived", async || calls(&server) > before).await;
    }
    let departures: Vec<_> = join_all(waiters).await.into_iter().map(Result::unwrap).collect();
    for (index, (decision, left_at)) in departures.iter().enumerate() {
        assert!(decision.is_allowed());
        // Measured from before the first request, so it holds on any machine. If two had changed places, one of them
        // would have left too early. (A busy machine may let both leave late, and in any order.)
        let earliest = began + interval * u32::try_from(index).unwrap();
        assert!(*left_at >= earliest, "{index} left {:?} too early", earliest - *left_at);
    }
    assert_eq!(queues.map(|queue| queue.waiting()), [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_processes_share_no_turn() {
    let server = RedisServer::start();
    async fn all<T>(queues: Vec<SharedQueue<Redis>>, arrive: impl AsyncFn(&SharedQueue<Redis>) -> T) -> Vec<T> {
        let arrive = &arrive;
        join_all(queues.iter().flat_map(move |queue| (0..20).map(move |_| arrive(queue)))).await
    }
    let ten = |interval| (0..10).map(|_| queue(&server, Quota::per(1, interval)).max_queue(200)).collect();

    // Their turns are hours away, and are given as delays from their arrivals, which were all within this time.
    let (apart, began) = (HOUR * 2 / 10, Instant::now());
    let decisions = all(ten(apart), async |queue| take(queue, "far").await).await;
    let took = began.elapsed();
    assert!(decisions.iter().all(Decision::is_allowed));
    let mut delays: Vec<_> = decisions.iter().map(Decision::delay).collect();
    delays.sort_unstable();
    for (index, delay) in (0..).zip(delays) {
        let turn = apart * index;
        assert!((turn.saturating_sub(took)..=turn).contains(&delay), "{index} after {delay:?}");
    }

    // These wait, and none leaves before its turn. If the machine stalls, the queue may run empty.
    let (interval, began) = (Duration::from_millis(5), Instant::now());
    let mut left_at = all(ten(interval), async |queue| {
        assert!(ask(queue, "near").await.is_allowed());
        Instant::now()
    })
    .await;
    left_at.sort_unstable();
    assert_eq!(left_at.len(), 200);
    for (index, left_at) in (0..).zip(left_at) {
        let earliest = began + interval * index;
        // The server's clock is this machine's, truncated to the microsecond.
        assert!(left_at + Duration::from_micros(1) >= earliest, "{index} left {:?} too early", earliest - left_at);
    }
}

#[tokio::test]
async fn a_full_queue_rejects_until_advertised() {
    let server = RedisServer::start();
    let [here, there] = [0, 1].map(|_| queue(&server, Quota::per_hour(1)).max_queue(2));
    let began = Instant::now();
    for (queue, turn) in [(&here, 0), (&there, 1), (&here, 2)] {
        let delay = take(queue, "a").await.delay();
        assert!(delay <= turn * HOUR && delay + began.elapsed() >= turn * HOUR, "{turn} waits {delay:?}");
    }
    for queue in [&here, &there] {
        let rejected = ask(queue, "a").await;
        let wait = rejected.retry_after().expect("the queue is full");
        assert!(wait <= HOUR && wait + began.elapsed() >= HOUR, "{wait:?}");
        assert_eq!((rejected.limit(), rejected.remaining()), (3, 0));
    }
    assert!(take(&there, "b").await.delay().is_zero(), "keys do not delay one another");

    let short = |_| SharedQueue::new(redis(&server), "short", Quota::per_second(2)).max_queue(0);
    let [here, there] = [0, 1].map(short);
    let mut rejected = None;
    until("it is full", async || {
        rejected = take(&there, "a").await.retry_after();
        rejected.is_some()
    })
    .await;
    tokio::time::sleep(rejected.unwrap()).await;
    assert!(take(&here, "a").await.is_allowed(), "as advertised");
}

#[tokio::test]
async fn a_flood_does_not_reach_the_server() {
    let server = RedisServer::start();
    let [here, there] = [0, 1].map(|_| queue(&server, Quota::per_hour(1)).max_queue(1));
    // Connects, and brings the script there.
    for queue in [&here, &there] {
        let _ = take(queue, "another").await;
    }
    assert!(take(&here, "a").await.is_allowed() && take(&here, "a").await.is_allowed());
    let (before, began) = (calls(&server), Instant::now());
    let rejected = ask(&there, "a").await.retry_after().expect("the queue is full");
    for queue in [&here, &there] {
        let flood = join_all((0..2_000).map(|_| ask(queue, "a"))).await;
        assert!(flood.iter().all(|it| it.retry_after().is_some() && (it.limit(), it.remaining()) == (2, 0)));
        let impatient =
            queue.decide(&Ask::charge(&key("a"), 1).within(Some(SECOND))).decided().await.unwrap().retry_after();
        assert!(impatient.unwrap() > rejected + HOUR / 2, "two are before it: {impatient:?}");
    }
    let made = calls(&server) - before;
    assert!((1..=1 + verified(began)).contains(&made), "one knew of it, and the other called once: {made}");
    assert_eq!((here.waiting(), there.waiting()), (0, 0));
}

#[tokio::test]
async fn the_negative_cache_rejects_only_impatient_requests() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9).max_waiters(0);
    assert!(ask(&queue, "a").await.is_allowed());
    let (before, began) = (calls(&server), Instant::now());
    for _ in 0..100 {
        let wait = ask(&queue, "a").await.retry_after().expect("no waiter slot is free");
        assert!(wait <= HOUR && wait > HOUR - 60 * SECOND, "{wait:?}");
    }
    assert!(calls(&server) - before <= verified(began));
    assert!(take(&queue, "a").await.is_allowed());
    // The cache holds the rejection for the last arrival.
    let wait = ask(&queue, "a").await.retry_after().unwrap();
    assert!(wait > HOUR, "{wait:?}");
    assert!(calls(&server) - before <= 1 + verified(began));
}

#[tokio::test]
async fn an_advertised_cached_retry_is_admitted() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_second(20)).max_queue(1);
    let (mut rounds, mut without_a_call) = (0, 0);
    // On a busy machine, the queue is not always full.
    for _ in 0..10_000 {
        let before = calls(&server);
        let decision = take(&queue, "a").await;
        let answered = Instant::now();
        let Some(wait) = decision.retry_after() else { continue };
        without_a_call += usize::from(calls(&server) == before);
        // Not a moment longer, as a timer would sleep.
        while answered.elapsed() < wait {
            std::hint::spin_loop();
        }
        assert!(take(&queue, "a").await.is_allowed(), "as advertised: {wait:?}");
        rounds += 1;
        if rounds >= 10 && without_a_call > 0 {
            break;
        }
    }
    assert!(rounds >= 10 && without_a_call > 0, "{without_a_call} of {rounds} without a call");
}

#[tokio::test]
async fn the_negative_cache_agrees_with_the_server() {
    const CAPACITY: u64 = 2;
    let server = RedisServer::start();
    let redis = redis(&server);
    // A round takes a few round trips. Even on a slow machine, less than one reservation becomes free in that time.
    let began = Instant::now();
    for _ in 0..20 {
        let _ = (left(&queue(&server, Quota::per_hour(1)), "another").await, calls(&server));
    }
    let interval = Duration::from_millis(5).max(began.elapsed() / 10);
    let quota = Quota::per(1, Duration::from_millis(u64::try_from(interval.as_millis()).unwrap())).burst(2);
    let fresh =
        || SharedQueue::new(redis.clone(), "test", quota).max_queue(usize::try_from(CAPACITY).unwrap()).max_wait(HOUR);
    let (here, there) = (fresh(), fresh());
    let (mut let_in, mut without_a_call, mut knows_all) = (0, 0, true);
    for round in 0_usize.. {
        if round >= 400 && let_in > 10 && without_a_call > 10 {
            break;
        }
        assert!(round < 20_000, "{let_in} let in, {without_a_call} rejected without a call");
        // There are no other clients, so free reservations stay free.
        let free = left(&there, "a").await;
        let is_patient = round / 100 % 2 == 0;
        let before = calls(&server);
        let (decision, is_free) = if is_patient {
            (take(&here, "a").await, free > 0)
        } else {
            let at_once = here.decide(&Ask::charge(&key("a"), 1).within(Some(Duration::ZERO))).decided().await.unwrap();
            (at_once, free > CAPACITY)
        };
        assert!(
            decision.is_allowed() || !is_free,
            "{free} were free in round {round}, and the answer was {decision:?}"
        );
        let_in += usize::from(decision.is_allowed());
        if calls(&server) > before {
            knows_all = true;
        } else if let Some(wait) = decision.retry_after() {
            without_a_call += 1;
            // A process with an empty cache calls the server.
            let later = if is_patient {
                take(&fresh(), "a").await
            } else {
                fresh().decide(&Ask::charge(&key("a"), 1).within(Some(Duration::ZERO))).decided().await.unwrap()
            };
            let is_kept = later.retry_after().is_none_or(|it| it <= wait);
            assert!(is_kept || !knows_all, "advertised {wait:?}, and then {later:?}");
            knows_all &= !later.is_allowed();
        }
        if round % 17 == 0 {
            knows_all &= !take(&there, "a").await.is_allowed();
        }
    }
    println!("{let_in} let in, {without_a_call} rejected without a call, with {quota:?}");
}

#[tokio::test]
async fn bounds_and_terms_match_memory_queues() {
    let server = RedisServer::start();
    for (quota, capacity, max_wait) in [
        (Quota::per_second(10), 5, 30 * SECOND),
        (Quota::per_second(10).burst(4), 7, 30 * SECOND),
        (Quota::per_minute(7), 1_000, 90 * SECOND),
    ] {
        let shared = SharedQueue::new(redis(&server), "test", quota).max_queue(capacity).max_wait(max_wait);
        let local = tower_sluice::LeakyQueue::new(quota).max_queue(capacity).max_wait(max_wait);
        let (described, same) = (shared.describe(), local.describe());
        // Only a queue in memory also describes its keys' terms under their own quotas.
        let terms = |it: &Description| it.terms().map(|terms| (terms.limit(), terms.quota(), terms.shape()));
        assert_eq!((described.max_cost(), terms(&described)), (same.max_cost(), terms(&same)));
        assert!(described.delays() && !described.answers(tower_sluice::limiter::Mode::Peek));
        let name = format!("{quota:?}");
        let (one, other) =
            (take(&shared, &name).await, local.decide(&Ask::charge(&key(&name), 1)).decided().await.unwrap());
        assert_eq!((one.limit(), one.remaining()), (other.limit(), other.remaining()));
        let never =
            shared.decide(&Ask::charge(&key(&name), described.max_cost().unwrap() + 1)).decided().await.unwrap();
        assert!(!never.is_allowed() && never.retry_after().is_none());
    }
}

/// A response whose cost is known late may cost more than the queue ever lets in.
#[tokio::test]
async fn an_up_to_charge_takes_the_rest() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(10)).max_queue(4);
    let too_much = queue.describe().max_cost().unwrap() + 1;
    assert_eq!(left(&queue, "a").await, 5);
    let charged = queue.decide(&Ask::charge(&key("a"), too_much).to(Mode::UpTo)).decided().await.unwrap();
    assert!(charged.is_allowed(), "{charged:?}");
    assert_eq!(left(&queue, "a").await, 0);
}

/// It is rejected on arrival.
#[tokio::test]
async fn an_impatient_request_reserves_nothing() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1));
    let within = async |patience| {
        let answer = queue.decide(&Ask::charge(&key("a"), 1).within(Some(patience))).decided();
        tokio::time::timeout(20 * SECOND, answer).await.expect("it does not wait").unwrap()
    };
    assert!(within(Duration::ZERO).await.delay().is_zero(), "it need not wait");
    let rejected = within(HOUR / 2).await;
    let wait = rejected.retry_after().unwrap();
    assert!(wait <= HOUR / 2 + SECOND && wait > HOUR / 2 - 60 * SECOND, "{wait:?}");
    // A nanosecond less than the patience is the most, so the end of the interval is too late for it.
    let again = take(&queue, "a").await.delay();
    assert!(again <= HOUR && again > HOUR - 60 * SECOND, "{again:?}");
}

#[tokio::test]
async fn max_waiters_bounds_one_processs_waiters() {
    let server = RedisServer::start();
    let elsewhere = queue(&server, Quota::per_hour(1)).max_queue(9);
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9).max_waiters(1);
    let _ = take(&queue, "a").await;
    let waiter = join_seen_from(&elsewhere, &queue, "a").await;
    let rejected = ask(&queue, "a").await;
    let wait = rejected.retry_after().expect("no waiter slot is free");
    assert!(wait <= 2 * HOUR && wait > 2 * HOUR - 60 * SECOND, "{wait:?}");
    assert_eq!(left(&queue, "a").await, 8);
    assert!(ask(&queue, "b").await.is_allowed(), "it need not wait");
    leave(waiter).await;
    assert_eq!(queue.waiting(), 0);
}

/// A second per request: a full queue takes 2^51 µs less 12 s to pay for if no request may wait, and 30 s more with the
/// default bounds.
#[test]
fn check_fit_covers_the_default_bounds() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let longest = (1 << 51) / 1_000_000;
    let quota = Quota::per_minute(60).burst(longest - 42);
    let problem = SharedQueue::check_fit(&redis, &quota, 0, 30 * SECOND).unwrap_err();
    assert!(problem.is::<UnfitQuota>(), "`SharedQueue::new` would panic: {problem}");
    let less = Quota::per_minute(60).burst(longest - 92);
    SharedQueue::check_fit(&redis, &less, 0, 30 * SECOND).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn departures_match_a_plain_list() {
    let server = RedisServer::start();
    check_departures([redis(&server), redis(&server)], seed_of(23)).await;
}

#[test]
fn check_fit_reports_an_unfit_quota() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let year = HOUR * 24 * 365;
    let quota = Quota::per_hour(1);
    SharedQueue::check_fit(&redis, &quota, 1_000_000, 30 * year).unwrap();
    SharedQueue::check_fit(&redis, &quota, usize::MAX, HOUR).unwrap();
    let problem = SharedQueue::check_fit(&redis, &quota, 1_000_000, 40 * year).unwrap_err();
    assert!(problem.to_string().contains("longest wait"), "{problem}");
}

#[test]
#[should_panic(expected = "longest wait")]
fn an_unfit_queue_panics_at_once() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let _queue = SharedQueue::new(redis.clone(), "test", Quota::per(1, HOUR * 24 * 365 * 100));
}
