//! The calls of one queue to Redis, and its negative cache.

use std::time::Duration;

use super::script::{Admission, QueueScript};
use crate::algorithm::GcraState;
use crate::store::redis::{Key, KeyNames, Redis, ScriptReply, UnfitQuota, failed};
use crate::store::remote::{KeyTag, NegativeCache, Observation};
use crate::values::time::{Clock, Monotonic};
use crate::values::{LimiterError, PartitionKey, Quota, Receipt};

/// The schedules of one queue, as the server keeps them. Waits happen elsewhere.
pub(crate) struct RemoteQueue {
    redis: Redis,
    names: KeyNames,
    script: QueueScript,
    /// Keys with a backlog. Some arrivals may wait behind it and others may not: each is checked by its own cost and
    /// patience.
    negative_cache: NegativeCache<GcraState>,
}

impl RemoteQueue {
    pub(crate) fn new(
        redis: &Redis,
        name: &str,
        quota: &Quota,
        max_queue: usize,
        max_wait: Duration,
    ) -> Result<Self, UnfitQuota> {
        Ok(Self {
            redis: redis.clone(),
            names: KeyNames::new(redis.prefix(), name, redis.secret()),
            script: QueueScript::new(quota, max_queue, max_wait)?,
            negative_cache: NegativeCache::new(),
        })
    }

    pub(crate) fn check_fit(quota: &Quota, max_queue: usize, max_wait: Duration) -> Result<(), UnfitQuota> {
        QueueScript::new(quota, max_queue, max_wait).map(drop)
    }

    pub(crate) const fn max_cost(&self) -> u64 {
        self.script.max_cost()
    }

    /// Returns how many requests of cost one would be let in at once without a backlog.
    pub(crate) fn limit(&self) -> u64 {
        self.script.limit()
    }

    /// Makes a reservation for a request that waits for `patience` at most. Makes no call if the negative cache knows
    /// that it would be rejected. If this future is dropped before the answer came, the reservation may have been made.
    pub(crate) async fn join(
        &self,
        key: &PartitionKey,
        cost: u64,
        patience: Option<Duration>,
    ) -> Result<Admission, LimiterError> {
        let (tag, sent) = (self.names.tag(key), Monotonic.now());
        let rejected = |state, at| self.script.rejection(state, at, cost, patience);
        if let Some(rejection) = self.negative_cache.rejection(tag, sent, rejected) {
            return Ok(Admission::Rejected(rejection));
        }
        let value = self.redis.call(&self.script.call(self.name(tag), cost, patience)).await.map_err(failed)?;
        let answered = Monotonic.now();
        let answer = ScriptReply::read(value).map_err(failed)?;
        let (admission, state) = self.script.admission(&answer, cost, patience).map_err(failed)?;
        let backlogged = state.filter(|state| self.script.has_backlog(*state, answer.now));
        self.negative_cache.note(tag, backlogged, Observation { server: answer.now, sent, answered });
        Ok(admission)
    }

    /// Returns a reservation, for the next arrival.
    pub(crate) async fn refund(&self, key: &PartitionKey, cost: u64, receipt: Receipt) {
        let tag = self.names.tag(key);
        if let Some(call) = self.script.refund(self.name(tag), cost, receipt) {
            // If the call fails, the reservation stays: fewer requests depart then, and never too many.
            let _ = self.redis.call(&call).await;
            self.negative_cache.forget(tag, Monotonic.now());
        }
    }

    fn name(&self, tag: KeyTag) -> Key {
        self.names.key(tag, 'q')
    }
}
