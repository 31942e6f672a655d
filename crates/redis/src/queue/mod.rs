//! The departure times of a [`SharedQueue`](tower_sluice::SharedQueue) on Redis: a call to one script for each of the
//! two steps.
//!
//! `script` has the two scripts that the server runs, and reads their replies.

mod script;

use std::error::Error;
use std::sync::Arc;

use tokio::time::Instant;
use tower_sluice::LimiterError;
use tower_sluice::store::remote::{AnyRecords, Arrival, CallLimits, DepartureTerms, Departures, RemoteKey, Reserved};

use self::script::QueueScript;
use crate::connection::{Redis, ScriptCaller};
use crate::script::Key;
use crate::store::failed;

/// A key has a name under its prefix, and scripts make each step in one round trip. Times are to the microsecond by the
/// server's clock; intervals are exact. Calls for queues with the same terms share bundles.
impl Departures for Redis {
    async fn reserve(
        self: &Arc<Self>,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        arrival: Arrival,
        limits: CallLimits,
    ) -> Result<Reserved, LimiterError> {
        let script = QueueScript::new(*terms);
        let call = script.call(name(self, key), arrival);
        let answer = ScriptCaller::of_queues(self).call(call, limits).await.map_err(failed)?;
        let seen = Instant::now();
        let (end, timeline) = script.reserved(&answer, arrival).map_err(failed)?;
        Ok(Reserved { now: answer.now, seen, end, timeline })
    }

    async fn give_back(
        self: &Arc<Self>,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        length: u128,
        end: u128,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let call = QueueScript::new(*terms).give_back(name(self, key), length, end);
        Ok(ScriptCaller::of_queues(self).call(call, limits).await.map_err(failed)?.admitted > 0)
    }

    /// # Errors
    ///
    /// [`UnfitQuota`](crate::UnfitQuota), if it would take 2^51 microseconds, about 71 years, to pay for a full queue
    /// and one more request with the greatest [cost](tower_sluice::limiter::Description::max_cost): bursts and waits up
    /// to 35 years are fine. And if a limit above 4.5 × 10^12 has a period that is not a whole number of microseconds,
    /// so that it is exact only in [too many parts](crate::UnfitQuota::TooManyParts) of one.
    fn check_fit(&self, terms: &DepartureTerms) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(QueueScript::new(*terms).check_fit()?)
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::new(Self::records(self)))
    }
}

fn name(redis: &Redis, key: &RemoteKey<'_>) -> Key {
    Key::new(redis.prefix(), key.limiter(), key.tag(), &["q"])
}
