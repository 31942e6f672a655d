//! The queue on several runtimes: no runtime can delay waiters on another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::busy::busy_for;
use crate::support::queue::{KEY, join, settle};
use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{advance, timeout};
use tower_sluice::limiter::{Answer, Ask, Mode, Pending};
use tower_sluice::{LeakyQueue, Limiter, PartitionKey, Quota};

const MS: Duration = Duration::from_millis(1);

/// How much later a turn may come because of another runtime.
const MARGIN: Duration = Duration::from_millis(5);

/// A wait that counts as never. An attempt that proves nothing, because the machine was busy, counts as a little less.
const NEVER: Duration = Duration::from_secs(2);

/// One test at a time, because the tests measure lateness and keep panics off the screen.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn pending(queue: &LeakyQueue, key: &PartitionKey) -> Pending {
    match queue.decide(&Ask::charge(key, 1)) {
        Answer::Pending(pending) => pending,
        Answer::Ready(result) => panic!("expected to wait, but got {result:?}"),
    }
}

fn pass(queue: &LeakyQueue, key: &PartitionKey) {
    assert!(matches!(queue.decide(&Ask::charge(key, 1)), Answer::Ready(Ok(now)) if now.is_allowed()));
}

/// The first waiter's runtime, while others wait.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Nothing: the first waiter lives on the others' runtime.
    None,
    /// It polled the waiter once in a `block_on` that has returned, and is kept.
    Idle,
    /// It belongs to a thread that got its turn in a `block_on`, and now does something else.
    BetweenCalls,
    /// Its only thread is in blocking code.
    Blocked,
    /// It has one worker thread, which is in blocking code.
    BlockedWorker,
    /// It was dropped.
    Dropped,
    /// A shadow joined from within it, and it is not driven.
    Shadowed,
}

/// Keeps a runtime in its trouble until a measurement ends.
#[derive(Default)]
struct Kept {
    runtimes: Vec<Runtime>,
    waiters: Vec<Pending>,
    /// When this is dropped, threads continue and are joined.
    gates: Vec<mpsc::Sender<()>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.gates.clear();
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok() || thread::panicking());
        }
    }
}

impl Kept {
    /// A gate at which threads wait, with a time limit that bounds the test.
    fn gate(&mut self) -> impl FnOnce() + Send + 'static {
        let (sender, gate) = mpsc::channel();
        self.gates.push(sender);
        move || {
            let _ = gate.recv_timeout(NEVER * 5);
        }
    }
}

impl Trouble {
    /// Adds the first waiter for [`KEY`], on a runtime in this trouble; `None` if this thread was delayed, so that the
    /// request did not have to wait.
    fn begin(self, queue: &Arc<LeakyQueue>, kept: &mut Kept) -> Option<()> {
        let wait = |queue: &LeakyQueue| match queue.decide(&Ask::charge(&KEY, 1)) {
            Answer::Pending(pending) => Some(pending),
            Answer::Ready(_) => None,
        };
        match self {
            Self::None => kept.waiters.push(wait(queue)?),
            Self::Idle => {
                let runtime = single();
                kept.waiters.push(runtime.block_on(async {
                    let mut waiter = wait(queue)?;
                    let _ = (&mut waiter).now_or_never();
                    tokio::task::yield_now().await;
                    Some(waiter)
                })?);
                kept.runtimes.push(runtime);
            }
            Self::BetweenCalls => {
                let (gate, queue) = (kept.gate(), Arc::clone(queue));
                let (joined, has_joined) = mpsc::channel();
                kept.threads.push(thread::spawn(move || {
                    let runtime = single();
                    runtime.block_on(async {
                        let waiter = wait(&queue);
                        joined.send(waiter.is_some()).unwrap();
                        if let Some(waiter) = waiter {
                            assert!(waiter.await.unwrap().is_allowed());
                        }
                    });
                    gate();
                }));
                return has_joined.recv().unwrap().then_some(());
            }
            Self::Blocked => {
                let (gate, queue) = (kept.gate(), Arc::clone(queue));
                let (joined, has_joined) = mpsc::channel();
                kept.threads.push(thread::spawn(move || {
                    single().block_on(async {
                        let mut waiter = wait(&queue);
                        let _ = waiter.as_mut().map(FutureExt::now_or_never);
                        settle().await;
                        joined.send(waiter.is_some()).unwrap();
                        gate();
                    });
                }));
                return has_joined.recv().unwrap().then_some(());
            }
            Self::BlockedWorker => {
                let (gate, runtime) = (kept.gate(), multi());
                let (begun, has_begun) = mpsc::channel();
                runtime.spawn(async move {
                    begun.send(()).unwrap();
                    gate();
                });
                has_begun.recv().unwrap();
                let waiter = runtime.block_on(async { wait(queue) });
                let (dropper, dropped) = mpsc::channel::<()>();
                // Dropped on its own thread, because the drop waits for the worker.
                kept.threads.push(thread::spawn(move || {
                    let _ = dropped.recv();
                    drop(runtime);
                }));
                kept.gates.push(dropper);
                kept.waiters.push(waiter?);
            }
            Self::Dropped => {
                let runtime = single();
                kept.waiters.push(runtime.block_on(async {
                    let waiter = wait(queue);
                    tokio::task::yield_now().await;
                    waiter
                })?);
            }
            Self::Shadowed => {
                let runtime = single();
                runtime.block_on(async {
                    assert!(matches!(queue.decide(&Ask::charge(&KEY, 1).to(Mode::Shadow)), Answer::Ready(Ok(_))));
                    tokio::task::yield_now().await;
                });
                kept.runtimes.push(runtime);
            }
        }
        Some(())
    }
}

