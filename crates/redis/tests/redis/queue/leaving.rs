//! Waiters that leave before their turn, and the fate of their reservations.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

#[tokio::test]
async fn a_returned_reservation_is_free_at_once() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(1);
    let _ = take(&queue, "a").await;
    let last = take(&queue, "a").await;
    assert!(!ask(&queue, "a").await.is_allowed());
    queue.refund(&Ask::charge(&key("a"), 1), last.receipt(), 1);
    until("the reservation is known to be free", async || take(&queue, "a").await.is_allowed()).await;
}

#[tokio::test]
async fn the_last_waiter_returns_its_reservation() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    let _ = take(&queue, "a").await;
    let waiter = join(&queue, "a").await;
    assert_eq!((queue.waiting(), left(&queue, "a").await), (1, 8));
    leave(waiter).await;
    assert_eq!(queue.waiting(), 0);
    until("its reservation is free", async || left(&queue, "a").await == 9).await;
    let next = take(&queue, "a").await.delay();
    assert!(next <= HOUR && next > HOUR - 60 * SECOND, "{next:?}");
}

#[tokio::test]
async fn a_reservation_is_returned_from_any_thread() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    let _ = take(&queue, "a").await;
    let mut waits = Box::pin(queue.decide(&Ask::charge(&key("a"), 1)).decided());
    until("it has a reservation", async || {
        assert!((&mut waits).now_or_never().is_none());
        left(&queue, "a").await == 8
    })
    .await;
    // Its answer came before the answer that counted its reservation.
    assert!((&mut waits).now_or_never().is_none());
    std::thread::spawn(|| drop(waits)).join().unwrap();
    until("its reservation is free", async || left(&queue, "a").await == 9).await;
}

#[test]
fn a_runtime_may_end_before_its_waiters() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    first.block_on(async {
        let _ = take(&queue, "a").await;
        drop(join(&queue, "a").await);
    });
    drop(first);
    assert_eq!(queue.waiting(), 0);
    let next = second.block_on(take(&queue, "a")).delay();
    assert!(next > HOUR - 60 * SECOND, "{next:?}");
}

#[tokio::test]
async fn a_middle_waiters_reservation_serves_the_next() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    bring_the_script(&queue).await;
    let _ = take(&queue, "a").await;
    let (middle, last) = (join(&queue, "a").await, join(&queue, "a").await);
    let before = calls(&server);
    leave(middle).await;
    until("it has been returned", async || calls(&server) > before && left(&queue, "a").await == 8).await;
    let next = take(&queue, "a").await.delay();
    assert!(next <= HOUR && next > HOUR - 60 * SECOND, "{next:?}");
    let next = take(&queue, "a").await.delay();
    assert!(next <= 3 * HOUR && next > 3 * HOUR - 60 * SECOND, "{next:?}");
    leave(last).await;
}

/// The server knows its script then, so that a call that returns a reservation counts once.
async fn bring_the_script(queue: &SharedQueue<Redis>) {
    let bait = take(queue, "another").await;
    queue.refund(&Ask::charge(&key("another"), 1), bait.receipt(), 1);
    until("it is returned", async || left(queue, "another").await == 10).await;
}

#[tokio::test]
async fn a_reservation_is_returned_once() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    bring_the_script(&queue).await;
    let (first, last) = (take(&queue, "a").await, take(&queue, "a").await);
    let return_it = async |decision: Decision| {
        let before = calls(&server);
        queue.refund(&Ask::charge(&key("a"), 1), decision.receipt(), 1);
        until("it has been returned", async || calls(&server) > before).await;
        left(&queue, "a").await
    };
    assert_eq!(left(&queue, "a").await, 8);
    assert_eq!(return_it(first).await, 8, "some of it has passed, and what is left is too little for another");
    assert_eq!(return_it(first).await, 8);
    assert_eq!(return_it(last).await, 10, "together they are the end of the timeline");
    assert_eq!(return_it(last).await, 10);
    assert_eq!(return_it(first).await, 10);
}

