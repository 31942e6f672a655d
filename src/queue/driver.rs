//! Tokio's part of a queue: the tasks that release waiters in time, and a waiter's future.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::log;
use super::monitor::{AfterUnlock, DriverStart, Monitor, NextStep, Runtime};
use super::schedule::waiter_slab::{DriverId, WaiterId};
use super::schedule::{FifoId, Schedule};
use super::timer::Alarm;
use crate::store::TableStats;
use crate::util::keyed_hash::Secret;
use crate::util::sync::Mutex;
use crate::util::wake::{let_others_take, wake_all};
use crate::values::time::{Timestamp, nanos_of};
use crate::values::{Decision, LimiterError, PartitionKey};

/// A queue in this process: its schedule behind a monitor, its clock, and the drivers that release waiters in time.
///
/// A driver is a task that serves all keys. Each runtime that has waiters has one. The first waiter on a runtime spawns
/// it, and it ends when no waiter is left there.
pub(super) struct SharedQueue {
    monitor: Mutex<Monitor<Handle>>,
    /// The queue's time zero: the time on tokio's clock when the queue was first used.
    zero: OnceLock<Instant>,
    /// Whether drivers that start from now on use a finer timer than tokio's.
    pub(super) is_precise: AtomicBool,
    secrets: [Secret; 2],
}

impl SharedQueue {
    pub(super) fn new(schedule: Schedule, is_precise: bool) -> Self {
        Self {
            monitor: Mutex::new(Monitor::new(schedule)),
            zero: OnceLock::new(),
            is_precise: AtomicBool::new(is_precise),
            secrets: [Secret::random(), Secret::random()],
        }
    }

    /// Returns a key's FIFO: 128 bits from two keyed hashes.
    pub(super) fn id(&self, key: &PartitionKey) -> FifoId {
        let [high, low] = self.secrets.map(|secret| u128::from(secret.hash(key.as_bytes())));
        FifoId(high << 64 | low)
    }

    /// Returns the time since the queue was first used.
    fn now(&self) -> Timestamp {
        let now = Instant::now();
        Timestamp::from_nanos(nanos_of(now.saturating_duration_since(*self.zero.get_or_init(|| now))))
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let zero = *self.zero.get_or_init(Instant::now);
        zero.checked_add(Duration::from_nanos(at.as_nanos())).unwrap_or_else(|| Instant::now() + THIRTY_YEARS)
    }

    /// Acts on the queue's state, to which there is no other access. Runs the deferred work after the lock is released,
    /// because waking a task runs foreign code, and a runtime that shuts down drops a new task on the spot, which locks
    /// the queue again. The result of `act` exists by then, so if foreign code panics, a waiter that has joined is
    /// dropped, and leaves.
    pub(super) fn enter<T>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Monitor<Handle>, Timestamp, &mut AfterUnlock<Handle>) -> T,
    ) -> T {
        let mut deferred = AfterUnlock::none();
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut monitor, self.now(), &mut deferred);
        drop(monitor);

        let AfterUnlock { signals, start, wake, dropped, is_driver, warn } = deferred;
        let has_woken = !signals.is_empty() || start.is_some() || !wake.is_empty();
        signals.iter().for_each(|signal| signal.notify_one());
        if let Some(DriverStart { runtime, id: driver, signal }) = start {
            let guard = DriverGuard { shared: Arc::clone(self), driver, signal, is_cut_short: true };
            drop(runtime.spawn(drive(guard)));
        }
        wake_all(wake);
        if has_woken && !is_driver {
            let_others_take();
        }
        if warn {
            log::queue_full();
        }
        drop(dropped);
        result
    }

    /// Counts the keys. Other threads get the lock after every few thousand keys that are counted.
    pub(super) fn table(self: &Arc<Self>) -> TableStats {
        let mut paid = 0;
        let mut from = None;
        loop {
            let table = self.enter(|monitor, now, _| {
                let (count, more) = monitor.schedule.count_paid(now, from);
                paid += count;
                from = more;
                more.is_none().then(|| monitor.schedule.table(paid))
            });
            if let Some(table) = table {
                return table;
            }
        }
    }
}

/// Practically for ever, and within the range of `Instant` on all systems. A driver that wakes up then sleeps again.
const THIRTY_YEARS: Duration = Duration::from_secs(86_400 * 365 * 30);

/// Returns the runtime that the caller is in.
pub(super) fn current_runtime() -> Option<Handle> {
    Handle::try_current().ok()
}

impl Runtime for Handle {
    type Id = tokio::runtime::Id;
    type Signal = Arc<Notify>;