/// Returns how late turns on a sound runtime are, at the most, while another runtime is in trouble. Some are behind the
/// other runtime's waiter, and some have their own keys.
fn lateness(trouble: Trouble) -> Duration {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(40)).max_queue(10));
    let mut kept = Kept::default();
    let sound = single();
    let guard = sound.enter();
    let start = Instant::now();
    pass(&queue, &KEY);
    if trouble.begin(&queue, &mut kept).is_none() {
        return NEVER - MS;
    }
    drop(guard);
    let come = sound.block_on(async {
        let mut turns: Vec<_> = (0..4).map(|_| tokio::spawn(turn(queue.decide(&Ask::charge(&KEY, 1))))).collect();
        let other = PartitionKey::from("other");
        let begun = Instant::now();
        pass(&queue, &other);
        turns.extend((0..3).map(|_| tokio::spawn(turn(queue.decide(&Ask::charge(&other, 1))))));
        let dues = (2..6).map(|turn| start + MS * 25 * turn);
        let timers = timers(dues.chain((1..4).map(|turn| begun + MS * 25 * turn)));
        let mut come = Vec::new();
        for turn in turns {
            come.push(turn.await.unwrap());
        }
        // Their order does not matter here.
        let (behind, others) = come.split_at_mut(4);
        behind.sort();
        others.sort();
        later_than(come, timers).await
    });
    come.min(NEVER)
}

/// Timers on the runtime, to compare its turns with: a busy machine delays both.
fn timers(dues: impl Iterator<Item = Instant>) -> Vec<JoinHandle<Instant>> {
    let timer = async |due: Instant| {
        tokio::time::sleep_until(due.into()).await;
        Instant::now()
    };
    dues.map(|due| tokio::spawn(timer(due))).collect()
}

/// By how much turns came later than their timers, at the most.
async fn later_than(come: Vec<Instant>, timers: Vec<JoinHandle<Instant>>) -> Duration {
    let mut latest = Duration::ZERO;
    for (come, timer) in come.into_iter().zip(timers) {
        latest = latest.max(come.saturating_duration_since(timer.await.unwrap()));
    }
    latest
}

/// When a turn came.
async fn turn(check: Answer) -> Instant {
    match timeout(NEVER, check.decided()).await {
        Ok(turn) => assert!(turn.unwrap().is_allowed()),
        Err(_) => return Instant::now() + NEVER,
    }
    Instant::now()
}

