use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{DEFAULT_MAX_WAIT, DEFAULT_MAX_WAITERS, LeakyQueue, closed, no_runtime};
use crate::limiter::{IntoLimiter, Limiter};
use crate::store::redis::{Place, Redis, RedisLine, UnfitQuota, in_background};
use crate::store::{Stats, WhenFull};
use crate::values::{
    Ask, Backlog, Check, Decision, Description, Heritage, Inheritance, LimiterError, Mode, PartitionKey, Pending,
    Quota, Receipt, Terms,
};

/// A [`LeakyQueue`] whose lines many processes share, on Redis (6.2 or later) or Valkey: requests of a key leave one by
/// one at the quota's rate over all of them.
///
/// A request asks Redis once, on arrival. It is given a place, with the time at which to leave, or is refused: if
/// [`capacity`](Self::capacity) intervals are taken already, or if its turn would come later than
/// [`max_wait`](Self::max_wait). The refusal says when a retry would be accepted, and until then this process refuses
/// without asking. One that has a place waits here, on tokio's timer, and Redis does not hear of it again.
///
/// What is said of a `LeakyQueue` on [bursts](LeakyQueue#bursts), on [how many to let
/// wait](LeakyQueue#how-many-to-let-wait), on what is [behind a proxy](LeakyQueue#behind-a-proxy) and on
/// [uploads](LeakyQueue#uploads) holds here, too. The differences:
///
/// | | `LeakyQueue` | `RedisQueue` |
/// |---|---|---|
/// | the rate holds for | a process | all processes with this name on this Redis |
/// | one leaves before its turn | all behind it move up | its place goes to the next that comes |
/// | order | the oldest first | the oldest first, but for such places |
/// | [peek](crate::Mode::Peek) | yes | no |
///
/// ```no_run
/// use std::time::Duration;
/// use tower_sluice::store::Redis;
/// use tower_sluice::{Policy, Quota, RedisQueue};
///
/// let redis = Redis::open("redis://10.0.0.7:6379")?;
/// // All servers together call the partner ten times per second.
/// let queue = RedisQueue::new(&redis, "partner", Quota::per_second(10)).capacity(50).max_wait(Duration::from_secs(5));
/// let policy = Policy::new("partner", queue);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Order and accuracy
///
/// The order of arrival at Redis is the order of departure, to the microsecond of its clock and at exact intervals. A
/// process counts the wait from when the answer came, so nobody leaves before its turn. It is late by the answer's way,
/// and by the up to one millisecond of tokio's timer. So two that leave one after the other may be closer than an
/// interval by as much as the second is less late than the first; nothing adds up.
///
/// A request of cost *c* holds up those behind it for *c* intervals, as in a `LeakyQueue`. A cost of zero neither waits
/// nor counts.
///
/// The numbers of a decision (what is left, and when all is as new) are those of the arrival. Its
/// [`delay`](Decision::delay) is the wait since the answer came.
///
/// This process remembers how long a key's line was when it last heard of it, and refuses by itself whom the server
/// would certainly refuse: each by its own cost and patience, for others can only make the line longer. The wait that is
/// told then is that of the line as it is known here. It may be too long by the way of the answer that is remembered, and is
/// never too short, unless others have come elsewhere meanwhile: whoever comes then asks.
///
/// What makes a line shorter elsewhere is noticed late: while a line is known to be full, one request asks in half a
/// second, and the others are refused without. That holds for a place that another process gives back, and for a key that
/// is removed on the server. A place that this process gives back is noticed with the answer to that call, except by a
/// request whose own answer is just on its way.
///
/// # Leaving before the turn
///
/// A waiter that is dropped gives its place back, in the background and by one more call. If nobody came after it, the line
/// is shorter. Otherwise there is a hole in it, for the others have been told already when to leave: the next arrival that
/// fits into it takes it, and so leaves before those who came earlier. It takes no time from them. So an arrival waits no
/// longer than those take who are waiting when it comes, and one interval; clients that come and go cannot starve it: with
/// 15 per second that leave after 0.3 s, at 10 per second, 9 of 9 patient clients are served, within 0.61 s
/// (`tests/redis/queue.rs`). When a queue is closed, or a process shuts down in order, all its places are free again.
///
/// What remains:
///
/// - Part of a hole may have passed; what is left of it must be as long as the cost. A place that is given back less than
///   an interval before it would have been paid for is lost.
/// - Of a key, 64 holes are remembered, neighbours counting as one. Beyond that, those that pass first are lost.
/// - A place is lost if the call that gives it back fails, if the answer that granted it got lost, or if
///   its process dies or its runtime is shut down. A lost place delays those who come later by its cost in intervals. There
///   are never more of them than fit into `capacity` and `max_wait`, and too many requests are never let in for it.
/// - Those who wait already do not move up, as they do in a `LeakyQueue`.
///
/// If strangers share a key, put a [bucket](crate::algorithm::TokenBucket) per client [before
/// it](LeakyQueue#clients-that-come-and-go): they can keep a line full, as they can that of a `LeakyQueue`.
///
/// # Several runtimes
///
/// Each waiter sleeps on the timer of the runtime that polls it, and each runtime has its own connection to Redis. So a
/// runtime that is blocked, or that nobody drives, delays its own waiters, and no others. Places that they leave are given
/// back when that runtime goes on.
///
/// # When Redis is out of reach
///
/// An arrival that must ask fails within the [timeout](crate::store::redis::RedisBuilder::timeout), and at once while the
/// breaker is open. Those who wait already are not affected. For the [local fallback](crate::FailureMode::LocalFallback) there is a
/// `LeakyQueue` of this process alone, of the same quota and bounds. With each place that Redis gives, one is taken
/// there, too; so who comes then gets in line behind those who wait here. The guard knows nothing of other processes,
/// and it keeps the places of those who left. Redis is not told later whom it let in.
///
/// When a primary fails and a replica takes over, places that were not replicated are given a second time: those of one
/// lag, and at most burst and capacity of a key.
///
/// # Memory and cost
///
/// One round trip per arrival that is given a place. A flood of refused requests costs about two per key and second
/// and else a look at a table in this process, of 0.7 MiB for the last 8,192 keys
/// with lines. Requests do not share their calls: all who come for a full line before the first answer make one each.
///
/// Until its line is empty, a key takes some 150 bytes on the server, however many wait, and up to 40 for each hole. Here, at most
/// [`max_waiters`](Self::max_waiters) wait at a time, each in about 1 kB, on a timer of its own. There is no task for
/// it, and no lock is held.
///
/// # Cancel safety
///
/// The future may be dropped at any time; see above for what becomes of its place.
///
/// # Errors
///
/// A [`LimiterError`] whose source is the [`Fault`](crate::store::redis::Fault) if Redis gives no answer, and one
/// without if the queue is [closed](Self::close).
pub struct RedisQueue {
    redis: Redis,
    name: Box<str>,
    quota: Quota,
    bounds: Bounds,
    shared: Arc<Shared>,
}

