//! [`WorkerLag`]: how long tasks wait for a runtime worker, and which arrivals are shed for it.
//!
//! A handler that computes without yielding keeps its worker. Other requests then wait in the run queue, before any
//! code of ours runs, so the gate never sees more requests than there are workers.
//!
//! While requests come, a task measures the lag: the *probe*. It goes to the back of the run queue and notes when it
//! runs again. At most one probe is under way. Run queues are first in, first out, so a request that runs while the
//! probe is queued was queued before it, and **has waited for at least the probe's age**. So no request is shed for a
//! measurement that is out of date, and a worker is idle only when its queue is empty. The one exception are tasks that
//! other threads spawn: they have their own queue, and the probe waits until that is empty, too.
//!
//! The rule is controlled delay, as for the requests that wait in the gate: shedding begins when the lag was above the
//! target in each probe of an interval. Then it goes on until all probes in an interval were in time: while arrivals
//! are shed, the lag is often short, and with a new interval of grace each time, requests would wait for five times the
//! target.
//!
//! With several workers, the probe begins to count when it runs first, and not when a request spawns it. The request
//! may compute before it yields, and meanwhile another worker may be free.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::controlled_delay::INTERVAL;
use super::gate::Gate;
use crate::util::sync::{AtomicU32, Mutex, Ordering};
use crate::values::Priority;

/// The time between two probes while the workers keep up.
const REST: Duration = Duration::from_millis(5);

/// [`REST`] in nanoseconds. If nothing came for this time after a probe, a worker was idle.
const IDLE: u64 = 5_000_000;

pub(super) struct WorkerLag {
    /// Not zero if an arrival has to look, because a probe is due or under way. Relaxed: a thread that reads an old
    /// value looks too late or in vain.
    watched: AtomicU32,
    lag: Mutex<Lag>,
}

/// All times in nanoseconds.
#[derive(Debug)]
struct Lag {
    target: u64,
    probe: Probe,
    /// The probe's runtime. The probe says nothing about the queues in other runtimes.
    runtime: Option<Id>,
    /// The lag that the last probe has measured, and when it did.
    measured: u64,
    measured_at: u64,
    /// Since when each probe was late.
    late_since: Option<u64>,
    /// When the last late probe ended.
    late_at: u64,
    is_shedding: bool,
    shed: [u64; Priority::ALL.len()],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// The next arrival starts one.
    Due,
    /// It has not run yet.
    Spawned,
    /// It waits in the run queue since then.
    Queued(u64),
    /// It has measured, and the next one is not due yet.
    Resting,
    /// The runtime has no timer.
    Off,
}

/// How an arrival reacts to the lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) starts_probe: bool,
    pub(super) is_shed: bool,
    /// When the arrival was queued, at the latest.
    pub(super) queued_at: u64,
}

impl WorkerLag {
    pub(super) fn new(target: u64) -> Self {
        let lag = Lag {
            target,
            probe: Probe::Due,
            runtime: None,
            measured: 0,
            measured_at: 0,
            late_since: None,
            late_at: 0,
            is_shedding: false,
            shed: Default::default(),
        };
        Self { watched: AtomicU32::new(1), lag: Mutex::new(lag) }
    }

    /// Whether an arrival has to look.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }

    fn watch(&self, is_watched: bool) {
        self.watched.store(u32::from(is_watched), Ordering::Relaxed);
    }

