//! [`SharedQueue`]: its bounds, and how it answers the modes of a question.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::process::ProcessQueue;
use super::terms::QueueTerms;
use crate::limiter::{IntoLimiter, Limiter, WaitBounds};
use crate::queue::LeakyQueue;
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::shared_reports::sharing_reports;
use crate::store::remote::{Departures, GaveUp};
use crate::store::{Stats, WhenFull};
use crate::values::{
    Answer, Ask, Backlog, Decision, Description, Inheritance, LimiterError, Mode, PartitionKey, Quota, Receipt, Terms,
};

/// A [`LeakyQueue`] that many processes share: a key's requests depart one by one at the quota's rate over all
/// processes.
///
/// It works on Redis ([`Redis`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.Redis.html)), on
/// PostgreSQL (the [records](https://docs.rs/tower-sluice-postgres/latest/tower_sluice_postgres/struct.Postgres.html#method.records)
/// of `Postgres`), on DynamoDB (the records of `Dynamo`), on a [key-value
/// store](crate::store::remote::KeyValueRecords),
/// and on your own server ([`Departures`]).
///
/// A request asks the server once, on arrival. It gets a reservation, with the time at which to depart, or is rejected:
/// if [`max_queue`](Self::max_queue) intervals are reserved already, or if its turn would come later than
/// [`max_wait`](Self::max_wait). The rejection says when a retry would be accepted, and until then this process rejects
/// without a call. A request with a reservation waits in this process, on tokio's timer, without further calls.
///
/// `LeakyQueue`'s documentation on [bursts](LeakyQueue#bursts), on [how many to let
/// wait](LeakyQueue#how-many-to-let-wait), on queues [behind a proxy](LeakyQueue#behind-a-proxy) and on
/// [uploads](LeakyQueue#uploads) applies here, too. The differences:
///
/// | | `LeakyQueue` | `SharedQueue` |
/// |---|---|---|
/// | the rate holds for | a process | all processes with this name on this server |
/// | a waiter leaves before its turn | all behind it move up | its reservation goes to the next arrival |
/// | order | the oldest first | the oldest first, except for such reservations |
/// | [peek](crate::limiter::Mode::Peek) | yes | no |
///
/// ```
/// # #[derive(Default)]
/// # struct Store(std::sync::Mutex<std::collections::HashMap<String, Vec<u8>>>);
/// # impl tower_sluice::store::remote::KeyValue for Store {
/// #     type Error = std::convert::Infallible;
/// #     async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Self::Error> {
/// #         Ok(self.0.lock().unwrap().get(key).cloned())
/// #     }
/// #     async fn compare_and_swap(
/// #         &self, key: &str, old: Option<&[u8]>, new: Option<&[u8]>, _: std::time::Duration,
/// #     ) -> Result<bool, Self::Error> {
/// #         let mut values = self.0.lock().unwrap();
/// #         let is_old = values.get(key).map(Vec::as_slice) == old;
/// #         match new {
/// #             Some(new) if is_old => drop(values.insert(key.into(), new.into())),
/// #             None if is_old => drop(values.remove(key)),
/// #             _ => {}
/// #         }
/// #         Ok(is_old)
/// #     }
/// # }
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tower_sluice::store::remote::KeyValueRecords;
/// use tower_sluice::{LimiterExt, PartitionKey, Quota, SharedQueue};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// // `Store` is a `KeyValue` store of your own.
/// let records = KeyValueRecords::new(Arc::new(Store::default()), "limits");
/// // All servers together call the partner ten times per second.
/// let queue = SharedQueue::new(records, "partner", Quota::per_second(10));
/// let queue = queue.max_queue(50).max_wait(Duration::from_secs(5));
///
/// let first = queue.acquire(&PartitionKey::SHARED, 1).await.unwrap();
/// assert_eq!(first.delay(), Duration::ZERO);
/// let second = queue.acquire(&PartitionKey::SHARED, 1).await.unwrap();
/// assert!(second.delay() >= Duration::from_millis(90));
/// # }
/// ```
///
/// # Order and accuracy
///
/// Requests depart in the order in which they reach the server, at exact intervals by the server's clock: to the
/// nanosecond, and on Redis to the microsecond. A process counts the wait from when it saw the server's time, so no
/// request departs before its turn. A departure is late by the time that this answer was under way, and by up to one
/// millisecond due to tokio's timer. So if the second of two successive departures is less late than the first, they
/// are closer than an interval, by the difference. These errors do not add up. On a key-value store, the processes' own
/// clocks count, which must be [synchronised](crate::store::remote::KeyValueRecords#time): their difference adds to
/// this.
///
/// A request of cost *c* delays those behind it for *c* intervals, and departs when its cost fits into the burst, as in
/// a `LeakyQueue`. A request of cost zero does not wait, and is not counted.
///
/// If the server's clock is set back, no request departs on a key with reservations until the clock has caught up with
/// them. This lasts for the time by which the clock was set back, and at most for a full queue and the burst, as in the
/// process with the greatest bounds. Rejections say so.
///
/// If you change a queue's quota, reserved times stay as they are.
///
/// A decision's numbers (remaining, and the time until reset) are as of the arrival. Its [`delay`](Decision::delay) is
/// the wait since the server's time was seen.
///
/// This process remembers a key's backlog from when it last asked the server (a negative cache), and by itself rejects
/// requests that the server would certainly reject: each by its own cost and patience, because other processes can only
/// make the backlog longer. The advertised wait is then computed from the remembered backlog. It may be too long by the
/// time that the remembered answer was under way. It is never too short, unless requests have joined elsewhere
/// meanwhile. In that case, the retry asks the server.
///
/// A backlog that becomes shorter elsewhere is noticed late: while a key is known to be full, one request per half a
/// second asks the server, and the others are rejected without a call. This applies to a reservation that another
/// process returns, and to a key that is deleted on the server. A reservation that this process returns is noticed with
/// the answer to that call, except by a request whose own answer is just on its way.
///
/// # Leaving before the turn
///
/// A waiter that is dropped returns its reservation, in the background. If it is the key's last one, the backlog
/// becomes shorter. Otherwise there is a hole, because those behind it know already when to depart. The next arrival
/// that fits into the hole takes it, and so departs before requests that came earlier; it takes no time from them. So
/// an arrival waits at most for the intervals of the requests that wait when it comes, and one more. Clients that come
/// and go cannot starve it: with 15 per second that leave after 0.3 s, at 10 per second, 9 of 9 patient clients are
/// served, within 0.61 s (`crates/redis/tests/redis/queue/leaving.rs`). When a queue is closed, or a process shuts down
/// in order, all its reservations are returned.
///
/// What remains:
///
/// - Part of a hole may have passed; the rest must be wide enough for the cost. A reservation that is returned less
///   than an interval before it would have been paid for is lost.
/// - 64 holes per key are remembered, neighbours counting as one. Beyond that, the holes that pass first are lost.
/// - A reservation is lost if the call that returns it fails, if the answer that granted it got lost, or if its process
///   dies or its runtime is shut down. A lost reservation delays later arrivals by its cost in intervals. All lost
///   reservations together fit into `max_queue` and `max_wait`, and they never let too many requests in.
/// - Requests that wait already do not move up, unlike in a `LeakyQueue`.
///
/// If unrelated clients share a key, put a [bucket](crate::algorithm::TokenBucket) per client [before
/// it](LeakyQueue#clients-that-come-and-go): they can keep its queue full, as with a `LeakyQueue`.
///
/// # Different bounds
///
/// Each process lets requests in by its own `max_queue` and `max_wait`, which it may change at any time. Reservations
/// that other processes have made beyond these bounds stay: a process with smaller bounds rejects arrivals until the
/// schedule is within them again.
///
/// # Several runtimes
///
/// Each waiter sleeps on the timer in the runtime that polls it. So a runtime that is blocked, or that is not driven,
/// delays its own waiters, and no others. If waiters leave, their reservations are returned when that runtime
/// continues. On records, requests for one key also share calls over all runtimes: a process that is blocked during
/// such a call delays the others by up to the server's timeout.
///
/// # When the server is out of reach
///
/// An arrival that must ask the server fails within the server's timeout, and at once while the circuit breaker is
/// open. Requests that wait already are not affected. The [local fallback](crate::FailureMode::LocalFallback) is a
/// `LeakyQueue` in this process alone, with the same quota and bounds. For each reservation that the server grants, the
/// fallback makes one, too; so arrivals during an outage line up behind the requests that wait here. The fallback knows
/// nothing about other processes, and it keeps the reservations after their waiters have left. Requests that it admits
/// are not reported to the server later.
///
/// When a primary fails and a replica takes over, reservations that were not replicated are granted a second time: the
/// reservations from one replication lag, and at most burst and `max_queue` per key.
///
/// # Cost
///
/// | | Redis | records: PostgreSQL, a key-value store |
/// |---|---|---|
/// | an arrival that gets a reservation | one round trip | two: it reads, and swaps |
/// | a rejected arrival | at most one | at most one |
/// | a reservation that is returned | one | two |
/// | arrivals at one time | up to 32 of the same cost and patience share a call, also for several keys, except in a cluster | all for one key share the two calls |
/// | returns at one time | one each | all for one key share the two calls, with the arrivals |
/// | a key, until its backlog is paid | some 160 bytes, and 40 for each hole | 41 bytes, and 32 for each hole |
///
/// On records, each process changes a key once per two round trips, for any number of requests. If another process has
/// changed it meanwhile, both calls are made again. If that goes on for longer than the server's timeout, arrivals
/// fail: raise the timeout if many processes share a busy queue.
///
/// A flood of rejected requests costs about two calls per key and second, and otherwise a look at a table in this
/// process, which takes 0.7 MiB for the last 8,192 keys with a backlog. Until the first answer, the server is asked
/// about all requests that arrive for a full queue.
///
/// In this process, at most [`max_waiters`](Self::max_waiters) wait at a time, each in about 1 kB, on its own timer. No
/// task runs for it, and no lock is held.
///
/// # Cancel safety
///
/// The future may be dropped at any time; its reservation is [returned](#leaving-before-the-turn).
///
/// # Errors
///
/// The server's own error if it gives no answer. A [`LimiterError`] without a source if the queue is
/// [closed](Self::close), or if a request that may have to wait is decided outside of a tokio runtime.
#[doc(alias("leaky bucket", "distributed queue", "RedisQueue"))]
pub struct SharedQueue<D: Departures> {
    quota: Quota,
    bounds: WaitBounds,
    shared: Arc<ProcessQueue<D>>,
}

