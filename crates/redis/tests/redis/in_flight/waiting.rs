//! Requests that wait in line for units.

use futures_util::StreamExt;
use tokio::task::JoinHandle;
use tower_sluice::{Decision, LimiterError};

use super::*;

fn queueing(server: &RedisServer, limit: u64) -> Arc<SharedConcurrency<Redis>> {
    Arc::new(process(server, limit, HOUR).max_queue(100).max_wait(HOUR))
}

fn waiting(limiter: &SharedConcurrency<Redis>) -> usize {
    limiter.stats().backlog.expect("it has a queue").waiting()
}

/// Begins to wait for units, behind those that wait already.
async fn line_up(limiter: &Arc<SharedConcurrency<Redis>>, units: u64) -> JoinHandle<Option<Owned>> {
    let before = waiting(limiter);
    let theirs = Arc::clone(limiter);
    let waiter = tokio::spawn(take_owned(theirs, units));
    until("it waits", || waiting(limiter) == before + 1).await;
    waiter
}

async fn decided(limiter: &SharedConcurrency<Redis>, ask: Ask<'_>) -> Result<Decision, LimiterError> {
    limiter.decide(&ask).decided().await
}

/// A process that has all units itself makes no call for its waiters, until it releases some.
#[tokio::test]
async fn one_processs_waiters_leave_in_order() {
    let server = RedisServer::start();
    let limiter = queueing(&server, 2);
    let (one, two) = (take(&limiter, 1).await.unwrap(), take(&limiter, 1).await.unwrap());
    let before = calls(&server);
    // The last one costs less than those before, and does not overtake.
    let mut line = Vec::new();
    for units in [2, 1, 2, 2, 1] {
        line.push(line_up(&limiter, units).await);
    }
    assert_eq!(calls(&server), before, "all units are here");
    drop(one);
    let newcomer = line_up(&limiter, 1).await;
    assert!(line.iter().all(|waiter| !waiter.is_finished()), "one unit is free, and the first needs two");
    drop(two);
    line.push(newcomer);
    let mut line = line.into_iter();
    let mut held = Vec::new();
    for expected in [&[2][..], &[1], &[2], &[2], &[1, 1]] {
        held.clear();
        for units in expected {
            held.push(line.next().unwrap().await.unwrap().expect("it has its turn"));
            assert_eq!(held.last().unwrap().units(), *units);
        }
        assert!(counted(&server) <= 2);
        assert!(line.len() == 0 || !line.as_slice()[0].is_finished(), "the next one does not fit");
    }
    drop(held);
    until("all are released", || counted(&server) == 0).await;
    assert_eq!((waiting(&limiter), limiter.stats().in_flight), (0, Some(0)));
}

/// For a line's cost on the server, see the test for its intervals, in virtual time.
#[tokio::test]
async fn other_processes_units_are_polled_ever_slower() {
    let server = RedisServer::start();
    let [here, there] = [0, 1].map(|_| queueing(&server, 1));
    let permit = take(&there, 1).await.unwrap();
    let (began, before) = (server_time(&server), calls(&server));
    let mut line = Vec::new();
    for _ in 0..20 {
        line.push(line_up(&here, 1).await);
    }
    // Seconds on the server, at any speed of this machine.
    until("two seconds have passed", || server_time(&server) >= began + 2_000_000).await;
    let (passed, asked) = (server_time(&server) - began, calls(&server) - before);
    println!("{asked} calls in {passed} µs, of 20 waiters");
    assert!(asked >= 2 && asked <= 12 + 8 * passed.div_ceil(1_000_000), "{asked} calls in {passed} µs");
    drop(permit);
    for waiter in line {
        drop(waiter.await.unwrap().expect("it has its turn"));
    }
    until("all are released", || counted(&server) == 0).await;
    assert_eq!(waiting(&here), 0);
}

