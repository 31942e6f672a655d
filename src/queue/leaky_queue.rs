//! [`LeakyQueue`]: a queue whose waiters are all in this process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::local::LocalQueue;
use super::schedule::QueueBounds;
use crate::limiter::{IntoLimiter, Limiter, WaitBounds};
use crate::store::{Stats, WhenFull};
use crate::values::{Answer, Ask, Description, Inheritance, Quota, Receipt};

/// Lets a key's requests depart one by one at the quota's rate, in the order in which they arrived.
///
/// A request that finds its key idle departs at once; any other waits in line. A request is rejected **on arrival**: if
/// [`max_queue`](Self::max_queue) requests of its key wait already, if its turn would come later than
/// [`max_wait`](Self::max_wait), or if the queue has no room for another waiter ([`max_waiters`](Self::max_waiters)) or
/// key ([`max_keys`](Self::max_keys)). The rejection carries the time after which a retry is accepted if nothing else
/// comes. A request that waits already is rejected only if the queue gets [another quota](Self#another-quota), or [its
/// key](Self#quotas-of-the-keys-own) does.
///
/// - Arrival order is departure order. No request overtakes a waiter, and keys do not delay one another.
/// - Departures keep the interval `period / limit`, on absolute deadlines that do not drift. Tokio's timer wakes up to
///   a millisecond late, but this does not delay the next departure. (With the feature `precise-timer`,
///   [`precise`](#method.precise) wakes up sooner.) After a stall of more than fifty milliseconds, the requests that
///   fit into fifty milliseconds depart at once, and the others follow at the interval, instead of all in one burst.
/// - A waiter that is dropped (its client disconnected, its deadline passed) leaves at once, and all behind it move up.
///   If it is dropped at the very moment of its release, its turn goes to the next waiter.
/// - No waiter depends on another waiter being polled, or on another runtime: see [several
///   runtimes](Self#several-runtimes).
///
/// A request of cost *c* delays those behind it for *c* intervals. It departs when its whole cost fits into the burst
/// beside the units that are not paid for yet. A cost above the burst departs when all of these are paid for. A cost
/// above the burst plus the units that leak during [`max_wait`](Self::max_wait) is never admitted. A request of cost
/// zero does not wait, and is not counted.
///
/// # Shape or reject
///
/// Shape (this queue) requests that will be served anyhow and only come too close together: calls to a partner that
/// limits them, jobs, webhooks, a client's own bursts. A wait of a second is cheaper than a rejection and a retry.
/// Reject (a [bucket](crate::algorithm::TokenBucket)) where the client would rather know at once: a person at a screen,
/// a caller with a deadline or with another server to call. A queue evens out bursts. It does not help when more
/// arrives than can be served for longer than `max_wait`: then every request waits for `max_wait`, and the number of
/// rejections is the same as without the queue.
///
/// # Bursts
///
/// A quota with a [burst](Quota::burst) lets that many requests depart at once after an idle spell, and spaces out the
/// rest. Without one, the burst is 1. So in any span *t*, at most burst + rate × (*t* + 50 ms) units depart; the fifty
/// milliseconds allow for catching up after a stall. If some request costs more than the burst, it cannot depart in
/// parts, and the bound has its cost in place of the burst.
///
/// The `burst` of nginx's `limit_req` is another number: it leaves out the first request, and includes the requests
/// that are delayed. These are the counterparts:
///
/// | nginx | quota | [`max_queue`](Self::max_queue) |
/// |---|---|---|
/// | `burst=12` | no burst | 12 |
/// | `burst=12 nodelay` | `burst(13)` | 0 |
/// | `burst=12 delay=8` | `burst(9)` | 4 |
///
/// # How many to let wait
///
/// By Little's law, *waiting = rate × wait*. So a key's line gets no longer than `rate × max_wait` (at ten per second
/// and 5 seconds: 50), and a larger `max_queue` is never used. A smaller `max_queue` makes the longest wait shorter. So
/// choose the wait that clients accept, and derive the `max_queue` from it. All keys together need room for rate × mean
/// wait × busy keys waiters: set [`max_waiters`](Self::max_waiters) by that. Every waiting request also holds its
/// connection, its headers and the readiness of the inner service.
///
/// # Behind a proxy
///
/// A proxy in front (nginx, a load balancer) gives up after its own timeout, often 60 seconds, and answers 504. Its
/// client may give up even sooner. Keep `max_wait` well below both times.
///
/// Some waiters have no client any more. A proxy that buffers requests and keeps connections open does not report that
/// its client disconnected. Without a proxy, a disconnect goes unnoticed over HTTP/1 if the client has sent a body that
/// is not read yet, or a byte more than its request (HTTP/2 reports it). Such a request waits until its turn. That is
/// why `max_queue`, `max_wait` and `max_waiters` all have defaults, and cannot be unlimited.
///
/// # Clients that come and go
///
/// A waiter that leaves before its turn takes nothing from the rate, and delays no other. The queue does not limit how
/// often a client joins: most clients that leave have a bad connection, and a limit would reject them for it. So a
/// client can join and leave at no cost. Where that can be abused, put a [bucket](crate::algorithm::TokenBucket) per
/// client into the same layer. It is charged before the queue, its charge stays when the client leaves, and a client
/// that joins too often is rejected at once:
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
///
/// let layer = RateLimitLayer::new([
///     Policy::new("attempts", TokenBucket::new(Quota::per_second(20))).key(PeerIp::new()),
///     Policy::new("partner", LeakyQueue::new(Quota::per_second(50)).max_queue(200)),
/// ]);
/// ```
///
/// # Uploads
///
/// A request's body is not read before its turn. A client that sends `Expect: 100-continue` gets the 100 when the
/// service reads the body, or a rejection instead; hyper's servers send nothing before, although RFC 9110 (section
/// 10.1.1) asks for an immediate response. Most clients then send the body without the 100 after a second or so. The
/// connection's buffers take its beginning, and the client can send the rest only when the turn has come.
///
/// # Several runtimes
///
/// On each tokio runtime that has waiters, the queue spawns a task, the driver. Each driver releases all waiters that
/// are due, on all runtimes, and ends when no waiter is left on its own runtime. So a turn comes on time while the
/// waiter's *own* runtime is driven. The other runtimes may be idle, blocked, or gone: a `block_on` that has returned,
/// one of several workers with a runtime each, a runtime that shuts down.
///
/// A waiter belongs to the runtime on which it was last polled; before its first poll, to the runtime in whose context
/// it was made. If that runtime is shut down, the waiter continues where it is polled next. Each driver looks at the
/// schedule whenever it expects a departure, so one departure may wake the drivers of all runtimes with waiters.
/// Arrivals wake only their own runtime's driver.
///
/// If many turns come at once, a driver releases 256 waiters, and lets other tasks run before it continues.
///
/// If a waker panics, all other waiters are still woken. The panic goes to the panic hook, and not to the caller.
///
/// # Refunds
///
/// A [refund](crate::limiter::Permit::refund) gives back the part of a departure that is not paid for yet. If no other
/// request of the key has departed since, its waiters move up, and the next one departs at once. A waiter that is
/// dropped gives its whole turn back.
///
/// # Another quota
///
/// A queue that [inherits](Limiter::inherit) from another queue shares its schedule, with all waiters in it. From then
/// on, both follow the new queue's quota and bounds:
///
/// - Waiters that are due at the change depart. The others keep their order, and get their turns by the new rate. The
///   debt from earlier departures is kept, and is paid at the new rate.
/// - A waiter is rejected at once if it would have to wait longer than the new `max_wait`, or than its own patience, or
///   if its key has more waiters than the new `max_queue` (the newest are rejected). A rejection carries the exact time
///   after which a retry would be accepted.
/// - If [`max_keys`](Self::max_keys) is lowered, the keys in excess are kept until they have paid. Until then, a
///   request with a new key that comes after its advertised wait may be rejected again.
/// - If [`max_waiters`](Self::max_waiters) is lowered, the waiters in excess keep waiting. A raised `max_wait` does not
///   make waiters more patient. A queue that was [closed](Self::close) stays closed.
///
/// A change looks at each waiter with the queue locked. Meanwhile, arrivals and departures on all keys have to wait:
/// for 56 ms with 65,536 waiters, and for 1.5 s with a million, if [`max_waiters`](Self::max_waiters) was raised that
/// far.
///
/// # Quotas of the keys' own
///
/// Each key may have its own quota ([`Policy::quota_fn`](crate::Policy::quota_fn),
/// [`Ask::under`](crate::limiter::Ask::under)): its requests depart at that rate, and with that burst. The queue's
/// bounds apply.
///
/// - A key has the quota of its latest question, a peek included, and all its waiters follow it: a customer has one
///   plan. A question under another quota acts on the key as [another quota](Self#another-quota) for the queue acts on
///   all keys: the debt is kept in units, the waiters keep their order and get their turns by the new rate, and waiters
///   whose turn would be too late are rejected. This takes time linear in the number of the key's waiters.
/// - A charge is refunded after one change of its key's quota, and lost after two. If a key goes back to the queue's
///   quota once it owes nothing, a refund of a charge from before all this may return up to that charge.
/// - Under a [suspended](Quota::suspended) quota, every request is rejected. The key's waiters stay.
/// - A key without its own quota has the queue's, and so have the lines that keys share when the queue is
///   [full](Self::when_full).
///
/// A key with its own quota takes up to 300 bytes more, until its departures are paid for.
///
/// # Memory and cost
///
/// The memory is bounded, for keys of any length (a hash stands for each). At most [`max_waiters`](Self::max_waiters)
/// requests wait. A waiter takes some 110 bytes if its key has ten waiters, and 290 if it is the only one, including
/// the key's own memory. At most [`max_keys`](Self::max_keys) keys are remembered, each until its departures are paid
/// for, in up to 200 bytes. While there are this many, requests of new keys are rejected, unless
/// [`when_full`](Self::when_full) says otherwise.
///
/// Joining and leaving take constant time, for any number of waiters. A key's first waiter to join, and its last to
/// leave, also update an index of all keys by time, which takes logarithmic time.
///
/// # Cancel safety
///
/// You may drop a waiter's future at any time; that is how a waiter leaves.
///
/// # Errors
///
/// All waiters and arrivals get a [`LimiterError`] once the queue is [closed](Self::close).
///
/// Waiting needs a tokio runtime with a timer. Outside of any runtime, a request that has to wait gets a
/// [`LimiterError`]. While other requests wait in the queue, its future may be made outside of a runtime, but must be
/// polled on one. On a runtime without a timer, a waiter gets a [`LimiterError`] when it is polled.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // One every 100 ms, up to five waiting.
/// let queue = LeakyQueue::new(Quota::per_second(10)).max_queue(5);
/// let key = PartitionKey::from("printer");
///
/// let first = queue.acquire(&key, 1).await.unwrap();
/// assert_eq!(first.delay(), Duration::ZERO);
/// let second = queue.acquire(&key, 1).await.unwrap();
/// assert_eq!(second.delay(), Duration::from_millis(100));
/// # }
/// ```
///
/// [`LimiterError`]: crate::LimiterError
#[must_use]
#[doc(alias("leaky bucket", "traffic shaper", "fifo", "delay"))]
pub struct LeakyQueue {
    queue: LocalQueue,
}

