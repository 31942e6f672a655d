//! Temporary bans for clients that keep sending after being rejected.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::algorithm::{Algorithm, TokenBucket};
use crate::limiter::{IntoLimiter, Limiter, RateLimiter};
use crate::store::MemoryStore;
#[cfg(feature = "metrics")]
use crate::store::Store;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, Check, Decision, Finish, PartitionKey, Quota};

/// Bans a key that keeps sending although it was told to wait; see [`Policy::penalty`](crate::Policy::penalty).
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::PeerIp;
/// use tower_sluice::{Penalty, Policy, Quota};
///
/// // More than 30 requests within a minute that came before they were due: ten minutes.
/// let policy = Policy::new("per-client", TokenBucket::new(Quota::per_second(10)))
///     .key(PeerIp::new())
///     .penalty(Penalty::new(Quota::per_minute(30), Duration::from_secs(600)));
/// ```
///
/// # Which rejections count
///
/// Those of a request that comes before the wait is over that an earlier rejection of its key advertised. A client
/// that waits as long as every answer says is never banned, however often it is rejected. These do not count either:
///
/// - rejections while the key is banned: a ban ends when its first answer said so;
/// - rejections without a `Retry-After`, of a cost that never fits: they advertise no wait to be obeyed;
/// - rejections while [refundable charges](crate::Policy::charge_when) of the key are under way: the limit may turn out
///   not to be used up.
///
/// Requests that a client sends at once count from the second rejection on, since the first has advertised a wait by
/// then. Let the quota of rejections exceed what an honest client has in flight.
///
/// # Memory
///
/// In this process's memory: up to 65,536 keys that are banned, as many that were told to wait, and as many that did
/// not; some 6 MiB when all of that is in use, and none before the first rejection. A flood of more keys makes the bans that
/// end first be forgotten, which is [counted](crate::RateLimitLayerBuilder::route). Where budgets are on Redis, each process
/// bans by what it rejected itself.
pub struct Penalty {
    rejections: Quota,
    ban: Duration,
    /// What a key may be rejected, although it was told to wait, before it is banned.
    misconduct: Arc<dyn Limiter>,
    record: Arc<PenaltyRecord>,
}

/// Which keys are banned, and which were told to wait. Absolute, so that another penalty goes on from it as it is.
pub(crate) struct PenaltyRecord {
    bans: Deadlines,
    advised: Deadlines,
    /// Of two kinds of clocks, the timestamps do not compare.
    clock: TypeId,
}

impl Penalty {
    /// Bans a key for `ban` that is rejected more often than `rejections` allows although it was told to wait.
    ///
    /// # Panics
    ///
    /// If `ban` is zero, or longer than a [`Quota`]'s period may be.
    #[must_use]
    #[track_caller]
    pub fn new(rejections: Quota, ban: Duration) -> Self {
        if let Err(error) = Quota::new(1, ban) {
            panic!("a ban of {ban:?}: {error}");
        }
        Self::by(rejections, ban, &Monotonic)
    }

    /// Tells the time by `clock`, for tests. Forgets all that was noted.
    #[must_use]
    pub fn with_clock(self, clock: &(impl Clock + Clone)) -> Self {
        Self::by(self.rejections, self.ban, clock)
    }

    fn by<C: Clock + Clone>(rejections: Quota, ban: Duration, clock: &C) -> Self {
        let store = MemoryStore::default().with_clock(clock.clone());
        let deadlines = || Deadlines::new(Arc::new(clock.clone()));
        Self {
            rejections,
            ban,
            misconduct: RateLimiter::new(TokenBucket::new(rejections), store).into_limiter(),
            record: Arc::new(PenaltyRecord { bans: deadlines(), advised: deadlines(), clock: TypeId::of::<C>() }),
        }
    }

    pub(crate) const fn record(&self) -> &Arc<PenaltyRecord> {
        &self.record
    }

    /// For how much longer a key is banned, if it is.
    #[inline]
    pub(crate) fn banned_for(&self, key: &PartitionKey) -> Option<Duration> {
        self.record.bans.left(key)
    }

    /// For how much longer a key was told to wait, if it was.
    pub(crate) fn advised_for(&self, key: &PartitionKey) -> Option<Duration> {
        self.record.advised.left(key)
    }

    /// Counts a rejection if the key was told to wait. For how long it is banned, if that was one too many.
    pub(crate) fn note_rejection(&self, key: &PartitionKey) -> Option<Duration> {
        self.advised_for(key)?;
        let another = self.misconduct.decide(&Ask::charge(key, 1));
        if matches!(another, Check::Ready(Ok(decision)) if decision.is_allowed()) {
            return None;
        }
        self.record.bans.begin(key, self.ban);
        self.banned_for(key)
    }

