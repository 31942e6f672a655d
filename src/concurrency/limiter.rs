//! [`Concurrency`], the limiter.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::counts::{AcquireResult, Counts};
use super::wait_lists::{JoinResult, WantedUnits};
use super::waiting::WaitForUnits;
use super::{InFlight, admitted, rejected, word};
use crate::limiter::WaitBounds;
use crate::limiter::{IntoLimiter, Limiter, Permit};
use crate::store::{Stats, TableStats};
use crate::values::Backlog;
use crate::values::{
    Answer, Ask, Decision, Description, Inheritance, LimiterError, Mode, PartitionKey, Receipt, Terms,
};

/// Limits how many requests per key are in flight at once, in this process;
/// [`SharedConcurrency`](crate::SharedConcurrency) does so over many.
///
/// A request takes its [cost](crate::Policy::cost) in units, one unless set, and holds them until it is over. In a
/// layer, that is when its response's **body** has ended, has failed, or was dropped: a slow download, a stream of
/// events, or a gRPC call whose server streams counts until it ends. (tower's `ConcurrencyLimit` counts until the
/// response's head, and does not know keys.) A policy may [release them at the head](crate::Policy::release_at_head).
/// No unit is lost, however the request ends: a client that disconnects, a service that fails or panics, a body that
/// nobody reads.
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// use tower_sluice::key::HeaderKey;
/// use tower_sluice::{Concurrency, Policy, RateLimitLayer};
///
/// // Four at once for each customer.
/// let policy = Policy::new("in-flight", Concurrency::new(4)).key(HeaderKey::from_static("x-api-key"));
/// let layer = RateLimitLayer::new(policy);
/// ```
///
/// # Waiting
///
/// A request that finds its key's units taken is rejected. With [`max_queue`](Self::max_queue), it waits until others
/// are over, first come, first served. No request overtakes another: a request that costs more than is free keeps those
/// behind it waiting.
///
/// # Limits of the keys' own
///
/// [`Policy::limit_fn`](crate::Policy::limit_fn) gives each key its own limit, up to 2,147,483,647. Requests in flight
/// stay when it is lowered, and no further one is admitted until enough are over. Each request that waits is judged by
/// the limit that it came with, when it is the first: a first request with a low limit keeps those behind it waiting,
/// also those with a higher one. Otherwise these could take each unit that is released, and the first would wait for
/// ever.
///
/// # Response fields
///
/// The end of a request is not known in advance, so a rejection carries **no `Retry-After`**: the client should retry
/// when one of its own requests has ended. `RateLimit-Policy` has the limit with the unit `concurrent-requests` and
/// without a window, and `RateLimit` the remaining units, without a time:
///
/// ```text
/// RateLimit-Policy: "in-flight";q=4;qu="concurrent-requests"
/// RateLimit: "in-flight";r=0
/// ```
///
/// Draft-07 and `X-RateLimit-*` cannot express that, and do not mention the policy.
///
/// # Accuracy
///
/// Exact: with any number of threads, a key never has more than `limit` units in flight, and a request is rejected only
/// while it would exceed the limit. Two keys share their count if 32 bits of their hashes and one of their two
/// candidate sets are equal: for a new key in a half-full table, with a probability of 2 × 10⁻⁹. The hash has a secret,
/// so a client cannot choose keys that share.
///
/// # Memory and cost
///
/// 16 bytes for each key of [`max_keys`](Self::max_keys), for keys of any length. Each request that waits takes some
/// 200 bytes. **Units in flight are never evicted.** If both a new key's candidate sets are full of keys with requests
/// in flight, its request is rejected. Below `max_keys` such keys, that does not happen.
///
/// Taking units and releasing them is one compare-and-swap each; a key that was not seen for a while takes a lock that
/// it shares with one in 256 others. If others wait, their list's lock is taken.
///
/// # Live change
///
/// A changed limit holds from the next request on, and units in flight stay counted. Requests that wait are judged by
/// the new limit, in their order, unless they came with their [key's limit](crate::limiter::Ask::limited_to). If two
/// changes happen at once, the later one counts. The table stays, and so does the first limiter's
/// [`max_keys`](Self::max_keys).
///
/// # Without a layer
///
/// ```
/// use tower_sluice::{Concurrency, PartitionKey};
///
/// let exports = Concurrency::new(1);
/// let alice = PartitionKey::from("alice");
///
/// let permit = exports.try_acquire(&alice, 1).expect("no export is running");
/// assert!(exports.try_acquire(&alice, 1).is_none());
/// drop(permit);
/// assert!(exports.try_acquire(&alice, 1).is_some());
/// ```
#[must_use]
#[doc(alias("semaphore", "concurrency limit", "bulkhead", "in flight"))]
pub struct Concurrency {
    limit: u64,
    max_keys: usize,
    queue: Option<WaitBounds>,
    /// Made on first use: a limiter that inherits shares its predecessor's instead.
    counts: OnceLock<Arc<Counts>>,
}

