//! Requests whose retries are free. Their records, and the budgets of free retries, are on the server beside the states of
//! keys, and one call decides by all three.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

use super::backend::{RedisBackend, failed};
use super::key::Key;
use super::script::sealed::Steps;
use super::script::{self, BadReply, Charge, Once, OwnQuota, ScriptReply, Scripted, Under};
use crate::algorithm::{Algorithm, TokenBucket};
use crate::store::remote::{Answered, KeyQuery, Observation, StoreInner};
use crate::store::{MemoryStore, MemoryTable};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, ChargingOnce, LimiterError, PartitionKey, Quota, Receipt, Retry};

/// Charges the requests of one limiter once.
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
    /// In a call of its own: no lease pays, and no other request shares it. The negative cache knows no records, so it
    /// decides only on what exceeds the [look-ups](Lookups).
    fn decide(&self, ask: &Ask<'_>, retry: &Retry) -> Answer {
        let budget = A::budget(retry.budget);
        let query =
            KeyQuery::of(&self.inner, &self.algorithm, ask).and_then(|query| check_fit(&budget).map(|()| query));
        let (query, cost) = match query {
            Ok(query) => (query, ask.cost()),
            Err(error) => return Answer::Ready(Err(error)),
        };
        if let Some(rejection) = query.peek_rejection(cost).filter(|_| !self.lookups.admit(ask.key())) {
            return rejection.into();
        }
        let (budget_key, record) = (self.budget(ask.key()), self.record(ask.key(), retry));
        let ends = retry.record_ends.clone();
        Answer::Pending(Box::pin(
            async move { decide(&query, &budget, (budget_key, record), cost, ends.as_deref()).await },
        ))
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
        let refund = script::refund_budget(&budget, self.budget(key), cost, receipt, Monotonic.now());
        let raise = script::raise_record(self.record(key, retry), retry.free_retries);
        let redis = self.inner.backend.redis.clone();
        runtime.spawn(async move {
            // One after the other, so that no retry takes the record before the budget has what it needs.
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

/// Decides in one call. In two if the key has another quota until now, and in three if that changes meanwhile; in one more if
/// our clock is so wrong that the first call did not have the window of the server's time.
async fn decide<A: Scripted>(
    query: &KeyQuery<A, RedisBackend>,
    budget: &A::Budget,
    (budget_key, record): (Key, Key),
    cost: u64,
    record_ends: Option<&OnceLock<Timestamp>>,
) -> Answered {
    let (backend, target) = (&query.inner.backend, query.target());
    let (deadline, mut asked) = (backend.redis.deadline(), Monotonic.now());
    let under = Under::of(&target);
    let mut conversion = None;
    // The quota that the key has, once a conversion was lost.
    let mut kept: Option<(Option<Quota>, A)> = None;
    loop {
        let (algorithm, quota) = match &kept {
            Some((quota, kept)) => (kept, *quota),
            None => (&query.algorithm, backend.carried_quota(&target)),
        };
        let is_converting = conversion.is_some();
        let is_lost = is_converting || kept.is_some();
        let key = backend.key::<A>(query.tag);
        let state = Charge::new(algorithm, key, cost, asked).under(OwnQuota { quota, conversion });
        // The budget has no quota behind it: what is used of it stays used as a share, the safe side.
        let call = script::decide_once(state, Charge::new(budget, budget_key.clone(), cost, asked), record.clone());
        let sent = Monotonic.now();
        let value = backend.redis.call_by(&call, deadline, 1).await.map_err(failed)?;
        let answered = Monotonic.now();
        let mut answer = ScriptReply::read(value).map_err(failed)?;
        let seen = Observation { server: answer.now, sent, answered };
        if let Some((ends, left)) = record_ends.zip(answer.record_left()) {
            // No later than on the server. A reply that is not accepted below is about this record, too.
            let _ = ends.set(sent.saturating_add(left));
        }
        let standing = answer.take_standing(0).map_err(failed)?;
        if standing.is_in_force(answer.now) {
            let state = under.state_at(&answer, 0, standing.until()).map_err(failed)?;
            query.learn_standing(standing, state, seen);
            return match answer.once_in_force(&query.algorithm, budget, cost, (standing, state)).map_err(failed)? {
                Once::Free(decision, receipt, _) => Ok(decision.with_receipt(receipt.mark_free_retry())),
                Once::AsEver(decision, _) => Ok(decision),
            };
        }
        if is_lost && answer.admitted == 0 {
            let other = under.other(&answer, 0, quota, cost).map_err(failed)?;
            if other.is_some() {
                if is_converting {
                    backend.count_conversion(true);
                }
                (kept, conversion) = (other, None);
                continue;
            }
        }
        conversion = Under { algorithm, ..under }.convert(&mut answer, 0, quota).map_err(failed)?;
        if is_converting {
            backend.count_conversion(conversion.is_some());
        }
        if conversion.is_some() && answer.admitted == 0 {
            // Neither charged nor rejected: once more, with the state that the key has under this quota.
            backend.note_quotas();
            (kept, conversion) = (None, conversion.filter(|_| kept.is_none()));
            continue;
        }
        match answer.once(algorithm, budget, cost) {
            Ok(Once::Free(decision, receipt, state)) => {
                if conversion.is_none() && kept.is_none() {
                    query.learn(&[], state, seen, cost);
                }
                return Ok(decision.with_receipt(receipt.mark_free_retry()));
            }
            Ok(Once::AsEver(decision, _)) if kept.is_some() => {
                let decision = query.under_another(algorithm, decision);
                query.learn(&[decision], None, seen, cost);
                return Ok(decision);
            }
            Ok(Once::AsEver(decision, state)) => {
                query.learn(&[decision], state, seen, cost);
                return Ok(decision);
            }
            Err(BadReply::Disagreement) if answer.is_uncovered(algorithm, asked) => asked = answer.now,
            Err(reply) => return Err(failed(reply)),
        }
    }
}

/// How many calls are made for requests whose key is known to be used up, in case they are free retries: 10 per second and
/// key, and 100 at once. Otherwise a client could make a call of each of its rejections, by an idempotency key. A retry
/// beyond them is rejected, and is not used up.
struct Lookups {
    limit: TokenBucket,
    keys: MemoryTable<<TokenBucket as Algorithm>::State>,
}

impl Lookups {
    /// Keys that are forgotten, since more are in demand, have all of their look-ups again.
    fn new() -> Self {
        Self {
            limit: TokenBucket::new(Quota::per_second(10).burst(100)),
            keys: MemoryStore::with_capacity(8_192).table(),
        }
    }

    fn admit(&self, key: &PartitionKey) -> bool {
        self.keys.charge(&self.limit, &Ask::charge(key, 1)).is_allowed()
    }
}