impl LeakyQueue {
    /// Creates a queue that leaks at the quota's rate. Up to `limit` requests per key wait, for at most 30 seconds
    /// each, and 65,536 over all keys; 65,536 keys are remembered.
    pub fn new(quota: Quota) -> Self {
        quota.assert_in_force();
        Self { queue: LocalQueue::new(quota, QueueBounds::new(WaitBounds::of_queue(&quota)), None) }
    }

    fn with_bound(self, set: impl FnOnce(&mut QueueBounds)) -> Self {
        Self { queue: self.queue.with(|queue| set(&mut queue.bounds)) }
    }

    /// Sets how many requests of one key may wait. Zero rejects requests that cannot depart at once.
    pub fn max_queue(self, waiters: usize) -> Self {
        self.with_bound(|bounds| bounds.waits.max_queue = waiters)
    }

    /// Sets a request's longest wait.
    ///
    /// Only the stricter of this bound and [`max_queue`](Self::max_queue) is ever met, by [Little's
    /// law](Self#how-many-to-let-wait). So raise the `max_queue`, too, if requests should wait longer than a period.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with_bound(|bounds| bounds.waits.max_wait = max_wait)
    }

    /// Sets how many requests may wait over all keys together: the bound on memory for waiters.
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with_bound(|bounds| bounds.waits.max_waiters = waiters)
    }

    /// Sets how many keys are remembered at a time: the bound on memory for keys without waiters. 65,536, unless set.
    ///
    /// A key is remembered from its first departure on until all its departures are paid for: at a cost of 1 and
    /// without a burst, one interval after the last. So a quota of 10 per second needs room for the keys from a tenth
    /// of a second, and a quota of 1 per hour for the keys from an hour. Each takes up to 200 bytes.
    /// [`when_full`](Self::when_full) sets how requests on further keys are handled. [`Limiter::stats`] has the number
    /// of keys, and how many found no room; the first key without room is also logged, once.
    ///
    /// ```
    /// use tower_sluice::store::WhenFull;
    /// use tower_sluice::{LeakyQueue, Limiter, Quota};
    ///
    /// let resets = LeakyQueue::new(Quota::per_hour(1)).max_keys(1_000_000).when_full(WhenFull::Overflow);
    /// assert_eq!(resets.stats().table.unwrap().capacity, 1_000_000);
    /// ```
    pub fn max_keys(self, keys: usize) -> Self {
        self.with_bound(|bounds| bounds.max_keys = keys)
    }

    /// Sets how a request of a new key is handled while [`max_keys`](Self::max_keys) keys are remembered.
    ///
    /// | | the request | over all keys, at most |
    /// |---|---|---|
    /// | [`WhenFull::Reject`], unless set | is rejected, with the time after which the first of the other keys has paid | `max_keys` × quota |
    /// | [`WhenFull::Overflow`] | joins one of 512 lines that such keys share, and waits there with other clients | (`max_keys` + 512) × quota |
    /// | [`WhenFull::EvictLeast`] | is admitted, and the key that owes least is forgotten, if there is one without waiters; otherwise it is rejected | no bound |
    ///
    /// **With `EvictLeast`, a flood of keys is not limited.** Among keys that have each sent one request, the key that
    /// came first owes least. So if 70,000 keys take turns at a quota of 1 per hour, all their requests pass. With
    /// `Reject`, one request each passes for 65,536 keys. But then a flood of fresh keys locks new clients out until it
    /// ends. If unknown clients choose their keys, put a policy with a wider key before the queue.
    ///
    /// A key that has waiters is never forgotten.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        self.with_bound(|bounds| bounds.when_full = when_full)
    }

    /// Releases requests some tens of microseconds after they are due, instead of up to a millisecond; and above 1,000
    /// per second still one by one. Use it for calls to a partner that counts by the millisecond. Fairness and the mean
    /// rate are equally good without it.
    ///
    /// A `timerfd` then runs beside tokio's timer: one for each [runtime](Self#several-runtimes) with waiters, and open
    /// only while it has some. One thread per process, which the first precise queue starts, watches them all, so that
    /// the runtime needs no I/O driver. Every departure wakes that thread and the runtime, where tokio's timer wakes
    /// the runtime once per millisecond at most. A busy runtime is late with this timer as with any other.
    ///
    /// Available on Linux and Android; elsewhere the queue uses tokio's timer.
    ///
    /// Turning on the feature is not enough; each queue needs this call. Cargo unifies features over all users of the
    /// crate, and one user must not change the timers of the others.
    #[cfg(feature = "precise-timer")]
    pub fn precise(self) -> Self {
        Self { queue: self.queue.precise() }
    }

    #[cfg(not(feature = "precise-timer"))]
    #[doc(hidden)]
    pub fn precise<'a>(self) -> Self
    where
        &'a crate::util::feature::Off: crate::util::feature::PreciseTimer,
    {
        self
    }

    /// Ends all waits at once with a [`LimiterError`], and answers later arrivals with one, too; a layer responds with
    /// 503, regardless of its policy's failure mode. Waiters whose turn has come already still depart.
    ///
    /// Call it when a server shuts down: otherwise, the server would wait for all waiters. It cannot be undone; a
    /// second call does nothing. A layer, its handle and a configuration close all their queues at once.
    ///
    /// Policies share a queue that is in an `Arc`:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Policy, Quota};
    /// use tower_sluice_client::ThrottleLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let queue = Arc::new(LeakyQueue::new(Quota::per_second(1)));
    /// let layer: ThrottleLayer<()> = ThrottleLayer::new(Policy::on("pace", Arc::clone(&queue)));
    ///
    /// let first = queue.acquire(&PartitionKey::SHARED, 1).await;
    /// assert!(first.is_ok());
    /// let waits = queue.acquire(&PartitionKey::SHARED, 1);
    /// queue.close();
    /// assert_eq!(waits.await.unwrap_err().to_string(), "the queue was closed");
    /// # drop(layer);
    /// # }
    /// ```
    ///
    /// [`LimiterError`]: crate::LimiterError
    pub fn close(&self) {
        self.queue.close();
    }

    /// Returns how many requests are waiting, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    /// Returns the time from now until the next waiter may depart, over all keys; zero if it is just departing, `None`
    /// without waiters.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let queue = LeakyQueue::new(Quota::per_second(10));
    /// let _leaves_at_once = queue.acquire(&PartitionKey::SHARED, 1);
    /// assert_eq!(queue.next_release(), None);
    /// let _waits = queue.acquire(&PartitionKey::SHARED, 1);
    /// assert_eq!(queue.next_release(), Some(Duration::from_millis(100)));
    /// # }
    /// ```
    #[must_use]
    pub fn next_release(&self) -> Option<Duration> {
        self.queue.next_release()
    }

    /// For this crate's tests: panics if an invariant of the schedule is broken.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.queue.check_invariants();
    }
}

