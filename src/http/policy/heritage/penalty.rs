//! Temporary bans for clients that keep sending after being rejected.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::TokenBucket;
use crate::http::policy::expiring::{CAPACITY, ExpiringTable};
use crate::limiter::{IntoLimiter, Limiter, RateLimiter};
use crate::store::{MemoryStore, TableStats};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, Decision, Finish, KeepsStanding, PartitionKey, Quota};

/// Bans a key that keeps sending after being rejected; see [`Policy::penalty`](crate::Policy::penalty).
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::PeerIp;
/// use tower_sluice::{Penalty, Policy, Quota};
///
/// // A ban of ten minutes for more premature retries than 30 per minute.
/// let policy = Policy::new("per-client", TokenBucket::new(Quota::per_second(10)))
///     .key(PeerIp::new())
///     .penalty(Penalty::new(Quota::per_minute(30), Duration::from_secs(600)));
/// ```
///
/// # Which rejections count
///
/// A rejection counts if its request comes before the end of a wait that an earlier rejection of the key advertised.
/// A client that waits as advertised is never banned, however often it is rejected. A policy's penalty counts the
/// policy's own rejections only, and no rejections by other policies of the layer or by inner layers. These do not
/// count either:
///
/// - rejections while the key is banned: a ban ends at the time that its first response advertised;
/// - rejections without a `Retry-After`, of a cost that never fits: they advertise no wait;
/// - rejections of requests that would fit if the [refundable charges](crate::Policy::charge_when) of the key were
///   refunded whose responses are awaited: the limit may turn out not to be used up. Ten rejections are excused for
///   each of these charges; further rejections count, and so do rejections once the responses are far overdue.
///
/// If a client sends requests concurrently, rejections count from the second one on, since the first one has
/// advertised a wait by then. Let the quota of rejections exceed the requests that a well-behaved client has in
/// flight.
///
/// # Memory
///
/// In this process's memory: up to 65,536 banned keys, 65,536 keys with an advertised wait, and 65,536 keys with
/// counted rejections; some 5 MiB once all three tables are used, and nothing before the first rejection. A flood of
/// more keys evicts the bans that end first, which is [counted](crate::layer::RateLimitLayerBuilder::route). A
/// [snapshot](crate::snapshot::Snapshots) keeps them through a restart.
///
/// # On several machines
///
/// A limit on a server that [keeps bans](crate::store::remote::Backend::keeps_standing), as Redis does, keeps them
/// with the budgets of its keys. Each process counts the rejections that it has made; once one of them bans a key,
/// all reject it, by the calls that they make anyway. A ban begins there by a call in the background, so it ends
/// later than the first response advertised, by the duration of the call; all other responses advertise the exact
/// time. And [`LimitsHandle::reset`](crate::LimitsHandle::reset) in one process lifts the ban in all. While the
/// server does not answer, a process rejects the keys that it has banned, or has seen to be banned. A limit in memory
/// belongs to one process, and so do its bans.
#[must_use]
#[doc(alias("ban", "block", "fail2ban"))]
pub struct Penalty {
    rejections: Quota,
    ban: Duration,
    /// The budget of premature retries of a key. Once it is used up, the key is banned.
    misconduct: Arc<dyn Limiter>,
    record: Arc<PenaltyRecord>,
}

/// The bans and the advertised waits of keys, as absolute deadlines, so that another penalty can share them unchanged.
pub(crate) struct PenaltyRecord {
    pub(in crate::http::policy) bans: Deadlines,
    pub(in crate::http::policy) advised: Deadlines,
    /// The type of the clock. Penalties that share the record read the same clock, so a penalty with a clock of
    /// another type does not share it.
    clock: TypeId,
}

/// The time in which a server is asked at most once to ban a key.
const CALL_INTERVAL: Duration = Duration::from_secs(1);

impl PenaltyRecord {
    /// Forgets the ban and the advertised wait of a key.
    pub(crate) fn lift(&self, key: &PartitionKey) {
        self.bans.forget(key);
        self.advised.forget(key);
    }
}

impl Penalty {
    /// Bans a key for the time `ban` if premature retries are rejected more often than `rejections` allows.
    ///
    /// # Panics
    ///
    /// If `ban` is zero, or longer than a [`Quota`]'s period may be.
    #[track_caller]
    pub fn new(rejections: Quota, ban: Duration) -> Self {
        if let Err(error) = Quota::try_per(1, ban) {
            panic!("a ban of {ban:?}: {error}");
        }
        Self::with_parts(rejections, ban, Monotonic)
    }

