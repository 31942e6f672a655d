//! [`RedisQueue`]: its bounds, and how it answers the modes of a question.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tower_sluice::internal::redis::Abilities as _;
use tower_sluice::internal::redis::Marks as _;
use tower_sluice::internal::redis::WaitBounds;
use tower_sluice::limiter::{Answer, Ask, Backlog, Description, Inheritance, IntoLimiter, Mode, Receipt, Terms};
use tower_sluice::store::{Stats, WhenFull};
use tower_sluice::{Decision, LeakyQueue, Limiter, LimiterError, PartitionKey, Quota};

use super::process::ProcessQueue;
use super::script::QueueScript;
use crate::connection::Redis;
use crate::script::UnfitQuota;
use crate::store::{RedisReports, in_background};

/// A [`LeakyQueue`] that many processes share, on Redis (6.2 or later) or Valkey: the requests of a key depart one by
/// one at the quota's rate over all processes.
///
/// A request calls Redis once, on arrival. It gets a reservation, with the time at which to depart, or is rejected: if
/// [`max_queue`](Self::max_queue) intervals are reserved already, or if its turn would come later than
/// [`max_wait`](Self::max_wait). The rejection says when a retry would be accepted, and until then this process rejects
/// without a call. A request with a reservation waits in this process, on tokio's timer, without further calls.
///
/// The documentation of `LeakyQueue` on [bursts](LeakyQueue#bursts), on [how many to let
/// wait](LeakyQueue#how-many-to-let-wait), on queues [behind a proxy](LeakyQueue#behind-a-proxy) and on
/// [uploads](LeakyQueue#uploads) applies here, too. The differences:
///
/// | | `LeakyQueue` | `RedisQueue` |
/// |---|---|---|
/// | the rate holds for | a process | all processes with this name on this Redis |
/// | a waiter leaves before its turn | all behind it move up | its reservation goes to the next arrival |
/// | order | the oldest first | the oldest first, except for such reservations |
/// | [peek](tower_sluice::limiter::Mode::Peek) | yes | no |
///
/// ```no_run
/// use std::time::Duration;
/// use tower_sluice::{Policy, Quota};
/// use tower_sluice_redis::{Redis, RedisQueue};
///
/// let redis = Redis::open("redis://10.0.0.7:6379")?;
/// // All servers together call the partner ten times per second.
/// let queue = RedisQueue::new(&redis, "partner", Quota::per_second(10));
/// let policy = Policy::new("partner", queue.max_queue(50).max_wait(Duration::from_secs(5)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Order and accuracy
///
/// The order of arrival at Redis is the order of departure, to the microsecond of its clock and at exact intervals. A
/// process counts the wait from when the answer came, so no request departs before its turn. It is late by the time
/// that the answer was under way, and by up to one millisecond of tokio's timer. So if the second of two successive
/// departures is less late than the first, they are closer than an interval, by the difference. These errors do not add
/// up.
///
/// A request of cost *c* delays those behind it for *c* intervals, and departs when its cost fits into the burst, as in
/// a `LeakyQueue`. A request of cost zero does not wait, and is not counted.
///
/// If the server's clock is set back, no request departs on a key with reservations until the clock has caught up with
/// them: for as long as the clock was set back, and at most for a full queue and the burst. Rejections say so.
///
/// The numbers of a decision (remaining, and the time until reset) are as of the arrival. Its
/// [`delay`](Decision::delay) is the wait since the answer came.
///
/// This process remembers the backlog of a key from when it last called Redis (a negative cache), and by itself rejects
/// requests that the server would certainly reject: each by its own cost and patience, because other processes can only
/// make the backlog longer. The advertised wait is then computed from the remembered backlog. It may be too long by the
/// time that the remembered answer was under way. It is never too short, unless requests have joined elsewhere
/// meanwhile: the retry then calls Redis.
///
/// A backlog that becomes shorter elsewhere is noticed late: while a key is known to be full, one request per half a
/// second calls Redis, and the others are rejected without a call. This applies to a reservation that another process
/// returns, and to a key that is deleted on the server. A reservation that this process returns is noticed with the
/// answer to that call, except by a request whose own answer is just on its way.
///
/// # Leaving before the turn
///
/// A waiter that is dropped returns its reservation, in the background and by one more call. If it is the last one of
/// its key, the backlog becomes shorter. Otherwise there is a hole, because those behind it know already when to
/// depart. The next arrival that fits into the hole takes it, and so departs before requests that came earlier; it
/// takes no time from them. So an arrival waits at most for the intervals of the requests that wait when it comes, and
/// one more. Clients that come and go cannot starve it: with 15 per second that leave after 0.3 s, at 10 per second, 9
/// of 9 patient clients are served, within 0.61 s (`crates/redis/tests/redis/queue/leaving.rs`). When a queue is closed, or a
/// process shuts down in order, all its reservations are returned.
///
/// What remains:
///
/// - Part of a hole may have passed; the rest must be wide enough for the cost. A reservation that is returned less
///   than an interval before it would have been paid for is lost.
/// - 64 holes per key are remembered, neighbours counting as one. Beyond that, the holes that pass first are lost.
/// - A reservation is lost if the call that returns it fails, if the answer that granted it got lost, or if its process
///   dies or its runtime is shut down. A lost reservation delays later arrivals by its cost in intervals. There are
///   never more of them than fit into `max_queue` and `max_wait`, and they never let too many requests in.
/// - Requests that wait already do not move up, unlike in a `LeakyQueue`.
///
/// If unrelated clients share a key, put a [bucket](tower_sluice::algorithm::TokenBucket) per client [before
/// it](LeakyQueue#clients-that-come-and-go): they can keep its queue full, as with a `LeakyQueue`.
///
/// # Several runtimes
///
/// Each waiter sleeps on the timer of the runtime that polls it, and each runtime has its own connection to Redis. So a
/// runtime that is blocked, or that is not driven, delays its own waiters, and no others. Reservations of waiters that
/// leave are returned when that runtime continues.
///
/// # When Redis is out of reach
///
/// An arrival that must call Redis fails within the [timeout](crate::RedisBuilder::timeout), and at once
/// while the circuit breaker is open. Requests that wait already are not affected. The [local
/// fallback](tower_sluice::FailureMode::LocalFallback) is a `LeakyQueue` of this process alone, with the same quota and
/// bounds. For each reservation that Redis grants, the fallback makes one, too; so arrivals during an outage line up
/// behind the requests that wait here. The fallback knows nothing of other processes, and it keeps the reservations of
/// waiters that left. Requests that it admits are not reported to Redis later.
///
/// When a primary fails and a replica takes over, reservations that were not replicated are granted a second time: the
/// reservations of one replication lag, and at most burst and `max_queue` of a key.
///
/// # Memory and cost
///
/// One round trip per arrival that gets a reservation. A flood of rejected requests costs about two calls per key and
/// second, and otherwise a look at a table in this process, of 0.7 MiB for the last 8,192 keys with a backlog. Arrivals
/// of the same cost and patience share a call for up to 32 of them while another is in flight, as the decisions of a
/// [`RedisStore`](crate::RedisStore#cost) do, but not in a cluster. Until the first answer, Redis is
/// asked about all requests that arrive for a full queue.
///
/// Until its backlog is paid, a key takes some 150 bytes on the server, for any number of waiters, and some 40 for each
/// hole. Here, at most [`max_waiters`](Self::max_waiters) wait at a time, each in about 1 kB, on a timer of its own. No
/// task runs for it, and no lock is held.
///
/// # Cancel safety
///
/// The future may be dropped at any time; its reservation is [returned](#leaving-before-the-turn).
///
/// # Errors
///
/// A [`LimiterError`] whose source is the [`Fault`](crate::Fault) if Redis gives no
/// answer, and one without a source if the queue is [closed](Self::close), or if a request that may have to wait is
/// decided outside of a tokio runtime.
#[doc(alias("leaky bucket", "distributed queue"))]
pub struct RedisQueue {
    redis: Redis,
    name: Box<str>,
    quota: Quota,
    bounds: WaitBounds,
    shared: Arc<ProcessQueue>,
}

