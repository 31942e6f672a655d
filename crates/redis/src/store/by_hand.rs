//! Charges by hand, each reference once. The reference is on the server, beside the state of its key: one script looks
//! at it, and replaces the state.

use std::future::ready;
use std::sync::Arc;

use tower_sluice::PartitionKey;
use tower_sluice::internal::remote::{
    Adjusted, Adjusting, KeyQuery, Observation, PendingAdjustment, REFERENCE_KEPT, allowed_by_hand, tag_of,
};
use tower_sluice::limiter::{Ask, Credit};
use tower_sluice::store::remote::{Applied, Attempts, CallLimits, StoreInner};
use tower_sluice::time::{Clock, Monotonic};

use super::backend::{RedisBackend, failed};
use crate::connection::{Fault, FaultKind};
use crate::script::{self, Key, Scripted, TextUnder};

/// Charges the keys of one limiter by hand.
pub(super) struct HandCharger<A: Scripted> {
    inner: Arc<StoreInner<A::State, RedisBackend>>,
    algorithm: A,
}

impl<A: Scripted> HandCharger<A> {
    pub(super) fn new(inner: Arc<StoreInner<A::State, RedisBackend>>, algorithm: A) -> Self {
        Self { inner, algorithm }
    }
}

impl<A: Scripted> Adjusting for HandCharger<A> {
    fn credit(&self, _: &PartitionKey, _: &Credit) -> Option<PendingAdjustment> {
        None
    }

    fn keeps_credits(&self) -> bool {
        false
    }

    /// Two calls or more: the first reads the state, and the last replaces it.
    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment {
        let query = match KeyQuery::for_ask(&self.inner, &self.algorithm, ask) {
            Ok(query) => query,
            Err(error) => return Box::pin(ready(Err(error))),
        };
        let names = &self.inner.backend.names;
        let record = reference.map(|reference| names.reference(names.tag(ask.key()), names.tag(&reference.into())));
        let units = ask.cost();
        Box::pin(async move {
            let sent = Monotonic.now();
            let (applied, is_repeated) = charge(&query, record, units).await.map_err(failed)?;
            if applied.standing.is_allowed(applied.now) {
                return Err(allowed_by_hand());
            }
            let seen = Observation { server: applied.now, sent, answered: Monotonic.now() };
            if !is_repeated {
                query.charge_fallback(units);
            }
            Ok(Adjusted { decision: query.note_change(&applied, seen), is_repeated })
        })
    }
}

/// Charges the units that are left, and lets the key owe the others, unless its reference is known. Returns the
/// outcome, and whether the reference is known.
async fn charge<A: Scripted>(
    query: &KeyQuery<A, RedisBackend>,
    record: Option<Key>,
    units: u64,
) -> Result<(Applied<A::State>, bool), Fault> {
    let backend = &query.inner.backend;
    let target = query.target();
    let of_mark = |mark| backend.quotas.of_mark(mark);
    let under = TextUnder::new(&target, &of_mark);
    let quota = backend.quotas.carried(&target);
    let key = || backend.key::<A>(tag_of(&target));
    let limits = CallLimits::until(backend.redis.deadline());
    let known = u64::try_from(REFERENCE_KEPT.as_millis()).unwrap_or(u64::MAX);
    let mut attempts = Attempts::new(limits.deadline);
    let mut swap = None;
    let mut owing = None;
    loop {
        let call = match &record {
            Some(record) => script::swap_once(key(), record.clone(), swap, known),
            None => script::swap(key(), swap),
        };
        let answer = backend.scripts.call(call, limits).await?;
        if answer.admitted == 2 {
            let (applied, _) = under.owing(answer.old(0)?, answer.now, quota, 0)?;
            return Ok((applied, true));
        }
        if let Some(applied) = owing.filter(|_| answer.admitted == 1) {
            return Ok((applied, false));
        }
        if owing.is_some() {
            backend.quotas.count(true);
            attempts.lost().await.map_err(|_| FaultKind::TimedOut)?;
        }
        let (applied, next) = under.owing(answer.old(0)?, answer.now, quota, units)?;
        // Nothing is charged to a key that is allowed by hand.
        let Some(next) = next else { return Ok((applied, false)) };
        swap = Some(next);
        owing = Some(applied);
    }
}