const DEFAULT_MAX_KEYS: usize = 65_536;

impl Concurrency {
    /// Admits up to `limit` units per key at once. More are rejected.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: nothing would ever pass. If it is above 2,147,483,647.
    #[track_caller]
    pub const fn new(limit: u64) -> Self {
        assert!(limit > 0, "a limit of zero would admit nothing; write 1 or more");
        assert!(limit <= word::MOST, "a limit of concurrent requests is at most 2147483647");
        Self { limit, max_keys: DEFAULT_MAX_KEYS, queue: None, counts: OnceLock::new() }
    }

    /// Lets up to `waiters` requests per key wait for others to be over: for up to 30 seconds each, and 65,536 over all
    /// keys.
    ///
    /// Every waiting request holds its connection, its headers and the readiness of the inner service. A waiter that is
    /// dropped leaves at once. Waiting needs a tokio runtime with a timer; a turn comes on any runtime on which its
    /// waiter is polled.
    pub fn max_queue(self, waiters: usize) -> Self {
        self.waiting(|queue| queue.max_queue = waiters)
    }

    /// Sets a request's longest wait, after which it is rejected; 30 seconds unless set. Has no effect without
    /// [`max_queue`](Self::max_queue).
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.waiting(|queue| queue.max_wait = max_wait)
    }

    /// Sets how many requests wait over all keys together; 65,536 unless set. Has no effect without
    /// [`max_queue`](Self::max_queue).
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        self.waiting(|queue| queue.max_waiters = max_waiters)
    }

    /// Sets how many keys may have requests in flight at once; 65,536 unless set. The table takes 16 bytes for each,
    /// which the system hands out when they are first touched.
    ///
    /// # Panics
    ///
    /// If `keys` is zero; and at the first request, if the memory cannot be allocated.
    #[track_caller]
    pub fn max_keys(self, keys: usize) -> Self {
        assert!(keys > 0, "a table for zero keys would reject every request");
        Self { max_keys: keys, ..self }
    }

    /// Takes `cost` units for a key, if they are free now. Never waits, and takes no units that others wait for. To
    /// wait, see [`LimiterExt::acquire`](crate::LimiterExt::acquire).
    pub fn try_acquire(&self, key: &PartitionKey, cost: u64) -> Option<Permit<&Self>> {
        self.take_at_once((key, cost, self.limit), |decision| Permit::new(self, key, cost, decision, true).admitted())
    }

    fn waiting(mut self, set: impl FnOnce(&mut WaitBounds)) -> Self {
        set(self.queue.get_or_insert(WaitBounds::new(0)));
        self
    }

    #[inline(always)]
    fn counts(&self) -> &Arc<Counts> {
        self.counts.get_or_init(|| Arc::new(Counts::new(self.max_keys)))
    }

    /// The size of the count table, in bytes.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.counts().size_in_bytes()
    }

    /// For this crate's tests: panics if an invariant of the wait lists is broken.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.counts().wait_lists.check_invariants(&self.counts().slots);
    }

    /// Decides on a request that passes or is rejected at once.
    #[inline(always)]
    fn take_at_once<T>(&self, (key, cost, limit): (&PartitionKey, u64, u64), answer: impl FnOnce(Decision) -> T) -> T {
        let counts = self.counts();
        let place = counts.place(key);
        if !may_fit(cost, limit) {
            return answer(decided(counts.peek(&place).0, cost, limit));
        }
        answered(counts.acquire(&place, cost, limit), limit, answer)
    }

    /// A question's limit: the key's own, or the limiter's.
    #[inline(always)]
    fn limit_of(&self, ask: &Ask<'_>) -> u64 {
        ask.limit().map_or(self.limit, |limit| limit.min(word::MOST))
    }

    fn charge(&self, ask: &Ask<'_>) -> Answer {
        if let Some(queue) = self.queue.filter(|_| may_fit(ask.cost(), self.limit_of(ask))) {
            return self.charge_or_wait(queue, ask);
        }
        self.take_at_once((ask.key(), ask.cost(), self.limit_of(ask)), Answer::from)
    }

    fn charge_or_wait(&self, queue: WaitBounds, ask: &Ask<'_>) -> Answer {
        let counts = self.counts();
        let cost = ask.cost();
        let limit = self.limit_of(ask);
        let wanted = WantedUnits {
            cost,
            limit,
            is_own_limit: ask.limit().is_some(),
            max_waiters_of_key: queue.max_queue,
            max_waiters: queue.max_waiters as u64,
        };
        let place = counts.place(ask.key());
        loop {
            let slot = match counts.acquire(&place, cost, limit) {
                AcquireResult::Full { slot, .. } => slot,
                result => return answered(result, limit, Answer::from),
            };
            return match counts.wait_lists.join(&counts.slots, &place, slot, wanted) {
                JoinResult::Taken { units } => admitted(slot, units, limit).into(),
                JoinResult::Full { units } => rejected(limit, limit.saturating_sub(units)).into(),
                JoinResult::Closed => Answer::Ready(Err(super::closed())),
                JoinResult::Gone => continue,
                JoinResult::Waits(ticket) => {
                    let longest = queue.longest_wait(ask.patience());
                    match WaitForUnits::new(Arc::clone(counts), ticket, (cost, limit), longest) {
                        Ok(waiting) => Answer::Pending(Box::pin(waiting)),
                        Err(error) => Answer::Ready(Err(error)),
                    }
                }
            };
        }
    }

    fn peek(&self, (key, cost, limit): (&PartitionKey, u64, u64)) -> Decision {
        let counts = self.counts();
        let (units, has_waiters) = counts.peek(&counts.place(key));
        let decision = decided(units, cost, limit);
        if self.queue.is_some_and(|queue| queue.max_queue > 0) && cost <= limit {
            // It would pass or wait. Whether there is room to wait is decided when it does.
            return if has_waiters || !decision.is_allowed() { Decision::allow(limit, 0) } else { decision };
        }
        if has_waiters && cost > 0 && decision.is_allowed() {
            return rejected(limit, decision.remaining());
        }
        decision
    }
}

