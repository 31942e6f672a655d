//! [`Overload`], the limiter.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::fair_queue::Arrival;
use super::gate::{Gate, GateSettings};
use super::waiting::WaitForTurn;
use super::word::GateWord;
use super::worker_lag::{Judgement, probe};
use super::{InFlight, admitted, decided, shed, word};
use crate::limiter::{IntoLimiter, Limiter};
use crate::store::Stats;
use crate::values::{
    Answer, Ask, Backlog, Decision, Description, Inheritance, LimiterError, Mode, Receipt, RequestEnd, ShedsAnybody,
};

/// Protects a server from overload: it bounds the requests in flight by **one limit for all keys that it finds
/// itself**, lets requests wait in the order of their importance, and sheds those that would wait for too long.
///
/// A rate limit protects a client's quota. This limiter protects the server, for any number of clients and any request
/// cost: a server that takes on more than it can do serves everything too late.
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// use tower_sluice::key::HeaderKey;
/// use tower_sluice::{Overload, Policy, RateLimitLayer};
///
/// // Without `on_missing_key`, a request without the header gets 400.
/// let policy = Policy::new("overload", Overload::new()).key(HeaderKey::from_static("x-tenant"));
/// let layer = RateLimitLayer::new(policy);
/// ```
///
/// # Who waits, and who is shed
///
/// A request that finds the limit reached waits, for [`max_wait`](Self::max_wait) at most. The next request to be
/// served is
///
/// 1. a request in the highest [class](crate::limiter::Priority), in strict order;
/// 2. within a class, a request from the key whose turn it is: each key has the same share of the server's capacity, or
///    a share in proportion to its weight. A key that sends a hundred times more waits a hundred times longer, and the
///    others do not notice;
/// 3. within a key, the oldest; while requests wait for too long and more come, the newest.
///
/// In the limit's last quarter, no key holds more than half if another key has used that quarter within a second. So a
/// key with slow requests does not hold all units, except for a moment in which the limit shrinks below the units that
/// it holds.
///
/// Requests wait for too long if for 100 ms, at every instant, some request had waited for longer than
/// [`queue_target`](Self::queue_target), or than a quarter of a request's usual time. A burst may do that, so the
/// others go on waiting, for `max_wait` at most. When it has lasted for `max_wait`, and more requests come than are
/// served, requests that have waited for twice the target are shed at once, so that their clients need not wait for an
/// answer. If the queue was empty at some instant within four times `max_wait`, the load may come and go: then the
/// requests that the server can serve in `max_wait` go on waiting, for the next pause. Until a limit was found, a queue
/// only says that the limit is too low, and no request is shed for this reason.
///
/// If [`max_queue`](Self::max_queue) requests wait, the request that would be served last gives way to the newcomer: a
/// request in the lowest class, from the key with the longest queue.
///
/// A request that is shed is answered **503** (in gRPC UNAVAILABLE), since it is not the client's fault. `Retry-After`
/// is an **estimate**, the time in which the server would have served the requests before it, 30 seconds at most. It is
/// absent if that is below a second or not known, as for a request shed because its worker lags. (All other waits in
/// this crate are promises.) In one layer with rate limits, a shed request is charged nowhere.
///
/// # Bodies that nobody reads
///
/// In a layer, a request holds its units until its response body has ended. If the client does not read, and requests
/// wait, the units are taken back 100 ms after the last frame, and count for the request's key from then on. If a key
/// has the whole limit in such units, its requests don't wait: they pass only while units are free. This last rule does
/// not apply to the key that all clients share.
///
/// # Handlers that compute
///
/// A handler that computes without an `.await` keeps its worker, and other requests wait in tokio's run queue, before
/// this sees them. While requests come, a task measures the workers' lag, at most every 5 ms unless they lag. The lag
/// counts as a part of a request's wait. If it was above [`queue_target`](Self::queue_target) in all measurements for
/// 100 ms, requests that have waited for longer in the run queue are shed; from half the target on in the lowest class,
/// and from twice and four times the target in the two highest. This needs tokio's timer: in a runtime without it,
/// tokio reports a panic once, and nothing is measured.
///
/// # How the limit is found
///
/// First within a factor of two: requests that have filled the limit are followed to their end, under it and under its
/// half. If they take equally long under both, its double is tried; if they take twice as long, the half of its half.
/// Some 16 requests are enough for a step if they are alike, and up to 192 if their times are scattered, so this works
/// for bursts, and for four requests in a second. Times are compared with each other and never with a normal time, so
/// an incident cannot become the normal.
///
/// Then exactly: while requests wait, the limit alternates between two values, for some 50 ms or more each. If the
/// server serves more requests under the greater one, by a quarter of the proportional increase, the limit grows.
/// Otherwise it shrinks, because a few requests more only wait inside the server. If it has grown twice in a row, or
/// has found nothing for 20 seconds in which the limit was full, the first comparison is made again, with the double.
///
/// Only **served** requests count, and not responses with status 500 or above, or requests that their clients gave up.
/// If most requests are given up before they have a response (six of six, or fourteen of eighteen), the limit is
/// lowered to the units in flight and then by half at a time, even if it is never reached, so that a server that works
/// on for clients that have left can catch up. Each key has one vote in this, so that one client does not lower the
/// limit for the others; without a [key](crate::Policy::key), all clients share one vote. If most requests are given up
/// under the lowest limit, too, for half a minute, the limit was not the reason. The previous limit is in force again,
/// and clients that give up do not lower it for a minute, then for two, and for ten at most. Requests that are given up
/// within 20 ms do not count, because no server is slow for such a client. While the server is idle, the limit does not
/// drift.
///
/// # Accuracy
///
/// With any number of threads, no more units are in flight than the limit, except that units in flight stay when the
/// limit shrinks, and that a request that costs more than the limit passes when it is alone. In simulations with fixed,
/// exponential and bimodal service times, the limit found is between 7/8 and 3/2 of the number of requests that the
/// server really works on at once (`scripts/overload`).
///
/// # Memory and cost
///
/// While nobody waits, taking units and releasing them is one compare-and-swap each, for any number of keys, and
/// nothing is allocated here. Otherwise, and for the limit's last quarter, a lock is taken, and each request that waits
/// takes some 700 bytes. When a request is given up before it has a response, others take the lock until the next 18
/// have ended, for 30 seconds at most. A key that holds units in that quarter, or did within a second, takes some 100
/// bytes; otherwise, nothing is kept for keys that do not wait.
///
/// # Live change
///
/// Other bounds hold at once, and the limit found is kept as far as they allow. Units in flight stay counted, and
/// requests that wait keep their place and their longest wait.
///
/// # Without a layer
///
/// ```
/// use tower_sluice::limiter::RequestEnd;
/// use tower_sluice::{LimiterExt, Overload, PartitionKey};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let overload = Overload::new();
/// let alice = PartitionKey::from("alice");
///
/// if let Some(mut permit) = overload.acquire(&alice, 1).await?.admitted() {
///     // … work …
///     permit.end_as(RequestEnd::Served);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
#[doc(alias("adaptive concurrency", "load shedding", "backpressure", "priority", "fair queueing"))]
pub struct Overload {
    bounds: RangeInclusive<u64>,
    start: u64,
    queue_target: Duration,
    max_wait: Duration,
    max_queue: usize,
    /// Made on first use: a limiter that inherits shares its predecessor's instead.
    gate: OnceLock<Arc<Gate>>,
}