/// Returns the best attempt, because the machine may be busy now and then. Stops after an attempt that is good enough.
fn best(enough: Duration, attempt: impl Fn() -> Duration) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..100 {
        best = best.min(attempt());
        // More attempts do not help if a turn never comes.
        if best <= enough || best >= NEVER {
            break;
        }
    }
    best
}

fn assert_on_time(trouble: Trouble) {
    let _alone = alone();
    let usual = best(MS, || lateness(Trouble::None));
    let late = best(usual + MARGIN, || lateness(trouble));
    println!("{trouble:?}: {late:?} late, {usual:?} without");
    assert!(late <= usual + MARGIN, "{trouble:?}: {late:?} late, and {usual:?} without");
}

#[test]
fn an_undriven_runtime_delays_no_other() {
    assert_on_time(Trouble::Idle);
}

#[test]
fn a_thread_between_calls_delays_none() {
    assert_on_time(Trouble::BetweenCalls);
}

#[test]
fn a_blocked_runtime_delays_no_other() {
    assert_on_time(Trouble::Blocked);
    assert_on_time(Trouble::BlockedWorker);
}

#[test]
fn a_dropped_runtime_delays_no_other() {
    assert_on_time(Trouble::Dropped);
}

#[test]
fn a_shadow_on_undriven_runtimes_delays_none() {
    assert_on_time(Trouble::Shadowed);
}

/// Four workers with a runtime each, like a server with a runtime per core.
#[test]
fn one_blocked_worker_delays_none() {
    let _alone = alone();
    let lateness = |blocks: bool| {
        let queue = Arc::new(LeakyQueue::new(Quota::per_second(25)).max_queue(10));
        let (done, gate) = mpsc::channel::<()>();
        let (joined, has_joined) = mpsc::channel();
        let blocked = {
            let (queue, key) = (Arc::clone(&queue), PartitionKey::from("blocked"));
            thread::spawn(move || {
                single().block_on(async {
                    pass(&queue, &key);
                    // If its turn comes at once, the attempt proves nothing.
                    let waiter = tokio::spawn(queue.decide(&Ask::charge(&key, 1)).decided());
                    settle().await;
                    joined.send(()).unwrap();
                    if blocks {
                        let _ = gate.recv_timeout(NEVER * 5);
                    }
                    assert!(waiter.await.unwrap().unwrap().is_allowed());
                });
            })
        };
        has_joined.recv().unwrap();
        let work = |number: u64| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                single().block_on(async {
                    let key = number.into();
                    let start = Instant::now();
                    pass(&queue, &key);
                    let turns: Vec<_> =
                        (0..3).map(|_| tokio::spawn(turn(queue.decide(&Ask::charge(&key, 1))))).collect();
                    let timers = timers((1..4).map(|turn| start + MS * 40 * turn));
                    let mut come = Vec::new();
                    for turn in turns {
                        come.push(turn.await.unwrap());
                    }
                    later_than(come, timers).await
                })
            })
        };
        let workers: Vec<_> = (0..3).map(work).collect();
        let latest = workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap();
        drop(done);
        blocked.join().unwrap();
        assert_eq!(queue.waiting(), 0);
        latest.min(NEVER)
    };
    let usual = best(MS, || lateness(false));
    let late = best(usual + MARGIN, || lateness(true));
    println!("{late:?} late, {usual:?} without");
    assert!(late <= usual + MARGIN, "{late:?} late, and {usual:?} without");
}

/// A future may be made on one runtime and awaited on another.
#[test]
fn waiters_are_driven_where_polled() {
    let _alone = alone();
    let (idle, sound) = (single(), single());
    // No turn comes until both wait.
    let queue = LeakyQueue::new(Quota::per_second(1)).max_queue(9).max_wait(NEVER * 5);
    pass(&queue, &KEY);
    let (polled, unpolled) = idle.block_on(async {
        let mut polled = join(&queue);
        assert!((&mut polled).now_or_never().is_none());
        settle().await;
        (polled, join(&queue))
    });
    sound.block_on(async {
        for waiter in [polled, unpolled] {
            let turn = timeout(NEVER * 5, waiter).await.expect("the queue has no driver here");
            assert!(turn.unwrap().is_allowed());
        }
    });
    assert_eq!(queue.waiting(), 0);
}