    /// Notes what the answer to a rejected request says.
    pub(crate) fn advise(&self, key: &PartitionKey, wait: Duration) {
        self.record.advised.extend(key, wait);
    }

    /// Takes the place of another penalty, which bans by `misconduct` if it was in force until now. Returns what is to be done
    /// once it is in force.
    pub(crate) fn inherit(&mut self, record: &Arc<PenaltyRecord>, misconduct: Option<&Self>) -> Option<Finish> {
        if self.record.clock != record.clock {
            return None;
        }
        self.record = Arc::clone(record);
        // Both are buckets in memory with the same kind of clock, of which one can always inherit from another.
        let inheritance = self.misconduct.inherit(&*misconduct?.misconduct)?;
        if let Some(heir) = inheritance.heir {
            self.misconduct = heir;
        }
        inheritance.finish
    }

    /// Forgets all that was noted of a key.
    pub(crate) fn lift(&self, key: &PartitionKey) {
        let _ = self.misconduct.decide(&Ask::reset(key));
        self.record.bans.forget(key);
        self.record.advised.forget(key);
    }

    /// How full the table of bans is.
    #[cfg(feature = "metrics")]
    pub(crate) fn ban_table(&self) -> crate::store::TableStats {
        self.record.bans.stats()
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Penalty").field("rejections", &self.rejections).field("ban", &self.ban).finish()
    }
}

/// One instant per key, which counts until it has passed.
struct Deadlines {
    table: MemoryStore<Timestamp, Arc<dyn Clock>>,
    clock: Arc<dyn Clock>,
    /// No deadline is later. Most services ban nobody, and need not look into the table.
    latest: AtomicU64,
}

impl Deadlines {
    fn new(clock: Arc<dyn Clock>) -> Self {
        let table = MemoryStore::default().with_clock(Arc::clone(&clock));
        Self { table, clock, latest: AtomicU64::new(0) }
    }

    #[inline]
    fn left(&self, key: &PartitionKey) -> Option<Duration> {
        // Relaxed: who has set a deadline and looks for it sees its own write, and for others there is no before.
        let latest = self.latest.load(Ordering::Relaxed);
        if latest == 0 || latest <= self.clock.now().as_nanos() {
            return None;
        }
        self.table.peek(&Deadline::Look, &Ask::peek(key, 1)).retry_after()
    }

    /// Sets the deadline of a key that has none: of several threads that do so at once, the first.
    fn begin(&self, key: &PartitionKey, span: Duration) {
        self.set(key, span, Deadline::Begin);
    }

    /// Sets the deadline of a key that has none, or an earlier one.
    fn extend(&self, key: &PartitionKey, span: Duration) {
        self.set(key, span, Deadline::Extend);
    }

    fn set(&self, key: &PartitionKey, span: Duration, to: fn(Timestamp) -> Deadline) {
        let end = self.clock.now().saturating_add(span);
        self.latest.fetch_max(end.as_nanos(), Ordering::Relaxed);
        let _ = self.table.charge(&to(end), &Ask::charge(key, 1));
    }

    fn forget(&self, key: &PartitionKey) {
        let _ = self.table.reset(&Deadline::Look, &Ask::reset(key));
    }

    #[cfg(feature = "metrics")]
    fn stats(&self) -> crate::store::TableStats {
        match self.latest.load(Ordering::Relaxed) {
            // Looking into the table would allocate it.
            0 => crate::store::TableStats { capacity: self.table.capacity() as u64, ..Default::default() },
            _ => self.table.stats(&Deadline::Look).table.unwrap_or_default(),
        }
    }
}

/// What is done with the deadline of a key. As an algorithm, so that the deadlines have a table of fixed size, which
/// forgets the one that comes first when it is full.
enum Deadline {
    Look,
    Begin(Timestamp),
    Extend(Timestamp),
}

impl Algorithm for Deadline {
    type State = Timestamp;

    /// Of no meaning: a table wants to know one.
    fn quota(&self) -> Quota {
        Quota::per_second(1)
    }

    fn decide(&self, state: Option<Timestamp>, now: Timestamp, _: u32) -> (Decision, Option<Timestamp>) {
        let current = state.filter(|end| *end > now);
        match (self, current) {
            (Self::Begin(end), None) => (Decision::allow(1, 0), Some(*end)),
            (Self::Extend(end), _) => (Decision::allow(1, 0), Some(current.map_or(*end, |current| current.max(*end)))),
            (_, Some(current)) => (Decision::deny(1, 0, Some(current.saturating_since(now))), None),
            (Self::Look, None) => (Decision::allow(1, 1), None),
        }
    }

    fn expires_at(&self, end: &Timestamp) -> Timestamp {
        *end
    }
}