/// If any waiter leaves in any state, the others continue and nothing is left.
#[tokio::test]
async fn a_dropped_waiter_leaves_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::at(server.address(), Duration::from_millis(30));
    let limiter = SharedConcurrency::new(connect(Redis::single(proxy.url())), "test", 1).lease(HOUR);
    let limiter = Arc::new(limiter.max_queue(100).max_wait(HOUR));
    let other = process(&server, 1, HOUR);
    for leaving in [&[0][..], &[1], &[0, 1], &[3, 2, 0], &[0, 1, 2, 3]] {
        for is_asking in [false, true] {
            let permit = take(&other, 1).await.unwrap();
            let mut line = Vec::new();
            for _ in 0..4 {
                line.push(line_up(&limiter, 1).await);
            }
            if is_asking {
                // The first is asking, and its answer is on its way for 30 ms.
                let before = calls(&server);
                until("it asks", || calls(&server) > before).await;
            }
            for index in leaving {
                line[*index].abort();
            }
            until("they have left", || waiting(&limiter) == 4 - leaving.len()).await;
            drop(permit);
            for (index, waiter) in line.into_iter().enumerate() {
                match waiter.await {
                    Ok(permit) => drop(permit.expect("it has its turn")),
                    Err(error) => assert!(error.is_cancelled() && leaving.contains(&index)),
                }
            }
            until("all are released", || counted(&server) == 0).await;
            assert_eq!((waiting(&limiter), limiter.stats().in_flight), (0, Some(0)));
        }
    }
}

/// The waiter that is dropped had its units by then, and did not know.
#[tokio::test]
async fn a_waiter_dropped_on_admission_releases_units() {
    some_attempt_async("the answer is on its way for 100 ms", async || {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), SECOND / 10);
        let limiter = SharedConcurrency::new(connect(Redis::single(proxy.url())), "test", 1).lease(HOUR);
        let limiter = Arc::new(limiter.max_queue(100).max_wait(HOUR));
        let other = process(&server, 1, HOUR);
        let permit = take(&other, 1).await.unwrap();
        let (first, second) = (line_up(&limiter, 1).await, line_up(&limiter, 1).await);
        let theirs = fields(&server);
        drop(permit);
        until("the server has admitted the first", || fields(&server).iter().any(|field| !theirs.contains(field)))
            .await;
        let is_on_its_way = limiter.stats().in_flight == Some(0);
        first.abort();
        drop(first.await);
        let permit = second.await.unwrap().expect("it has its turn");
        drop(permit);
        until("all are released", || counted(&server) == 0).await;
        assert_eq!((waiting(&limiter), limiter.stats().in_flight), (0, Some(0)));
        if is_on_its_way { Ok(()) } else { Err("it has arrived".to_owned()) }
    })
    .await;
}

/// The request's or the limiter's.
#[tokio::test]
async fn a_wait_ends_with_either_patience() {
    let server = RedisServer::start();
    let limiter = Arc::new(process(&server, 1, HOUR).max_queue(9).max_wait(SECOND / 10));
    let other = process(&server, 1, HOUR);
    for holder in [&other, &*limiter] {
        let permit = take(holder, 1).await.unwrap();
        for (patience, longest) in
            [(None, SECOND / 10), (Some(60 * SECOND), SECOND / 10), (Some(SECOND / 50), SECOND / 50)]
        {
            let (began, of_a) = (std::time::Instant::now(), key("a"));
            let ask = || Ask::charge(&of_a, 1).within(patience);
            let line = join_all((0..3).map(|_| decided(&limiter, ask()))).await;
            for decision in line.into_iter().map(Result::unwrap) {
                assert!(decision.is_until_released() && decision.retry_after().is_none(), "{decision:?}");
                assert_eq!((decision.remaining(), decision.delay()), (0, Duration::ZERO));
            }
            assert!(began.elapsed() >= longest, "{:?}", began.elapsed());
            assert_eq!(waiting(&limiter), 0);
        }
        // No patience at all.
        let decision = decided(&limiter, Ask::charge(&key("a"), 1).within(Some(Duration::ZERO))).await.unwrap();
        assert!(!decision.is_allowed());
        drop(permit);
        until("it is released", || counted(&server) == 0).await;
    }
    let decision = decided(&limiter, Ask::charge(&key("a"), 1)).await.unwrap();
    assert!(decision.is_allowed() && decision.delay().is_zero());
    limiter.refund(&Ask::charge(&key("a"), 1), decision.receipt(), 1);
    until("it is released", || counted(&server) == 0).await;
}

