//! The leaky bucket as a queue: requests wait their turn instead of being refused.

mod driver;
mod drivers;
#[cfg(all(test, sluice_loom))]
mod models;
mod monitor;
#[cfg(feature = "redis")]
mod redis_queue;
mod schedule;
mod timer;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(feature = "redis")]
pub use self::redis_queue::RedisQueue;

use self::driver::Shared;
use self::schedule::{Bounds, Lines};
use crate::limiter::{IntoLimiter, Limiter};
use crate::store::{Stats, WhenFull};
use crate::values::time::nanos_of;
use crate::values::{
    Ask, Check, Description, Heritage, Inheritance, LimiterError, Mode, PartitionKey, Quota, Receipt, Terms,
};

/// Lets requests of a key leave one by one at the quota's rate, in the order in which they came.
///
/// A request that finds the key idle leaves at once; one that does not waits in line. It is refused
/// only **on arrival**: if [`capacity`](Self::capacity) requests of its key wait already, or if its turn
/// would come later than [`max_wait`](Self::max_wait). The refusal says exactly when a retry would be
/// accepted.
///
/// - Arrival order is departure order. Nobody passes a waiter, and keys do not delay one another.
/// - Departures keep the interval `period / limit`, on absolute deadlines that do not drift.
///   Tokio's timer wakes up to a millisecond late, and the next departure is not late for it (with the
///   feature `precise-timer`, [`precise`](#method.precise) wakes up sooner); after a stall of more than fifty
///   milliseconds the line moves on from the present instead of catching up in one lump.
/// - A waiter that is dropped (its client gone, its deadline passed) leaves at once, and all behind
///   it move up. One dropped at the very moment of its release hands its turn on.
/// - No waiter depends on another being polled, nor on another runtime: see [several runtimes](Self#several-runtimes).
///
/// A request of cost *c* holds up those behind it for *c* intervals, so a cost whose intervals exceed
/// [`max_wait`](Self::max_wait) is refused; a cost of zero neither waits nor counts.
///
/// # Whether to shape or to refuse
///
/// Shape (this queue) what will be served anyhow and only comes too close together: calls to a partner
/// who counts them, jobs, webhooks, a client's own bursts. A wait of a second is cheaper than a refusal, a
/// retry and its guesswork. Refuse (a [bucket](crate::algorithm::TokenBucket)) where whoever asks would
/// rather know at once: a person at a screen, a caller with a deadline or with another server to ask.
/// A queue evens out bursts. It does not help when more comes than can be served for longer than
/// `max_wait`: then everybody waits for that long, and as many are refused as without it.
///
/// # Bursts
///
/// A quota with a [burst](Quota::burst) lets that many leave at once after an idle spell, and spaces out the
/// rest; so in any span *t*, burst + rate × *t* leave at most. Without one, it is 1. For those who know
/// nginx's `limit_req`, which does not count the first request, and counts what it delays:
///
/// | nginx | quota | [`capacity`](Self::capacity) |
/// |---|---|---|
/// | `burst=12` | no burst | 12 |
/// | `burst=12 nodelay` | `burst(13)` | 0 |
/// | `burst=12 delay=8` | `burst(9)` | 4 |
///
/// # How many to let wait
///
/// By Little's law, *waiting = rate × wait*. So a line of `rate × max_wait` is as long as it may ever get
/// (at ten per second and 5 seconds, 50), and a longer capacity is never used. A shorter one makes the
/// longest wait shorter: choose the wait that clients bear, and take the capacity from it. All keys together
/// need rate × mean wait × busy keys: that is for [`max_waiters`](Self::max_waiters), and every request that
/// waits also holds its connection, its headers and the readiness of what is inside.
///
/// # Behind a proxy
///
/// A proxy in front (nginx, a load balancer) gives up after a time of its own, often 60 seconds, and
/// answers 504; its client may be gone before. Keep `max_wait` well below both. A proxy that buffers
/// requests and keeps connections open does not tell when its client has left. Nor is it noticed without
/// one, over HTTP/1, if the client has left with a body unread or with a byte more than its request (HTTP/2
/// tells). Such ghosts keep their places until their turn. That is why capacity, `max_wait` and `max_waiters`
/// all have defaults, and why there is none without an end.
///
/// # Clients that come and go
///
/// Whoever leaves before its turn gives its place back, takes nothing from the rate, and delays nobody. So the queue
/// does not meter attempts: most who leave have a bad connection, and would be refused for it. But coming and going
/// is free, then. Where that can be abused, put a [bucket](crate::algorithm::TokenBucket) per client into the same layer. It is asked before the
/// queue, what it charged stays charged when the client goes, and whoever comes too often is refused at once:
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
///
/// let layer = RateLimitLayer::new([
///     Policy::new("attempts", TokenBucket::new(Quota::per_second(20))).key(PeerIp::new()),
///     Policy::new("partner", LeakyQueue::new(Quota::per_second(50)).capacity(200)),
/// ]);
/// ```
///
/// # Uploads
///
/// The body of a request is not touched before its turn. A client that sends `Expect: 100-continue` is told 100 when
/// the service reads the body, or a refusal instead; hyper's servers say nothing before, although RFC 9110 (section
/// 10.1.1) would have it told at once. Most clients send the body unasked after a second or so. What the
/// connection's buffers do not take, the client keeps until the turn has come.
///
/// # Several runtimes
///
/// On each tokio runtime that has waiters, the queue spawns a task that releases all waiters that are due, on whatever runtime
/// they wait. The task ends when no waiter is left on its runtime. So a turn comes on time while the waiter's *own*
/// runtime is driven. Any other may be idle, blocked, or gone: a `block_on` that has returned, one of several workers with a
/// runtime each, a runtime that shuts down.
///
/// A waiter belongs to the runtime on which it was last polled; before, to the one in whose context it was made.
/// If that is shut down, the waiter goes on where it is polled next. Each task looks at the lines whenever it knows of
/// a turn, so a departure may wake as many tasks as there are runtimes with waiters. Arrivals wake only the task of their own.
///
/// If many turns come at once, a task releases 256 of them, and lets other tasks run before it goes on.
///
/// A waker that panics costs no other waiter its wake-up. The panic goes to the panic hook, and not to the caller.
///
/// # Another quota
///
/// A queue that [inherits](Limiter::inherit) from another has the same lines, with all who wait in them, and the other
/// one goes by its quota and bounds from then on. Those who are due by then leave. What was spent is kept, and
/// is paid at the new rate. The others keep their order and get their turns by the new rate. They are refused at once
/// if they would have to wait longer than the new `max_wait`, or than they are ready to, or if their line
/// is longer than the new capacity (those who came last). A refusal says exactly
/// when a retry would be accepted. If [`max_keys`](Self::max_keys) is lowered, the keys beyond are kept until they have paid. Nobody is ready to wait longer than when he came, also if `max_wait` was raised. A queue
/// that was [closed](Self::close) stays closed.
///
/// # Memory and cost
///
/// Bounded, whatever the length of the keys (a hash stands for each): at most
/// [`max_waiters`](Self::max_waiters) requests wait, each in some 110 bytes at ten per key
/// (290, with those of its key, if it is alone). At most [`max_keys`](Self::max_keys) keys are
/// remembered, each until its last departure is an interval ago, in up to 200 bytes. Requests of keys beyond are
/// rejected, unless [`when_full`](Self::when_full) says otherwise.
///
/// To join a line and to leave it takes the same time, however long it is. The first in line, and the
/// last to leave it, also enter and leave the list of all keys by time: the logarithm of their number.
///
/// # Cancel safety
///
/// The future of a waiter may be dropped at any time; that is how a waiter leaves.
///
/// # Errors
///
/// All who wait or come get a [`LimiterError`] once the queue is [closed](Self::close). Waiting needs a tokio runtime
/// with a timer. Outside of any runtime, the answer to a request that has to wait is a [`LimiterError`], unless others
/// wait: then it may be made there, but must be polled on a runtime. Without a timer, a waiter gets a [`LimiterError`] when it
/// is polled.
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
/// let queue = LeakyQueue::new(Quota::per_second(10)).capacity(5);
/// let key = PartitionKey::from("printer");
///
/// let first = queue.acquire(&key, 1).await.unwrap();
/// assert_eq!(first.delay(), Duration::ZERO);
/// let second = queue.acquire(&key, 1).await.unwrap();
/// assert_eq!(second.delay(), Duration::from_millis(100));
/// # }
/// ```
pub struct LeakyQueue {
    quota: Quota,
    bounds: Bounds,
    is_precise: bool,
    /// Made when it is first used: another's may be taken over instead.
    shared: OnceLock<Arc<Shared>>,
}

