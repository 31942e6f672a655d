//! Temporary bans for clients that keep sending after being rejected.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::TokenBucket;
use crate::engine::policy::expiring::{CAPACITY, Ends, ExpiringTable, SavedValue};
use crate::limiter::{IntoLimiter, Limiter, RateLimiter};
use crate::store::{MemoryStore, TableStats};
use crate::values::snapshot::{Gap, Input, put_number};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, BanGrowth, Decision, Finish, KeepsStanding, PartitionKey, Quota};

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
/// A rejection counts if its request comes before the wait is over that the key's latest rejection advertised. A client
/// that waits as advertised is never banned, however often it is rejected. A policy's penalty counts only the policy's
/// own rejections, and not those by the layer's other policies or by inner layers. These do not count either:
///
/// - rejections while the key is banned: a ban ends at the time that its first response advertised;
/// - rejections without a `Retry-After`, because a cost never fits: they do not advertise a wait;
/// - rejections of requests that would fit if the key's [refundable charges](crate::Policy::charge_when) that await a
///   response were refunded, because the limit may turn out not to be used up. Each such charge excuses ten rejections.
///   Further rejections count, and so do rejections once the responses are far overdue.
///
/// If a client sends requests concurrently, rejections count from the second one on, since the first one has advertised
/// a wait by then. Set the quota of rejections higher than the number of requests that a well-behaved client has in
/// flight.
///
/// # Memory
///
/// This process keeps up to 65,536 banned keys, 65,536 keys with an advertised wait, and 65,536 keys with counted
/// rejections in memory. That takes some 5 MiB once all three tables are used, and nothing before the first rejection.
/// A flood of more keys evicts the bans that end first, which is [counted](crate::guide::monitoring#metrics).
/// A [snapshot](crate::snapshot::Snapshots) keeps bans through a restart.
///
/// # On several machines
///
/// A limit on a server that [keeps bans](crate::store::remote::Backend::keeps_standing), as Redis does, keeps bans with
/// its keys' budgets. Each process counts the rejections that it has made. Once one process bans a key, all reject it,
/// without further calls. The ban begins on the server by a call in the background, so it ends later than the first
/// response advertised, by the call's duration. All other responses advertise the exact time.
/// [`LimitsHandle::reset`](crate::LimitsHandle::reset) in one process lifts the ban in all. While the server does not
/// answer, a process rejects the keys that it has banned, or has seen to be banned. A limit in memory belongs to one
/// process, and so do its bans.
#[must_use]
#[doc(alias("ban", "block", "fail2ban"))]
pub struct Penalty {
    rejections: Quota,
    ban: Duration,
    /// How repeated bans become longer, if they do.
    growth: Option<BanGrowth>,
    /// Each key's budget for premature retries. Once it is used up, the key is banned.
    misconduct: Arc<dyn Limiter>,
    record: Arc<PenaltyRecord>,
}

/// The bans and advertised waits per key, as absolute deadlines, so that another penalty can share them unchanged.
pub(crate) struct PenaltyRecord {
    pub(in crate::engine::policy) bans: Deadlines,
    pub(in crate::engine::policy) advised: Deadlines,
    /// Each key's number of bans, if bans grow.
    pub(in crate::engine::policy) repeated: ExpiringTable<RepeatedBans>,
    /// The clock's type. Penalties that share the record read the same clock, so a penalty with another clock type does
    /// not share it.
    clock: TypeId,
}

/// The shortest time between two calls that ask a server to ban a key.
const CALL_INTERVAL: Duration = Duration::from_secs(1);

impl PenaltyRecord {
    /// Forgets a key's bans and its advertised wait.
    pub(crate) fn lift(&self, key: &PartitionKey) {
        self.bans.forget(key);
        self.advised.forget(key);
        self.repeated.forget(key);
    }

    /// The number of a key's bans that are not forgotten.
    fn bans_of(&self, key: &PartitionKey) -> u32 {
        self.repeated.get(key).map_or(0, |(bans, _)| bans.times)
    }

