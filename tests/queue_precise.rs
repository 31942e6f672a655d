//! The queue on a system timer: it makes equal decisions at equal times, wakes up with less delay, and leaks nothing.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use support::queue::{KEY, join, settle};
use support::timing::some_attempt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{advance, timeout};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{LeakyQueue, Limiter, Quota};

const MS: Duration = Duration::from_millis(1);

/// Runs one test at a time, since the tests count the process's timers and panics.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue in which the next request must wait.
fn busy(quota: Quota) -> LeakyQueue {
    let queue = LeakyQueue::new(quota).max_queue(1_000).precise().max_wait(Duration::MAX);
    assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(now)) if now.is_allowed()));
    queue
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// A queue's decisions and their times, in a random schedule.
async fn decisions(queue: LeakyQueue, seed: u64) -> Vec<String> {
    let (mut random, mut waiting, mut decisions) = (Random::new(seed), Vec::new(), Vec::new());
    for step in 0..100 {
        match random.below(4) {
            0 | 1 => match queue.decide(&Ask::charge(&random.below(2).into(), 1)) {
                Answer::Ready(decision) => decisions.push(format!("{step}: {decision:?}")),
                Answer::Pending(pending) => waiting.push((step, pending)),
            },
            2 if !waiting.is_empty() => {
                let index = random.below(waiting.len() as u64);
                drop(waiting.swap_remove(usize::try_from(index).unwrap()));
            }
            _ => {
                for _ in 0..random.below(12) {
                    advance(MS).await;
                    settle().await;
                }
            }
        }
        waiting.retain_mut(|(number, pending)| match pending.now_or_never() {
            None => true,
            Some(decision) => {
                decisions.push(format!("{number} at {step}: {decision:?}"));
                false
            }
        });
        queue.check_invariants();
    }
    decisions
}

/// The queue uses tokio's clock with either timer.
#[test]
fn the_precise_timer_decides_like_tokios() {
    let _alone = alone();
    for seed in seeds(300) {
        let queue = || LeakyQueue::new(Quota::per_second(130).burst(2)).max_queue(5).max_wait(MS * 30);
        let plain = paused().block_on(decisions(queue(), seed));
        assert!(!plain.is_empty());
        // The system's timer runs while tokio's clock is paused. If it rings between a step of that clock and the turn
        // of tokio's timers, a departure is seen one step later.
        some_attempt("the same decisions", || {
            let precise = paused().block_on(decisions(queue().precise(), seed));
            if precise == plain { Ok(()) } else { Err(format!("seed {seed}: {plain:?}, and {precise:?}")) }
        });
    }
}

#[test]
fn nothing_departs_while_tokios_time_is_paused() {
    let _alone = alone();
    paused().block_on(async {
        let queue = busy(Quota::per_second(1_000));
        let waits = join(&queue);
        let begun = std::time::Instant::now();
        // The system timer fires meanwhile.
        while begun.elapsed() < MS * 20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.waiting(), 1);
        assert_eq!(waits.await.unwrap().delay(), MS);
    });
}

#[test]
fn a_runtime_without_io_causes_no_panic() {
    let _alone = alone();
    let panics = Arc::new(AtomicUsize::new(0));
    let (hook, counted) = (std::panic::take_hook(), Arc::clone(&panics));
    std::panic::set_hook(Box::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    let served = Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
        let idle = busy(Quota::per_hour(1));
        for _ in 0..3 {
            // The driver task starts, and ends.
            let waits = join(&idle);
            settle().await;
            drop(waits);
            settle().await;
        }
        let (queue, mut served) = (LeakyQueue::new(Quota::per_second(100)).precise(), 0);
        for _ in 0..3 {
            served +=
                usize::from(queue.decide(&Ask::charge(&KEY, 1)).decided().await.is_ok_and(|turn| turn.is_allowed()));
        }
        served
    });
    std::panic::set_hook(hook);
    assert_eq!(served, 3);
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[cfg(target_os = "linux")]
mod on_linux {
    use super::*;