impl<D: Departures> SharedQueue<D> {
    /// Creates a queue that leaks at the quota's rate, shared by all processes that use this `name`; other limiters on
    /// `store` need other names. Up to `limit` requests per key wait, for at most 30 seconds each; in this process, up
    /// to 65,536 over all keys.
    ///
    /// # Panics
    ///
    /// If the server cannot [keep](Self::check_fit) the quota.
    #[must_use]
    #[track_caller]
    pub fn new(store: D, name: &str, quota: Quota) -> Self {
        quota.assert_in_force();
        Self::build(Arc::new(store), name, quota, WaitBounds::of_queue(&quota))
    }

    #[track_caller]
    fn build(store: Arc<D>, name: &str, quota: Quota, bounds: WaitBounds) -> Self {
        let WaitBounds { max_queue, max_wait, max_waiters } = bounds;
        let terms = QueueTerms::new(&quota, max_queue, max_wait);
        if let Err(problem) = store.check_fit(&terms.for_server()) {
            panic!("{problem}");
        }
        // While the server fails, keys without room share other keys' FIFOs, which is better than no limit.
        let fallback = LeakyQueue::new(quota)
            .max_queue(max_queue)
            .max_wait(max_wait)
            .max_waiters(max_waiters)
            .when_full(WhenFull::Overflow);
        let keys = LimiterKeys::new(store.secret(), name);
        Self { quota, bounds, shared: Arc::new(ProcessQueue::new(store, keys, terms, fallback, max_waiters)) }
    }