#[tokio::test]
async fn the_number_of_waiters_is_bounded() {
    let server = RedisServer::start();
    let limiter = Arc::new(process(&server, 1, HOUR).max_queue(2).max_waiters(3));
    assert!(limiter.describe().delays() && !process(&server, 1, HOUR).describe().delays());
    let permits = [take(&limiter, 1).await.unwrap(), limiter.acquire(&key("b"), 1).await.unwrap().admitted().unwrap()];
    let _two = [line_up(&limiter, 1).await, line_up(&limiter, 1).await];
    let of_key = limiter.acquire(&key("a"), 1).now_or_never().expect("it is decided without a call");
    assert!(!of_key.unwrap().is_allowed(), "two of the key wait");
    let theirs = Arc::clone(&limiter);
    let third = tokio::spawn(async move { theirs.acquire_owned(&key("b"), 1).await });
    until("a third waits, of another key", || waiting(&limiter) == 3).await;
    assert!(!limiter.acquire(&key("b"), 1).await.unwrap().is_allowed(), "three wait");
    third.abort();
    until("it has left", || waiting(&limiter) == 2).await;

    // A cost that is too great never fits. A shadow and the fallback take free units and never wait.
    let too_much = decided(&limiter, Ask::charge(&key("a"), 2)).await.unwrap();
    assert!(!too_much.is_allowed() && !too_much.is_until_released());
    for mode in [Mode::Shadow, Mode::Fallback] {
        let check = limiter.decide(&Ask::charge(&key("a"), 1).to(mode));
        assert!(!check.at_once().expect("no call").is_allowed(), "{mode:?}");
    }
    let none_waits = process(&server, 1, HOUR).max_queue(0);
    assert!(take(&none_waits, 1).await.is_none());
    drop(permits);
}

#[tokio::test]
async fn a_shadow_takes_no_awaited_units() {
    let server = RedisServer::start();
    let limiter = queueing(&server, 2);
    let permit = take(&limiter, 1).await.unwrap();
    let waiter = line_up(&limiter, 2).await;
    let shadow = limiter.decide(&Ask::charge(&key("a"), 1).to(Mode::Shadow)).at_once().expect("no call");
    assert!(!shadow.is_allowed());
    drop(permit);
    assert!(waiter.await.unwrap().is_some());
}

#[tokio::test]
async fn waiters_follow_an_heirs_limit() {
    let server = RedisServer::start();
    let redis = connect(Redis::single(server.url()));
    let before = Arc::new(SharedConcurrency::new(redis.clone(), "test", 3).lease(HOUR).max_queue(9));
    let permit = take(&before, 3).await.unwrap();
    let (first, second) = (line_up(&before, 1).await, line_up(&before, 3).await);
    let heir = Arc::new(SharedConcurrency::new(redis.clone(), "test", 4).max_queue(3));
    heir.inherit(&*before).unwrap().finish();
    let first = first.await.unwrap().expect("it fits under the new limit");
    assert_eq!((waiting(&heir), heir.stats().in_flight), (1, Some(4)));
    let third = line_up(&heir, 1).await;
    assert_eq!(waiting(&before), 2, "they share the line");
    // Under a limit that is less than its cost, a waiter passes when it is alone.
    let small = Arc::new(SharedConcurrency::new(redis.clone(), "test", 2).max_queue(9));
    small.inherit(&*heir).unwrap().finish();
    drop(permit);
    until("the three are released", || counted(&server) == 1).await;
    assert!(!second.is_finished() && !third.is_finished());
    drop(first);
    let second = second.await.unwrap().expect("it is alone");
    assert_eq!(waiting(&small), 1);
    drop(second);
    drop(third.await.unwrap().expect("the last"));
    until("all are released", || counted(&server) == 0).await;
}