/// Sixty clients per second come, and leave after 75 ms, at a queue of forty per second: more than depart from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passing_clients_do_not_starve_a_waiter() {
    some_attempt_async("one that waits is served each time", async || {
        let server = RedisServer::start();
        let process =
            || SharedQueue::new(redis(&server), "test", Quota::per_second(40)).max_queue(20).max_wait(SECOND / 2);
        let (crowd, patient) = (Arc::new(process()), process());
        for queue in [&*crowd, &patient] {
            let _ = take(queue, "another").await;
        }
        let (is_over, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (over, coming) = (Arc::clone(&is_over), Arc::clone(&came));
        let crowding = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SECOND / 60);
            while !over.load(Ordering::Relaxed) {
                ticks.tick().await;
                let queue = Arc::clone(&crowd);
                tokio::spawn(async move {
                    let comes = queue.decide(&Ask::charge(&key("a"), 1)).decided();
                    let _ = tokio::time::timeout(SECOND * 3 / 40, comes).await;
                });
                coming.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Until a queue without usable holes would be full: it grows by twenty per second.
        until("they have come", async || came.load(Ordering::Relaxed) >= 90).await;
        let (mut served, mut waits) = (0, Vec::new());
        for _ in 0..9 {
            let began = Instant::now();
            served += usize::from(ask(&patient, "a").await.is_allowed());
            waits.push(began.elapsed());
            tokio::time::sleep(SECOND / 20).await;
        }
        is_over.store(true, Ordering::Relaxed);
        crowding.await.unwrap();
        let outcome = format!("{served} of 9 were served: {waits:?}");
        println!("{outcome}");
        if served == 9 { Ok(()) } else { Err(outcome) }
    })
    .await;
}

/// Clients that hang up at once, while the server is 30 ms away.
#[tokio::test]
async fn a_request_dropped_meanwhile_reserves_nothing() {
    let server = RedisServer::start();
    let proxy = crate::support::proxy::Proxy::at(server.address(), Duration::from_millis(30));
    let far = Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let far = SharedQueue::new(far.clone(), "test", Quota::per_hour(1)).max_wait(100 * HOUR).max_queue(50);
    let near = queue(&server, Quota::per_hour(1)).max_queue(50);
    let _ = take(&far, "a").await;
    for _ in 0..20 {
        let before = calls(&server);
        let hangs_up = far.decide(&Ask::charge(&key("a"), 1)).decided();
        tokio::select! {
            biased;
            decision = hangs_up => panic!("its turn is hours away: {decision:?}"),
            () = until("it has called", async || calls(&server) > before) => {}
        }
    }
    until("all reservations are free", async || left(&near, "a").await == 50).await;
    assert_eq!(far.waiting(), 0);
}

#[tokio::test]
async fn a_closed_queue_returns_all_its_reservations() {
    let server = RedisServer::start();
    let [queue, elsewhere] = [0, 1].map(|_| queue(&server, Quota::per_hour(1)).max_queue(50));
    let _ = take(&queue, "a").await;
    let waiters: Vec<_> = (0..39).map(|_| tokio::spawn(queue.decide(&Ask::charge(&key("a"), 1)).decided())).collect();
    until("all have reservations", async || left(&elsewhere, "a").await == 11).await;
    queue.close();
    for waiter in waiters {
        assert!(waiter.await.unwrap().is_err());
    }
    until("all 39 are returned", async || left(&elsewhere, "a").await == 50).await;
}

#[tokio::test]
async fn closing_ends_all_waits() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    let _ = take(&queue, "a").await;
    let (one, other) = (join(&queue, "a").await, join(&queue, "a").await);
    assert_eq!(queue.waiting(), 2);
    queue.close();
    queue.close();
    for waiter in [one, other] {
        let answer = tokio::time::timeout(60 * SECOND, waiter).await.expect("at once").unwrap();
        assert_eq!(answer.unwrap_err().to_string(), "the queue was closed");
    }
    assert_eq!(queue.waiting(), 0);
    let come = [
        queue.decide(&Ask::charge(&key("b"), 1)),
        queue.decide(&Ask::charge(&key("b"), 1).to(Mode::Shadow)),
        queue.decide(&Ask::charge(&key("b"), 1).to(Mode::Fallback)),
    ];
    for check in come {
        assert_eq!(check.decided().await.unwrap_err().to_string(), "the queue was closed");
    }
    // At least the last reservation.
    let elsewhere = self::queue(&server, Quota::per_hour(1)).max_queue(9);
    until("a reservation was returned", async || left(&elsewhere, "a").await >= 8).await;
}