    fn with<T>(&self, change: impl FnOnce(&mut Lag) -> T) -> T {
        change(&mut self.lag.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_target(&self, target: u64) {
        self.with(|lag| lag.target = target);
    }

    /// Judges an arrival, which is shed only if it `can_shed`. If it starts a probe, the caller calls [`probe`] next.
    pub(super) fn judge(&self, now: u64, class: Priority, can_shed: bool) -> Judgement {
        self.with(|lag| lag.judge(now, class, can_shed))
    }

    /// The present lag, whether arrivals are shed for it, and how many per class were.
    pub(super) fn report(&self, now: u64) -> (Duration, bool, [u64; Priority::ALL.len()]) {
        self.with(|lag| (Duration::from_nanos(lag.present(now)), lag.is_shedding(now), lag.shed))
    }

    /// Lets the next arrival look again, if the last one had no runtime.
    pub(super) fn look_again(&self) {
        if self.with(|lag| lag.probe == Probe::Due) {
            self.watch(true);
        }
    }
}

impl Lag {
    fn judge(&mut self, now: u64, class: Priority, can_shed: bool) -> Judgement {
        let starts_probe = self.probe == Probe::Due;
        if starts_probe {
            self.probe = Probe::Spawned;
            self.runtime = present_runtime();
            if now.saturating_sub(self.measured_at) > IDLE {
                self.late_since = None;
            }
        }
        let queued_at = match self.probe {
            Probe::Queued(since) if self.runtime == present_runtime() => since.min(now),
            _ => now,
        };
        let is_shed = can_shed && now - queued_at > self.patience(class) && self.is_shedding(now);
        if is_shed {
            self.shed[class as usize] += 1;
        }
        Judgement { starts_probe, is_shed, queued_at }
    }

    /// The probe age above which a class's arrivals are shed: the target, half the target for the lowest class, and
    /// twice and four times the target for the higher ones.
    const fn patience(&self, class: Priority) -> u64 {
        self.target.saturating_mul(1 << class as u32) / 2
    }

    /// Whether arrivals that have waited for too long are shed.
    fn is_shedding(&self, now: u64) -> bool {
        let late_since = match self.probe {
            Probe::Queued(since) => Some(self.late_since.unwrap_or(since.saturating_add(self.target))),
            _ => self.late_since,
        };
        self.is_shedding && now.saturating_sub(self.late_at) <= INTERVAL
            || late_since.is_some_and(|since| now >= since.saturating_add(INTERVAL))
    }

    fn queue(&mut self, now: u64) {
        self.probe = Probe::Queued(now);
    }

    /// Notes the lag. Returns whether the next probe may come later.
    fn measure(&mut self, now: u64) -> bool {
        let Probe::Queued(since) = self.probe else { return true };
        self.is_shedding = self.is_shedding(now);
        (self.measured, self.measured_at) = (now.saturating_sub(since), now);
        if self.measured > self.target {
            self.late_since.get_or_insert(since.saturating_add(self.target));
            self.late_at = now;
        } else {
            self.late_since = None;
        }
        let may_rest = self.late_since.is_none() && !self.is_shedding;
        self.probe = if may_rest { Probe::Resting } else { Probe::Due };
        may_rest
    }

    /// The lag that the last probe has measured, unless that was long ago, or the queued probe's age.
    fn present(&self, now: u64) -> u64 {
        let measured = if now.saturating_sub(self.measured_at) <= INTERVAL { self.measured } else { 0 };
        match self.probe {
            Probe::Queued(since) => measured.max(now.saturating_sub(since)),
            _ => measured,
        }
    }
}

impl fmt::Debug for WorkerLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|lag| lag.fmt(f))
    }
}

fn present_runtime() -> Option<Id> {
    Some(Handle::try_current().ok()?.id())
}

/// Starts the probe that an arrival was told to start. Without a runtime there is none, and its worker cannot lag.
pub(super) fn probe(gate: &Arc<Gate>) {
    let under_way = UnderWay(Arc::clone(gate));
    match Handle::try_current() {
        Ok(runtime) => {
            // With one worker, the spawned task goes to the back of its queue at once.
            if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
                let now = gate.now();
                gate.worker_lag.with(|lag| lag.queue(now));
            }
            drop(runtime.spawn(measure(under_way)));
        }
        Err(_) => {
            drop(under_way);
            // Otherwise each arrival would look.
            gate.worker_lag.watch(false);
        }
    }
}

async fn measure(under_way: UnderWay) {
    let gate = &under_way.0;
    let now = gate.now();
    let is_at_the_back = gate.worker_lag.with(|lag| {
        let is_queued = matches!(lag.probe, Probe::Queued(_));
        if !is_queued {
            lag.queue(now);
        }
        is_queued
    });
    if !is_at_the_back {
        go_to_the_back().await;
    }
    // Tasks that other threads have spawned wait in the runtime's global queue, such as the first requests on
    // connections that `main` accepts. If there are any, no worker is idle. Tokio wakes this task when its worker has
    // found both queues empty, or after some 60 tasks.
    while Handle::current().metrics().global_queue_depth() > 0 {
        tokio::task::yield_now().await;
    }
    let now = gate.now();
    let may_rest = gate.worker_lag.with(|lag| lag.measure(now));
    if may_rest {
        gate.worker_lag.watch(false);
        tokio::time::sleep(REST).await;
    }
}

