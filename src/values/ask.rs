//! The question that limiters and stores answer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::values::PartitionKey;
use crate::values::time::{Clock, Timestamp};

/// One question: may this key have so many units, and what is to be charged?
///
/// A layer asks it for each request. Without HTTP, ask it yourself:
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::{Ask, Limiter, PartitionKey, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory(TokenBucket::new(Quota::per_minute(10)));
/// let alice = PartitionKey::from("alice");
/// let decision = limiter.decide(&Ask::charge(&alice, 3)).decided().await?;
/// assert!(decision.is_allowed());
/// // What three more would leave.
/// assert_eq!(limiter.decide(&Ask::peek(&alice, 3)).decided().await?.remaining(), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    key: &'a PartitionKey,
    cost: u32,
    mode: Mode,
    patience: Option<Duration>,
    now: Option<&'a Now>,
}

/// What becomes of the units that an [`Ask`] is about.
///
/// A limiter answers [`Charge`](Self::Charge). The others it is asked only if its [`Description`](crate::Description) says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// They are charged if all of them are admitted; a limiter that [delays](crate::Description::delaying) may let the
    /// request wait for its turn.
    #[default]
    Charge,
    /// Nothing is charged: what would [`Charge`](Self::Charge) decide? A limiter that would have to ask a server may answer
    /// [`Check::Pending`](crate::Check::Pending), which is not waited for if several policies are asked ahead of a charge.
    Peek,
    /// They are charged as by [`Charge`](Self::Charge), for a request that passes whatever the answer is: so it never waits for
    /// a turn.
    Shadow,
    /// As many of them are charged as are left, for a request that was admitted before: now it is known what it cost. The rest
    /// is forgiven. Nobody need wait for the answer: they are charged also if it is dropped.
    UpTo,
    /// They are charged by what this process knows alone, in place of a decision that failed.
    Fallback,
    /// What the key owes is forgotten, and the answer is that to a request of cost 0 then. In memory, what was charged before is not
    /// refunded after it.
    Reset,
}

/// What the clock showed when a request was first decided on. All policies of a request go by it, as far as their clocks are
/// the same one, so that they see one instant, which is read once.
#[derive(Debug, Default)]
pub struct Now {
    /// The [id](Clock::id) of the clock; zero before one was read.
    clock: AtomicUsize,
    nanos: AtomicU64,
}

impl Now {
    /// Nothing was read yet.
    #[must_use]
    pub const fn new() -> Self {
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
        // One request is asked about by one thread at a time: nobody else writes in between. Released, for a thread to which it
        // goes later.
        if read == 0 {
            self.nanos.store(now.as_nanos(), Ordering::Relaxed);
            self.clock.store(id.get(), Ordering::Release);
        }
        now
    }
}

impl<'a> Ask<'a> {
    /// To charge `cost` units to `key`, if all of them are admitted. A cost of zero charges nothing, and is always admitted.
    #[must_use]
    pub const fn charge(key: &'a PartitionKey, cost: u32) -> Self {
        Self { key, cost, mode: Mode::Charge, patience: None, now: None }
    }

    /// What [`charge`](Self::charge) would be answered.
    #[must_use]
    pub const fn peek(key: &'a PartitionKey, cost: u32) -> Self {
        Self::charge(key, cost).to(Mode::Peek)
    }

    /// To forget what the key owes.
    #[must_use]
    pub const fn reset(key: &'a PartitionKey) -> Self {
        Self::charge(key, 0).to(Mode::Reset)
    }

    /// In another mode.
    #[must_use]
    pub const fn to(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// For a request that its client gives up after `patience` (`None`: it waits as long as the limiter lets it).
    ///
    /// A limiter that [delays](crate::Description::delaying) rejects at once, and without charging, what would wait for
    /// `patience` or longer; `retry_after` is then the wait after which the same request, as patient as now, would be
    /// accepted. A request that need not wait passes, whatever its patience.
    #[must_use]
    pub const fn within(self, patience: Option<Duration>) -> Self {
        Self { patience, ..self }
    }

    /// The same question about another cost.
    #[must_use]
    pub const fn costing(self, cost: u32) -> Self {
        Self { cost, ..self }
    }

    /// At the instant that was, or will first be, read into `now`.
    #[must_use]
    pub const fn at(self, now: &'a Now) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Whose units.
    #[must_use]
    pub const fn key(&self) -> &'a PartitionKey {
        self.key
    }

    /// How many.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// What becomes of them.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// How long the request may wait, at most.
    #[must_use]
    pub const fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// The present on `clock`: what it showed when it was asked first for this request, if that is known. A limiter that has waited
    /// for a lock meanwhile reads the clock itself.
    #[must_use]
    #[inline(always)]
    pub fn now<C: Clock + ?Sized>(&self, clock: &C) -> Timestamp {
        match self.now {
            None => clock.now(),
            Some(shared) => shared.read(clock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::time::ManualClock;

    #[test]
    fn all_that_is_asked_for_one_request_is_asked_at_one_instant() {
        let (clock, other, key, now) = (ManualClock::new(), ManualClock::new(), "a".into(), Now::new());
        let ask = Ask::charge(&key, 1).at(&now);
        let first = ask.now(&clock);
        clock.advance(Duration::from_secs(1));
        other.advance(Duration::from_secs(5));
        assert_eq!(ask.now(&clock.clone()), first);
        assert_eq!(ask.to(Mode::Peek).now(&clock), first);
        // Another clock has an instant of its own.
        assert_eq!(ask.now(&other), other.now());
        assert_eq!(Ask::charge(&key, 1).now(&clock), clock.now());
    }
}