/// What a queue of the same name goes on from.
struct Namesake {
    redis: Redis,
    name: Box<str>,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy)]
struct Bounds {
    capacity: usize,
    max_wait: Duration,
    max_waiters: usize,
}

impl RedisQueue {
    /// A queue that leaks at the quota's rate, for all processes that call it by this `name`; others that share `redis`
    /// must be called differently. Up to `limit` requests of a key wait, for at most 30 seconds each; here, up to
    /// 65,536 over all keys.
    ///
    /// # Panics
    ///
    /// If Redis cannot [keep](Self::check_fit) the quota.
    #[must_use]
    #[track_caller]
    pub fn new(redis: &Redis, name: &str, quota: Quota) -> Self {
        let capacity = usize::try_from(quota.limit()).unwrap_or(usize::MAX);
        let bounds = Bounds { capacity, max_wait: DEFAULT_MAX_WAIT, max_waiters: DEFAULT_MAX_WAITERS };
        Self::build(redis, name, quota, bounds)
    }

    #[track_caller]
    fn build(redis: &Redis, name: &str, quota: Quota, bounds: Bounds) -> Self {
        let Bounds { capacity, max_wait, max_waiters } = bounds;
        let line = match RedisLine::new(redis, name, &quota, capacity, max_wait) {
            Ok(line) => line,
            Err(problem) => panic!("{problem}"),
        };
        let shared = Shared {
            line,
            // A line that is shared with strangers is better than none, for the time of an outage.
            guard: LeakyQueue::new(quota)
                .capacity(capacity)
                .max_wait(max_wait)
                .max_waiters(max_waiters)
                .when_full(WhenFull::Overflow),
            waiting: AtomicUsize::new(0),
            max_waiters,
            is_closed: watch::Sender::new(false),
        };
        Self { redis: redis.clone(), name: name.into(), quota, bounds, shared: Arc::new(shared) }
    }