const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(30);
const DEFAULT_MAX_WAITERS: usize = 65_536;
const DEFAULT_MAX_KEYS: usize = 65_536;

impl LeakyQueue {
    /// A queue that leaks at the quota's rate. Up to `limit` requests of a key wait, for at most 30
    /// seconds each, and 65,536 over all keys; 65,536 keys have lines.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let capacity = usize::try_from(quota.limit()).unwrap_or(usize::MAX);
        let bounds = Bounds {
            capacity,
            max_wait: nanos_of(DEFAULT_MAX_WAIT),
            max_waiters: DEFAULT_MAX_WAITERS,
            max_keys: DEFAULT_MAX_KEYS,
            when_full: WhenFull::Refuse,
        };
        Self::build(quota, bounds, false)
    }

    const fn build(quota: Quota, bounds: Bounds, is_precise: bool) -> Self {
        Self { quota, bounds, is_precise, shared: OnceLock::new() }
    }

    fn shared(&self) -> &Arc<Shared> {
        self.shared.get_or_init(|| Arc::new(Shared::new(self.lines(), self.is_precise)))
    }

    /// Nobody's yet.
    fn lines(&self) -> Lines {
        Lines::new(&self.quota, self.bounds)
    }

    fn with(&self, bounds: Bounds) -> Self {
        Self::build(self.quota, bounds, self.is_precise)
    }

    /// How many requests of one key may wait. Zero refuses whatever cannot leave at once.
    #[must_use]
    pub fn capacity(self, waiters: usize) -> Self {
        self.with(Bounds { capacity: waiters, ..self.bounds })
    }

    /// The longest that a request may wait.
    ///
    /// Only one of the two bounds is ever met, by [Little's law](Self#how-many-to-let-wait). So raise the [capacity](Self::capacity), too, if requests should wait longer
    /// than a period.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(Bounds { max_wait: nanos_of(max_wait), ..self.bounds })
    }

    /// How many requests may wait over all keys together: the bound on memory for waiters.
    #[must_use]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(Bounds { max_waiters: waiters, ..self.bounds })
    }

    /// How many keys have lines of their own at a time: the bound on memory for keys in which nobody waits. 65,536, unless
    /// set.
    ///
    /// A key needs a line from its first departure on until all of its departures are paid for: for one interval after
    /// the last. So a quota of 10 per second needs room for the keys of a tenth of a second, and one of 1 per hour for those
    /// of an hour. Each takes up to 200 bytes. What becomes of keys beyond is for [`when_full`](Self::when_full) to say.
    /// [`Limiter::stats`] has the number of keys, and how many were turned away; the first of those is also logged, once.
    ///
    /// ```
    /// use tower_sluice::store::WhenFull;
    /// use tower_sluice::{LeakyQueue, Limiter, Quota};
    ///
    /// let resets = LeakyQueue::new(Quota::per_hour(1)).max_keys(1_000_000).when_full(WhenFull::Overflow);
    /// assert_eq!(resets.stats().table.unwrap().capacity, 1_000_000);
    /// ```
    #[must_use]
    pub fn max_keys(self, keys: usize) -> Self {
        self.with(Bounds { max_keys: keys, ..self.bounds })
    }

    /// What becomes of a request whose key has no line while there is no [room](Self::max_keys) for another.
    ///
    /// | | the request | over all keys, at most |
    /// |---|---|---|
    /// | [`WhenFull::Refuse`], unless set | is rejected, with the time after which the first of the other keys has paid | `max_keys` × quota |
    /// | [`WhenFull::Overflow`] | goes to one of 512 lines that such keys share, and waits there with strangers | (`max_keys` + 512) × quota |
    /// | [`WhenFull::ForgetLeast`] | is admitted, and the key that owes least is forgotten, if there is one in which nobody waits; else it is rejected | no bound |
    ///
    /// **With `ForgetLeast`, a flood of keys is not limited.** Among keys that have each sent one request, the one that owes
    /// least is the one that came first. So if 70,000 keys take turns at a quota of 1 per hour, all of their requests pass.
    /// With `Refuse`, it is one of each of 65,536 keys. But then a flood of fresh keys locks new clients out for as long as
    /// it lasts; put a policy with a wider key before the queue where strangers choose their keys.
    ///
    /// No choice forgets a key in which somebody waits.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        self.with(Bounds { when_full, ..self.bounds })
    }

    /// Releases requests some tens of microseconds after they are due instead of up to a millisecond, and one by one
    /// also above 1,000 per second: for calls to a partner that counts by the millisecond, not for fairness or the mean
    /// rate, which are as good without.
    ///
    /// A `timerfd` of the system then stands beside tokio's timer: one for each [runtime](Self#several-runtimes) with waiters,
    /// and open only while it has some.
    /// It takes a wake-up of that thread and of the runtime for every departure, instead of one per millisecond. A busy runtime is
    /// late with this timer as with any other.
    ///
    /// There is one on Linux and Android; elsewhere the queue keeps to tokio's timer. A thread of the process, which the first
    /// precise queue starts, watches the timers of all, so that the runtime needs no I/O driver.
    ///
    /// It is a choice for one queue, and not the feature alone, since Cargo turns features on for all who use the crate.
    #[cfg(feature = "precise-timer")]
    #[must_use]
    pub fn precise(self) -> Self {
        Self::build(self.quota, self.bounds, true)
    }

    /// Sends all who wait away at once, with a [`LimiterError`], and whoever comes from now on, too; a layer
    /// answers 503, whatever its policy does when a limiter fails. Those whose turn has
    /// come already may go. To be called when a server shuts down, which would otherwise wait for its
    /// queue. It cannot be undone; a second call does nothing. A layer, its handle and a configuration close all
    /// their queues at once.
    ///
    /// Policies share a queue that is in an `Arc`:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota, ThrottleLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let queue = Arc::new(LeakyQueue::new(Quota::per_second(1)));
    /// let layer: ThrottleLayer<()> = ThrottleLayer::new(Arc::clone(&queue));
    ///
    /// let first = queue.acquire(&PartitionKey::SHARED, 1).await;
    /// assert!(first.is_ok());
    /// let waits = queue.acquire(&PartitionKey::SHARED, 1);
    /// queue.close();
    /// assert_eq!(waits.await.unwrap_err().to_string(), "the queue was closed");
    /// # drop(layer);
    /// # }
    /// ```
    pub fn close(&self) {
        self.shared().close();
    }

    /// How many requests are waiting, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.get().map_or(0, |shared| shared.room.waiting())
    }

    /// The time from now until the next of those who wait may leave, over all keys; zero if that one is just leaving,
    /// `None` if nobody waits.
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
        self.shared.get()?.backlog().next_release()
    }
}

