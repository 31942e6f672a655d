use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::drivers::{DriverId, Runtime, Start};
use super::monitor::{Arrival, Deferred, Monitor, Next, Progress, Request};
use super::schedule::waiter_slab::WaiterId;
use super::schedule::{FifoId, Schedule};
use super::timer::Alarm;
use crate::store::TableStats;
use crate::util::log;
use crate::values::time::{Timestamp, nanos_of};
use crate::values::{Backlog, Decision, LimiterError, PartitionKey, Receipt};

/// The schedule, and the drivers that release them in time.
///
/// A driver is a task that serves all schedule. Each runtime that has waiters has one. It is spawned by the first to wait
/// there, and ends when no waiter is left on that runtime.
pub(super) struct SharedQueue {
    pub(super) monitor: Monitor<Handle>,
    /// What tokio's clock showed when the queue was first used: the queue's time zero.
    zero: OnceLock<Instant>,
    /// Whether tokio's timer is not enough.
    is_precise: AtomicBool,
    hashers: [RandomState; 2],
}

impl SharedQueue {
    pub(super) fn new(schedule: Schedule, is_precise: bool) -> Self {
        Self {
            monitor: Monitor::new(schedule),
            zero: OnceLock::new(),
            is_precise: AtomicBool::new(is_precise),
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    fn id(&self, key: &PartitionKey) -> FifoId {
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(key.as_bytes())));
        FifoId(high << 64 | low)
    }

    fn now(&self) -> Timestamp {
        let now = Instant::now();
        Timestamp::from_nanos(nanos_of(now.saturating_duration_since(*self.zero.get_or_init(|| now))))
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let zero = *self.zero.get_or_init(Instant::now);
        // What lies beyond the range of `Instant` is not waited for in this life.
        let far = Duration::from_secs(86_400 * 365 * 30);
        zero.checked_add(Duration::from_nanos(at.as_nanos())).unwrap_or_else(|| Instant::now() + far)
    }

    fn request(&self, key: &PartitionKey, cost: u32, max_wait: u64) -> Request {
        Request { id: self.id(key), cost, max_wait }
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
    ) -> Result<Result<Decision, WaiterFuture>, LimiterError> {
        let request = self.request(key, cost, max_wait);
        let (arrival, deferred) = self.monitor.enqueue(|| self.now(), &request, here);
        // Made before anything foreign runs, so that the place is given up whatever happens there.
        let arrival = arrival.map(|arrival| match arrival {
            Arrival::Decided(decision) => Ok(decision),
            Arrival::Joined(waiter) => Err(WaiterFuture { shared: Arc::clone(self), waiter }),
        });
        self.run(deferred);
        arrival
    }

    /// Takes a place in line that nobody waits in.
    pub(super) fn enqueue_detached(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
    ) -> Result<Decision, LimiterError> {
        let request = self.request(key, cost, max_wait);
        let (arrival, deferred) = self.monitor.enqueue_detached(|| self.now(), &request, here);
        self.run(deferred);
        arrival.map(|arrival| match arrival {
            Arrival::Decided(decision) => decision,
            Arrival::Joined(_) => unreachable!("nobody has joined"),
        })
    }

    pub(super) fn peek(self: &Arc<Self>, key: &PartitionKey, cost: u32, max_wait: u64) -> Option<Decision> {
        let (decision, deferred) = self.monitor.peek(|| self.now(), &self.request(key, cost, max_wait));
        self.run(deferred);
        decision
    }

    pub(super) fn refund(self: &Arc<Self>, key: &PartitionKey, cost: u32, receipt: Receipt) {
        self.run(self.monitor.refund(|| self.now(), self.id(key), cost, receipt));
    }

    pub(super) fn backlog(&self) -> Backlog {
        self.monitor.backlog(|| self.now())
    }

    pub(super) fn table(&self) -> TableStats {
        self.monitor.table(|| self.now())
    }

    /// From the next driver on, with a better timer, or without.
    pub(super) fn change(self: &Arc<Self>, rules: &Schedule, is_precise: bool) {
        self.is_precise.store(is_precise, Ordering::Relaxed);
        self.run(self.monitor.change(|| self.now(), rules));
    }

    pub(super) fn close(self: &Arc<Self>) {
        self.run(self.monitor.close());
    }