    #[track_caller]
    fn with(&self, bounds: Bounds) -> Self {
        Self::build(&self.redis, &self.name, self.quota, bounds)
    }

    /// How many requests of one key may wait over all processes, if each costs 1: the longest wait is as many
    /// intervals. Zero refuses whatever cannot leave at once.
    ///
    /// # Panics
    ///
    /// If Redis cannot [keep](Self::check_fit) a line as long as that.
    #[must_use]
    #[track_caller]
    pub fn capacity(self, waiters: usize) -> Self {
        self.with(Bounds { capacity: waiters, ..self.bounds })
    }

    /// The longest that a request may wait.
    ///
    /// Only one of the two bounds is ever met. So raise the [capacity](Self::capacity), too, if requests should wait
    /// longer than a period.
    ///
    /// # Panics
    ///
    /// If Redis cannot [keep](Self::check_fit) a line as long as that.
    #[must_use]
    #[track_caller]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(Bounds { max_wait, ..self.bounds })
    }

    /// How many requests may wait in this process, for their turns or for Redis, over all keys together: the bound on
    /// memory. Whoever comes then is let in only if it may leave at once, and else told to come back when it would have
    /// been its turn.
    #[must_use]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(Bounds { max_waiters: waiters, ..self.bounds })
    }

    /// Whether a queue with these bounds can be made, for those who read them from elsewhere.
    ///
    /// # Errors
    ///
    /// If it would take 2^51 microseconds, about 71 years, to pay for a full line and one more request of the greatest
    /// [cost](crate::Description::max_cost): bursts and waits of up to 35 years are fine.
    pub fn check_fit(quota: &Quota, capacity: usize, max_wait: Duration) -> Result<(), UnfitQuota> {
        // Before its wait is set, a queue has the usual one.
        RedisLine::check_fit(quota, capacity, DEFAULT_MAX_WAIT)?;
        RedisLine::check_fit(quota, capacity, max_wait)
    }

    /// Sends all who wait in this process away at once, with a [`LimiterError`], and whoever comes from now on, too. To
    /// be called when a server shuts down. Their places are [given back](#leaving-before-the-turn). A second call does nothing.
    pub fn close(&self) {
        self.shared.is_closed.send_replace(true);
        self.shared.guard.close();
    }

    /// How many requests are waiting in this process, for their turns or for Redis, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }
}

struct Shared {
    line: RedisLine,
    guard: LeakyQueue,
    waiting: AtomicUsize,
    max_waiters: usize,
    is_closed: watch::Sender<bool>,
}

impl Shared {
    /// A seat for one that waits for less than `patience`, and the longest that it may wait: not at all, if no seat is
    /// free.
    fn seat(self: &Arc<Self>, patience: Option<Duration>) -> (Option<Seat>, Option<Duration>) {
        let take = |taken: usize| (taken < self.max_waiters).then_some(taken + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => (Some(Seat(Arc::clone(self))), patience.map(|it| it.saturating_sub(Duration::from_nanos(1)))),
            Err(_) => (None, Some(Duration::ZERO)),
        }
    }