    /// Records that a key's ban has begun after `before` others, and lasts for another `left`.
    fn repeat(&self, key: &PartitionKey, growth: &BanGrowth, before: u32, left: Duration) {
        self.repeated.update(key, |bans, now| {
            let times = bans.map_or(0, |bans| bans.times).max(before.saturating_add(1));
            *bans =
                Some(RepeatedBans { times, until: now.saturating_add(left).saturating_add(growth.forgotten_after()) });
        });
    }
}

/// A key's number of bans, and until when they are remembered.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::policy) struct RepeatedBans {
    times: u32,
    until: Timestamp,
}

impl Ends for RepeatedBans {
    fn ends(&self) -> Timestamp {
        self.until
    }
}

impl SavedValue for RepeatedBans {
    fn write(&self, then: Timestamp, bytes: &mut Vec<u8>) {
        self.until.write(then, bytes);
        put_number(bytes, self.times);
    }

    fn read(then: Timestamp, bytes: &mut Input<'_>) -> Option<Self> {
        Some(Self { until: Timestamp::read(then, bytes)?, times: u32::try_from(bytes.u64()?).ok()? })
    }

    fn moved(self, gap: Gap) -> Option<Self> {
        self.until.moved(gap).map(|until| Self { until, ..self })
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

    /// Makes a key's next ban `factor` times as long as the one before it, up to `up_to`. With 2 and a day, a first ban
    /// of ten minutes is followed by 20 minutes, 40 minutes, and so on. Once a key was not banned for the time `up_to`,
    /// or [another](Self::forgetting_after), its bans are forgotten, and the next one is a first one again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Penalty, Quota};
    ///
    /// const DAY: Duration = Duration::from_secs(86_400);
    ///
    /// let penalty = Penalty::new(Quota::per_minute(30), Duration::from_secs(600));
    /// let penalty = penalty.growing(2, DAY).forgetting_after(7 * DAY);
    /// ```
    ///
    /// If an operator [lifts](crate::LimitsHandle::unban) a ban, allows a key or resets it, the key's bans are
    /// forgotten, too. A live change keeps them, and applies its own factor and times to the next ban. A
    /// [snapshot](crate::snapshot::Snapshots) keeps them through a restart.
    ///
    /// # Memory
    ///
    /// 3 MiB more, from the first ban on, for 65,536 keys with bans. If there are more, we forget those that would be
    /// forgotten first.
    ///
    /// # On several machines
    ///
    /// On Redis and PostgreSQL, the call that begins a ban counts it there, so all processes that share the limit count
    /// bans together. The response that begins a ban computes it from the bans that its own process knows, so it may
    /// advertise less than the ban that the server then makes. All later responses advertise the exact time. On other
    /// servers, and in memory, each process counts the bans that it has begun.
    ///
    /// # Panics
    ///
    /// If `factor` is less than 2, or `up_to` is shorter than the first ban or longer than a [`Quota`]'s period may be.
    #[track_caller]
    #[doc(alias("escalation", "recidive", "backoff"))]
    pub fn growing(self, factor: u32, up_to: Duration) -> Self {
        assert!(factor >= 2, "a ban that grows by a factor of {factor} does not; choose 2 or more");
        assert!(up_to >= self.ban, "bans that grow up to {up_to:?} must not begin with {:?}", self.ban);
        if let Err(error) = Quota::try_per(1, up_to) {
            panic!("bans that grow up to {up_to:?}: {error}");
        }
        Self { growth: Some(BanGrowth::new(self.ban, factor, up_to)), ..self }
    }

    /// Sets the time after which a key's bans are forgotten, counted from the last ban's end. Has no effect unless bans
    /// are [growing](Self::growing), so call it after that.
    ///
    /// # Panics
    ///
    /// If `quiet` is zero, or longer than a [`Quota`]'s period may be.
    #[track_caller]
    pub fn forgetting_after(self, quiet: Duration) -> Self {
        if let Err(error) = Quota::try_per(1, quiet) {
            panic!("bans that are forgotten after {quiet:?}: {error}");
        }
        Self { growth: self.growth.map(|growth| growth.with_forgotten_after(quiet)), ..self }
    }

    /// Uses `clock`, for tests. Forgets all records.
    pub fn with_clock(self, clock: impl Clock + Clone) -> Self {
        Self { growth: self.growth, ..Self::with_parts(self.rejections, self.ban, clock) }
    }

    fn with_parts<C: Clock + Clone>(rejections: Quota, ban: Duration, clock: C) -> Self {
        let deadlines = || Deadlines::new(CAPACITY, Arc::new(clock.clone()));
        let repeated = ExpiringTable::new(CAPACITY, Arc::new(clock.clone()));
        let record = PenaltyRecord { bans: deadlines(), advised: deadlines(), repeated, clock: TypeId::of::<C>() };
        let store = MemoryStore::default().with_clock(clock);
        Self {
            rejections,
            ban,
            growth: None,
            misconduct: RateLimiter::new(TokenBucket::new(rejections), store).into_limiter(),
            record: Arc::new(record),
        }
    }

    pub(crate) const fn record(&self) -> &Arc<PenaltyRecord> {
        &self.record
    }

    /// The limiter that counts premature retries.
    pub(in crate::engine::policy) const fn misconduct(&self) -> &Arc<dyn Limiter> {
        &self.misconduct
    }

    /// The rest of a key's ban, if it is banned.
    #[inline]
    pub(crate) fn banned_for(&self, key: &PartitionKey) -> Option<Duration> {
        self.record.bans.time_left(key)
    }

    /// The rest of a key's advertised wait, if there is one.
    pub(crate) fn advised_for(&self, key: &PartitionKey) -> Option<Duration> {
        self.record.advised.time_left(key)
    }

    /// Counts a rejection if it came before an advertised wait was over. Returns the ban, if the key is banned now, and
    /// whether it begins.
    ///
    /// If the limiter's `server` keeps bans, a new one is made there in the background, and remembered here for
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
        let bans = self.record.bans_of(key);
        let span = self.ban_after(bans);
        let Some(server) = server else {
            let begins = self.record.bans.begin(key, span);
            if let Some(growth) = self.growth.filter(|_| begins) {
                self.record.repeat(key, &growth, bans, span);
            }
            return self.banned_for(key).map(|left| (left, begins));
        };
        // If several requests arrive at once, the first one begins the ban, and makes the call. The ban is counted once
        // the server has answered. Until then, it is the next one.
        let begun_as = |span: Duration, left: Duration| left <= span && left > span.saturating_sub(CALL_INTERVAL);
        let latest = self.ban_after(bans.saturating_sub(1));
        let has_begun = self.banned_for(key).is_some_and(|left| begun_as(span, left) || begun_as(latest, left));
        if !has_begun {
            self.remember(key, span);
            let ban = server.ban(key, span, self.growth);
            let (record, growth, key) = (Arc::clone(&self.record), self.growth, key.clone());
            crate::util::spawn(async move {
                // If the call fails, the next premature retry makes it again.
                let Ok(decision) = ban.await else { return };
                if let Some((growth, ban)) = growth.zip(decision.ban()) {
                    record.repeat(&key, &growth, growth.bans_before(ban.left), ban.left);
                    record.bans.extend(&key, ban.left);
                }
            });
        }
        self.banned_for(key).map(|left| (left, !has_begun))
    }

