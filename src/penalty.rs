//! Bans for those who do not take a refusal for an answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::TokenBucket;
use crate::decision::Check;
use crate::limiter::{IntoLimiter, Limiter, RateLimiter};
use crate::partition::PartitionKey;
use crate::quota::Quota;
use crate::store::MemoryStore;
use crate::time::{Clock, Monotonic};

/// Shuts a client out for a while that goes on sending although it is refused; see [`Policy::penalty`](crate::Policy::penalty).
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::PeerIp;
/// use tower_sluice::{Penalty, Policy, Quota};
///
/// // More than 30 refusals within a minute: ten minutes.
/// let policy = Policy::new("per-client", TokenBucket::new(Quota::per_second(10)))
///     .key(PeerIp::new())
///     .penalty(Penalty::new(Quota::per_minute(30), Duration::from_secs(600)));
/// ```
///
/// # Memory
///
/// Up to 65,536 keys that were refused lately, and as many that are banned, in this process's memory: some 2 MiB, handed
/// out by the system as it is touched. Where budgets are on Redis, each process bans by what it refused itself.
pub struct Penalty {
    /// What a key may be refused before it is banned.
    refusals: Arc<dyn Limiter>,
    /// A ban is a bucket of one that is empty, and takes that long to fill.
    bans: Arc<dyn Limiter>,
    quotas: [Quota; 2],
}

impl Penalty {
    /// Bans a key for `ban` that is refused more often than `refusals` allows. What it is refused while it is banned does
    /// not count: a ban ends when it was said to.
    ///
    /// # Panics
    ///
    /// If `ban` is zero, or longer than a [`Quota`]'s period may be.
    #[must_use]
    #[track_caller]
    pub fn new(refusals: Quota, ban: Duration) -> Self {
        let ban = Quota::new(1, ban).unwrap_or_else(|error| panic!("a ban of {ban:?}: {error}"));
        Self::by([refusals, ban], &Monotonic)
    }

    /// Tells the time by `clock`, for tests. Forgets all that was noted.
    #[must_use]
    pub fn with_clock(self, clock: &(impl Clock + Clone)) -> Self {
        Self::by(self.quotas, clock)
    }

    fn by(quotas: [Quota; 2], clock: &(impl Clock + Clone)) -> Self {
        let [refusals, bans] = quotas.map(|quota| {
            RateLimiter::new(TokenBucket::new(quota), MemoryStore::default().with_clock(clock.clone())).into_limiter()
        });
        Self { refusals, bans, quotas }
    }

    /// For how much longer a key is banned, if it is.
    #[inline]
    pub(crate) fn left(&self, key: &PartitionKey) -> Option<Duration> {
        self.bans.peek(key, 1)?.retry_after()
    }

    /// Notes a refusal. For how long the key is banned, if it was one too many.
    pub(crate) fn note_refusal(&self, key: &PartitionKey) -> Option<Duration> {
        if admits(&*self.refusals, key) {
            return None;
        }
        // Of several that come at once, one begins the ban.
        let _ = admits(&*self.bans, key);
        self.left(key)
    }

    /// How full the table of bans is.
    #[cfg(feature = "metrics")]
    pub(crate) fn stats(&self) -> Option<crate::store::TableStats> {
        self.bans.stats().table
    }

    /// Takes the place of another one: who was banned stays so.
    pub(crate) fn go_on_from(&self, old: &Self) {
        // Both are buckets in memory, of which one can always take over from another with the same kind of clock.
        let _ = (self.refusals.take_over(&*old.refusals), self.bans.take_over(&*old.bans));
    }

    /// Forgets bans and refusals of a key.
    pub(crate) fn lift(&self, key: &PartitionKey) {
        let _ = (self.refusals.reset(key), self.bans.reset(key));
    }
}

fn admits(limiter: &dyn Limiter, key: &PartitionKey) -> bool {
    matches!(limiter.check(key, 1), Check::Ready(Ok(decision)) if decision.is_allowed())
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [refusals, ban] = &self.quotas;
        f.debug_struct("Penalty").field("refusals", refusals).field("ban", &ban.period()).finish()
    }
}
