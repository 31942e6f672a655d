//! `ChargeOnce`: a client that lost an answer and repeats its request is not charged again.
//!
//! 1. [`Billing::attempt`](super::billing::Billing::attempt) looks the request up: is it to be charged, or is it a free
//!    retry?
//! 2. The transaction charges it, unless it is free, and [admits](Attempt::admit) it.
//! 3. Once its response is over, a charged [`Attempt`] is [recorded](records), so that its retries are free.
//!
//! If the limiter's server keeps the records, it looks the request up in step 2.

mod attempt;
mod records;

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::attempt::Attempt;
use self::attempt::Keeper;
pub(in crate::engine::policy) use self::records::Records;
use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use crate::engine::domain::{Domain, Http};
use crate::limiter::{IntoLimiter, Limiter, RateLimiter};
use crate::store::MemoryStore;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Ask, Description, Finish, PartitionKey, Quota, Retry, Shape, Terms};

/// Charges a request and its retries once, by their common idempotency key; see
/// [`Policy::charge_once`](crate::Policy::charge_once).
///
/// ```
/// use http::HeaderName;
/// use tower_sluice::algorithm::FixedWindow;
/// use tower_sluice::key::HeaderKey;
/// use tower_sluice::{ChargeOnce, Policy, Quota};
///
/// let once = ChargeOnce::by_header(HeaderName::from_static("idempotency-key")).free_retries(3);
/// let payments = Policy::new("payments", FixedWindow::new(Quota::per_day(10_000)))
///     .key(HeaderKey::from_static("x-api-key"))
///     .charge_once(once);
/// ```
///
/// # Which requests are free
///
/// A request is free if it has the same policy key, idempotency key, method, path and cost as an earlier request that
/// was charged, and if the earlier response has ended or failed, or the client gave it up. The first
/// [`free_retries`](Self::free_retries) are free, for the time set by [`within`](Self::within), and the next ones are
/// charged. A free request passes even if the quota is used up.
///
/// All others are charged as if this were not set, which is always the safe side:
///
/// - a repetition while the first request is in flight;
/// - a repetition after its request was rejected, or its charge [refunded](crate::Policy::charge_when);
/// - a request whose idempotency key is absent, in several fields, empty, longer than 255 characters, or has
///   characters other than visible ASCII. Such a key is not an error;
/// - in memory: a repetition that reaches another process, or this process after a restart without a
///   [snapshot](crate::snapshot::Snapshots);
/// - [on a server](Self#on-a-server): a repetition that comes before its request's record was written, or while the
///   server is out of reach; and a repetition whose record is lost, because it could not be written or was evicted.
///
/// A [banned](crate::Policy::penalty) key is rejected all the same, and a free retry that is rejected for any reason
/// is not used up.
///
/// # What a client can get
///
/// The client chooses the idempotency key, and can send another payload with it. So this is an allowance for **1 +
/// [`free_retries`](Self::free_retries) times the quota**, at most. With any repetitions, a client gets in any interval
/// at most 1 + `free_retries` times the units that the limiter alone would grant. To that end, free retries have their
/// own budget per policy key, with the shape of the limiter's budget, and `free_retries` times as large. Retries that
/// exceed it are charged.
///
/// It does not protect against processing a request twice, so the service must compare the payload.
///
/// # On a server
///
/// If the limiter is a [`RateLimiter`] over a `RedisStore`, a `PostgresStore`, or another store [with
/// records](crate::store::remote::RemoteStore::records), the records and the budgets are on its server, and all
/// processes that share the limit share them. In a Redis cluster, they are on their policy key's node. A [live
/// change](crate::LimitsHandle) leaves them as they are.
///
/// If a decision fails, the policy's [failure mode](crate::FailureMode) decides as for any request, and the local
/// fallback charges retries. A request that is dropped while the server decides may have used a free retry up.
///
/// # Memory
///
/// In this process's memory: [`max_keys`](Self::max_keys) requests at some 50 bytes each, and 65,536 policy keys with
/// free retries at 16 bytes each. Nothing is allocated before the first idempotency key comes. If there are more, the
/// records that would end next make room, and their retries are charged.
///
/// On Redis: some 180 bytes per charged request with an idempotency key, for the time set by [`within`](Self::within)
/// (Redis 7, with a ten-character name), and one more budget per policy key. On PostgreSQL, some 200. Only the quota
/// bounds their number, so a client with ten per second can fill 150 MB in a day. Set `within` to the time in which
/// clients repeat requests, which is often minutes. In each process, 128 KiB once a key is used up.
///
/// # Cost
///
/// In memory, a request with an idempotency key takes one or two locks before its policy decides, and one or two when
/// its response is over. Each lock is held while 64 slots are searched.
///
/// On Redis, it takes one round trip. On a store with records, it takes one more than without an idempotency key, and a
/// free retry takes six. If it was charged, further calls (one on Redis, two with records) follow once its response is
/// over, and no request waits for them. It does not share its calls with the layer's other policies or the key's other
/// requests, and no lease pays. The calls are made even if the key is known to be used up, since a retry may be free
/// nevertheless. For such a key, each process asks 100 times at once and 10 times per second. Requests beyond that are
/// rejected without a call, and free retries among them are not used up.
#[must_use]
#[doc(alias("idempotency key", "Idempotency-Key", "idempotent"))]
pub struct ChargeOnce<D: Domain = Http> {
    identify: Box<Identify<D>>,
    within: Duration,
    free_retries: u32,
    /// The capacity, if it was set.
    max_keys: Option<usize>,
    clock: Arc<dyn Clock>,
    /// The clock's type. Records hold its readings, so a policy with another clock type does not share them.
    clock_type: TypeId,
    /// See [`Budgets::in_memory`].
    make_budget: MakeBudget,
}

