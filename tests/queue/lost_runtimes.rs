//! Waiters without a runtime, without a timer, or on a runtime that shuts down.

use std::time::Duration;

use futures_util::FutureExt;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::{LeakyQueue, Limiter, Quota};

use super::leaky_queue::{every_10_ms, key, pending, ready};

#[test]
fn outside_a_runtime_only_waiting_fails() {
    let queue = every_10_ms();
    assert!(ready(queue.decide(&Ask::charge(&key("a"), 1))).is_allowed());
    let Answer::Ready(Err(error)) = queue.decide(&Ask::charge(&key("a"), 1)) else {
        panic!("this would never be released")
    };
    assert!(error.to_string().contains("within a tokio runtime"), "{error}");
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn a_waiter_ends_with_its_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_queue(10_000).max_wait(Duration::MAX);
    let elsewhere: Vec<_> = {
        let _guard = runtime.enter();
        let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
        (0..10_000).map(|_| pending(queue.decide(&Ask::charge(&key("a"), 1)))).collect()
    };
    let handle = runtime.handle().clone();
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Outside any runtime, a waiter cannot continue.
    for waiter in elsewhere {
        let error = waiter.now_or_never().expect("it fails at once").unwrap_err().to_string();
        assert!(error.contains("within a tokio runtime"), "{error}");
    }
    assert_eq!(queue.waiting(), 0);
    // It cannot continue either on a runtime that is shut down already, where the driver never runs.
    let stillborn = {
        let _guard = handle.enter();
        let stillborn = pending(queue.decide(&Ask::charge(&key("a"), 1)));
        stillborn.now_or_never().expect("it fails at once").unwrap_err()
    };
    assert!(stillborn.to_string().contains("shut down"), "{stillborn}");
    // The queue itself still works.
    other.block_on(async {
        let _now = ready(queue.decide(&Ask::charge(&key("b"), 1)));
        assert!(pending(queue.decide(&Ask::charge(&key("b"), 1))).now_or_never().is_none());
    });
    assert_eq!(queue.waiting(), 0);
}

/// The driver that started first lives on the first waiter's runtime.
#[test]
fn waiters_keep_their_order_without_one_runtime() {
    let first = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // No turn comes until all wait.
    let queue = LeakyQueue::new(Quota::per_second(1)).max_queue(9).max_wait(Duration::from_secs(10));
    let join_on = |runtime: &tokio::runtime::Runtime| {
        let _guard = runtime.enter();
        pending(queue.decide(&Ask::charge(&key("a"), 1)))
    };
    let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
    let driver = join_on(&first);
    let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let waiting = [join_on(&second), join_on(&second)];
    drop((driver, first));
    for waiter in waiting {
        assert!(second.block_on(waiter).unwrap().is_allowed());
    }
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn a_runtime_without_timer_is_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX);
    runtime.block_on(async {
        let _now = ready(queue.decide(&Ask::charge(&key("a"), 1)));
        let error = pending(queue.decide(&Ask::charge(&key("a"), 1))).await.unwrap_err().to_string();
        assert!(error.contains("no timer"), "{error}");
    });
    assert_eq!(queue.waiting(), 0);
}
