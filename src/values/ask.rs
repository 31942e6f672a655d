//! `Ask`, the question that limiters and stores answer.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::values::time::{Clock, Timestamp};
use crate::values::{PartitionKey, Priority, Quota};

/// One question to a limiter: may this key have `cost` units, and in which mode?
///
/// A layer asks it for each request. Without HTTP, ask it directly:
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::limiter::Ask;
/// use tower_sluice::{Limiter, PartitionKey, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory(TokenBucket::new(Quota::per_minute(10)));
/// let alice = PartitionKey::from("alice");
/// let decision = limiter.decide(&Ask::charge(&alice, 3)).decided().await?;
/// assert!(decision.is_allowed());
/// // Three more would leave four.
/// assert_eq!(limiter.decide(&Ask::peek(&alice, 3)).decided().await?.remaining(), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Ask<'a> {
    key: &'a PartitionKey,
    cost: u64,
    mode: Mode,
    patience: Option<Duration>,
    now: Option<&'a Now>,
    quota: Option<Quota>,
    keeps_quota: bool,
    priority: Priority,
    weight: NonZeroU32,
}

impl<'a> Ask<'a> {
    /// Asks to charge `cost` units to `key`, if all are admitted. A cost of zero charges nothing and is always
    /// admitted.
    pub const fn charge(key: &'a PartitionKey, cost: u64) -> Self {
        Self {
            key,
            cost,
            mode: Mode::Charge,
            patience: None,
            now: None,
            quota: None,
            keeps_quota: false,
            priority: Priority::Normal,
            weight: NonZeroU32::MIN,
        }
    }

    /// Asks for the answer that [`charge`](Self::charge) would get.
    pub const fn peek(key: &'a PartitionKey, cost: u64) -> Self {
        Self::charge(key, cost).to(Mode::Peek)
    }

    /// Asks to clear the key's debt.
    pub const fn reset(key: &'a PartitionKey) -> Self {
        Self::charge(key, 0).to(Mode::Reset)
    }