    /// The next ban's duration for a key that was banned `before` times.
    fn ban_after(&self, before: u32) -> Duration {
        self.growth.map_or(self.ban, |growth| growth.ban_after(before))
    }

    /// Records a ban from a server's reply, for outages.
    pub(crate) fn remember(&self, key: &PartitionKey, left: Duration) {
        self.record.bans.extend(key, left);
    }

    /// Counts a rejection. Returns `true` if it does not cause a ban.
    fn tolerates(&self, key: &PartitionKey, rejection: &Decision) -> bool {
        if rejection.retry_after().is_none() || self.advised_for(key).is_none() {
            return true;
        }
        let answer = self.misconduct.decide(&Ask::charge(key, 1));
        matches!(answer, Answer::Ready(Ok(decision)) if decision.is_allowed())
    }

    /// Records the wait that the response to a rejected request advertises. It replaces an earlier response's wait,
    /// even a longer one, because the limit may have been raised, or a refund may be near.
    pub(crate) fn advise(&self, key: &PartitionKey, wait: Duration) {
        self.record.advised.set(key, wait);
    }

    /// Inherits another penalty's record, and the counts from `old` if it was in force until now. Returns the step to
    /// run once this penalty is in force.
    pub(crate) fn inherit(&mut self, record: &Arc<PenaltyRecord>, old: Option<&Self>) -> Option<Finish> {
        if self.record.clock != record.clock {
            return None;
        }
        self.record = Arc::clone(record);
        // Both are buckets in memory with the same clock type, and such a bucket can always inherit.
        self.misconduct.inherit(&*old?.misconduct)?.put_in_place(&mut self.misconduct)
    }

