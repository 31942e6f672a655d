use std::time::Duration;

use super::asking::failed;
use super::key::{Key, Names};
use super::link::Redis;
use super::script::{Answer, Place, QueueScript, UnfitQuota};
use crate::decision::{LimiterError, Receipt};
use crate::partition::PartitionKey;
use crate::quota::Quota;

/// The lines of one queue, as the server keeps them: when each may leave. Nobody waits here.
pub(crate) struct RedisLine {
    redis: Redis,
    names: Names,
    script: QueueScript,
}

impl RedisLine {
    pub(crate) fn new(
        redis: &Redis,
        name: &str,
        quota: &Quota,
        capacity: usize,
        max_wait: Duration,
    ) -> Result<Self, UnfitQuota> {
        Ok(Self {
            redis: redis.clone(),
            names: Names::new(redis.prefix(), name, redis.secret()),
            script: QueueScript::new(quota, capacity, max_wait)?,
        })
    }

    pub(crate) fn check_fit(quota: &Quota, capacity: usize, max_wait: Duration) -> Result<(), UnfitQuota> {
        QueueScript::new(quota, capacity, max_wait).map(drop)
    }

    pub(crate) const fn max_cost(&self) -> u32 {
        self.script.max_cost()
    }

    /// How many requests of cost one would be let in at once, if nobody were in line.
    pub(crate) fn limit(&self) -> u32 {
        self.script.limit()
    }

    /// Takes a place for a request that waits for `patience` at most. Dropped before the answer came, it may have taken
    /// one.
    pub(crate) async fn join(
        &self,
        key: &PartitionKey,
        cost: u32,
        patience: Option<Duration>,
    ) -> Result<Place, LimiterError> {
        let value = self.redis.call(&self.script.call(self.name(key), cost, patience)).await.map_err(failed)?;
        let answer = Answer::read(value).map_err(failed)?;
        self.script.place(&answer, cost, patience).map_err(failed)
    }

    /// Gives a place back, if nobody came after it.
    pub(crate) async fn give_back(&self, key: &PartitionKey, cost: u32, receipt: Receipt) {
        if let Some(call) = self.script.give_back(self.name(key), cost, receipt) {
            // What cannot be given back stays taken: fewer leave then, and never too many.
            let _ = self.redis.call(&call).await;
        }
    }

    fn name(&self, key: &PartitionKey) -> Key {
        self.names.key(self.names.tag(key), 'q')
    }
}
