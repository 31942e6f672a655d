//! The two buckets: two names for one engine.

use super::gcra::{Gcra, GcraState, Tat};
use super::{Algorithm, Kind};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

/// A bucket of tokens that refills at the quota's rate; a request takes its cost or is rejected.
///
/// [`LeakyBucket`] is another name for it, if you think in levels: tokens left = capacity − level. A key that has been
/// idle may spend the whole burst at once, then the rate; `remaining` counts the tokens left.
///
/// # Accuracy
///
/// Exact, for every rate: only the advertised wait is rounded, up, to the nanosecond. In every interval, at most
/// burst + rate × length is admitted.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::algorithm::{Algorithm, TokenBucket};
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::Quota;
///
/// let bucket = TokenBucket::new(Quota::per_second(3).burst(2));
/// let now = Timestamp::from_nanos(0);
///
/// let (first, state) = bucket.decide(None, now, 1);
/// assert_eq!(first.remaining(), 1);
/// let (_, state) = bucket.decide(state, now, 1);
/// let (third, _) = bucket.decide(state, now, 1);
/// // A third of a second, rounded up to the nanosecond.
/// assert_eq!(third.retry_after(), Some(Duration::from_nanos(333_333_334)));
/// ```
#[doc(alias("GCRA", "leaky bucket as a meter"))]
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    quota: Quota,
    gcra: Gcra,
}

/// A bucket that every request fills by its cost and that leaks at the quota's rate; a request that would make it
/// overflow is rejected (the leaky bucket *as a meter*).
///
/// Another name for [`TokenBucket`]: level = capacity − tokens left. To make requests wait instead of rejecting them,
/// see [`LeakyQueue`](crate::LeakyQueue).
///
/// # Examples
///
/// ```
/// use tower_sluice::algorithm::{Algorithm, LeakyBucket};
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::Quota;
///
/// // Holds 10 and leaks one per second.
/// let bucket = LeakyBucket::new(Quota::per_second(1).burst(10));
/// let (decision, _) = bucket.decide(None, Timestamp::from_nanos(0), 4);
/// // Filled by four, so that six more would fit.
/// assert_eq!(decision.limit() - decision.remaining(), 4);
/// ```
#[doc(alias("GCRA", "meter"))]
pub type LeakyBucket = TokenBucket;

impl TokenBucket {
    /// Makes a bucket that holds the quota's [burst](Quota::max_burst).
    ///
    /// # Panics
    ///
    /// If the quota is [suspended](Quota::suspended).
    #[must_use]
    #[track_caller]
    pub const fn new(quota: Quota) -> Self {
        quota.assert_in_force();
        Self::with(quota)
    }

    const fn with(quota: Quota) -> Self {
        Self { quota, gcra: Gcra::new(&quota, quota.max_burst()) }
    }
}

impl Algorithm for TokenBucket {
    type State = GcraState;

    fn quota(&self) -> Quota {
        self.quota
    }

    #[inline]
    fn decide(&self, state: Option<GcraState>, now: Timestamp, cost: u64) -> (Decision, Option<GcraState>) {
        self.gcra.decide(state, now, cost)
    }

    fn kind(&self) -> Kind {
        Kind::Bucket { quota: self.quota }
    }

    fn expires_at(&self, state: &GcraState) -> Timestamp {
        self.gcra.expires_at(state)
    }

    fn refund(&self, state: GcraState, now: Timestamp, cost: u64, receipt: Receipt) -> GcraState {
        self.gcra.refund(state, now, cost, Tat::read(receipt))
    }

    fn can_inherit(&self, _: &Quota) -> bool {
        true
    }

    /// The number of tokens owed stays the same, rounded up by less than a nanosecond of the new rate.
    fn inherit(&self, state: GcraState, from: &Quota, now: Timestamp) -> GcraState {
        if from.has_rate_of(&self.quota) {
            return state;
        }
        GcraState { tat: self.gcra.carried(state.tat, &Gcra::new(from, from.max_burst()), now) }
    }

    fn under(&self, quota: Quota) -> Option<Self> {
        Some(Self::with(quota))
    }
}