    /// Forgets all records about a key.
    pub(crate) fn lift(&self, key: &PartitionKey) {
        let _ = self.misconduct.decide(&Ask::reset(key));
        self.record.lift(key);
    }

    /// The ban table's occupancy.
    pub(crate) fn ban_table(&self) -> TableStats {
        self.record.bans.stats()
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Penalty")
            .field("rejections", &self.rejections)
            .field("ban", &self.ban)
            .field("growth", &self.growth)
            .finish()
    }
}

/// An instant per key until which something lasts.
pub(in crate::engine::policy) type Deadlines = ExpiringTable<Timestamp>;

impl Deadlines {
    #[inline]
    fn time_left(&self, key: &PartitionKey) -> Option<Duration> {
        self.get(key).map(|(end, now)| end.saturating_since(now))
    }

    /// Sets a key's deadline if it does not have one, and returns whether it did. If several threads try at once, only
    /// the first one sets it.
    fn begin(&self, key: &PartitionKey, span: Duration) -> bool {
        self.update(key, |end, now| {
            let begins = end.is_none();
            end.get_or_insert_with(|| now.saturating_add(span));
            begins
        })
    }

    /// Sets a key's deadline.
    fn set(&self, key: &PartitionKey, span: Duration) {
        self.update(key, |end, now| *end = Some(now.saturating_add(span)));
    }

