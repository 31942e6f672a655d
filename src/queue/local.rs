//! [`LocalQueue`]: the parts that [`LeakyQueue`](super::LeakyQueue) and [`SlowDown`](super::SlowDown) share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::driver::{SharedQueue, WaiterFuture, current_runtime};
use super::monitor::{Arrival, Request, RequestKind};
use super::schedule::{GrowingDelay, QueueBounds, Schedule};
use crate::limiter::{Limiter, WaitBounds};
use crate::store::Stats;
use crate::values::time::nanos_of;
use crate::values::{Answer, Ask, Decision, Description, Inheritance, LimiterError, Mode, Quota, Receipt, Terms};

/// A queue whose waiters are all in this process: its rules, and the schedule that follows them.
pub(super) struct LocalQueue {
    pub(super) quota: Quota,
    pub(super) bounds: QueueBounds,
    /// If unset, departures are spaced evenly.
    pub(super) delay: Option<GrowingDelay>,
    /// Whether it uses a timer that is finer than tokio's, see `LeakyQueue::precise`.
    is_precise: bool,
    /// The schedule and its drivers. Made on first use, because a queue that inherits shares its predecessor's instead.
    shared: OnceLock<Arc<SharedQueue>>,
}

impl LocalQueue {
    pub(super) const fn new(quota: Quota, bounds: QueueBounds, delay: Option<GrowingDelay>) -> Self {
        Self { quota, bounds, delay, is_precise: false, shared: OnceLock::new() }
    }

    /// Changes the rules. The returned queue has no schedule yet: its first use makes one with these rules.
    pub(super) fn with(self, set: impl FnOnce(&mut Self)) -> Self {
        let mut queue = Self { shared: OnceLock::new(), ..self };
        set(&mut queue);
        queue
    }

    #[cfg(feature = "precise-timer")]
    pub(super) fn precise(self) -> Self {
        self.with(|queue| queue.is_precise = true)
    }

    fn shared(&self) -> &Arc<SharedQueue> {
        self.shared.get_or_init(|| Arc::new(SharedQueue::new(self.empty_schedule(), self.is_precise)))
    }

    /// Makes an empty schedule with this queue's rules.
    fn empty_schedule(&self) -> Schedule {
        match self.delay {
            None => Schedule::new(&self.quota, self.bounds),
            Some(delay) => Schedule::slowing_down(&self.quota, delay, self.bounds),
        }
    }

    /// Answers a request of `cost` that accepts a wait of `max_wait` nanoseconds.
    fn arrive(&self, ask: &Ask<'_>, kind: RequestKind, cost: u64, max_wait: u64) -> Answer {
        let shared = self.shared();
        let quota = ask.quota().filter(|_| self.takes_quotas());
        let request = Request { id: shared.id(ask.key()), cost, max_wait, quota, keeps_quota: ask.keeps_quota(), kind };
        shared.enter(|monitor, now, deferred| match monitor.arrive(now, &request, current_runtime, deferred) {
            Ok(Arrival::Decided(decision)) => decision.into(),
            Ok(Arrival::Joined(waiter)) => Answer::Pending(Box::pin(WaiterFuture::new(Arc::clone(shared), waiter))),
            Err(error) => error.into(),
        })
    }

    pub(super) fn close(&self) {
        self.shared().enter(|monitor, _, deferred| monitor.close(deferred));
    }

    pub(super) fn waiting(&self) -> usize {
        self.shared.get().map_or(0, |shared| shared.enter(|monitor, _, _| monitor.schedule.waiting()))
    }

    pub(super) fn next_release(&self) -> Option<Duration> {
        self.shared.get()?.enter(|monitor, now, _| monitor.backlog(now)).next_release()
    }

    #[cfg(feature = "test-util")]
    pub(super) fn check_invariants(&self) {
        self.shared().enter(|monitor, _, _| monitor.schedule.check_invariants());
    }

    pub(super) fn decide(&self, ask: &Ask<'_>) -> Answer {
        let cost = ask.cost();
        match ask.mode() {
            Mode::Charge | Mode::Peek | Mode::Shadow | Mode::UpTo if self.takes_quotas() && ask.is_suspended() => {
                Decision::suspended().into()
            }
            Mode::Charge => self.arrive(ask, RequestKind::Waiter, cost, longest_wait(ask.patience())),
            Mode::Peek => self.arrive(ask, RequestKind::Peek, cost, longest_wait(ask.patience())),
            Mode::Shadow => self.arrive(ask, RequestKind::Detached, cost, u64::MAX),
            // If the whole cost is rejected, the part that fits is charged.
            Mode::UpTo => match self.arrive(ask, RequestKind::Detached, cost, u64::MAX) {
                Answer::Ready(Ok(decision)) => match decision.partial_cost(cost) {
                    Some(part) => self.arrive(ask, RequestKind::Detached, part, u64::MAX),
                    None => decision.into(),
                },
                answer => answer,
            },
            mode @ (Mode::Fallback | Mode::Reset) => LimiterError::unsupported(mode).into(),
        }
    }

    pub(super) fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        let shared = self.shared();
        let id = shared.id(charged.key());
        shared.enter(|monitor, now, deferred| monitor.refund(now, id, units, receipt, deferred));
    }

    /// Whether it decides under the keys' own quotas.
    const fn takes_quotas(&self) -> bool {
        self.delay.is_none()
    }

    pub(super) fn describe(&self) -> Description {
        let schedule = self.empty_schedule();
        let WaitBounds { max_queue, max_wait, max_waiters } = self.bounds.waits;
        let terms = match self.delay {
            None => Terms::queue(self.quota, max_queue.min(max_waiters) as u64, nanos_of(max_wait)),
            Some(_) => Terms::bucket(self.quota.burst(schedule.limit().max(1))),
        };
        let description = Description::new()
            .advertising(terms)
            .admitting_at_most(schedule.max_cost())
            .delaying()
            .answering(Mode::Peek)
            .answering(Mode::Shadow)
            .answering(Mode::UpTo);
        if self.takes_quotas() { description.taking_quotas() } else { description }
    }

    pub(super) fn inherit(&self, predecessor: &Self) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = predecessor.shared();
        // A queue that was used before has its own schedule, and cannot inherit another. If it shares the
        // predecessor's, it has inherited before, and only takes over the rules again.
        if !Arc::ptr_eq(self.shared.get_or_init(|| Arc::clone(theirs)), theirs) {
            return None;
        }
        theirs.is_precise.store(self.is_precise, Ordering::Relaxed);
        let rules = self.empty_schedule();
        theirs.enter(|monitor, now, deferred| monitor.change(now, &rules, deferred));
        Some(Inheritance::in_place())
    }

    pub(super) fn stats(&self) -> Stats {
        let shared = self.shared();
        let backlog = shared.enter(|monitor, now, _| monitor.backlog(now));
        Stats { table: Some(shared.table()), backlog: Some(backlog), ..Stats::default() }
    }
}

/// Returns the longest wait that a request accepts, in whole nanoseconds: it must be less than its patience.
fn longest_wait(patience: Option<Duration>) -> u64 {
    patience.map_or(u64::MAX, |patience| nanos_of(patience).saturating_sub(1))
}