    /// Uses `clock`, for tests. Forgets all records.
    pub fn with_clock(self, clock: impl Clock + Clone) -> Self {
        Self::with_parts(self.rejections, self.ban, clock)
    }

    fn with_parts<C: Clock + Clone>(rejections: Quota, ban: Duration, clock: C) -> Self {
        let deadlines = || Deadlines::new(CAPACITY, Arc::new(clock.clone()));
        let record = PenaltyRecord { bans: deadlines(), advised: deadlines(), clock: TypeId::of::<C>() };
        let store = MemoryStore::default().with_clock(clock);
        Self {
            rejections,
            ban,
            misconduct: RateLimiter::new(TokenBucket::new(rejections), store).into_limiter(),
            record: Arc::new(record),
        }
    }

    pub(crate) const fn record(&self) -> &Arc<PenaltyRecord> {
        &self.record
    }

    /// The limiter that counts premature retries.
    pub(in crate::http::policy) const fn misconduct(&self) -> &Arc<dyn Limiter> {
        &self.misconduct
    }

    /// The rest of the ban of a key, if it is banned.
    #[inline]
    pub(crate) fn banned_for(&self, key: &PartitionKey) -> Option<Duration> {
        self.record.bans.time_left(key)
    }

    /// The rest of the advertised wait of a key, if there is one.
    pub(crate) fn advised_for(&self, key: &PartitionKey) -> Option<Duration> {
        self.record.advised.time_left(key)
    }

    /// Counts a rejection if it came before the end of an advertised wait. Returns the ban, if the key is banned now,
    /// and whether it begins.
    ///
    /// If the `server` of the limiter keeps bans, a new one is made there in the background, and remembered here for
    /// outages.
    pub(crate) fn note_rejection(
        &self,
        server: Option<&Arc<dyn KeepsStanding>>,
        key: &PartitionKey,
        rejection: &Decision,
    ) -> Option<(Duration, bool)> {
        if self.tolerates(key, rejection) {
            return None;
        }
        let Some(server) = server else {
            let begins = self.record.bans.begin(key, self.ban);
            return self.banned_for(key).map(|left| (left, begins));
        };
        // If several requests arrive at once, the first one begins the ban, and makes the call.
        let has_begun = self.banned_for(key).is_some_and(|left| left > self.ban.saturating_sub(CALL_INTERVAL));
        if !has_begun {
            self.remember(key, self.ban);
            let ban = server.ban(key, self.ban);
            // If it fails, the next premature retry makes it again.
            crate::util::spawn(async move { drop(ban.await) });
        }
        self.banned_for(key).map(|left| (left, !has_begun))
    }

    /// Records the ban in a server's reply, for outages.
    pub(crate) fn remember(&self, key: &PartitionKey, left: Duration) {
        self.record.bans.extend(key, left);
    }

    /// Counts a rejection. Returns whether it causes no ban.
    fn tolerates(&self, key: &PartitionKey, rejection: &Decision) -> bool {
        if rejection.retry_after().is_none() || self.advised_for(key).is_none() {
            return true;
        }
        let answer = self.misconduct.decide(&Ask::charge(key, 1));
        matches!(answer, Answer::Ready(Ok(decision)) if decision.is_allowed())
    }

    /// Records the wait that the response to a rejected request advertises.
    pub(crate) fn advise(&self, key: &PartitionKey, wait: Duration) {
        self.record.advised.extend(key, wait);
    }

    /// Inherits the record of another penalty, and the counts of `old` if it was in force until now. Returns the step
    /// to run once this penalty is in force.
    pub(crate) fn inherit(&mut self, record: &Arc<PenaltyRecord>, old: Option<&Self>) -> Option<Finish> {
        if self.record.clock != record.clock {
            return None;
        }
        self.record = Arc::clone(record);
        // Both are buckets in memory with clocks of one type: such a bucket can always inherit.
        self.misconduct.inherit(&*old?.misconduct)?.put_in_place(&mut self.misconduct)
    }