    /// Never under the lock: waking a task runs foreign code, and a runtime that is going down drops a
    /// new one on the spot.
    fn run(self: &Arc<Self>, deferred: Deferred<Handle>) {
        deferred.signals.iter().for_each(|signal| signal.notify_one());
        if let Some(Start { runtime, id: driver, signal }) = deferred.start {
            let guard = DriverGuard { shared: Arc::clone(self), driver, signal, is_cut_short: true };
            drop(runtime.spawn(drive(guard)));
        }
        wake_all(deferred.wake);
        if deferred.warn {
            log::queue_full();
        }
    }

    /// Does some of what is due, for a driver.
    fn tick(&self, driver: DriverId) -> Next {
        let mut wake = Vec::new();
        let next = self.monitor.tick(driver, || self.now(), &mut wake);
        wake_all(wake);
        next
    }
}

/// The runtime that the caller is in.
fn here() -> Option<Handle> {
    Handle::try_current().ok()
}

impl Runtime for Handle {
    type Id = tokio::runtime::Id;
    type Signal = Arc<Notify>;

    fn id(&self) -> Self::Id {
        self.id()
    }
}

/// Releases who is due, until no waiter is left on its runtime.
///
/// No change is slept through. Whatever makes a turn come sooner, or the driver end, is changed under the lock of the monitor,
/// and signalled after it. `tick` reads under that lock. So either it has seen the change; or the change
/// comes after it, and is signalled while the driver waits or before. A `Notify` keeps one signal that nobody waits for,
/// and the next `notified` is done at once. A signal too many costs one look, and no branch
/// of the `select` loses anything when another wins, for all is read anew.
///
/// Nor does it end beside a waiter of its runtime: `tick` notes under the lock that the driver has ended, only when none
/// is left, and whoever joins sees that under the same lock and starts the next. `models.rs` has that part, and
/// this is why it may take the signal and the timer for granted.
async fn drive(mut guard: DriverGuard) {
    let mut alarm = Alarm::new(guard.shared.is_precise.load(Ordering::Relaxed));
    loop {
        match guard.shared.tick(guard.driver) {
            Next::Yield => let_others_run().await,
            Next::SleepUntil(due) => {
                let due = guard.shared.instant(due);
                tokio::select! {
                    () = alarm.sleep_until(due) => {}
                    () = guard.signal.notified() => {}
                }
            }
            Next::End => break,
        }
    }
    guard.is_cut_short = false;
}

/// Goes to the end of the runtime's queue of tasks. Tokio's own `yield_now` waits until the runtime next looks at its
/// timers; meanwhile batches of released waiters would pile up in that queue, and others wait behind them all.
async fn let_others_run() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Wakes all of them. A waker that panics costs no other its wake-up, and the caller, who is not to blame, does not
/// panic: the message has gone to the panic hook.
fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Held by a driver from before it is spawned. If it is dropped early, with its runtime, the waiters there are woken, and
/// go on where they are polled: see [`WaiterFuture::poll`].
struct DriverGuard {
    shared: Arc<SharedQueue>,
    driver: DriverId,
    signal: Arc<Notify>,
    is_cut_short: bool,
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        // A driver that ended by itself said so under the lock, and its driver may be another's by now.
        if self.is_cut_short {
            wake_all(self.shared.monitor.lose(self.driver));
        }
    }
}

/// A place in line, and the promise of a turn. Dropped, it leaves the line; if the turn has come by
/// then, it goes back. What becomes of a place is decided under the one lock, so that a turn is
/// neither lost nor used twice.
pub(super) struct WaiterFuture {
    shared: Arc<SharedQueue>,
    /// None once the answer is out.
    waiter: WaiterId,
}

impl Future for WaiterFuture {
    type Output = Result<Decision, LimiterError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.waiter != WaiterId::NONE, "polled after it was ready");
        let here = here();
        loop {
            let shared = &self.shared;
            let (progress, deferred) =
                shared.monitor.poll(|| shared.now(), self.waiter, context.waker(), here.as_ref());
            let is_started = deferred.start.is_some();
            shared.run(deferred);
            match progress {
                Progress::Done(answer) => {
                    self.waiter = WaiterId::NONE;
                    return Poll::Ready(answer);
                }
                // A runtime that is going down drops a new driver on the spot.
                Progress::Waiting if is_started => {}
                Progress::Waiting => return Poll::Pending,
                Progress::Stranded(error) => {
                    self.leave();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl WaiterFuture {
    fn leave(&mut self) {
        let waiter = std::mem::replace(&mut self.waiter, WaiterId::NONE);
        if waiter != WaiterId::NONE {
            self.shared.run(self.shared.monitor.leave(|| self.shared.now(), waiter));
        }
    }
}

impl Drop for WaiterFuture {
    fn drop(&mut self) {
        self.leave();
    }
}