/// Returns the parts that a request and its retries have in common: the idempotency key, the method and the path.
/// `None` if the request does not have a valid idempotency key.
pub(crate) type Identify<D> = dyn for<'a> Fn(&'a <D as Domain>::Subject<'_>) -> Option<[&'a [u8]; 3]> + Send + Sync;

/// Makes the budgets for free retries in this process.
type MakeBudget = fn(Budgets, Arc<dyn Clock>) -> Arc<dyn Limiter>;

/// The number of requests that a process remembers unless set otherwise.
const MAX_KEYS: usize = 65_536;

impl<D: Domain> ChargeOnce<D> {
    /// Retries are free once, and within 24 hours, unless set otherwise.
    // Inlined, and the only place that names `Budgets::in_memory`, so that a program without free retries is not linked
    // with it.
    #[inline]
    pub(crate) fn new(identify: Box<Identify<D>>) -> Self {
        Self {
            identify,
            within: Duration::from_secs(24 * 3_600),
            free_retries: 1,
            max_keys: None,
            clock: Arc::new(Monotonic),
            clock_type: TypeId::of::<Monotonic>(),
            make_budget: Budgets::in_memory,
        }
    }

    /// Sets the time in which retries are free, counted from the response's end.
    ///
    /// # Panics
    ///
    /// If `within` is zero, or longer than a [`Quota`]'s period may be.
    #[track_caller]
    pub fn within(self, within: Duration) -> Self {
        if let Err(error) = Quota::try_per(1, within) {
            panic!("retries within {within:?}: {error}");
        }
        Self { within, ..self }
    }

    /// Sets the number of free retries per request.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub fn free_retries(self, free_retries: u32) -> Self {
        assert!(free_retries > 0, "at least one retry must be free; leave charge_once out to charge all");
        Self { free_retries, ..self }
    }

    /// Sets the number of requests that this process remembers at a time, 65,536 unless set. If all requests should
    /// have free retries, set it to the number of requests with an idempotency key that come [within](Self::within) the
    /// time.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it if the records are on
    /// [a server](Self#on-a-server), where time alone bounds them.
    ///
    /// # Panics
    ///
    /// If a [`MemoryStore`] cannot have this capacity.
    #[track_caller]
    pub fn max_keys(self, max_keys: usize) -> Self {
        let _ = MemoryStore::with_capacity(max_keys);
        Self { max_keys: Some(max_keys), ..self }
    }

    /// The number of requests that this process remembers.
    fn capacity(&self) -> usize {
        self.max_keys.unwrap_or(MAX_KEYS)
    }

    /// Uses `clock`, for tests. On [a server](Self#on-a-server), the server's clock counts.
    pub fn with_clock<C: Clock>(self, clock: C) -> Self {
        Self { clock: Arc::new(clock), clock_type: TypeId::of::<C>(), ..self }
    }
}