impl Limiter for LeakyQueue {
    /// A request's [patience](Ask::within) bounds its wait as [`max_wait`](Self::max_wait) does, but excludes its own
    /// end: a turn that comes at the instant at which the patience ends comes too late.
    ///
    /// A [shadow](crate::limiter::Mode::Shadow) joins without a future, so that the waiters behind it wait exactly as
    /// they would behind a request.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.queue.decide(ask)
    }

    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        self.queue.refund(charged, receipt, units);
    }

    /// Advertises a bucket. Its burst is the number of requests that may depart or wait at once, which is the limit
    /// that decisions report.
    fn describe(&self) -> Description {
        self.queue.describe()
    }

    /// See [`LeakyQueue::close`].
    fn close(&self) {
        self.close();
    }

    /// See [another quota](Self#another-quota).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        self.queue.inherit(&predecessor.downcast_ref::<Self>()?.queue)
    }

    /// Counts exactly how many keys are remembered, out of [`max_keys`](Self::max_keys). `evicted_live` and
    /// `turned_away` count requests on keys that found no room, see [`when_full`](Self::when_full). Takes some
    /// microseconds, and ten more for each thousand keys that have paid since and are still in memory.
    fn stats(&self) -> Stats {
        self.queue.stats()
    }
}

impl IntoLimiter for LeakyQueue {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for LeakyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalQueue { quota, bounds, .. } = &self.queue;
        let QueueBounds { waits: WaitBounds { max_queue, max_wait, max_waiters }, max_keys, when_full } = bounds;
        f.debug_struct("LeakyQueue")
            .field("quota", quota)
            .field("max_queue", max_queue)
            .field("max_wait", max_wait)
            .field("max_waiters", max_waiters)
            .field("max_keys", max_keys)
            .field("when_full", when_full)
            .field("waiting", &self.waiting())
            .finish()
    }
}