/// Each runtime has one driver for a queue, and only while it has waiters.
#[test]
fn a_runtime_without_waiters_has_no_driver() {
    let _alone = alone();
    let tasks = |runtime: &Runtime| {
        runtime.block_on(settle());
        runtime.metrics().num_alive_tasks()
    };
    let (first, second) = (single(), single());
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_queue(10).max_wait(Duration::MAX);
    pass(&queue, &KEY);
    let wait_on = |runtime: &Runtime| {
        let _guard = runtime.enter();
        join(&queue)
    };
    let on_first = [wait_on(&first), wait_on(&first)];
    let on_second = wait_on(&second);
    assert_eq!((tasks(&first), tasks(&second)), (1, 1));
    drop(on_first);
    assert_eq!((tasks(&first), tasks(&second)), (0, 1), "the first has no waiters");
    let mut moves = wait_on(&first);
    assert_eq!((tasks(&first), tasks(&second)), (1, 1));
    {
        let _guard = second.enter();
        assert!((&mut moves).now_or_never().is_none());
    }
    assert_eq!((tasks(&first), tasks(&second)), (0, 1), "it has moved");
    drop((moves, on_second));
    assert_eq!((tasks(&first), tasks(&second)), (0, 0));
    let again = [wait_on(&first), wait_on(&second)];
    assert_eq!((tasks(&first), tasks(&second)), (1, 1));
    queue.close();
    assert_eq!((tasks(&first), tasks(&second)), (0, 0), "closed");
    drop(again);
    assert_eq!(queue.waiting(), 0);
}

const PANIC: &str = "a waker that panics";

/// Counts its wake-ups, or panics.
struct Counter {
    woken: AtomicUsize,
    panics: bool,
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        if self.panics {
            std::panic::panic_any(PANIC);
        }
    }
}