/// Waits for the tasks that are ready on this worker. By its own waker, a task goes to the back of the run queue, from
/// which an idle worker may take it. Tokio's `yield_now` keeps it on this worker until that has polled the driver.
async fn go_to_the_back() {
    let mut is_queued = false;
    poll_fn(|context| {
        if is_queued {
            return Poll::Ready(());
        }
        is_queued = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Makes the next probe due when this one is over, also if its runtime ends before.
struct UnderWay(Arc<Gate>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Tokio panics if its timer is off.
        let probe = if std::thread::panicking() { Probe::Off } else { Probe::Due };
        self.0.worker_lag.with(|lag| lag.probe = probe);
        self.0.worker_lag.watch(probe == Probe::Due);
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::Overload;
    use crate::limiter::{Ask, Limiter};
    use crate::values::PartitionKey;

    const MS: u64 = 1_000_000;
    const TARGET: u64 = 20 * MS;

    /// A probe that is late by this, with an arrival just before it, and the next one at its end.
    fn measure_lag(lag: &WorkerLag, now: &mut u64, late_by: u64) {
        assert!(lag.judge(*now, Priority::Normal, true).starts_probe);
        lag.with(|lag| lag.queue(*now));
        *now += late_by;
        lag.with(|lag| lag.measure(*now));
        lag.with(|lag| lag.probe = Probe::Due);
    }

    /// Judges an arrival in the class behind a probe with this age. The probe stays queued.
    fn is_shed(lag: &WorkerLag, now: u64, class: Priority, age: u64) -> bool {
        lag.with(|lag| lag.queue(now - age));
        lag.judge(now, class, true).is_shed
    }

    #[test]
    fn a_lag_that_stands_sheds() {
        let (lag, mut now) = (WorkerLag::new(TARGET), 0);
        // Late since 20 ms: until 120 ms, the queue may still drain.
        for _ in 0..4 {
            measure_lag(&lag, &mut now, 25 * MS);
            assert!(!is_shed(&lag, now, Priority::Normal, 0));
            lag.with(|lag| lag.probe = Probe::Due);
        }
        measure_lag(&lag, &mut now, 25 * MS);
        assert!(is_shed(&lag, now, Priority::Normal, TARGET + 1));
        assert!(!is_shed(&lag, now, Priority::Normal, TARGET), "it has not waited for too long itself");
        assert!(!lag.judge(now, Priority::Normal, false).is_shed);
        assert_eq!(lag.report(now), (Duration::from_millis(25), true, [0, 1, 0, 0]));
    }

    #[test]
    fn a_long_wait_sheds_during_the_probe() {
        let lag = WorkerLag::new(TARGET);
        assert!(lag.judge(0, Priority::Normal, true).starts_probe);
        lag.with(|lag| lag.queue(0));
        let judge = |now| lag.judge(now, Priority::Normal, true);
        assert!(!judge(119 * MS).is_shed && judge(120 * MS).is_shed);
        assert_eq!(judge(120 * MS).queued_at, 0);
    }

    #[test]
    fn higher_classes_are_shed_later() {
        let (lag, mut now) = (WorkerLag::new(TARGET), 0);
        measure_lag(&lag, &mut now, 200 * MS);
        for (class, patience) in Priority::ALL.into_iter().zip([10, 20, 40, 80]) {
            assert!(!is_shed(&lag, now, class, patience * MS), "{class:?}");
            assert!(is_shed(&lag, now, class, patience * MS + 1), "{class:?}");
        }
        assert_eq!(lag.report(now).2, [1; 4]);
    }

    #[test]
    fn an_idle_worker_ends_the_interval() {
        let (lag, mut now) = (WorkerLag::new(TARGET), 0);
        for _ in 0..100 {
            measure_lag(&lag, &mut now, 60 * MS);
            now += IDLE + 1;
        }
        measure_lag(&lag, &mut now, 60 * MS);
        assert!(!lag.with(|lag| lag.is_shedding(now)));
    }

    /// The interval begins with the last late probe.
    #[test]
    fn shedding_ends_after_an_interval() {
        let (lag, mut now) = (WorkerLag::new(TARGET), 0);
        measure_lag(&lag, &mut now, 200 * MS);
        let last_late = now;
        while now < last_late + INTERVAL {
            assert!(lag.with(|lag| lag.is_shedding(now)));
            measure_lag(&lag, &mut now, 10 * MS);
        }
        measure_lag(&lag, &mut now, 10 * MS);
        assert!(!lag.with(|lag| lag.is_shedding(now)));
        assert!(!is_shed(&lag, now, Priority::Normal, TARGET + 1));
    }

    /// A task in a simulated worker's run queue.
    enum Task {
        Request { came: u64 },
        Probe { has_run: bool },
    }

    /// One worker that computes 5 ms for a request and rejects in 50 µs, for ten seconds. Returns how many requests
    /// were served and shed after the first second, and the longest wait of the served ones until their work began.
    fn simulate(between_arrivals: u64, is_protected: bool) -> (u64, u64, u64) {
        let lag = WorkerLag::new(TARGET);
        let mut queue = VecDeque::new();
        let (mut now, mut next, mut rests_until) = (0, 0, None);
        let (mut served, mut shed, mut longest) = (0, 0, 0);
        while now < 10_000 * MS {
            while next <= now {
                queue.push_back(Task::Request { came: next });
                next += between_arrivals;
            }
            if rests_until.is_some_and(|until| until <= now) {
                rests_until = None;
                lag.with(|lag| lag.probe = Probe::Due);
            }
            let counts = u64::from(now >= 1_000 * MS);
            match queue.pop_front() {
                None => now = next,
                Some(Task::Request { came }) => {
                    let judgement = lag.judge(now, Priority::Normal, is_protected);
                    if judgement.starts_probe {
                        // A task that was spawned runs next.
                        queue.push_front(Task::Probe { has_run: false });
                    }
                    assert!(judgement.queued_at >= came, "no request has waited for less than its probe");
                    if judgement.is_shed {
                        (shed, now) = (shed + counts, now + MS / 20);
                    } else {
                        served += counts;
                        longest = longest.max((now - came) * counts);
                        now += 5 * MS;
                    }
                }
                Some(Task::Probe { has_run: false }) => {
                    lag.with(|lag| lag.queue(now));
                    queue.push_back(Task::Probe { has_run: true });
                }
                Some(Task::Probe { has_run: true }) => {
                    if lag.with(|lag| lag.measure(now)) {
                        rests_until = Some(now + IDLE);
                    }
                }
            }
        }
        (served, shed, longest)
    }

    #[test]
    fn workers_stay_busy_with_short_queues() {
        let capacity = 9 * 200;
        for times in [2, 5, 10] {
            let (served, shed, longest) = simulate(5 * MS / times, true);
            // A tenth of the time goes into rejections at ten times the capacity.
            assert!(served * 100 >= capacity * (99 - times), "{served} at {times} times the capacity");
            assert!(served + shed + 20 >= capacity * times, "none is forgotten: {served} and {shed}");
            assert!(longest <= 60 * MS, "{longest} at {times} times the capacity");
        }
        assert!(simulate(MS / 2, false).2 > 8_000 * MS, "without, requests wait for ever");
    }

    #[test]
    fn nothing_is_shed_below_the_capacity() {
        let (served, shed, _) = simulate(5 * MS * 10 / 8, true);
        assert_eq!((served, shed), (1_440, 0));
    }

    fn pass(overload: &Overload) {
        let (key, priority) = (PartitionKey::from("a"), Priority::Normal);
        let decision = overload.decide(&Ask::charge(&key, 1).prioritized(priority)).at_once().unwrap();
        assert!(decision.is_allowed());
        overload.refund(&Ask::charge(&key, 1), decision.receipt(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_measures_no_lag() {
        let overload = Overload::new().queue_target(Duration::ZERO);
        for _ in 0..1_000 {
            pass(&overload);
            tokio::task::yield_now().await;
            tokio::time::advance(Duration::from_millis(500)).await;
            pass(&overload);
            tokio::task::yield_now().await;
        }
        assert_eq!(overload.stats().overload.unwrap().worker_lag, Duration::ZERO);
        assert!(!overload.stats().overload.unwrap().is_overloaded);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_servers_have_no_task() {
        let overload = Overload::new();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        for _ in 0..3 {
            assert!(overload.gate().worker_lag.is_watched());
            pass(&overload);
            pass(&overload);
            assert_eq!(tasks(), 1);
            tokio::time::sleep(REST / 2).await;
            assert!(!overload.gate().worker_lag.is_watched());
            pass(&overload);
            assert_eq!(tasks(), 1, "it rests");
            tokio::time::sleep(REST).await;
            assert_eq!(tasks(), 0);
        }
    }

    #[test]
    fn the_next_runtime_measures() {
        let overload = Overload::new();
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async { pass(&overload) });
            assert!(overload.gate().worker_lag.with(|lag| matches!(lag.probe, Probe::Queued(_))));
        };
        for _ in 0..2 {
            run();
            assert!(overload.gate().worker_lag.is_watched(), "its runtime is gone, and the probe with it");
        }
        // Without a runtime, arrivals look once, until the statistics are read.
        pass(&overload);
        assert!(!overload.gate().worker_lag.is_watched());
        let _ = overload.stats();
        run();
    }

    /// The probe waits in a busy runtime's queue.
    #[test]
    fn the_lag_of_another_runtime_sheds_nothing() {
        let overload = Overload::new();
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (busy, idle) = (runtime(), runtime());
        busy.block_on(async { pass(&overload) });
        idle.block_on(async {
            tokio::time::advance(Duration::from_secs(1)).await;
            pass(&overload);
        });
        drop(busy);
    }

    #[test]
    fn a_runtime_without_a_timer_measures_once() {
        let overload = Overload::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for _ in 0..10 {
                pass(&overload);
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
        });
        let _ = overload.stats();
        assert!(!overload.gate().worker_lag.is_watched());
        assert!(overload.gate().worker_lag.with(|lag| lag.probe == Probe::Off));
    }
}