    /// Sets a key's deadline if it has none, or an earlier one.
    fn extend(&self, key: &PartitionKey, span: Duration) {
        self.update(key, |end, now| *end = (*end).max(Some(now.saturating_add(span))));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::util::cases::cases;
    use crate::values::time::ManualClock;
    use crate::values::{Exception, Override, Pending};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// Bans at the second premature retry.
    fn penalty() -> Penalty {
        Penalty::new(Quota::per_hour(1), HOUR).with_clock(ManualClock::new())
    }

    /// Its wait was an hour, and then ten seconds, because its limit was raised, so the client comes back after ten.
    #[test]
    fn the_latest_advised_wait_counts() {
        let clock = ManualClock::new();
        let penalty = Penalty::new(Quota::per_hour(1), HOUR).with_clock(clock.clone());
        let key = PartitionKey::from("a");
        let short = Duration::from_secs(10);
        penalty.advise(&key, HOUR);
        penalty.advise(&key, short);
        clock.advance(short);
        for _ in 0..10 {
            assert_eq!(penalty.note_rejection(None, &key, &Decision::reject(1, 0, Some(HOUR))), None);
        }
        penalty.advise(&key, short);
        let rejected = || penalty.note_rejection(None, &key, &Decision::reject(1, 0, Some(HOUR)));
        assert_eq!([rejected().is_some(), rejected().is_some()], [false, true]);
    }

    #[test]
    fn too_many_premature_retries_are_banned() {
        let penalty = penalty();
        let key = PartitionKey::from("a");
        let rejection = Decision::reject(1, 0, Some(HOUR));
        assert_eq!(penalty.note_rejection(None, &key, &rejection), None, "no wait was advertised before");
        penalty.advise(&key, HOUR);
        assert_eq!(penalty.note_rejection(None, &key, &rejection), None, "the first premature retry");
        assert_eq!(penalty.note_rejection(None, &key, &rejection), Some((HOUR, true)));
        assert_eq!(penalty.note_rejection(None, &key, &rejection), Some((HOUR, false)));
    }

    /// A server that counts the calls that ask for a ban.
    #[derive(Default)]
    struct Server(AtomicU64);

    impl KeepsStanding for Server {
        fn ban(&self, _: &PartitionKey, _: Duration, _: Option<BanGrowth>) -> Pending {
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

    /// Premature retries that come before the server answers see that the ban has begun. If another process lifted a
    /// ban on the server, it is made again.
    #[test]
    fn servers_are_asked_once_per_second() {
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

    /// A plain model: when a key's bans began, and how long they were.
    #[derive(Default)]
    struct Model(Vec<(Timestamp, Duration)>);

    impl Model {
        /// Notes a premature retry beyond the quota. Returns the rest of the ban, and whether it begins.
        fn note(
            &mut self,
            now: Timestamp,
            first: Duration,
            factor: u32,
            most: Duration,
            quiet: Duration,
        ) -> (Duration, bool) {
            let end_of = |(begun, span): &(Timestamp, Duration)| begun.saturating_add(*span);
            if let Some(end) = self.0.last().map(end_of).filter(|end| *end > now) {
                return (end.saturating_since(now), false);
            }
            if self.0.last().is_some_and(|last| end_of(last).saturating_add(quiet) <= now) {
                self.0.clear();
            }
            let times = u32::try_from(self.0.len()).unwrap();
            let span = (0..times).fold(first, |span, _| (span * factor).min(most));
            self.0.push((now, span));
            (span, true)
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Histories with three keys: premature retries, pauses of all lengths, and lifted bans.
        #[test]
        fn bans_grow_like_the_model(
            factor in 2..5_u32,
            hours in (1..5_u32, 0..40_u32, 1..50_u32),
            steps in prop::collection::vec((0..3_usize, 0..100_u32, 0..20_u32), 0..100),
        ) {
            let clock = ManualClock::new();
            let (first, most, quiet) = (hours.0 * HOUR, (hours.0 + hours.1) * HOUR, hours.2 * HOUR);
            // Each rejection beyond the first one bans a key that is not banned.
            let rejections = Quota::per(1, Duration::from_secs(90 * 366 * 86_400));
            let penalty = Penalty::new(rejections, first).growing(factor, most).forgetting_after(quiet);
            let penalty = penalty.with_clock(clock.clone());
            let keys = ["a", "b", "c"].map(PartitionKey::from);
            let mut models: [Model; 3] = Default::default();
            let rejection = Decision::reject(1, 0, Some(HOUR));
            for key in &keys {
                penalty.advise(key, 80 * 366 * 24 * HOUR);
                penalty.note_rejection(None, key, &rejection);
            }
            for (index, pause, action) in steps {
                clock.advance(HOUR / 2 * pause);
                let key = &keys[index];
                if action == 0 {
                    penalty.record.lift(key);
                    penalty.advise(key, 80 * 366 * 24 * HOUR);
                    models[index].0.clear();
                    continue;
                }
                let expected = models[index].note(clock.now(), first, factor, most, quiet);
                prop_assert_eq!(penalty.note_rejection(None, key, &rejection), Some(expected));
            }
        }
    }

    /// Bans outlive a live change, and the new penalty continues to count, by its own times.
    #[test]
    fn a_new_penalty_continues_the_count() {
        let clock = ManualClock::new();
        let penalty = |first, factor| {
            Penalty::new(Quota::per_hour(1), first).growing(factor, 100 * HOUR).with_clock(clock.clone())
        };
        let key = PartitionKey::from("a");
        let rejection = Decision::reject(1, 0, Some(HOUR));
        let old = penalty(HOUR, 2);
        old.advise(&key, 1_000 * HOUR);
        assert_eq!(old.note_rejection(None, &key, &rejection), None);
        assert_eq!(old.note_rejection(None, &key, &rejection), Some((HOUR, true)));
        let mut new = penalty(2 * HOUR, 5);
        if let Some(finish) = new.inherit(old.record(), Some(&old)) {
            finish();
        }
        assert_eq!(new.note_rejection(None, &key, &rejection), Some((HOUR, false)), "as it was advertised");
        clock.advance(HOUR);
        assert_eq!(new.note_rejection(None, &key, &rejection), None, "one is free again");
        assert_eq!(new.note_rejection(None, &key, &rejection), Some((10 * HOUR, true)));
    }

    #[test]
    fn nonsense_is_rejected() {
        let reason = |build: fn(Penalty) -> Penalty| {
            let built = std::panic::catch_unwind(|| build(penalty()));
            *built.unwrap_err().downcast::<String>().unwrap()
        };
        assert!(reason(|penalty| penalty.growing(1, 2 * HOUR)).contains("choose 2 or more"));
        assert!(reason(|penalty| penalty.growing(2, HOUR / 2)).contains("must not begin with 3600s"));
        assert!(reason(|penalty| penalty.growing(2, Duration::MAX)).contains("a hundred years"));
        assert!(reason(|penalty| penalty.forgetting_after(Duration::ZERO)).contains("the period is 0"));
    }

    /// The server counts bans for all processes, and has seen three before.
    #[tokio::test]
    async fn bans_are_counted_on_the_server() {
        struct Counting;

        impl KeepsStanding for Counting {
            fn ban(&self, _: &PartitionKey, span: Duration, growth: Option<BanGrowth>) -> Pending {
                assert_eq!(span, HOUR, "as this process knows it");
                let ban = Exception::of_penalty(growth.unwrap().ban_after(3));
                Box::pin(std::future::ready(Ok(Decision::reject(1, 0, None).banned(&ban))))
            }

            fn override_key(&self, _: &PartitionKey, _: Override) -> Pending {
                unreachable!("a penalty is no operator")
            }

            fn owe(&self, _: &Ask<'_>) -> Pending {
                unreachable!("a penalty makes no debts")
            }
        }

        let clock = ManualClock::new();
        let penalty = Penalty::new(Quota::per_hour(1), HOUR).growing(2, 100 * HOUR).with_clock(clock.clone());
        let key = PartitionKey::from("a");
        let server: Arc<dyn KeepsStanding> = Arc::new(Counting);
        let rejection = Decision::reject(1, 0, Some(HOUR));
        penalty.advise(&key, HOUR);
        assert_eq!(penalty.note_rejection(Some(&server), &key, &rejection), None);
        assert_eq!(penalty.note_rejection(Some(&server), &key, &rejection), Some((HOUR, true)));
        // The background task has not run yet.
        assert_eq!(penalty.note_rejection(Some(&server), &key, &rejection), Some((HOUR, false)));
        tokio::task::yield_now().await;
        assert_eq!((penalty.banned_for(&key), penalty.record.bans_of(&key)), (Some(8 * HOUR), 4));
    }

    #[test]
    fn rejections_without_a_wait_are_tolerated() {
        let penalty = penalty();
        let key = PartitionKey::from("a");
        penalty.advise(&key, HOUR);
        for _ in 0..3 {
            assert_eq!(penalty.note_rejection(None, &key, &Decision::reject(1, 1, None)), None);
        }
    }
}