    #[track_caller]
    fn with(self, set: impl FnOnce(&mut WaitBounds)) -> Self {
        let Self { quota, mut bounds, shared } = self;
        set(&mut bounds);
        Self::build(Arc::clone(&shared.store), shared.keys.limiter(), quota, bounds)
    }

    /// Sets how many requests of one key may wait over all processes, if each costs 1: the longest wait is that number
    /// of intervals. Zero rejects requests that cannot depart at once.
    ///
    /// # Panics
    ///
    /// If the server cannot [keep](Self::check_fit) a schedule that long.
    #[must_use]
    #[track_caller]
    pub fn max_queue(self, waiters: usize) -> Self {
        self.with(|bounds| bounds.max_queue = waiters)
    }

    /// Sets a request's longest wait.
    ///
    /// Only the stricter of this bound and [`max_queue`](Self::max_queue) is ever met. So raise the `max_queue`, too,
    /// if requests should wait longer than a period.
    ///
    /// # Panics
    ///
    /// If the server cannot [keep](Self::check_fit) a schedule that long.
    #[must_use]
    #[track_caller]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|bounds| bounds.max_wait = max_wait)
    }

    /// Sets how many requests may wait in this process, for their turns or for the server, over all keys together: the
    /// bound on memory. An arrival beyond is admitted only if it may depart at once, and otherwise rejected with the
    /// time at which it would have been its turn.
    #[must_use]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(|bounds| bounds.max_waiters = waiters)
    }

    /// Checks whether a server can keep a queue with these bounds, set in any order: for callers that read them from a
    /// configuration.
    ///
    /// # Errors
    ///
    /// If it cannot: why, and what to do. Records keep any queue. Redis does not if it would take 71 years to pay for a
    /// full queue and one more request of the greatest [cost](Description::max_cost), or if the rate is a very odd
    /// fraction ([`UnfitQuota`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/enum.UnfitQuota.html)).
    pub fn check_fit(
        store: &D,
        quota: &Quota,
        max_queue: usize,
        max_wait: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        // A queue has the default bounds before others are set.
        let defaults = WaitBounds::of_queue(quota);
        let terms = QueueTerms::new(quota, max_queue.max(defaults.max_queue), max_wait.max(defaults.max_wait));
        store.check_fit(&terms.for_server())
    }

    /// Ends all waits in this process at once with a [`LimiterError`], and answers later arrivals
    /// with one, too. Call it when a server shuts down. The reservations are [returned](#leaving-before-the-turn). A
    /// second call does nothing.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Returns how many requests are waiting in this process, for their turns or for the server, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }
}

