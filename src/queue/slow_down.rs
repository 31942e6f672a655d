//! [`SlowDown`]: delays that grow with a key's use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::local::LocalQueue;
use super::schedule::{GrowingDelay, QueueBounds};
use crate::limiter::{IntoLimiter, Limiter, WaitBounds};
use crate::store::{Stats, WhenFull};
use crate::values::time::{duration_from_nanos, nanos_of};
use crate::values::{Answer, Ask, Description, Inheritance, Quota, Receipt};

/// Slows a key down before it is rejected: some requests are free, further ones wait longer and longer, and only beyond
/// the quota are they rejected.
///
/// Each key has a level. A request raises it by its cost, and it leaks at the quota's rate. The level after the request
/// decides, rounded up to whole units:
///
/// | level | the request |
/// |---|---|
/// | at most [`free`](Self::free) | departs at once |
/// | `free` + *k* | waits for *k* × [`step`](Self::step), but not longer than [`max_delay`](Self::max_delay) |
/// | above the quota's [burst](Quota::max_burst), which is the limit unless set | is rejected, and raises no level; the rejection carries the exact time after which a retry would be accepted |
///
/// So if requests come at the same time, the *n*-th waits for (*n* − `free`) steps. A key that keeps to the quota's
/// rate stays at a level of about one, and is not delayed. A key that sends faster is delayed more and more. A script
/// that waits for each response before it sends the next request settles at the quota's rate, and gets no rejection, if
/// its delay can grow to `period / limit`.
///
/// - Arrival order is departure order: a request departs no earlier than the waiters of its key that came before, even
///   if its own delay would be shorter. Its wait is still at most `max_delay`. Keys do not delay one another.
/// - A request's turn is fixed when it arrives. A request that would have to wait for longer than its
///   [patience](Ask::within) is rejected on arrival, with the time after which its wait is short enough.
/// - A waiter that is dropped (its client disconnected, its deadline passed) leaves at once, and the part of its charge
///   that has not leaked yet is returned. Those behind it keep their turns.
/// - Tokio's timer wakes up to a millisecond late.
///
/// A cost above the burst is never admitted. A request of cost zero does not wait, and is not counted.
///
/// # Which limiter to take
///
/// Take this one against clients that send too much and should notice it gently: scrapers, password guesses, scripts in
/// a loop. The service still sees every request. To protect the service, space requests out evenly with a
/// [`LeakyQueue`](crate::LeakyQueue), whose departures keep the rate: here, all the key's requests that wait for
/// `max_delay` depart as fast as they came.
///
/// A waiting request holds its connection, its headers and the readiness of the inner service, at most
/// [`max_waiters`](Self::max_waiters) over all keys. Keep `max_delay` below the timeouts of your clients and of the
/// proxies in front, often 60 seconds.
///
/// There is no counterpart on Redis: processes that share no memory each have their own levels.
///
/// # Several runtimes, cancel safety, errors
///
/// As for a [`LeakyQueue`](crate::LeakyQueue#several-runtimes), which uses the same machinery.
///
/// # Refunds
///
/// A [refund](crate::limiter::Permit::refund) lowers the level by the part of the charge that has not leaked yet. It
/// shortens the delays of later requests. Waiters keep theirs.
///
/// # Live changes
///
/// A limiter that [inherits](Limiter::inherit) from another `SlowDown` shares its levels and waiters. From then on,
/// both follow the new one's rules. A level stays the same in units. Waiters keep their turns; if `max_delay` is
/// shorter now, they depart once they have waited for that time. No waiter is rejected. A limiter that was
/// [closed](Self::close) stays closed.
///
/// # Memory and cost
///
/// As for a [`LeakyQueue`](crate::LeakyQueue#memory-and-cost). Per key, at most the burst waits, plus the units that
/// leak during `max_delay`. A key is remembered until its level is zero: at 100 per minute, up to a minute.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LimiterExt, PartitionKey, Quota, SlowDown};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let slow = SlowDown::new(Quota::per_minute(100))
///     .free(50)
///     .step(Duration::from_millis(200))
///     .max_delay(Duration::from_secs(5));
/// let key = PartitionKey::from("scraper");
///
/// // All at once, and each task waits for its turn.
/// let all: Vec<_> = (0..101).map(|_| slow.acquire(&key, 1)).collect();
/// let mut delays = Vec::new();
/// for request in all {
///     let permit = request.await.unwrap();
///     delays.push(permit.is_allowed().then(|| permit.delay().as_millis()));
/// }
/// assert_eq!(delays[49..53], [Some(0), Some(200), Some(400), Some(600)]);
/// assert_eq!(delays[98..], [Some(5_000), Some(5_000), None]);
/// # }
/// ```
#[must_use]
#[doc(alias("throttle", "tarpit", "delay", "express-slow-down"))]
pub struct SlowDown {
    queue: LocalQueue,
}