impl<D: Domain> fmt::Debug for ChargeOnce<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeOnce")
            .field("within", &self.within)
            .field("free_retries", &self.free_retries)
            .field("max_keys", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The state that [`ChargeOnce`] keeps in one policy.
pub(in crate::engine::policy) struct Retries<D: Domain> {
    settings: ChargeOnce<D>,
    /// `None` if the limiter does not advertise a quota. In that case no retry is free, and layers reject the policy.
    budgets: Option<Budgets>,
    keeper: Keeper,
}

/// The retry records, and the budget for free ones if any is free, in this process.
type RetriesInProcess<'a> = (&'a Arc<Records>, Option<&'a Arc<dyn Limiter>>);

/// The budgets for free retries, per policy key. Without them, a client could save up a day's free retries, and send
/// them at once.
#[derive(Clone, Copy)]
struct Budgets {
    /// The budget for a key that has no quota of its own.
    quota: Quota,
    shape: Shape,
}

impl<D: Domain> Retries<D> {
    pub(in crate::engine::policy) fn new(settings: ChargeOnce<D>, description: &Description) -> Self {
        let budgets = description.terms().and_then(|terms| Budgets::from_terms(terms, settings.free_retries));
        let keeper = match description.charges_once() {
            Some(limiter) => Keeper::Limiter(Arc::clone(limiter)),
            None => Keeper::Process {
                records: Arc::new(Records::new(settings.capacity(), Arc::clone(&settings.clock))),
                budget: budgets.map(|budgets| (settings.make_budget)(budgets, Arc::clone(&settings.clock))),
            },
        };
        Self { settings, budgets, keeper }
    }

    /// Whether the number of records was bounded.
    pub(in crate::engine::policy) const fn bounds_records(&self) -> bool {
        self.settings.max_keys.is_some()
    }

    /// Inherits the records from `old`, and the rest of its budgets. Records and budgets that a limiter keeps stay
    /// where they are.
    pub(in crate::engine::policy) fn inherit(&mut self, old: &Self) -> Option<Finish> {
        let (Keeper::Process { records, budget }, Keeper::Process { records: old_records, budget: old_budget }) =
            (&mut self.keeper, &old.keeper)
        else {
            return None;
        };
        if self.settings.clock_type != old.settings.clock_type {
            return None;
        }
        if records.capacity() == old_records.capacity() {
            *records = Arc::clone(old_records);
        }
        let budget = budget.as_mut()?;
        budget.inherit(&**old_budget.as_ref()?)?.put_in_place(budget)
    }

    /// This process's records, and the budget for free retries, unless a limiter keeps them.
    pub(in crate::engine::policy) fn in_process(&self) -> Option<RetriesInProcess<'_>> {
        match &self.keeper {
            Keeper::Process { records, budget } => Some((records, budget.as_ref())),
            Keeper::Limiter(_) => None,
        }
    }

    /// Makes a request's attempt, if it has a valid idempotency key, and its policy key can have free retries. The
    /// attempt is a free retry if this process has one for the request, and the budget allows it.
    pub(super) fn attempt(&self, charge: &Ask<'_>, head: &D::Subject<'_>) -> Option<Attempt> {
        let cost = charge.cost();
        // A request with cost 0 is never charged.
        if cost == 0 {
            return None;
        }
        let [key, method, path] = (self.settings.identify)(head)?;
        let budgets = self.budgets.as_ref()?;
        // Without the cost as a part, a cheap request would make an expensive one free. Parts carry their lengths, and
        // the store hashes the whole with its own secret.
        let parts = [charge.key().as_bytes(), key, method, path, &cost.to_le_bytes()];
        let request = PartitionKey::from_parts(parts);
        let ChargeOnce { within, free_retries, .. } = self.settings;
        // A key's budget grows with its quota.
        let own_budget = match charge.quota() {
            Some(quota) => Some(budget_quota(budgets.shape, quota, free_retries)?),
            None => None,
        };
        // Only a limiter reports when a record ends. A process looks up its own records.
        let record_ends = matches!(self.keeper, Keeper::Limiter(_)).then(Arc::default);
        let budget = own_budget.unwrap_or(budgets.quota);
        let retry = Retry { request, within, free_retries, budget, record_ends };
        Some(Attempt::new(self.keeper.clone(), own_budget, charge, retry))
    }

    /// Prepares the budgets for keys with their own quotas.
    pub(in crate::engine::policy) fn take_quotas(&self) {
        if let Keeper::Process { budget: Some(budget), .. } = &self.keeper {
            budget.describe().prepare_for_quotas();
        }
    }
}