    /// Asks for a place, and takes the same in the guard's line.
    async fn join(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Result<Place, LimiterError> {
        let place = self.line.join(key, cost, patience).await;
        if let Ok(Place::Given(_)) = place {
            // Whatever it thinks of it: its line is shorter, unless Redis has forgotten a longer one.
            drop(self.guard.decide(&Ask::charge(key, cost).to(Mode::Shadow)));
        }
        place
    }

    async fn wait_turn(self: Arc<Self>, key: PartitionKey, cost: u32, patience: Option<Duration>) -> Answered {
        let (_seat, patience) = self.seat(patience);
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let (shared, of) = (Arc::clone(&self), key.clone());
        // In a box of its own, since it takes thirty times as much room as the wait.
        let answer: Asked = Box::pin(async move { shared.join(&of, cost, patience).await });
        let mut arrival = Arrival { shared: self, key, cost, runtime, answer: Some(answer) };
        let place = arrival.place().await?;
        let decision = match place {
            Place::Refused(decision) => return Ok(decision),
            Place::Given(decision) if decision.delay().is_zero() => return Ok(decision),
            Place::Given(decision) => decision,
        };
        let answered = Instant::now();
        let mut stay = Stay { arrival, receipt: decision.receipt(), is_over: false };
        sleep_until(answered + decision.delay()).await;
        stay.is_over = true;
        Ok(decision.with_delay(answered.elapsed()))
    }

    /// What becomes of `turn`, unless the queue is closed first. By reference: one that is passed on is kept twice.
    async fn unless_closed<T>(
        &self,
        turn: Pin<&mut impl Future<Output = Result<T, LimiterError>>>,
    ) -> Result<T, LimiterError> {
        let mut is_closed = self.is_closed.subscribe();
        // Or a place would be asked for in vain.
        if *is_closed.borrow() {
            return Err(closed());
        }
        tokio::select! {
            // Those whose turn has come may go.
            biased;
            answer = turn => answer,
            _ = is_closed.wait_for(|is_closed| *is_closed) => Err(closed()),
        }
    }

    fn give_back_soon(self: Arc<Self>, runtime: &Handle, key: PartitionKey, cost: u32, receipt: Receipt) {
        runtime.spawn(async move { self.line.give_back(&key, cost, receipt).await });
    }
}

type Answered = Result<Decision, LimiterError>;

/// Counts one that waits.
struct Seat(Arc<Shared>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<Place, LimiterError>> + Send>>;

/// A request that asks for a place. Dropped before the answer came, it is answered all the same, and gives the place back.
struct Arrival {
    shared: Arc<Shared>,
    key: PartitionKey,
    cost: u32,
    runtime: Handle,
    answer: Option<Asked>,
}

impl Arrival {
    async fn place(&mut self) -> Result<Place, LimiterError> {
        let Some(answer) = &mut self.answer else { return Err(closed()) };
        let place = answer.await;
        self.answer = None;
        place
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let (shared, key, cost) = (Arc::clone(&self.shared), self.key.clone(), self.cost);
        self.runtime.spawn(async move {
            if let Ok(Place::Given(decision)) = answer.await {
                shared.line.give_back(&key, cost, decision.receipt()).await;
            }
        });
    }
}

/// A place whose turn has not come. Dropped before, it is given back.
struct Stay {
    arrival: Arrival,
    receipt: Receipt,
    is_over: bool,
}

impl Drop for Stay {
    fn drop(&mut self) {
        if !self.is_over {
            let Arrival { shared, key, cost, runtime, .. } = &self.arrival;
            Arc::clone(shared).give_back_soon(runtime, key.clone(), *cost, self.receipt);
        }
    }
}

impl RedisQueue {
    /// Lets it wait in a line of this process alone.
    fn fall_back(&self, ask: &Ask<'_>) -> Check {
        let marked = |decision: Decision| decision.with_receipt(decision.receipt().of_fallback());
        let (seat, patience) = match self.shared.seat(ask.patience()) {
            // The queue takes off a nanosecond itself.
            (Some(seat), _) => (Some(seat), ask.patience()),
            (None, at_once) => (None, at_once),
        };
        match self.shared.guard.decide(&ask.to(Mode::Charge).within(patience)) {
            Check::Ready(answer) => Check::Ready(answer.map(marked)),
            Check::Pending(turn) => Check::Pending(Box::pin(async move {
                let _seat = seat;
                turn.await.map(marked)
            })),
        }
    }

    /// Takes a place in line that nobody waits in.
    fn place_of_nobody(&self, ask: &Ask<'_>) -> Pending {
        let (shared, key, cost) = (Arc::clone(&self.shared), ask.key().clone(), ask.cost());
        Box::pin(async move {
            let (Place::Given(decision) | Place::Refused(decision)) =
                shared.unless_closed(pin!(shared.join(&key, cost, None))).await?;
            Ok(decision)
        })
    }
}

impl Limiter for RedisQueue {
    /// For this one request, its [patience](Ask::within) bounds the wait as [`max_wait`](Self::max_wait) does, from its
    /// arrival at Redis on; a turn that comes when the patience ends comes too late.
    ///
    /// As a [fallback](Mode::Fallback), it waits in a line of this process alone.
    fn decide(&self, ask: &Ask<'_>) -> Check {
        match ask.mode() {
            Mode::Fallback => self.fall_back(ask),
            Mode::Shadow => Check::Pending(self.place_of_nobody(ask)),
            Mode::UpTo => in_background(self.place_of_nobody(ask)),
            Mode::Charge | Mode::Peek | Mode::Reset => {
                let (shared, key, cost) = (Arc::clone(&self.shared), ask.key().clone(), ask.cost());
                let patience = ask.patience();
                Check::Pending(Box::pin(async move {
                    let turn = pin!(Arc::clone(&shared).wait_turn(key, cost, patience));
                    shared.unless_closed(turn).await
                }))
            }
        }
    }

    /// In the background, once.
    fn refund(&self, key: &PartitionKey, receipt: Receipt, cost: u32) {
        if receipt.is_none() {
            return;
        }
        match (receipt.fallback(), Handle::try_current()) {
            (Some(receipt), _) => self.shared.guard.refund(key, receipt, cost),
            (None, Ok(runtime)) => Arc::clone(&self.shared).give_back_soon(&runtime, key.clone(), cost, receipt),
            (None, Err(_)) => {}
        }
    }

    /// Clients are told of a bucket that holds all who may leave or wait at once, as by a [`LeakyQueue`].
    fn describe(&self) -> Description {
        Description::new()
            .advertising(Terms::bucket(self.quota.burst(self.shared.line.limit())))
            .admitting_at_most(self.shared.line.max_cost())
            .delaying()
            .answering(Mode::Shadow)
            .answering(Mode::UpTo)
            .answering(Mode::Fallback)
    }

    /// From a queue of this name on the same [`Redis`]. Those who wait leave as they were told; only the other one counts
    /// them, and sends them away when [that](Self::close) is closed.
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let predecessor: Arc<Namesake> = predecessor.heritage()?.downcast()?;
        if self.redis.id() != predecessor.redis.id() || self.name != predecessor.name {
            return None;
        }
        let _ = self.shared.guard.inherit(&predecessor.shared.guard);
        Some(Inheritance::in_place())
    }

    fn heritage(&self) -> Option<Heritage> {
        let (redis, name, shared) = (self.redis.clone(), self.name.clone(), Arc::clone(&self.shared));
        Some(Heritage::new(Arc::new(Namesake { redis, name, shared })))
    }

    /// See [`RedisQueue::close`].
    fn close(&self) {
        self.close();
    }

    /// Of those who wait, without a time: each waits on a timer of its own.
    fn stats(&self) -> Stats {
        Stats { backlog: Some(Backlog::new(self.waiting(), None)), nodes: self.redis.health(), ..Stats::default() }
    }
}

impl IntoLimiter for RedisQueue {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for RedisQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisQueue")
            .field("redis", &self.redis)
            .field("name", &self.name)
            .field("quota", &self.quota)
            .field("capacity", &self.bounds.capacity)
            .field("max_wait", &self.bounds.max_wait)
            .field("waiting", &self.waiting())
            .finish()
    }
}