    /// How many system timers this process has open.
    fn timers() -> usize {
        let open = std::fs::read_dir("/proc/self/fd").expect("Linux, which reports open files");
        let kinds = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        kinds.filter(|kind| kind.to_string_lossy().contains("timerfd")).count()
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn one_timer_exists_while_requests_wait() {
        let _alone = alone();
        assert_eq!(timers(), 0);
        // No turn comes during the test.
        let queue = busy(Quota::per_hour(1));
        runtime().block_on(async {
            let mut waiting: Vec<_> = (0..100).map(|_| join(&queue)).collect();
            for key in 0..100_u64 {
                assert!(matches!(queue.decide(&Ask::charge(&key.into(), 1)), Answer::Ready(Ok(_))));
                waiting.extend(match queue.decide(&Ask::charge(&key.into(), 1)) {
                    Answer::Pending(pending) => Some(pending),
                    Answer::Ready(_) => None,
                });
            }
            settle().await;
            assert_eq!((timers(), queue.waiting()), (1, 200));
            waiting.truncate(1);
            settle().await;
            assert_eq!(timers(), 1);
            drop(waiting);
            settle().await;
            assert_eq!(timers(), 0, "no request waits");

            let waits = join(&queue);
            settle().await;
            assert_eq!(timers(), 1);
            queue.close();
            settle().await;
            assert_eq!(timers(), 0, "closed");
            assert!(waits.await.is_err());
        });
    }

    /// It is closed when either the queue or the runtime is dropped.
    #[test]
    fn the_timer_is_closed_on_drop() {
        let _alone = alone();
        let (first, queue) = (runtime(), busy(Quota::per_hour(1)));
        let waits = {
            let _guard = first.enter();
            join(&queue)
        };
        first.block_on(settle());
        assert_eq!(timers(), 1);
        drop(first);
        assert_eq!(timers(), 0, "the runtime was dropped");
        // Another runtime that polls the waiter drives the queue.
        runtime().block_on(async {
            let mut waits = waits;
            assert!((&mut waits).now_or_never().is_none());
            settle().await;
            assert_eq!(timers(), 1);
            drop((waits, queue));
            settle().await;
            assert_eq!(timers(), 0, "the queue was dropped");
        });
    }

    /// tokio's timer has a resolution of 1 ms. Among six turns within half a tick, it is late by half a tick for one.
    #[test]
    fn the_precise_timer_is_finer_than_tokios() {
        let _alone = alone();
        // The least lateness of the latest among six turns in a row. On a busy machine, few runs are undisturbed.
        let lateness_of_six = |runtime: Runtime| {
            runtime.block_on(async {
                let start = std::time::Instant::now();
                let queue = busy(Quota::per_second(10_000));
                // A request that need not wait means that the thread was descheduled: this attempt does not count.
                let all = (0..500).map(|_| match queue.decide(&Ask::charge(&KEY, 1)) {
                    Answer::Pending(waits) => Some(waits),
                    Answer::Ready(_) => None,
                });
                let Some(all) = all.collect::<Option<Vec<_>>>() else { return Duration::MAX };
                let mut late = Vec::new();
                for (waits, turn) in all.into_iter().zip(1_u32..) {
                    assert!(timeout(Duration::from_secs(60), waits).await.unwrap().unwrap().is_allowed());
                    late.push(start.elapsed().saturating_sub(turn * MS / 10));
                }
                late.windows(6).map(|turns| *turns.iter().max().unwrap()).min().unwrap()
            })
        };
        // One of 200 attempts suffices, since the machine may be busy.
        let on_many = || Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let without_io = || Builder::new_current_thread().enable_time().build().unwrap();
        for new in [runtime, on_many, without_io] {
            let reached = (0..200).map(|_| lateness_of_six(new())).find(|late| *late < MS / 4);
            assert!(reached.is_some(), "of any six departures in a row, one is late by 0.25 ms or more");
        }
    }
}