impl Budgets {
    /// `free_retries` times the units that a limiter with these terms grants, if any retry is free.
    fn from_terms(terms: Terms, free_retries: u32) -> Option<Self> {
        let shape = terms.shape()?;
        Some(Self { quota: budget_quota(shape, terms.quota()?, free_retries)?, shape })
    }

    /// Makes the budgets. Compiled in the crate that calls [`ChargeOnce::by_header`], because it needs the tables for
    /// all algorithms.
    #[inline]
    fn in_memory(self, clock: Arc<dyn Clock>) -> Arc<dyn Limiter> {
        let Self { quota, shape } = self;
        let store = MemoryStore::default().with_clock(clock);
        match shape {
            Shape::Bucket | Shape::CalendarWindow => RateLimiter::new(TokenBucket::new(quota), store).into_limiter(),
            Shape::FixedWindow => RateLimiter::new(FixedWindow::new(quota), store).into_limiter(),
            Shape::SlidingWindow => RateLimiter::new(SlidingWindow::new(quota), store).into_limiter(),
        }
    }
}

/// The retry budget's quota for a key with this quota, if any retry is free.
fn budget_quota(shape: Shape, quota: Quota, free_retries: u32) -> Option<Quota> {
    if quota.is_suspended() {
        return None;
    }
    let quota = granted(quota, free_retries);
    if shape == Shape::CalendarWindow { half_per_longest_window(quota) } else { Some(quota) }
}

/// The units that free retries may cost for a key with this quota.
fn granted(quota: Quota, free_retries: u32) -> Quota {
    let times = |units: u64| units.saturating_mul(free_retries.into()).min(Quota::MAX_UNITS);
    // Capping a limit or a burst at a quota's maximum is on the safe side, because more is charged.
    Quota::try_per(times(quota.limit()), quota.period()).map_or(quota, |more| more.burst(times(quota.max_burst())))
}

/// Half at once, and half over the longest calendar window, so that no window grants more than the whole, wherever it
/// begins. If the half rounds to zero, there is no quota, and no retry is free, which is on the safe side.
fn half_per_longest_window(quota: Quota) -> Option<Quota> {
    // 28 days become 32, which is more than the longest month and an hour. A week and a day grow by more than an hour,
    // too.
    Quota::try_per(quota.limit() / 2, quota.period() * 32 / 28).ok()
}

#[cfg(all(test, feature = "calendar"))]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, CalendarWindow};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// Half the quota comes at once, and the other half over the longest window, which has an hour more, because clocks
    /// go back.
    #[test]
    fn no_calendar_window_exceeds_its_quota() {
        for (window, hours) in [
            (CalendarWindow::daily(100), 25),
            (CalendarWindow::weekly(100), 7 * 24 + 1),
            (CalendarWindow::monthly(100), 31 * 24 + 1),
        ] {
            let budget = budget_quota(Shape::CalendarWindow, window.quota(), 1).unwrap();
            assert_eq!([budget.limit(), budget.max_burst()], [50, 50]);
            let restored = budget.time_to_restore(50);
            assert!((HOUR * hours..HOUR * hours * 5 / 4).contains(&restored), "{restored:?}");
        }
        assert!(budget_quota(Shape::CalendarWindow, CalendarWindow::daily(1).quota(), 1).is_none());
    }
}