impl SlowDown {
    /// Creates a limiter that admits the quota's burst at once, and its rate from then on. Half of the burst is free,
    /// each unit beyond waits for a second more, and no request waits for longer than 30 seconds. Over all keys, 65,536
    /// requests wait, and 65,536 keys are remembered.
    pub fn new(quota: Quota) -> Self {
        let bounds = QueueBounds::new(WaitBounds::new(usize::MAX));
        let delay = GrowingDelay { free: quota.max_burst() / 2, step: nanos_of(Duration::from_secs(1)) };
        Self { queue: LocalQueue::new(quota, bounds, Some(delay)) }
    }

    fn with_bound(self, set: impl FnOnce(&mut QueueBounds)) -> Self {
        Self { queue: self.queue.with(|queue| set(&mut queue.bounds)) }
    }

    fn with_delay(self, set: impl FnOnce(&mut GrowingDelay)) -> Self {
        let queue = self.queue.with(|queue| {
            if let Some(delay) = &mut queue.delay {
                set(delay);
            }
        });
        Self { queue }
    }

    /// Sets how many units per key are not delayed. With zero, every request waits; with the burst or more, no request
    /// does.
    pub fn free(self, units: u64) -> Self {
        self.with_delay(|delay| delay.free = units)
    }

    /// Sets by how much each unit beyond the [free](Self::free) ones lengthens the delay.
    pub fn step(self, step: Duration) -> Self {
        self.with_delay(|delay| delay.step = nanos_of(step))
    }

    /// Sets a request's longest delay. Requests that would be delayed for longer wait for this time.
    pub fn max_delay(self, max_delay: Duration) -> Self {
        self.with_bound(|bounds| bounds.waits.max_wait = max_delay)
    }

    /// Sets how many requests may wait over all keys together: the bound on memory for waiters. Beyond it, requests
    /// that would have to wait are rejected.
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with_bound(|bounds| bounds.waits.max_waiters = waiters)
    }

    /// Sets how many keys are remembered at a time, each until its level is zero, in up to 200 bytes.
    pub fn max_keys(self, keys: usize) -> Self {
        self.with_bound(|bounds| bounds.max_keys = keys)
    }

    /// Sets how a request of a new key is handled while [`max_keys`](Self::max_keys) keys are remembered: see
    /// [`LeakyQueue::when_full`](crate::LeakyQueue::when_full). Unless set, it is rejected.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        self.with_bound(|bounds| bounds.when_full = when_full)
    }

    /// Ends all waits at once with a [`LimiterError`](crate::LimiterError), and answers later arrivals with one, too:
    /// see [`LeakyQueue::close`](crate::LeakyQueue::close).
    pub fn close(&self) {
        self.queue.close();
    }

    /// Returns how many requests are waiting, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    /// For this crate's tests: panics if an invariant of the schedule is broken.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.queue.check_invariants();
    }
}

impl Limiter for SlowDown {
    /// A [shadow](crate::limiter::Mode::Shadow) joins without a future, so that later requests wait exactly as they
    /// would behind a request.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.queue.decide(ask)
    }

    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        self.queue.refund(charged, receipt, units);
    }

    /// Advertises a bucket with the quota.
    fn describe(&self) -> Description {
        self.queue.describe()
    }

    /// See [`SlowDown::close`].
    fn close(&self) {
        self.close();
    }

    /// See [live changes](Self#live-changes).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        self.queue.inherit(&predecessor.downcast_ref::<Self>()?.queue)
    }

    /// Counts exactly how many keys are remembered, as a [`LeakyQueue`](crate::LeakyQueue) does.
    fn stats(&self) -> Stats {
        self.queue.stats()
    }
}

impl IntoLimiter for SlowDown {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for SlowDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalQueue { quota, bounds, delay, .. } = &self.queue;
        let QueueBounds { waits: WaitBounds { max_wait, max_waiters, .. }, max_keys, when_full } = bounds;
        f.debug_struct("SlowDown")
            .field("quota", quota)
            .field("free", &delay.map(|delay| delay.free))
            .field("step", &delay.map(|delay| duration_from_nanos(delay.step.into())))
            .field("max_delay", max_wait)
            .field("max_waiters", max_waiters)
            .field("max_keys", max_keys)
            .field("when_full", when_full)
            .field("waiting", &self.waiting())
            .finish()
    }
}