impl RedisQueue {
    /// Creates a queue that leaks at the quota's rate, shared by all processes that use this `name`; other limiters on
    /// `redis` need other names. Up to `limit` requests of a key wait, for at most 30 seconds each; in this process, up
    /// to 65,536 over all keys.
    ///
    /// # Panics
    ///
    /// If Redis cannot [keep](Self::check_fit) the quota.
    #[must_use]
    #[track_caller]
    pub fn new(redis: &Redis, name: &str, quota: Quota) -> Self {
        assert!(
            !quota.is_suspended(),
            "a suspended quota is for keys, and a limiter needs another; return it from `quota_fn`, or ask under it"
        );
        Self::build(redis, name, quota, WaitBounds::of_queue(&quota))
    }

    #[track_caller]
    fn build(redis: &Redis, name: &str, quota: Quota, bounds: WaitBounds) -> Self {
        let WaitBounds { max_queue, max_wait, max_waiters } = bounds;
        let script = match QueueScript::new(&quota, max_queue, max_wait) {
            Ok(script) => script,
            Err(problem) => panic!("{problem}"),
        };
        // While Redis fails, keys beyond share the FIFOs of others, which is better than no limit.
        let fallback = LeakyQueue::new(quota)
            .max_queue(max_queue)
            .max_wait(max_wait)
            .max_waiters(max_waiters)
            .when_full(WhenFull::Overflow);
        let shared = Arc::new(ProcessQueue::new(redis, name, script, fallback, max_waiters));
        Self { redis: redis.clone(), name: name.into(), quota, bounds, shared }
    }

