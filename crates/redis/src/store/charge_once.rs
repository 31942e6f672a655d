//! Requests whose retries are free. Their records and the budgets for free retries are on the server, beside the keys'
//! states. One call decides by all three.

use std::time::Duration;

use tower_sluice::LimiterError;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::{Applied, CallLimits, ChargeRetries, ChargedOnce, FreeRetry, RetryRecord, Target};
use tower_sluice::time::{Clock, Monotonic};

use super::backend::{RedisBackend, failed, state_as_kept};
use super::conversation::{Charges, converse};
use crate::connection::Fault;
use crate::script::sealed::Steps;
use crate::script::{self, Key, ScriptCharge, Scripted, TextUnder};

impl<A: Scripted> ChargeRetries<A> for RedisBackend {
    async fn charge_once(
        &self,
        target: &Target<'_, A>,
        cost: u64,
        record: &RetryRecord,
        limits: CallLimits,
    ) -> Result<ChargedOnce<A::State>, LimiterError> {
        let budget = A::budget(record.budget());
        budget.fits().map_err(|unfit| LimiterError::new(unfit.to_string()).with_source(unfit))?;
        self.decide_once(target, cost, &budget, self.record(target, record), limits).await.map_err(failed)
    }

    async fn begin_record(
        &self,
        target: &Target<'_, A>,
        record: &RetryRecord,
        limits: CallLimits,
    ) -> Result<(), LimiterError> {
        let call = script::begin_record(self.record(target, record), record.free_retries(), record.within());
        self.redis.call_by(&call, limits).await.map(drop).map_err(failed)
    }

    /// Two calls.
    async fn put_back(
        &self,
        target: &Target<'_, A>,
        record: &RetryRecord,
        cost: u64,
        receipt: Receipt,
        limits: CallLimits,
    ) -> Result<(), LimiterError> {
        let (budget, key) = (A::budget(record.budget()), self.budget_of(target));
        if let Some(refund) = script::refund_budget(&budget, key, cost, receipt, Monotonic.wall()) {
            self.redis.call_by(&refund, limits).await.map_err(failed)?;
        }
        let raise = script::raise_record(self.record(target, record), record.free_retries());
        self.redis.call_by(&raise, limits).await.map(drop).map_err(failed)
    }
}

impl RedisBackend {
    fn record<A>(&self, target: &Target<'_, A>, record: &RetryRecord) -> Key {
        self.names.record(target.tag(), record.tag())
    }

    fn budget_of<A: Scripted>(&self, target: &Target<'_, A>) -> Key {
        self.names.budget_of_retries(target.tag(), <A::Budget>::KIND)
    }

    /// Decides in a conversation about the key. The budget has no quota behind it. If its quota changes, the used share
    /// stays used, which is the safe side.
    async fn decide_once<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        cost: u64,
        budget: &A::Budget,
        record: Key,
        limits: CallLimits,
    ) -> Result<ChargedOnce<A::State>, Fault> {
        let mut part = self.part(*target, cost);
        let asked = Monotonic.wall();
        let compose = |mut charges: Charges| {
            let budget_charge = ScriptCharge::new(budget, self.budget_of(target), cost, asked);
            script::decide_once(charges.remove(0), budget_charge, record.clone())
        };
        let send = |call| self.scripts.call(call, limits);
        let (answer, _) = converse(asked, &mut [&mut part], compose, send).await?;
        let is_banned = part.found.standing.banned_until > answer.now;
        let Some(receipt) = answer.free_retry(budget, cost, is_banned)? else {
            return Ok(ChargedOnce { applied: part.found, free: None });
        };
        let mut applied = Applied { charged: 0, ..part.found };
        if part.is_foreign {
            let of_mark = |mark| self.quotas.of_mark(mark);
            let under = TextUnder::new(target, &of_mark);
            (applied.old, applied.kept) = state_as_kept(&under, &answer.text(0)?, answer.now)?;
        }
        // A record that we have not written may live forever.
        let record_left = answer.record_left().unwrap_or(Duration::MAX);
        Ok(ChargedOnce { applied, free: Some(FreeRetry { receipt, record_left }) })
    }
}

#[cfg(test)]
mod tests {
    use tower_sluice::Quota;
    use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use tower_sluice::testing::{check_free_retries, seed_of};

    use super::*;
    use crate::connection::Redis;
    use crate::support::servers::RedisServer;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn free_retries_pass_the_suite() {
        let server = RedisServer::start();
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(60)).open().unwrap();
        let backend = |name| RedisBackend::new(&redis, name);
        let quota = Quota::per(7, Duration::from_secs(300 * 86_400));
        check_free_retries(TokenBucket::new(quota.burst(9)), backend("bucket"), seed_of(1)).await;
        check_free_retries(FixedWindow::new(quota), backend("fixed"), seed_of(2)).await;
        check_free_retries(SlidingWindow::new(quota), backend("sliding"), seed_of(3)).await;
        #[cfg(feature = "calendar")]
        {
            let window = tower_sluice::algorithm::CalendarWindow::monthly(7);
            check_free_retries(window, backend("calendar"), seed_of(4)).await;
        }
    }
}