#[tokio::test]
async fn a_closed_limiter_ends_all_waits() {
    let server = RedisServer::start();
    let limiter = queueing(&server, 1);
    let other = process(&server, 1, HOUR);
    let permit = take(&other, 1).await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.acquire_owned(&key("a"), 1).await })
        })
        .collect();
    until("all wait", || waiting(&limiter) == 3).await;
    limiter.close();
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap_err().is_closed());
    }
    assert_eq!(waiting(&limiter), 0);
    assert!(limiter.acquire(&key("a"), 1).await.unwrap_err().is_closed(), "it would have to wait");
    drop(permit);
    until("it is released", || counted(&server) == 0).await;
    assert!(take(&limiter, 1).await.is_some(), "it need not wait");
}

/// The waiters get the error, and the policy's failure mode decides on them.
#[tokio::test]
async fn waiters_fail_during_an_outage() {
    let mut server = RedisServer::start();
    let limiter = Arc::new(process(&server, 2, HOUR).max_queue(9).max_wait(HOUR));
    let other = process(&server, 2, HOUR);
    // The key for a policy without keys.
    let permit = other.acquire(&PartitionKey::SHARED, 2).await.unwrap().admitted().unwrap();
    let layer = RateLimitLayer::new(Policy::new("in-flight", Arc::clone(&limiter)));
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let layer = layer.clone();
            tokio::spawn(async move { send(&layer).await })
        })
        .collect();
    until("all wait", || waiting(&limiter) == 3).await;
    server.kill();
    // The fallback admits two in this process. The third waits for them, and need not ask Redis until one is over.
    let mut responses = waiters.into_iter().collect::<futures_util::stream::FuturesUnordered<_>>();
    let first = responses.next().await.unwrap().unwrap();
    let second = responses.next().await.unwrap().unwrap();
    assert_eq!((waiting(&limiter), limiter.stats().in_flight), (1, Some(2)));
    drop(first);
    let third = responses.next().await.unwrap().unwrap();
    assert!([second.status(), third.status()].iter().all(|status| *status == 200));
    assert_eq!(waiting(&limiter), 0);
    // A request that comes while Redis fails gets the fallback's decision, and does not wait.
    let failing = Ask::charge(&PartitionKey::SHARED, 1).to(Mode::Fallback);
    assert!(!limiter.decide(&failing).at_once().unwrap().is_allowed());
    drop((second, third, permit));
    assert_eq!(limiter.stats().in_flight, Some(0));
}