    /// Asks in another mode.
    pub const fn to(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Bounds the time that the request may wait, after which its client gives up (`None`: only the limiter's own bound
    /// applies).
    ///
    /// A limiter that [delays](crate::limiter::Description::delaying) rejects a request at once, and without charging
    /// it, if it would wait for `patience` or longer. `retry_after` is then the time after which the same request with
    /// the same patience would be accepted. A request that need not wait passes with any patience.
    pub const fn within(self, patience: Option<Duration>) -> Self {
        Self { patience, ..self }
    }

    /// Asks about another cost.
    pub const fn costing(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Asks at the instant in `now`, which the first limiter that needs it reads.
    pub(crate) const fn at(self, now: &'a Now) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Asks under the key's own quota (`None`: under the limiter's), which the limiter enforces for this question.
    ///
    /// The key keeps its used units when its quota changes, as after a [live change](crate::Limiter::inherit): the
    /// first question under another quota converts it, even if it is a peek or is rejected (on Redis: the first charge,
    /// even if it is rejected). Only limiters that [take quotas](crate::limiter::Description::takes_quotas) look at it.
    /// [`Policy::quota_fn`](crate::Policy::quota_fn) asks so. Under a [suspended](Quota::suspended) quota, every
    /// request is rejected, and the key is neither read nor converted.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::limiter::Ask;
    /// use tower_sluice::{Limiter, PartitionKey, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(10)));
    /// let alice = PartitionKey::from("alice");
    /// let _ = limiter.check(&alice);
    /// // Alice has bought a greater quota, and used one unit of it.
    /// let paid = Ask::charge(&alice, 1).under(Some(Quota::per_hour(5_000)));
    /// assert_eq!(limiter.decide(&paid).decided().await?.remaining(), 4_998);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn under(self, quota: Option<Quota>) -> Self {
        Self { quota, ..self }
    }

    /// Asks under the key's own window (`None`: under the limiter's), with its limit, period, zone and anchor.
    ///
    /// The units that the key has used in its present window count in the present window of the new calendar, as after
    /// a [`CalendarWindow`](crate::CalendarWindow#windows-of-the-keys-own) changes live. For limiters with calendar
    /// windows that [take quotas](crate::limiter::Description::takes_quotas).
    /// [`Policy::window_fn`](crate::Policy::window_fn) asks so.
    #[cfg(feature = "calendar")]
    pub fn in_window(self, window: Option<&crate::CalendarWindow>) -> Self {
        self.under(window.map(crate::CalendarWindow::own_quota))
    }

    /// Asks under the key's own limit in flight (`None`: under the limiter's). A limit of 0
    /// [suspends](Quota::suspended) the key.
    ///
    /// For limiters that limit requests in flight and [take quotas](crate::limiter::Description::takes_quotas).
    /// [`Policy::limit_fn`](crate::Policy::limit_fn) asks so.
    pub const fn limited_to(self, limit: Option<u64>) -> Self {
        match limit {
            Some(limit) => self.under(Some(Quota::in_flight(limit))),
            None => self.under(None),
        }
    }

    /// Whether the key has a quota of its own that is [suspended](Quota::suspended).
    #[must_use]
    #[inline]
    pub const fn is_suspended(&self) -> bool {
        match self.quota {
            Some(quota) => quota.is_suspended(),
            None => false,
        }
    }

    /// Sets the request's class, [`Priority::Normal`] unless set. Only limiters that
    /// [shed](crate::limiter::Description::shedding) look at it.
    pub const fn prioritized(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Sets the key's weight, one unless set. While requests wait in a limiter that
    /// [sheds](crate::limiter::Description::shedding), a key with weight 3 has three times the share of a key with
    /// weight 1.
    pub const fn weighing(self, weight: NonZeroU32) -> Self {
        Self { weight, ..self }
    }

    /// Asks under the quota from the key's last question, if the limiter knows it, and otherwise under the limiter's
    /// own.
    pub(crate) const fn keeping_quota(self) -> Self {
        Self { keeps_quota: true, ..self }
    }

    /// The key to charge.
    #[must_use]
    pub const fn key(&self) -> &'a PartitionKey {
        self.key
    }

    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The mode.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The key's quota; `None` for the limiter's own.
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// The key's limit: from its [quota](Self::under), its [window](Self::in_window) or its requests [in
    /// flight](Self::limited_to). It may be 0; `None` for the limiter's own.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        match self.quota {
            Some(quota) => Some(quota.limit()),
            None => None,
        }
    }

    /// The request's class.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        self.priority
    }

    /// The key's weight.
    #[must_use]
    pub const fn weight(&self) -> NonZeroU32 {
        self.weight
    }

    pub(crate) const fn keeps_quota(&self) -> bool {
        self.keeps_quota
    }

    /// The longest time that the request may wait, exclusive.
    #[must_use]
    pub const fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// The present instant on `clock`: its first reading for this request, if there is one. A limiter that has waited
    /// for a lock since then reads the clock itself.
    #[must_use]
    #[inline(always)]
    pub fn now<C: Clock + ?Sized>(&self, clock: &C) -> Timestamp {
        match self.now {
            None => clock.now(),
            Some(shared) => shared.read(clock),
        }
    }
}

/// How an [`Ask`] uses its units.
///
/// Every limiter answers [`Charge`](Self::Charge). Another mode is asked only if the limiter's
/// [`Description`](crate::limiter::Description) lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Charges the units if all are admitted. A limiter that [delays](crate::limiter::Description::delaying) may have
    /// the request wait for its turn.
    #[default]
    Charge,
    /// Returns the decision that [`Charge`](Self::Charge) would make, and charges nothing. A limiter that has to call a
    /// server may answer [`Answer::Pending`](crate::limiter::Answer::Pending); a precheck with several policies does
    /// not wait for it.
    Peek,
    /// Charges like [`Charge`](Self::Charge), for a request that passes with any answer. So it never waits for a turn.
    Shadow,
    /// Charges the units as far as the key has them left, for a request that was admitted before its final cost was
    /// known. The rest is forgiven. The answer need not be awaited: the units are charged even if it is dropped.
    UpTo,
    /// Charges in this process alone, in place of a decision that failed.
    Fallback,
    /// Clears the key's debt, and then answers as to a request with cost 0. In memory, a charge from before the reset
    /// is not refunded after it.
    Reset,
}