/// Ten waiters; the third and the fourth panic when they are woken.
fn wakers(waiters: &mut [Pending]) -> Vec<Arc<Counter>> {
    let poll = |(number, waiter): (usize, &mut Pending)| {
        let counter = Arc::new(Counter { woken: AtomicUsize::new(0), panics: matches!(number, 2 | 3) });
        let waker = Waker::from(Arc::clone(&counter));
        assert!(waiter.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        counter
    };
    waiters.iter_mut().enumerate().map(poll).collect()
}

/// Runs without printing intended panics.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload().downcast_ref() != Some(&PANIC) {
            eprintln!("{panic}");
        }
    }));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    std::panic::set_hook(hook);
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Keys that all have to wait now, for one moment.
fn wait_in_lines(queue: &LeakyQueue, keys: u64) -> Vec<Pending> {
    (0..keys).for_each(|key| pass(queue, &key.into()));
    (0..keys).map(|key| pending(queue, &key.into())).collect()
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[test]
fn a_panicking_waker_costs_no_wake_up() {
    let _alone = alone();
    let counts = |counters: &[Arc<Counter>]| -> Vec<usize> {
        counters.iter().map(|counter| counter.woken.load(Ordering::SeqCst)).collect()
    };
    let queue = || LeakyQueue::new(Quota::per_second(100)).max_queue(10).max_waiters(10);

    // When their turns come.
    let woken = quietly(|| {
        paused().block_on(async {
            let queue = queue();
            let mut waiters = wait_in_lines(&queue, 10);
            let counters = wakers(&mut waiters);
            settle().await;
            advance(MS * 10).await;
            settle().await;
            assert_eq!(queue.waiting(), 0);
            // The queue still works.
            let next = pending(&queue, &3_u64.into());
            assert!(timeout(MS * 11, next).await.expect("the queue has no driver").unwrap().is_allowed());
            counts(&counters)
        })
    });
    assert_eq!(woken, [1; 10], "by the task");

    // When an arrival releases them, before the driver does.
    let woken = quietly(|| {
        paused().block_on(async {
            let queue = queue();
            let mut waiters = wait_in_lines(&queue, 10);
            let counters = wakers(&mut waiters);
            advance(MS * 10).await;
            pass(&queue, &99_u64.into());
            assert_eq!(queue.waiting(), 0);
            counts(&counters)
        })
    });
    assert_eq!(woken, [1; 10], "by an arrival");

    let woken = quietly(|| {
        paused().block_on(async {
            let queue = queue();
            let mut waiters = wait_in_lines(&queue, 10);
            let counters = wakers(&mut waiters);
            queue.close();
            counts(&counters)
        })
    });
    assert_eq!(woken, [1; 10], "by a close");

    let woken = quietly(|| {
        let (runtime, queue) = (paused(), queue());
        let mut waiters = runtime.block_on(async { wait_in_lines(&queue, 10) });
        let counters = wakers(&mut waiters);
        drop(runtime);
        counts(&counters)
    });
    assert_eq!(woken, [1; 10], "when the runtime goes down");
}

/// Lets the turns of `keys` keys come at one moment, while another task runs on the only thread. Returns the most turns
/// between two polls of that task, the longest time between two polls, and the time for all turns.
fn longest_stall(keys: u64) -> (usize, Duration, Duration) {
    paused().block_on(async {
        let queue = Arc::new(LeakyQueue::new(Quota::per_second(1)).max_queue(1));
        let waiters: Vec<_> = wait_in_lines(&queue, keys.max(1)).into_iter().map(tokio::spawn).collect();
        settle().await;
        let over = Arc::new(AtomicBool::new(false));
        let probe = {
            let (queue, over) = (Arc::clone(&queue), Arc::clone(&over));
            tokio::spawn(async move {
                let mut waiting = queue.waiting();
                let mut looked = busy_for();
                let (mut most, mut longest) = (0, Duration::ZERO);
                while !over.load(Ordering::Relaxed) {
                    yield_now().await;
                    let now = busy_for();
                    let still = queue.waiting();
                    most = most.max(waiting - still);
                    longest = longest.max(now - looked);
                    (waiting, looked) = (still, now);
                }
                (most, longest)
            })
        };
        settle().await;
        let begun = busy_for();
        advance(Duration::from_secs(1)).await;
        for waiter in waiters {
            assert!(waiter.await.unwrap().unwrap().is_allowed());
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(queue.waiting(), 0);
        let (most, longest) = probe.await.unwrap();
        (most, longest, busy_for() - begun)
    })
}

/// Goes to the end of the run queue. tokio's own `yield_now` would defer the task until the whole queue has run.
async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn sixty_thousand_turns_let_others_run() {
    let _alone = alone();
    let (turns, longest, all) = longest_stall(60_000);
    println!("{longest:?} of {all:?}");
    assert!(turns <= 1_024, "{turns} turns came between two polls of another task");
    // A fiftieth of the turns, and the driver's other work meanwhile.
    assert!(longest <= all / 10, "{longest:?} of {all:?} between two polls of another task");
}

/// Until a worker yields, it keeps the task that it spawned or woke last to itself. When this task was the driver, a
/// request that joined and then computed for two seconds delayed all keys' waiters by two seconds, although another
/// worker was idle.
#[test]
fn a_computing_worker_delays_no_waiter() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(1)).max_queue(9).max_wait(NEVER));
    let (joined, has_joined) = mpsc::channel();
    let is_released = Arc::new(AtomicBool::new(false));
    let computing = runtime.spawn({
        let (queue, is_released) = (Arc::clone(&queue), Arc::clone(&is_released));
        async move {
            pass(&queue, &"computing".into());
            let waiter = pending(&queue, &"computing".into());
            joined.send(()).unwrap();
            let begun = Instant::now();
            while !is_released.load(Ordering::Relaxed) && begun.elapsed() < NEVER * 5 {
                thread::yield_now();
            }
            assert!(waiter.await.unwrap().is_allowed());
            begun.elapsed() < NEVER * 5
        }
    });
    has_joined.recv().unwrap();
    // On a thread that is not a worker.
    runtime.block_on(async {
        pass(&queue, &KEY);
        assert!(pending(&queue, &KEY).await.unwrap().is_allowed());
    });
    is_released.store(true, Ordering::Relaxed);
    assert!(runtime.block_on(computing).unwrap(), "the waiter was released only when the worker had computed");
}