/// A line does not depend on its first waiter's runtime.
#[tokio::test]
async fn a_line_outlives_its_first_waiters_runtime() {
    let server = RedisServer::start();
    let limiter = queueing(&server, 1);
    let other = process(&server, 1, HOUR);
    let permit = take(&other, 1).await.unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let theirs = Arc::clone(&limiter);
    runtime.spawn(take_owned(theirs, 1));
    until("it waits", || waiting(&limiter) == 1).await;
    let second = line_up(&limiter, 1).await;
    runtime.shutdown_background();
    until("it has left", || waiting(&limiter) == 1).await;
    drop(permit);
    drop(second.await.unwrap().expect("it has its turn"));
    until("all are released", || counted(&server) == 0).await;
    assert_eq!(limiter.stats().in_flight, Some(0));
    let outside = std::thread::spawn(move || limiter.acquire_owned(&key("a"), 1).now_or_never());
    assert!(outside.join().unwrap().expect("it fails at once").is_err(), "it needs a runtime");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiting_tasks_never_exceed_the_limit() {
    const LIMIT: u64 = 5;
    let server = RedisServer::start();
    let processes = [0, 1].map(|_| queueing(&server, LIMIT));
    let (in_flight, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64 {
        let limiter = Arc::clone(&processes[task % 2]);
        let (in_flight, most) = (Arc::clone(&in_flight), Arc::clone(&most));
        tasks.spawn(async move {
            for round in 0..20 {
                let units = 1 + (task + round) as u64 % 3;
                let permit = take(&limiter, units).await.expect("it waits until it is served");
                let now = in_flight.fetch_add(units, Ordering::SeqCst) + units;
                most.fetch_max(now, Ordering::SeqCst);
                for _ in 0..(task + round) % 4 {
                    tokio::task::yield_now().await;
                }
                in_flight.fetch_sub(units, Ordering::SeqCst);
                drop(permit);
            }
        });
    }
    let began = server_time(&server);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    println!("1280 requests in {} ms and {} calls", (server_time(&server) - began) / 1_000, calls(&server));
    assert!(most.load(Ordering::SeqCst) <= LIMIT, "{most:?}");
    until("all are released", || counted(&server) == 0).await;
    assert!(processes.iter().all(|limiter| waiting(limiter) == 0 && limiter.stats().in_flight == Some(0)));
}

/// Its requests hold the only unit for a tenth of a second each, and ask again before any other caller.
#[tokio::test]
async fn an_endless_line_leaves_units_to_others() {
    let server = RedisServer::start();
    let [busy, other] = [0, 1].map(|_| queueing(&server, 1));
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let limiter = Arc::clone(&busy);
        requests.spawn(async move {
            loop {
                let permit = take(&limiter, 1).await.expect("it waits until it is served");
                tokio::time::sleep(SECOND / 10).await;
                drop(permit);
            }
        });
    }
    until("the others of its line wait", || waiting(&busy) == 3).await;
    let began = server_time(&server);
    let permit = tokio::time::timeout(PLENTY * 6, take(&other, 1)).await.expect("it is served");
    println!("served after {} ms", (server_time(&server) - began) / 1_000);
    assert!(permit.is_some());
    requests.shutdown().await;
    drop(permit);
    until("all are released", || counted(&server) == 0).await;
    assert_eq!((waiting(&busy), waiting(&other)), (0, 0));
}

#[tokio::test]
async fn requests_wait_for_a_bodys_end() {
    let server = RedisServer::start();
    let layers = [0, 1].map(|_| RateLimitLayer::new(Policy::new("in-flight", process(&server, 1, HOUR).max_queue(9))));
    let waiting = |layer: &RateLimitLayer| layer.backlog("in-flight").unwrap().waiting();
    let held = send(&layers[0]).await;
    let theirs = layers.clone();
    let [mut here, mut elsewhere] = theirs.map(|layer| tokio::spawn(async move { send(&layer).await }));
    until("one waits in each process", || layers.iter().all(|layer| waiting(layer) == 1)).await;
    drop(held);
    // Most likely the one in this process, but between processes the order is by chance.
    let (first, second) = tokio::select! {
        biased;
        first = &mut here => (first.unwrap(), elsewhere),
        first = &mut elsewhere => (first.unwrap(), here),
    };
    assert_eq!(
        (first.status(), &first.headers()["ratelimit"]),
        (200.try_into().unwrap(), &"\"in-flight\";r=0".parse().unwrap())
    );
    assert!(!second.is_finished());
    drop(first);
    assert_eq!(second.await.unwrap().status(), 200);
    // A client that disconnects while it waits.
    until("its body is over", || counted(&server) == 0).await;
    let held = send(&layers[0]).await;
    let leaving = send(&layers[1]);
    assert!(tokio::time::timeout(SECOND / 20, leaving).await.is_err());
    assert_eq!(waiting(&layers[1]), 0);
    drop(held);
    until("all are free", || counted(&server) == 0).await;
}