    #[track_caller]
    fn with(mut self, set: impl FnOnce(&mut WaitBounds)) -> Self {
        set(&mut self.bounds);
        Self::build(&self.redis, &self.name, self.quota, self.bounds)
    }

    /// Sets how many requests of one key may wait over all processes, if each costs 1: the longest wait is that number
    /// of intervals. Zero rejects requests that cannot depart at once.
    ///
    /// # Panics
    ///
    /// If Redis cannot [keep](Self::check_fit) a schedule of that length.
    #[must_use]
    #[track_caller]
    pub fn max_queue(self, waiters: usize) -> Self {
        self.with(|bounds| bounds.max_queue = waiters)
    }

    /// Sets the longest wait of a request.
    ///
    /// Of this bound and [`max_queue`](Self::max_queue), only the stricter one is ever met. So raise the `max_queue`,
    /// too, if requests should wait longer than a period.
    ///
    /// # Panics
    ///
    /// If Redis cannot [keep](Self::check_fit) a schedule of that length.
    #[must_use]
    #[track_caller]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|bounds| bounds.max_wait = max_wait)
    }

    /// Sets how many requests may wait in this process, for their turns or for Redis, over all keys together: the bound
    /// on memory. An arrival beyond is admitted only if it may depart at once, and otherwise rejected with the time at
    /// which it would have been its turn.
    #[must_use]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(|bounds| bounds.max_waiters = waiters)
    }

    /// Checks whether Redis can keep a queue with these bounds, set in any order: for callers that read them from a
    /// configuration.
    ///
    /// # Errors
    ///
    /// If it would take 2^51 microseconds, about 71 years, to pay for a full queue and one more request of the greatest
    /// [cost](tower_sluice::limiter::Description::max_cost): bursts and waits of up to 35 years are fine. And if a
    /// limit above 4.5 × 10^12 has a period that is no whole number of microseconds, so that it is exact only in
    /// [too many parts](UnfitQuota::TooManyParts) of one.
    pub fn check_fit(quota: &Quota, max_queue: usize, max_wait: Duration) -> Result<(), UnfitQuota> {
        // A queue has the default bounds before others are set.
        let WaitBounds { max_queue: default_max_queue, max_wait: default_max_wait, .. } = WaitBounds::of_queue(quota);
        QueueScript::new(quota, max_queue.max(default_max_queue), max_wait.max(default_max_wait)).map(drop)
    }

    /// Ends all waits in this process at once with a [`LimiterError`], and answers later arrivals
    /// with one, too. Call it when a server shuts down. The reservations are [returned](#leaving-before-the-turn). A
    /// second call does nothing.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Returns how many requests are waiting in this process, for their turns or for Redis, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }
}

impl RedisQueue {
    /// Lets the request wait in the queue of this process alone.
    fn decide_fallback(&self, ask: &Ask<'_>) -> Answer {
        let marked = |decision: Decision| decision.with_receipt(decision.receipt().mark_fallback());
        let (slot, patience) = match self.shared.take_slot(ask.patience()) {
            // The fallback takes off a nanosecond itself.
            (Some(slot), _) => (Some(slot), ask.patience()),
            (None, at_once) => (None, at_once),
        };
        match self.shared.fallback.decide(&ask.to(Mode::Charge).within(patience)) {
            Answer::Ready(answer) => Answer::Ready(answer.map(marked)),
            Answer::Pending(turn) => Answer::Pending(Box::pin(async move {
                let _slot = slot;
                turn.await.map(marked)
            })),
        }
    }