impl Overload {
    /// Creates a limiter whose limit begins at 20 units and stays between 2 and 1,024. Up to 1,024 requests wait, for
    /// up to 500 ms each.
    pub const fn new() -> Self {
        Self {
            bounds: 2..=1_024,
            start: 20,
            queue_target: Duration::from_millis(20),
            max_wait: Duration::from_millis(500),
            max_queue: 1_024,
            gate: OnceLock::new(),
        }
    }

    /// Sets the limit's bounds, in units in flight; `2..=1024` unless set. The lower one should suffice for the
    /// server's least work: the number of its processors, at least. With equal bounds, the limit is fixed.
    ///
    /// # Panics
    ///
    /// If the range is empty or begins at zero, or if it ends above 2,147,483,647.
    #[track_caller]
    pub fn limits(self, bounds: RangeInclusive<u64>) -> Self {
        assert!(!bounds.is_empty(), "the bounds of a limit begin with the lower one, as in 4..=1024");
        assert!(*bounds.start() > 0, "a limit of zero would admit nothing: the bounds begin at 1 or above");
        assert!(*bounds.end() <= word::MOST, "a limit of concurrent requests is at most 2147483647");
        Self { bounds, ..self }
    }

    /// Sets the limit until another one is found; 20 unless set. Outside of the bounds, it is the nearer one.
    pub const fn starting_at(mut self, limit: u64) -> Self {
        self.start = limit;
        self
    }