/// Whether a request takes units if enough are free. Any other request only reads the count.
const fn may_fit(cost: u64, limit: u64) -> bool {
    0 < cost && cost <= limit
}

/// Answers a request that does not wait. Each arm makes its answer in place: an answer that is made after the match
/// would be copied.
#[inline(always)]
fn answered<T>(result: AcquireResult, limit: u64, answer: impl FnOnce(Decision) -> T) -> T {
    match result {
        AcquireResult::Taken { slot, units } => answer(admitted(slot, units, limit)),
        AcquireResult::Full { units, .. } => answer(rejected(limit, limit.saturating_sub(units))),
        AcquireResult::NoSlot => answer(rejected(limit, 0)),
    }
}

/// The decision, without a charge, on a request whose key has `units` in flight and no waiters.
fn decided(units: u64, cost: u64, limit: u64) -> Decision {
    let remaining = limit.saturating_sub(units);
    match remaining.checked_sub(cost) {
        Some(remaining) => Decision::allow(limit, remaining),
        None if cost > limit => Decision::reject(limit, remaining, None),
        None => rejected(limit, remaining),
    }
}

impl Limiter for Concurrency {
    /// A request's [patience](Ask::within) bounds its wait as [`max_wait`](Self::max_wait) does.
    ///
    /// A [shadow](Mode::Shadow) takes units that are free, and never waits: it reports a request that would have to
    /// wait as rejected, and does not count it.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge | Mode::Peek | Mode::Shadow if ask.is_suspended() => Decision::suspended().into(),
            Mode::Peek => self.peek((ask.key(), ask.cost(), self.limit_of(ask))).into(),
            Mode::Shadow => self.take_at_once((ask.key(), ask.cost(), self.limit_of(ask)), Answer::from),
            Mode::Charge => self.charge(ask),
            mode @ (Mode::UpTo | Mode::Fallback | Mode::Reset) => LimiterError::unsupported(mode).into(),
        }
    }

    /// Releases units of a request that is over.
    #[inline]
    fn refund(&self, _: &Ask<'_>, receipt: Receipt, units: u64) {
        let counts = self.counts();
        if let Some(InFlight { slot }) = receipt.read().filter(|InFlight { slot }| *slot < counts.slots.len()) {
            counts.release(slot, units);
        }
    }

    fn describe(&self) -> Description {
        let description = Description::new()
            .advertising(Terms::concurrency(self.limit))
            .admitting_at_most(self.limit)
            .holding()
            .taking_quotas()
            .answering(Mode::Peek)
            .answering(Mode::Shadow);
        if self.queue.is_some() {
            return description.delaying();
        }
        description
    }

    /// See [live change](Self#live-change).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = Arc::clone(predecessor.downcast_ref::<Self>()?.counts());
        // A limiter that was used has its own counts, unless they are the predecessor's: it was in force before.
        if !Arc::ptr_eq(self.counts.get_or_init(|| Arc::clone(&theirs)), &theirs) {
            return None;
        }
        let inheritance = Inheritance::in_place().keeping_capacity(theirs.keys() != self.max_keys);
        // Begun here, because a layer has its limiters inherit one after another, but two changes may finish in any
        // order.
        let change = theirs.wait_lists.begin_change();
        let limit = self.limit;
        Some(inheritance.then(move || theirs.wait_lists.change_limit(&theirs.slots, change, limit)))
    }

    /// Counts the keys with requests in flight, and their units. Reads the whole table: 0.1 ms for a million keys'
    /// slots.
    fn stats(&self) -> Stats {
        let counts = self.counts();
        let (live, units) = counts.totals();
        let table = TableStats {
            capacity: counts.keys() as u64,
            live_keys: live,
            turned_away: counts.turned_away(),
            number: Some(counts.number()),
            ..TableStats::default()
        };
        let stats = Stats { table: Some(table), in_flight: Some(units), ..Stats::default() };
        if self.queue.is_some() {
            let waiting = usize::try_from(counts.wait_lists.waiting()).unwrap_or(usize::MAX);
            return Stats { backlog: Some(Backlog::new(waiting, None)), ..stats };
        }
        stats
    }

    /// Ends all waits with a [`LimiterError`], and lets no request wait any more. Requests that need not wait still
    /// pass.
    fn close(&self) {
        let counts = self.counts();
        counts.wait_lists.close(&counts.slots);
    }
}

impl IntoLimiter for Concurrency {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Concurrency");
        debug.field("limit", &self.limit).field("max_keys", &self.max_keys);
        debug.field("queue", &self.queue);
        debug.finish_non_exhaustive()
    }
}