    /// Returns owned parts of the question for a future, which outlives the question.
    fn parts(&self, ask: &Ask<'_>) -> (Arc<ProcessQueue>, PartitionKey, u64) {
        (Arc::clone(&self.shared), ask.key().clone(), ask.cost())
    }

    /// Lets the request wait for its turn.
    fn decide_turn(&self, ask: &Ask<'_>) -> Answer {
        let ((shared, key, cost), patience) = (self.parts(ask), ask.patience());
        Answer::Pending(Box::pin(async move {
            let turn = pin!(Arc::clone(&shared).wait_turn(key, cost, patience));
            shared.unless_closed(turn).await
        }))
    }
}

impl Limiter for RedisQueue {
    /// The [patience](Ask::within) of a request bounds its wait as [`max_wait`](Self::max_wait) does, from its arrival
    /// at Redis on; a turn that comes when the patience ends comes too late.
    ///
    /// As a [fallback](Mode::Fallback), it waits in the queue of this process alone.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Fallback => self.decide_fallback(ask),
            Mode::Shadow => {
                let (shared, key, cost) = self.parts(ask);
                Answer::Pending(Box::pin(
                    async move { shared.unless_closed(pin!(shared.join(&key, cost, None))).await },
                ))
            }
            Mode::UpTo => {
                let (shared, key, cost) = self.parts(ask);
                in_background(async move { shared.unless_closed(pin!(shared.join_up_to(&key, cost))).await })
            }
            Mode::Charge => self.decide_turn(ask),
            mode => LimiterError::unsupported(mode).into(),
        }
    }

    /// Refunds in the background, by one call.
    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        if receipt.is_none() {
            return;
        }
        match (receipt.unmark_fallback(), Handle::try_current()) {
            (Some(receipt), _) => self.shared.fallback.refund(charged, receipt, units),
            (None, Ok(runtime)) => {
                Arc::clone(&self.shared).refund_in_background(&runtime, charged.key().clone(), units, receipt);
            }
            (None, Err(_)) => {}
        }
    }

    /// Advertises a bucket that holds all requests that may depart or wait at once, as a [`LeakyQueue`] does.
    fn describe(&self) -> Description {
        Description::new()
            .advertising(Terms::bucket(self.quota.burst(self.shared.script.limit())))
            .admitting_at_most(self.shared.script.max_cost())
            .delaying()
            .answering(Mode::Shadow)
            .answering(Mode::UpTo)
            .answering(Mode::Fallback)
            .sharing_reports(RedisReports::new(&self.redis, self.shared.names()))
    }

    /// Inherits from a queue of this name on the same [`Redis`]. Requests that wait depart as scheduled; only the other
    /// queue counts them, and ends their waits when [it is closed](Self::close).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let predecessor = predecessor.downcast_ref::<Self>()?;
        if self.redis.id() != predecessor.redis.id() || self.name != predecessor.name {
            return None;
        }
        let _ = self.shared.fallback.inherit(&predecessor.shared.fallback);
        Some(Inheritance::in_place())
    }

    /// See [`RedisQueue::close`].
    fn close(&self) {
        self.close();
    }

    /// Reports how many requests wait, without the time of the next departure: each waits on a timer of its own.
    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.backlog = Some(Backlog::new(self.waiting(), None));
        stats.nodes = self.redis.health();
        stats
    }
}

impl IntoLimiter for RedisQueue {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for RedisQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { redis, name, quota, bounds: WaitBounds { max_queue, max_wait, max_waiters }, shared } = self;
        f.debug_struct("RedisQueue")
            .field("redis", redis)
            .field("name", name)
            .field("quota", quota)
            .field("max_queue", max_queue)
            .field("max_wait", max_wait)
            .field("max_waiters", max_waiters)
            .field("waiting", &shared.waiting())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second per request: a full queue takes 2^51 µs less 12 s to pay for if no request may wait, and 30 s more with
    /// the default bounds.
    #[test]
    fn check_fit_covers_the_capacity_that_a_queue_has_before_another_is_set() {
        let longest = (1 << 51) / 1_000_000;
        let quota = Quota::per_minute(60).burst(longest - 42);
        let WaitBounds { max_queue, max_wait, .. } = WaitBounds::of_queue(&quota);
        let fits = |max_queue| QueueScript::new(&quota, max_queue, max_wait).is_ok();
        assert!(fits(0) && !fits(max_queue));
        assert!(RedisQueue::check_fit(&quota, 0, max_wait).is_err(), "`RedisQueue::new` would panic");
    }
}