/// The longest that one request is ready to wait, in nanoseconds.
fn longest_wait(patience: Option<Duration>) -> u64 {
    patience.map_or(u64::MAX, |patience| nanos_of(patience).saturating_sub(1))
}

impl Limiter for LeakyQueue {
    /// For this one request, its [patience](Ask::within) bounds the wait as [`max_wait`](Self::max_wait) does, but for
    /// the very last nanosecond: a turn that comes when the patience ends comes too late.
    ///
    /// A [shadow](Mode::Shadow) takes a place in line that nobody waits in, so that the line is as long as it would be.
    fn decide(&self, ask: &Ask<'_>) -> Check {
        let (shared, key, cost, longest) = (self.shared(), ask.key(), ask.cost(), longest_wait(ask.patience()));
        let in_nobodys_name = |cost| shared.enqueue_nobody(key, cost, u64::MAX);
        match ask.mode() {
            Mode::Peek => shared.peek(key, cost, longest).map_or_else(|| Check::Ready(Err(closed())), Check::from),
            Mode::Shadow => Check::Ready(in_nobodys_name(cost)),
            Mode::UpTo => Check::Ready(match in_nobodys_name(cost) {
                Ok(decision) => decision.partial_cost(cost).map_or(Ok(decision), in_nobodys_name),
                Err(error) => Err(error),
            }),
            Mode::Charge | Mode::Fallback | Mode::Reset => match shared.enqueue(key, cost, longest) {
                Ok(Ok(decision)) => decision.into(),
                Ok(Err(place)) => Check::Pending(Box::pin(place)),
                Err(error) => Check::Ready(Err(error)),
            },
        }
    }