    /// Sets the wait that is too long if at every instant some request has waited for longer; 20 ms unless set, as in
    /// WeChat's servers. If a quarter of a request's usual time is longer than that, it counts instead, up to half of
    /// [`max_wait`](Self::max_wait).
    pub const fn queue_target(mut self, target: Duration) -> Self {
        self.queue_target = target;
        self
    }

    /// Sets a request's longest wait, after which it is shed; 500 ms unless set. Set it to the time for which your
    /// clients wait, less the time that a request takes, because a burst that the server can answer in this time is not
    /// shed. A shorter deadline that the request brings along (gRPC) counts instead.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Sets how many requests wait, over all keys; 1,024 unless set. With zero, no request waits, and the limit is
    /// found within a factor of two only, because in the exact search, requests that wait show that it binds. A layer
    /// then sheds a request before it looks for its key, which costs no more than tower's `LoadShed`.
    pub const fn max_queue(mut self, waiters: usize) -> Self {
        self.max_queue = waiters;
        self
    }

    fn settings(&self) -> GateSettings {
        GateSettings {
            bounds: self.bounds.clone(),
            queue_target: self.queue_target,
            max_wait: self.max_wait,
            max_queue: self.max_queue,
        }
    }

    #[inline(always)]
    pub(super) fn gate(&self) -> &Arc<Gate> {
        self.gate.get_or_init(|| Arc::new(Gate::new(&self.settings(), self.start)))
    }

    /// Takes units that are free now, in a shadow.
    fn take_in_shadow(&self, cost: u64) -> Decision {
        if cost == 0 || cost > *self.bounds.end() {
            return self.peek(cost);
        }
        match self.gate().take_in_shadow(cost) {
            Ok(word) => admitted(word, InFlight::SHADOW),
            Err(word) => shed(word, None),
        }
    }

    /// The decision, without a charge, on a request that may wait: only a cost beyond the bounds never passes.
    fn peek(&self, cost: u64) -> Decision {
        if cost > *self.bounds.end() {
            return Decision::reject(*self.bounds.end(), 0, None);
        }
        let word = self.gate().word();
        Decision::allow(word.limit(), word.limit().saturating_sub(word.units()))
    }

    #[inline]
    fn charge(&self, ask: &Ask<'_>) -> Answer {
        let cost = ask.cost();
        if cost == 0 || cost > *self.bounds.end() {
            return self.peek(cost).into();
        }
        let gate = self.gate();
        if gate.worker_lag.is_watched() {
            return self.look_or_wait(gate, ask);
        }
        match gate.take_at_once(cost) {
            Ok(word) => admitted(word, InFlight::default()).into(),
            Err(word) => self.shed_or_wait(gate, ask, word),
        }
    }

    /// Sheds a request that found no unit in this word, if no request may wait.
    #[cold]
    #[inline(never)]
    fn shed_or_wait(&self, gate: &Arc<Gate>, ask: &Ask<'_>, word: GateWord) -> Answer {
        if gate.sheds_anybody(word, ask.cost()) {
            gate.count_unlocked_shed(ask.priority());
            return shed(word, None).into();
        }
        self.look_or_wait(gate, ask)
    }

    /// Sheds a request if its worker lags behind, and otherwise lets it wait for its turn, unless it has come by now.
    #[cold]
    #[inline(never)]
    fn look_or_wait(&self, gate: &Arc<Gate>, ask: &Ask<'_>) -> Answer {
        let word = gate.word();
        // A request that has to wait is the gate's: it knows shares, and hands out units in the order of the classes.
        let can_shed = word.has_room(ask.cost());
        let Judgement { starts_probe, is_shed, queued_at } =
            gate.worker_lag.judge(gate.now(), ask.priority(), can_shed);
        if starts_probe {
            probe(gate);
        }
        if is_shed {
            return shed(word, None).into();
        }
        match gate.take_at_once(ask.cost()) {
            Ok(word) => admitted(word, InFlight::default()).into(),
            Err(word) if gate.sheds_anybody(word, ask.cost()) => {
                gate.count_unlocked_shed(ask.priority());
                shed(word, None).into()
            }
            Err(_) => self.wait(gate, ask, queued_at),
        }
    }

