//! [`RedisStore`]: a store for one limiter.

use std::error::Error;
use std::time::Duration;

use tower_sluice::store::remote::{
    Applied, Backend, CallLimits, GaveUp, Parts, RemoteStore, RemoteTable, Target, Transition,
};
use tower_sluice::store::{NodeHealth, OpenStore, SharingStats};
use tower_sluice::{LimiterError, Quota};

use super::backend::{RedisBackend, failed};
use crate::connection::Redis;
use crate::script::Scripted;

/// The settings of a limiter whose keys are on Redis (6.2 or later) or Valkey, where all processes that use the same
/// name share them.
///
/// ```no_run
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::{Policy, Quota, RateLimiter};
/// use tower_sluice_redis::{Redis, RedisStore};
///
/// let redis = Redis::open("redis://10.0.0.7:6379")?;
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(20));
/// let policy = Policy::new("per-client", RateLimiter::new(bucket, RedisStore::new(&redis, "per-client")));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
///
/// One round trip per decision, even for cost 0: one script reads the server's clock, decides, and lets the key expire
/// when it owes nothing any more. Requests for one key that come while a call for it is in flight on their runtime
/// share the next call: they may wait for the time of two calls, but at most for the timeout. A key that is used up
/// costs one call per advertised wait, or per half a second if the wait is longer. Otherwise a request for it only
/// reads a table of 1.1 MiB in this process.
///
/// Requests for different keys that come while one of this store's calls is in flight go to the server as one run of
/// the script for up to 32 keys, a *bundle*. A bundle waits for no timer, only for the tasks that its runtime has
/// ready, and takes the server and this process about half the time of single calls. Each key is decided as if it were
/// alone. If one call decides on a request by several policies in a layer, such requests share bundles as well, ten of
/// them with three policies. Clusters get no bundles.
///
/// Requests with an idempotency key, for a policy that [charges retries once](tower_sluice::Policy::charge_once), are
/// an exception: each is decided in a separate call, and recorded by a second call in the background.
///
/// # Accuracy
///
/// As accurate as the algorithm, to the microsecond by the server's clock, and exact over all processes. If a key is
/// known here as used up, a refund or a reset by another process is noticed within half a second and the time of one
/// call. Until then, its requests are rejected although a unit is free.
///
/// Only the server's clock counts. A step forward (by an administrator, or by an `ntpd` that may step) pays off debts:
/// up to min(burst, rate × step) per key is admitted twice, and windows that it skips are over. After a step back, a
/// key counts as owing a full bucket at most. Slew the server's clock, do not step it.
///
/// Calendar windows begin by the server's clock, too, and their bounds come with the call. A process whose own clock is
/// wrong by more than half a window makes a second call when it begins a key's window. Processes that share such a
/// limit should have the same version of the time zone database.
///
/// # Which quotas fit
///
/// Up to [`Quota::MAX_UNITS`](tower_sluice::Quota::MAX_UNITS) units, such as 10 TB a month in bytes, are counted to the
/// unit. The scripts compute with whole microseconds and numbers below 2^53, and some quotas do not fit these.
/// [`Scripted::fits`] reports such a quota as an [`UnfitQuota`](crate::UnfitQuota), and creating a limiter with it
/// panics:
///
/// - a window whose period is not a whole number of microseconds, or 2^50 of them (35 years) or longer;
/// - a window that is staggered;
/// - a bucket that takes 2^51 microseconds (71 years) or longer to fill;
/// - a bucket that is exact only in more than 2^52 parts of a microsecond. That takes a limit above 4.5 × 10^12 *and* a
///   period that is not a whole number of microseconds.
///
/// On the server, a bucket's key takes some 150 bytes, and a window's 165 to 180; great units take up to 48 more. The
/// [guide](https://docs.rs/tower-sluice/latest/tower_sluice/guide/capacity/#the-formulas) has the figures.
///
/// # Another quota
///
/// After a [live change](tower_sluice::Limiter::inherit), a bucket's used units stay used units, as in memory: a key's
/// first charge converts its debt, with a second round trip. A client that has used up ten per hour, and gets a
/// thousand, sends 990 more at once.
///
/// A store with another quota may also have the same name without inheriting: after a restart with another limit, or
/// during a rollout. Such a process does not know the other rate. It keeps a bucket's debt as the time at which it will
/// be paid, and a full bucket at most. So the same share of the bucket is used up, no client gets more than the new
/// burst, and a client waits at most for the time that the new bucket takes to fill. If you cannot accept that, let the
/// process read the [keys' quotas](tower_sluice::Policy::quota_fn), which are stored with the keys.
///
/// A window continues to count under the new limit; with another period, used units may count until the end of the next
/// window. A calendar window's units count until the end of the present window, even in another zone or with another
/// anchor.
///
/// # Quotas of the keys' own
///
/// From the first question [under a quota](tower_sluice::limiter::Ask::under) on, or once a policy has a
/// [`quota_fn`](tower_sluice::Policy::quota_fn), each key is stored with its quota, 25 to 50 bytes more. A key whose
/// quota changes keeps its used units, as in memory, including its debt beyond a smaller bucket: the first charge under
/// the other quota converts it, even if it is rejected, and costs a second round trip. Until then the debt shrinks at
/// the old rate; a peek, a cost of 0 and a cost that can never be admitted convert nothing. A conversion rounds a
/// bucket's debt up, by less than a microsecond, and cuts it at 71 years. Keys from before are converted in the same
/// way, from the limiter's own quota. [`LimitsHandle::peek`](tower_sluice::LimitsHandle::peek) shows the quota of the
/// key's last charge while it owes something, and the limiter's own after that.
///
/// A charge is refunded if the key has the same rate by then, or windows with the same period; otherwise it stays. If a
/// window's count was converted to a shorter period, it ends with that period, so give all quotas one period if a
/// limiter has windows. A key's own window is not stored: the call has its bounds, and units that were charged in
/// another window count in the present one from the next charge on. If Redis [cannot keep](Scripted::fits) a quota, the
/// decision fails with an error.
///
/// While a new plan is rolled out, processes may disagree on a key's quota. Each charge that finds the other's quota
/// then costs a second round trip. If another process changes the key in between, which on a hot key is nearly always
/// the case, a third one charges it under the key's quota: the decision shows that quota, and is refunded only if the
/// two have the same rate, or windows with the same period. In all, a bucket admits at most the units of a bucket with
/// the greater burst and the greater rate, and windows with one period at most the greater limit.
///
/// # Bans and debts
///
/// A key's [ban](tower_sluice::Penalty#on-several-machines), and its [debt](tower_sluice::Policy::owe_shortfalls)
/// beyond its budget, stand before its state and take some 20 bytes more: the scripts read both with it, so a decision
/// takes no further call. While one of them lasts, a charge is rejected, and an earlier charge's refund does nothing. A
/// ban is made by one call, and a debt by two, in the background. Both end by the server's clock; a debt is forgiven
/// after 35 years.
///
/// # When Redis is out of reach
///
/// A [decision](tower_sluice::Limiter::decide) fails within the [timeout](crate::RedisBuilder::timeout), even if it
/// shares a call, refunds a lease first, or needs several nodes: one deadline holds for all its calls. While the node's
/// circuit breaker is open it fails at once. Then the [policy](tower_sluice::FailureMode) decides about the request.
/// For the [local fallback](tower_sluice::FailureMode::LocalFallback), this store counts the units that Redis admits in
/// a [`MemoryStore`](tower_sluice::store::MemoryStore) for 65,536 keys, too. The fallback only counts up: units that
/// are refunded on Redis stay charged there, until time has paid them off. Units that fallbacks admit are not reported
/// to Redis: over an outage and the recovery, *n* processes admit up to *n* + 1 times the quota.
///
/// If one of our keys holds a value with another type or format, its requests fail, and the value stays as it is,
/// because its writer may need it. [Reset](tower_sluice::limiter::Mode::Reset) removes it.
///
/// A call whose answer got lost is not repeated, so its charge stays if it made one. When a primary fails and a replica
/// takes over, charges that were not replicated are lost: up to burst + rate × lag per key is admitted twice.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged, unless its bundle was not sent yet. A
/// lease that its call takes is kept, and the circuit breaker counts the call's outcome.
#[derive(Debug)]
pub struct RedisStore(RemoteStore<RedisBackend>);