    fn id(&self) -> Self::Id {
        self.id()
    }
}

/// Releases waiters that are due, until no waiter is left on its runtime.
///
/// No change is slept through. A change that makes a turn come sooner, or the driver end, is made under the monitor's
/// lock, and signalled after the lock is released. `tick` reads under that lock. So either it has seen the change, or
/// the change comes after it, and the signal arrives while the driver sleeps or before. A `Notify` stores one signal
/// that no task awaits yet, and the next `notified` completes at once. A spurious signal costs one look, and no branch
/// of the `select` loses anything when another wins, because everything is read again.
///
/// A driver does not end while its runtime has a waiter, either: `tick` marks the driver as ended under the lock, and
/// only when no waiter is left. A request that joins sees that under the same lock, and starts the next driver.
/// `models.rs` checks this in every order of threads, and takes the signal and the timer for granted for this reason.
async fn drive(mut guard: DriverGuard) {
    let mut alarm = Alarm::new(guard.shared.is_precise.load(Ordering::Relaxed));
    loop {
        match guard.shared.enter(|monitor, now, deferred| monitor.tick(now, guard.driver, deferred)) {
            NextStep::Yield => let_others_run().await,
            NextStep::SleepUntil(due) => {
                let due = guard.shared.instant(due);
                tokio::select! {
                    biased;
                    () = guard.signal.notified() => {}
                    () = alarm.sleep_until(due) => {}
                }
            }
            NextStep::End => break,
        }
    }
    guard.is_cut_short = false;
}

/// Moves this task to the end of the runtime's run queue. Tokio's own `yield_now` waits until the runtime next looks at
/// its timers; meanwhile batches of released waiters would pile up in that queue, and other tasks would wait behind
/// them all.
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

/// Held by a driver from before it is spawned. If it is dropped early, with its runtime, it wakes that runtime's
/// waiters, which continue where they are polled next: see [`WaiterFuture::poll`].
struct DriverGuard {
    shared: Arc<SharedQueue>,
    driver: DriverId,
    signal: Arc<Notify>,
    is_cut_short: bool,
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        // A driver that ended by itself was marked under the lock, and a newer driver may have its id by now.
        if self.is_cut_short {
            self.shared.enter(|monitor, _, deferred| monitor.lose(self.driver, deferred));
        }
    }
}

/// A waiter: resolves when its turn comes.
///
/// A waiter that is dropped leaves the queue; if its turn has come by then, the turn goes back. This is decided under
/// the one lock, so no turn is lost or used twice.
pub(super) struct WaiterFuture {
    shared: Arc<SharedQueue>,
    /// Cleared when the result is returned.
    waiter: Option<WaiterId>,
}

impl WaiterFuture {
    pub(super) const fn new(shared: Arc<SharedQueue>, waiter: WaiterId) -> Self {
        Self { shared, waiter: Some(waiter) }
    }
}

impl Future for WaiterFuture {
    type Output = Result<Decision, LimiterError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(waiter) = self.waiter else { panic!("polled after it was ready") };
        let here = current_runtime();
        // Wakers are cloned and dropped outside of the lock: both run foreign code, which may call the queue again.
        let mut waker = Some(context.waker().clone());
        loop {
            let (progress, is_started) = self.shared.enter(|monitor, now, deferred| {
                let progress = monitor.poll(now, waiter, &mut waker, here.as_ref(), deferred);
                (progress, deferred.start.is_some())
            });
            // A runtime that shuts down drops a new driver on the spot. So look again at once whether it lives.
            if progress.is_pending() && is_started {
                waker = Some(context.waker().clone());
                continue;
            }
            if progress.is_ready() {
                self.waiter = None;
            }
            return progress;
        }
    }
}

impl Drop for WaiterFuture {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.shared.enter(|monitor, now, deferred| monitor.leave(now, waiter, deferred));
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::limiter::WaitBounds;
    use crate::queue::schedule::QueueBounds;
    use crate::values::Quota;

    /// The second hash has the same bits as the first with a probability of 2⁻⁶⁴.
    #[test]
    fn both_id_halves_are_key_hashes() {
        let queue = SharedQueue::new(Schedule::new(&Quota::per_second(1), QueueBounds::new(WaitBounds::new(1))), false);
        let halves = |key: &str| {
            let id = queue.id(&key.into()).0;
            [id >> 64, id & u128::from(u64::MAX)]
        };
        let ([high, low], other) = (halves("one"), halves("other"));
        assert!(high != other[0] && low != other[1] && high != low);
    }
}