    /// Lets a request wait that has waited in the run queue since `at`, unless its turn has come by now.
    fn wait(&self, gate: &Arc<Gate>, ask: &Ask<'_>, at: u64) -> Answer {
        let arrival =
            Arrival { key: ask.key().clone(), priority: ask.priority(), weight: ask.weight(), cost: ask.cost(), at };
        match gate.enter(arrival) {
            Err(turn) => Answer::Ready(decided(gate, turn)),
            Ok(ticket) => {
                let longest = ask.patience().map_or(self.max_wait, |patience| patience.min(self.max_wait));
                match WaitForTurn::new(Arc::clone(gate), (ticket, ask.key().clone()), ask.cost(), longest) {
                    Ok(waiting) => Answer::Pending(Box::pin(waiting)),
                    Err(error) => Answer::Ready(Err(error)),
                }
            }
        }
    }
}

impl Default for Overload {
    fn default() -> Self {
        Self::new()
    }
}

impl Limiter for Overload {
    /// A [peek](Mode::Peek) reports that a request would pass, now or after a wait. A [shadow](Mode::Shadow) takes
    /// units that are free, and never waits: it reports a request that would have to wait as shed, and does not count
    /// it.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge => self.charge(ask),
            Mode::Shadow => self.take_in_shadow(ask.cost()).into(),
            Mode::Peek => self.peek(ask.cost()).into(),
            mode @ (Mode::UpTo | Mode::Fallback | Mode::Reset) => LimiterError::unsupported(mode).into(),
        }
    }

    /// Releases a request's units after another policy has rejected it. Nothing is learned from it.
    fn refund(&self, ask: &Ask<'_>, receipt: Receipt, units: u64) {
        if let Some(held) = receipt.read() {
            self.gate().refund(ask.key(), units, held);
        }
    }

    /// Releases units of a request that is over, and learns from its end.
    #[inline]
    fn release(&self, ask: &Ask<'_>, receipt: Receipt, units: u64, end: RequestEnd) {
        if let Some(held) = receipt.read() {
            self.gate().release(ask.key(), units, held, end);
        }
    }

    fn describe(&self) -> Description {
        Description::new()
            .admitting_at_most(*self.bounds.end())
            .holding()
            .delaying()
            .shedding()
            .watching_bodies(Self::find_watcher)
            .shedding_anybody(|limiter| {
                Some(Arc::clone(limiter.downcast_ref::<Self>()?.gate()) as Arc<dyn ShedsAnybody>)
            })
            .answering(Mode::Peek)
            .answering(Mode::Shadow)
    }

    /// See [live change](Self#live-change).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = Arc::clone(predecessor.downcast_ref::<Self>()?.gate());
        // A limiter that was used has its own gate, unless it is the predecessor's: it was in force before.
        if !Arc::ptr_eq(self.gate.get_or_init(|| Arc::clone(&theirs)), &theirs) {
            return None;
        }
        // Begun here, since a layer has its limiters inherit one after another, but two changes may finish in any
        // order.
        let (change, settings) = (theirs.begin_change(), self.settings());
        Some(Inheritance::in_place().then(move || theirs.change(change, &settings)))
    }

    fn stats(&self) -> Stats {
        let gate = self.gate();
        gate.worker_lag.look_again();
        let (worker_lag, sheds_for_lag, shed_for_lag) = gate.worker_lag.report(gate.now());
        let mut overload = gate.stats();
        overload.worker_lag = worker_lag;
        overload.is_overloaded |= sheds_for_lag;
        overload.shed.iter_mut().zip(shed_for_lag).for_each(|(shed, for_lag)| *shed += for_lag);
        Stats {
            in_flight: Some(gate.word().units()),
            backlog: Some(Backlog::new(gate.waiting(), None)),
            overload: Some(overload),
            ..Stats::default()
        }
    }

    /// Ends all waits with a [`LimiterError`], and lets no request wait any more. Requests that need not wait still
    /// pass.
    fn close(&self) {
        self.gate().close();
    }
}

impl IntoLimiter for Overload {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overload")
            .field("bounds", &self.bounds)
            .field("queue_target", &self.queue_target)
            .field("max_wait", &self.max_wait)
            .field("max_queue", &self.max_queue)
            .finish_non_exhaustive()
    }
}