    fn refund(&self, key: &PartitionKey, receipt: Receipt, cost: u32) {
        self.shared().give_back(key, cost, receipt);
    }

    /// Clients are told of a bucket that holds all who may leave or wait at once, which is what its decisions count, too.
    fn describe(&self) -> Description {
        let lines = self.lines();
        Description::new()
            .advertising(Terms::bucket(self.quota.burst(lines.limit().max(1))))
            .admitting_at_most(lines.max_cost())
            .delaying()
            .answering(Mode::Peek)
            .answering(Mode::Shadow)
            .answering(Mode::UpTo)
    }

    /// See [`LeakyQueue::close`].
    fn close(&self) {
        self.close();
    }

    /// See [another quota](Self#another-quota).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let lines: Arc<Shared> = predecessor.heritage()?.downcast()?;
        // Whoever was asked has lines of its own; unless they are the same, for it was in force before.
        if !Arc::ptr_eq(self.shared.get_or_init(|| Arc::clone(&lines)), &lines) {
            return None;
        }
        self.shared().change(&self.lines(), self.is_precise);
        Some(Inheritance::in_place())
    }

    fn heritage(&self) -> Option<Heritage> {
        Some(Heritage::new(Arc::clone(self.shared())))
    }

    /// How many keys are remembered, of [as many as may be](Self::max_keys); exactly. `evicted_live` and `turned_away`
    /// are the requests of keys beyond, see [`when_full`](Self::when_full). Some microseconds, and ten for any thousand
    /// keys that have paid since and are still in memory.
    fn stats(&self) -> Stats {
        let shared = self.shared();
        Stats { table: Some(shared.table()), backlog: Some(shared.backlog()), ..Stats::default() }
    }
}

impl IntoLimiter for LeakyQueue {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for LeakyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakyQueue")
            .field("quota", &self.quota)
            .field("capacity", &self.bounds.capacity)
            .field("max_wait", &Duration::from_nanos(self.bounds.max_wait))
            .field("max_keys", &self.bounds.max_keys)
            .field("waiting", &self.waiting())
            .finish()
    }
}

fn closed() -> LimiterError {
    LimiterError::closed("the queue was closed")
}

fn no_runtime() -> LimiterError {
    LimiterError::new("a leaky queue waits on tokio's timer: call it from within a tokio runtime")
}

fn no_time() -> LimiterError {
    LimiterError::new("this tokio runtime was shut down, or has no timer, on which a leaky queue waits")
}