/// The clock reading that a request's policies share, if they use the same clock. The first policy reads it, so that
/// all decide at one instant.
///
/// # Precondition
///
/// One thread at a time decides on a request: a `Now` may move between threads, but its limiters must not be asked
/// concurrently. If two threads asked at once, with clocks *A* and *B*, this could happen:
///
/// 1. Both find that nothing is read yet, and each reads its own clock.
/// 2. The first stores its reading, then *A*'s id.
/// 3. The second stores its own reading over the first, and is descheduled before it stores *B*'s id.
/// 4. A third question on *A* finds *A*'s id, and takes *B*'s reading for *A*'s.
///
/// The third question is then decided at a wrong instant. With one clock alone, two questions may be decided at two
/// instants, and nothing else goes wrong.
#[derive(Debug, Default)]
pub(crate) struct Now {
    /// The [id](Clock::id) of the clock; zero before the first reading.
    clock: AtomicUsize,
    nanos: AtomicU64,
}

impl Now {
    /// Creates an instant that is not read yet.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self { clock: AtomicUsize::new(0), nanos: AtomicU64::new(0) }
    }

    #[inline]
    fn read<C: Clock + ?Sized>(&self, clock: &C) -> Timestamp {
        let Some(id) = clock.id() else { return clock.now() };
        let read = self.clock.load(Ordering::Acquire);
        if read == id.get() {
            return Timestamp::from_nanos(self.nanos.load(Ordering::Relaxed));
        }
        let now = clock.now();
        // By the precondition, no other thread writes between the load and these stores. The id is stored with release,
        // after the nanoseconds: a thread to which the request moves and that acquires the id reads that clock's
        // nanoseconds.
        if read == 0 {
            self.nanos.store(now.as_nanos(), Ordering::Relaxed);
            self.clock.store(id.get(), Ordering::Release);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::time::ManualClock;

    #[test]
    fn one_request_sees_one_instant() {
        let clock = ManualClock::new();
        let other = ManualClock::new();
        let key = "a".into();
        let now = Now::new();
        let ask = Ask::charge(&key, 1).at(&now);
        let first = ask.now(&clock);
        clock.advance(Duration::from_secs(1));
        other.advance(Duration::from_secs(5));
        assert_eq!(ask.now(&clock.clone()), first);
        assert_eq!(ask.to(Mode::Peek).now(&clock), first);
        // Another clock is read separately.
        assert_eq!(ask.now(&other), other.now());
        assert_eq!(Ask::charge(&key, 1).now(&clock), clock.now());
    }

    #[test]
    fn within_sets_only_the_patience() {
        let key = "a".into();
        let ask = Ask::peek(&key, 3).within(Some(Duration::from_secs(2)));
        assert_eq!((ask.patience(), ask.cost(), ask.mode()), (Some(Duration::from_secs(2)), 3, Mode::Peek));
        assert_eq!(ask.within(None).patience(), None);
        assert_eq!(Ask::charge(&key, 3).patience(), None);
    }

    #[test]
    fn costing_sets_only_the_cost() {
        let clock = ManualClock::new();
        let key = "a".into();
        let now = Now::new();
        let ask = Ask::peek(&key, 3).within(Some(Duration::from_secs(2))).at(&now);
        let first = ask.now(&clock);
        clock.advance(Duration::from_secs(1));
        let other = ask.costing(5);
        assert_eq!((other.key(), other.cost(), other.mode(), other.patience()), (&key, 5, ask.mode(), ask.patience()));
        assert_eq!(other.now(&clock), first);
    }
}
