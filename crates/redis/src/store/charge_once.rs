//! Requests whose retries are free. Their records and the budgets of free retries are on the server, beside the states
//! of keys. One call decides by all three.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::internal::remote::Marks as _;
use tower_sluice::internal::remote::{ChargingOnce, KeyQuery, Retry};
use tower_sluice::limiter::{Answer, Ask, Receipt};
use tower_sluice::store::MemoryStore;
use tower_sluice::store::remote::{CallLimits, StoreInner};
use tower_sluice::time::{Clock, Monotonic, Timestamp};
use tower_sluice::{Decision, Limiter as _, LimiterError, PartitionKey, Quota, RateLimiter};

use super::backend::{RedisBackend, failed};
use super::conversation::{Charges, converse};
use crate::connection::Fault;
use crate::script::sealed::Steps;
use crate::script::{self, BadReply, Key, ScriptCharge, Scripted};

/// Charges each request of one limiter once, retries included.
pub(super) struct OnceCharger<A: Scripted> {
    inner: Arc<StoreInner<A::State, RedisBackend>>,
    algorithm: A,
    lookups: Lookups,
}

impl<A: Scripted> OnceCharger<A> {
    pub(super) fn new(inner: Arc<StoreInner<A::State, RedisBackend>>, algorithm: A) -> Self {
        Self { inner, algorithm, lookups: Lookups::new() }
    }

    fn record(&self, key: &PartitionKey, retry: &Retry) -> Key {
        let names = &self.inner.backend.names;
        names.record(names.tag(key), names.tag(&retry.request))
    }

    fn budget(&self, key: &PartitionKey) -> Key {
        let names = &self.inner.backend.names;
        names.budget_of_retries(names.tag(key), <A::Budget>::KIND)
    }
}

impl<A: Scripted> ChargingOnce for OnceCharger<A> {
    /// Decides in a call of its own: no lease pays, and no other request shares it. The negative cache knows no
    /// records, so it decides only on requests beyond the [look-ups](Lookups).
    fn decide(&self, ask: &Ask<'_>, retry: &Retry) -> Answer {
        if ask.is_suspended() {
            return Decision::suspended().into();
        }
        let budget = A::budget(retry.budget);
        let query =
            KeyQuery::for_ask(&self.inner, &self.algorithm, ask).and_then(|query| check_fit(&budget).map(|()| query));
        let (query, cost) = match query {
            Ok(query) => (query, ask.cost()),
            Err(error) => return Answer::Ready(Err(error)),
        };
        if let Some(rejection) = query.peek_rejection(cost).filter(|_| !self.lookups.admit(ask.key())) {
            return rejection.into();
        }
        let budget_key = self.budget(ask.key());
        let record = self.record(ask.key(), retry);
        let ends = retry.record_ends.clone();
        Answer::Pending(Box::pin(async move {
            decide(&query, &budget, (budget_key, record), cost, ends.as_deref()).await.map_err(failed)
        }))
    }

    fn begin(&self, key: &PartitionKey, retry: &Retry) {
        let call = script::begin_record(self.record(key, retry), retry.free_retries, retry.within);
        let redis = self.inner.backend.redis.clone();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { redis.call(&call).await });
        }
    }

    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64) {
        let (Ok(runtime), Some(receipt)) = (Handle::try_current(), receipt.unmark_free_retry()) else { return };
        let budget = A::budget(retry.budget);
        let refund = script::refund_budget(&budget, self.budget(key), cost, receipt, Monotonic.wall());
        let raise = script::raise_record(self.record(key, retry), retry.free_retries);
        let redis = self.inner.backend.redis.clone();
        runtime.spawn(async move {
            // One after the other, so that no retry takes the record before the budget has the units for it.
            if let Some(refund) = refund {
                redis.call(&refund).await?;
            }
            redis.call(&raise).await
        });
    }
}

/// Checks whether Redis can keep a budget.
fn check_fit<A: Scripted>(budget: &A) -> Result<(), LimiterError> {
    budget.fits().map_err(|unfit| LimiterError::new(unfit.to_string()).with_source(unfit))
}

/// Decides in a conversation about the key. The budget has no quota behind it. If its quota changes, the used share
/// stays used, which is the safe side.
async fn decide<A: Scripted>(
    query: &KeyQuery<A, RedisBackend>,
    budget: &A::Budget,
    (budget_key, record): (Key, Key),
    cost: u64,
    record_ends: Option<&OnceLock<Timestamp>>,
) -> Result<Decision, Fault> {
    let backend = &query.inner.backend;
    let mut part = backend.part(query.target(), cost);
    let asked = Monotonic.wall();
    let compose = |mut charges: Charges| {
        let budget_charge = ScriptCharge::new(budget, budget_key.clone(), cost, asked);
        script::decide_once(charges.remove(0), budget_charge, record.clone())
    };
    let limits = CallLimits::until(backend.redis.deadline());
    let send = |call| backend.scripts.call(call, limits);
    let (answer, seen) = converse(asked, &mut [&mut part], compose, send).await?;
    if let Some((ends, left)) = record_ends.zip(answer.record_left()) {
        // Never later than the record ends on the server.
        let _ = ends.set(seen.sent.saturating_add(left));
    }
    let is_banned = part.found.standing.banned_until > answer.now;
    match answer.free_retry(budget, cost, is_banned)? {
        Some(receipt) => {
            let unchanged = query.note_unchanged(&part.found, part.is_foreign, seen, cost);
            Ok(unchanged.with_receipt(receipt.mark_free_retry()))
        }
        None => {
            let concluded = query.conclude(&part.found, seen, cost, 1);
            Ok(concluded.map_err(|_| BadReply::Disagreement)?.0[0])
        }
    }
}

/// Limits the calls for requests whose key is known to be used up, in case they are free retries: 10 per second and
/// key, and 100 at once. Otherwise a client could turn each of its rejections into a call, with an idempotency key. A
/// retry beyond the limit is rejected, and is not used up.
struct Lookups(RateLimiter<TokenBucket>);

impl Lookups {
    /// Keys that are evicted for others have all of their look-ups again.
    fn new() -> Self {
        Self(RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(100)), MemoryStore::with_capacity(8_192)))
    }

    fn admit(&self, key: &PartitionKey) -> bool {
        self.0.decide(&Ask::charge(key, 1)).at_once().is_some_and(|decision| decision.is_allowed())
    }
}
