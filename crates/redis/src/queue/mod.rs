//! The departure times of a [`SharedQueue`](tower_sluice::SharedQueue) on Redis: a call of one script for each of the
//! two steps.
//!
//! `script` has the two scripts that the server runs, and reads their replies.

mod script;

use std::error::Error;
use std::sync::Arc;

use tokio::time::Instant;
use tower_sluice::LimiterError;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::{
    AnyRecords, Arrival, DepartureQueue, DepartureTerms, Departures, GaveUp, KeyTag, Reserved,
};

use self::script::QueueScript;
use crate::connection::Redis;
use crate::script::{Key, KeyNames};
use crate::store::{ScriptCaller, failed};

/// One queue on Redis.
pub struct RedisDepartures {
    redis: Redis,
    scripts: ScriptCaller,
    names: KeyNames,
    script: QueueScript,
}

/// A queue on it has names under its prefix, and its scripts make each step in one round trip. Times are to the
/// microsecond of the server's clock; intervals are exact.
impl Departures for Redis {
    type Queue = RedisDepartures;

    fn open(self: Arc<Self>, name: &str, terms: DepartureTerms) -> RedisDepartures {
        RedisDepartures {
            scripts: ScriptCaller::new(&self),
            names: KeyNames::new(self.prefix(), name, self.secret()),
            script: QueueScript::new(terms),
            redis: Self::clone(&self),
        }
    }

    /// # Errors
    ///
    /// [`UnfitQuota`](crate::UnfitQuota), if it would take 2^51 microseconds, about 71 years, to pay for a full queue
    /// and one more request of the greatest [cost](Description::max_cost): bursts and waits of up to 35 years are fine.
    /// And if a limit above 4.5 × 10^12 has a period that is no whole number of microseconds, so that it is exact only
    /// in [too many parts](crate::UnfitQuota::TooManyParts) of one.
    fn check_fit(&self, terms: &DepartureTerms) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(QueueScript::new(*terms).check_fit()?)
    }

    fn shares_departures_with(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    fn secret(&self) -> &[u8] {
        self.secret()
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::new(Self::records(self)))
    }
}

impl RedisDepartures {
    fn key(&self, tag: KeyTag) -> Key {
        self.names.key(tag, 'q')
    }
}

impl DepartureQueue for RedisDepartures {
    async fn reserve(&self, key: KeyTag, arrival: Arrival) -> Result<Reserved, LimiterError> {
        let call = self.script.call(self.key(key), arrival);
        let answer = self.scripts.call_one(call).await.map_err(failed)?;
        let seen = Instant::now();
        let (end, timeline) = self.script.reserved(&answer, arrival).map_err(failed)?;
        Ok(Reserved { now: answer.now, seen, end, timeline })
    }

    async fn give_back(&self, key: KeyTag, length: u128, end: u128) -> Result<bool, LimiterError> {
        let call = self.script.give_back(self.key(key), length, end);
        Ok(self.scripts.call_one(call).await.map_err(failed)?.admitted > 0)
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.redis.health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}

impl std::fmt::Debug for RedisDepartures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisDepartures").field("redis", &self.redis).finish_non_exhaustive()
    }
}
