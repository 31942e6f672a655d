use std::time::Duration;

use super::asking::failed;
use super::key::{Key, Names, Tag};
use super::link::Redis;
use super::mirror::{Mirror, Seen};
use super::script::{Answer, Place, QueueScript, UnfitQuota};
use crate::algorithm::GcraState;
use crate::values::time::{Clock, Monotonic};
use crate::values::{LimiterError, PartitionKey, Quota, Receipt};

/// The lines of one queue, as the server keeps them: when each may leave. Nobody waits here.
pub(crate) struct RedisLine {
    redis: Redis,
    names: Names,
    script: QueueScript,
    /// Of keys with a line. Some of those who come may wait in it and others may not: each is judged for itself.
    mirror: Mirror<GcraState>,
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
            mirror: Mirror::new(),
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

    /// Takes a place for a request that waits for `patience` at most; without a call, if it is known to be refused.
    /// Dropped before the answer came, it may have taken one, and nobody knows which.
    pub(crate) async fn join(
        &self,
        key: &PartitionKey,
        cost: u32,
        patience: Option<Duration>,
    ) -> Result<Place, LimiterError> {
        let (tag, sent) = (self.names.tag(key), Monotonic.now());
        let refused = |state, at| self.script.refused(state, at, cost, patience);
        if let Some(refusal) = self.mirror.refusal(tag, sent, refused) {
            return Ok(Place::Refused(refusal));
        }
        let value = self.redis.call(&self.script.call(self.name(tag), cost, patience)).await.map_err(failed)?;
        let answered = Monotonic.now();
        let answer = Answer::read(value).map_err(failed)?;
        let (place, state) = self.script.place(&answer, cost, patience).map_err(failed)?;
        let line = state.filter(|state| self.script.has_line(*state, answer.now));
        self.mirror.note(tag, line, Seen { server: answer.now, sent, answered });
        Ok(place)
    }

    /// Gives a place back, to the next that comes.
    pub(crate) async fn give_back(&self, key: &PartitionKey, cost: u32, receipt: Receipt) {
        let tag = self.names.tag(key);
        if let Some(call) = self.script.give_back(self.name(tag), cost, receipt) {
            // What cannot be given back stays taken: fewer leave then, and never too many.
            let _ = self.redis.call(&call).await;
            self.mirror.forget(tag, Monotonic.now());
        }
    }

    fn name(&self, tag: Tag) -> Key {
        self.names.key(tag, 'q')
    }
}