impl<D: Departures> SharedQueue<D> {
    /// Lets the request wait in this process's own queue.
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
    fn parts(&self, ask: &Ask<'_>) -> (Arc<ProcessQueue<D>>, PartitionKey, u64) {
        (Arc::clone(&self.shared), ask.key().clone(), ask.cost())
    }

    /// Runs a charge in a task, so that it completes even if the caller is cancelled.
    fn in_background(&self, charge: impl Future<Output = Result<Decision, LimiterError>> + Send + 'static) -> Answer {
        let Ok(runtime) = Handle::try_current() else {
            return Answer::Ready(Err(self.shared.store.gave_up(GaveUp::NoRuntime)));
        };
        let (shared, task) = (Arc::clone(&self.shared), runtime.spawn(charge));
        Answer::Pending(Box::pin(
            async move { task.await.unwrap_or_else(|_| Err(shared.store.gave_up(GaveUp::Cancelled))) },
        ))
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

impl<D: Departures> Limiter for SharedQueue<D> {
    /// A request's [patience](Ask::within) bounds its wait as [`max_wait`](Self::max_wait) does, from its arrival at
    /// the server on; a turn that comes when the patience ends comes too late.
    ///
    /// As a [fallback](Mode::Fallback), it waits in this process's own queue.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Fallback => self.decide_fallback(ask),
            Mode::Shadow => {
                let (shared, key, cost) = self.parts(ask);
                Answer::Pending(Box::pin(async move {
                    let joined = pin!(shared.join(&key, cost, None));
                    shared.unless_closed(joined).await.map(|(decision, _)| decision)
                }))
            }
            Mode::UpTo => {
                let (shared, key, cost) = self.parts(ask);
                let charge = async move { shared.unless_closed(pin!(shared.join_up_to(&key, cost))).await };
                self.in_background(charge)
            }
            Mode::Charge => self.decide_turn(ask),
            mode => LimiterError::unsupported(mode).into(),
        }
    }

    /// Refunds in the background.
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
        let description = Description::new()
            .advertising(Terms::bucket(self.quota.burst(self.shared.terms.limit().min(Quota::MAX_UNITS))))
            .admitting_at_most(self.shared.terms.max_cost())
            .delaying()
            .answering(Mode::Shadow)
            .answering(Mode::UpTo)
            .answering(Mode::Fallback);
        sharing_reports(description, self.shared.store.shared_records(), self.shared.keys.limiter())
    }

    /// Inherits from a queue with this name on the same server. Requests that wait depart as scheduled; only the other
    /// queue counts them, and ends their waits when [it is closed](Self::close).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let predecessor = predecessor.downcast_ref::<Self>()?;
        let (here, there) = (&self.shared, &predecessor.shared);
        if !here.store.is_same_as(&there.store) || here.keys.limiter() != there.keys.limiter() {
            return None;
        }
        let _ = here.fallback.inherit(&there.fallback);
        Some(Inheritance::in_place())
    }

    /// See [`SharedQueue::close`].
    fn close(&self) {
        self.close();
    }

    /// Reports how many requests wait, without the next departure's time, because each waits on its own timer.
    fn stats(&self) -> Stats {
        let backlog = Backlog::new(self.waiting(), None);
        Stats { backlog: Some(backlog), nodes: self.shared.store.health(), ..Stats::default() }
    }
}

impl<D: Departures> IntoLimiter for SharedQueue<D> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl<D: Departures> fmt::Debug for SharedQueue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, bounds: WaitBounds { max_queue, max_wait, max_waiters }, shared } = self;
        f.debug_struct("SharedQueue")
            .field("name", &shared.keys.limiter())
            .field("quota", quota)
            .field("max_queue", max_queue)
            .field("max_wait", max_wait)
            .field("max_waiters", max_waiters)
            .field("waiting", &shared.waiting())
            .finish_non_exhaustive()
    }
}