impl RedisStore {
    /// Creates a store for the limiter named `name`. Limiters that share `redis` need different names; limiters in
    /// several processes that share their budgets need the same name.
    #[must_use]
    pub fn new(redis: &Redis, name: &str) -> Self {
        let store = RemoteStore::new(RedisBackend::new(redis, name)).secret(redis.secret());
        Self(store.records(redis.records(), name))
    }

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls: see
    /// [`RemoteStore::leasing`].
    ///
    /// # Panics
    ///
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024.
    #[must_use]
    #[track_caller]
    pub fn leasing(self, most: u32, lifetime: Duration) -> Self {
        Self(self.0.leasing(most, lifetime))
    }

    /// Lets no request wait for another request's call for the same key: see [`RemoteStore::without_coalescing`].
    #[must_use]
    pub fn without_coalescing(self) -> Self {
        Self(self.0.without_coalescing())
    }
}

/// One [`RateLimiter`](tower_sluice::RateLimiter)'s keys on Redis, made from a [`RedisStore`].
pub type RedisTable<S> = RemoteTable<S, RedisBackend>;

impl<A: Scripted> Backend<A> for RedisBackend {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        self.apply(target, transition, limits).await.map_err(failed)
    }

    fn timeout(&self) -> Duration {
        self.redis.timeout()
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        self.redis.id() == other.redis.id() && self.name == other.name
    }

    fn note_quotas(&self, limiter: Quota, predecessor: Option<&Self>) {
        self.quotas
            .learn(std::iter::once(limiter).chain(predecessor.into_iter().flat_map(|other| other.quotas.known())));
    }

    fn check_fit(&self, algorithm: &A) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(algorithm.fits()?)
    }

    fn keeps_standing(&self, _: &A) -> bool {
        true
    }

    fn is_failing(&self, target: &Target<'_, A>) -> bool {
        self.redis.is_failing(|| self.key::<A>(target.tag()).slot())
    }

    fn parts(&self) -> Parts<A, Self> {
        Parts::none().joint().free_retries().by_hand()
    }

    fn stats(&self) -> SharingStats {
        self.quotas.stats()
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.redis.health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}

impl<A: Scripted> OpenStore<A> for RedisStore {
    type Table = RemoteTable<A::State, RedisBackend>;

    /// # Panics
    ///
    /// If Redis, which counts microseconds, cannot keep this quota.
    #[track_caller]
    fn open(self, algorithm: &A) -> Self::Table {
        self.0.open(algorithm)
    }
}