    /// Forgets all records of a key.
    pub(crate) fn lift(&self, key: &PartitionKey) {
        let _ = self.misconduct.decide(&Ask::reset(key));
        self.record.lift(key);
    }

    /// The occupancy of the table of bans.
    pub(crate) fn ban_table(&self) -> TableStats {
        self.record.bans.stats()
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Penalty").field("rejections", &self.rejections).field("ban", &self.ban).finish()
    }
}

/// An instant per key until which something lasts.
pub(in crate::http::policy) type Deadlines = ExpiringTable<Timestamp>;

impl Deadlines {
    #[inline]
    fn time_left(&self, key: &PartitionKey) -> Option<Duration> {
        self.get(key).map(|(end, now)| end.saturating_since(now))
    }

    /// Sets the deadline of a key without one, and returns whether it did. If several threads do so at once, the first
    /// one does.
    fn begin(&self, key: &PartitionKey, span: Duration) -> bool {
        self.update(key, |end, now| {
            let begins = end.is_none();
            end.get_or_insert_with(|| now.saturating_add(span));
            begins
        })
    }

    /// Sets the deadline of a key without one, or with an earlier one.
    fn extend(&self, key: &PartitionKey, span: Duration) {
        self.update(key, |end, now| *end = (*end).max(Some(now.saturating_add(span))));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::values::time::ManualClock;
    use crate::values::{Override, Pending};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// Bans at the second premature retry.
    fn penalty() -> Penalty {
        Penalty::new(Quota::per_hour(1), HOUR).with_clock(ManualClock::new())
    }

    #[test]
    fn more_premature_retries_than_the_quota_are_a_ban() {
        let penalty = penalty();
        let key = PartitionKey::from("a");
        let rejection = Decision::reject(1, 0, Some(HOUR));
        assert_eq!(penalty.note_rejection(None, &key, &rejection), None, "no wait was advertised before");
        penalty.advise(&key, HOUR);
        assert_eq!(penalty.note_rejection(None, &key, &rejection), None, "the first premature retry");
        assert_eq!(penalty.note_rejection(None, &key, &rejection), Some((HOUR, true)));
        assert_eq!(penalty.note_rejection(None, &key, &rejection), Some((HOUR, false)));
    }

    /// A server that counts the requests for bans.
    #[derive(Default)]
    struct Server(AtomicU64);

    impl KeepsStanding for Server {
        fn ban(&self, _: &PartitionKey, _: Duration) -> Pending {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Ok(Decision::reject(1, 0, Some(HOUR)))))
        }

        fn override_key(&self, _: &PartitionKey, _: Override) -> Pending {
            unreachable!("a penalty is no operator")
        }

        fn owe(&self, _: &Ask<'_>) -> Pending {
            unreachable!("a penalty makes no debts")
        }
    }

    /// Premature retries that come before the server answers see that the ban has begun. A ban that was lifted there
    /// by another process is made again.
    #[test]
    fn a_server_is_asked_for_a_ban_once_in_a_second() {
        let clock = ManualClock::new();
        let penalty = Penalty::new(Quota::per_hour(1), HOUR).with_clock(clock.clone());
        let server = Arc::new(Server::default());
        let key = PartitionKey::from("a");
        let keeper: Arc<dyn KeepsStanding> = server.clone();
        let rejection = Decision::reject(1, 0, Some(HOUR));
        penalty.advise(&key, HOUR);
        let note = || Some(penalty.note_rejection(Some(&keeper), &key, &rejection)?.0);
        assert_eq!((note(), penalty.banned_for(&key)), (None, None));
        assert_eq!((note(), server.0.load(Ordering::Relaxed)), (Some(HOUR), 1));
        let millis = Duration::from_millis;
        clock.advance(millis(999));
        assert_eq!(
            (note(), server.0.load(Ordering::Relaxed)),
            (Some(HOUR - millis(999)), 1),
            "as the first response said"
        );
        clock.advance(millis(1));
        assert_eq!((note(), server.0.load(Ordering::Relaxed)), (Some(HOUR), 2));
    }

    #[test]
    fn a_rejection_without_a_wait_does_not_count() {
        let penalty = penalty();
        let key = PartitionKey::from("a");
        penalty.advise(&key, HOUR);
        for _ in 0..3 {
            assert_eq!(penalty.note_rejection(None, &key, &Decision::reject(1, 1, None)), None);
        }
    }
}
