//! [`RedisBackend`]: the transitions of one limiter, as calls of scripts.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use super::bundle::Bundles;
use super::connection::{Fault, FaultKind, Redis};
use super::evalsha::Call;
use super::key::{Key, Names};
use super::script::{self, BadReply, OwnQuota, ScriptReply, Scripted, Under};
use super::store;
use crate::store::remote::{
    Answered, Applied, Attempts, Backend, CallLimits, GaveUp, Standing, StoreInner, Tag, Tags, Target, Transition,
};
use crate::store::{NodeHealth, SharingStats};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Description, LimiterError, Quota, Receipt};

/// The keys of one limiter on Redis.
pub struct RedisBackend {
    pub(super) redis: Redis,
    pub(super) names: Names,
    name: Box<str>,
    bundles: Bundles,
    /// Whether keys may have quotas of their own: since questions have some, or since a key was found to have one. From
    /// then on, all calls carry the quotas of their keys.
    has_quotas: AtomicBool,
    conversions: AtomicU64,
    lost_conversions: AtomicU64,
}

impl RedisBackend {
    pub(super) fn new(redis: &Redis, name: &str) -> Self {
        let names = Names::new(redis.prefix(), name, redis.secret());
        Self {
            redis: redis.clone(),
            names,
            name: name.into(),
            bundles: Bundles::new(redis),
            has_quotas: AtomicBool::new(false),
            conversions: AtomicU64::new(0),
            lost_conversions: AtomicU64::new(0),
        }
    }

    pub(super) fn tags(&self) -> Tags {
        self.names.tags().clone()
    }

    /// Returns the name of the key in which the states of an algorithm are kept.
    pub(super) fn key<A: Scripted>(&self, tag: Tag) -> Key {
        self.names.key(tag, A::KIND)
    }

    /// Lets all calls carry the quotas of their keys from now on.
    pub(super) fn note_quotas(&self) {
        // Relaxed: a call without the quota of its key is answered as one with the wrong quota, and made once more.
        self.has_quotas.store(true, Ordering::Relaxed);
    }

    /// Counts a conversion that a call was sent with. It is lost if the key has changed since it was read.
    pub(super) fn count_conversion(&self, is_lost: bool) {
        let count = if is_lost { &self.lost_conversions } else { &self.conversions };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The quota that a call carries, if any. To be read once per call: another thread may note quotas meanwhile.
    pub(super) fn carried_quota<A: Scripted>(&self, target: &Target<'_, A>) -> Option<Quota> {
        if target.quota().is_some() {
            self.note_quotas();
        }
        self.has_quotas.load(Ordering::Relaxed).then(|| target.algorithm().quota())
    }

    async fn call(&self, call: &Call, limits: CallLimits) -> Result<ScriptReply, Fault> {
        Ok(ScriptReply::read(self.redis.call_by(call, limits.deadline, limits.requests).await?)?)
    }

    /// Makes a call of the script of one algorithm, in a bundle perhaps.
    async fn call_for_one(&self, call: Call, limits: CallLimits) -> Result<ScriptReply, Fault> {
        // A text is for one key.
        if call.texts.is_empty() { self.bundles.call(call, limits).await } else { self.call(&call, limits).await }
    }

    /// Makes a charge while our clock shows `asked`: in one call, or in two for a key that has another quota until now. If
    /// the key changes between these two, a third call charges it under the quota that it has, and only for the requests
    /// that wait.
    async fn charge_at<A: Scripted>(
        &self,
        mut asked: Timestamp,
        target: &Target<'_, A>,
        cost: u64,
        count: u32,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, Fault> {
        let under = Under::of(target);
        let mut conversion = None;
        // The quota that the key has, once a conversion was lost.
        let mut kept: Option<(Option<Quota>, A)> = None;
        loop {
            let (algorithm, quota, count) = match &kept {
                Some((quota, kept)) => (kept, *quota, limits.requests.min(count)),
                None => (target.algorithm(), self.carried_quota(target), count),
            };
            let mut call = script::decide(algorithm, self.key::<A>(target.tag()), cost, count, asked);
            let is_converting = conversion.is_some();
            let is_lost = is_converting || kept.is_some();
            script::add_one(&mut call, OwnQuota { quota, conversion });
            let mut answer = self.call_for_one(call, limits).await?;
            if let Some(applied) = under.in_force(&mut answer)? {
                return Ok(applied);
            }
            let other = if is_lost { under.other(&answer, 0, quota, cost)? } else { None };
            if other.is_some() {
                answer.charged_nothing()?;
                if is_converting {
                    self.count_conversion(true);
                }
                (kept, conversion) = (other, None);
                continue;
            }
            // Under the quota of the question, unless the key is charged under its own.
            conversion = Under { algorithm, ..under }.convert(&mut answer, 0, quota)?;
            if is_converting {
                self.count_conversion(conversion.is_some());
            }
            if conversion.is_some() {
                answer.charged_nothing()?;
                // Once more, with the state that the key has under this quota.
                self.note_quotas();
                (kept, conversion) = (None, conversion.filter(|_| kept.is_none()));
                continue;
            }
            let applied = answer.applied(algorithm)?;
            // If our clock is so wrong that the call did not have the window of the server's time, then nothing was
            // charged that would be.
            if answer.is_uncovered(algorithm, asked) && applied.replay(algorithm, cost, count).is_err() {
                asked = answer.now;
                continue;
            }
            return Ok(Applied { kept: kept.map(|(_, kept)| kept.quota()), ..applied });
        }
    }

    /// Reads a state, and under which quota it is kept.
    async fn read<A: Scripted>(&self, target: &Target<'_, A>, limits: CallLimits) -> Result<Applied<A::State>, Fault> {
        let call = script::decide(target.algorithm(), self.key::<A>(target.tag()), 0, 1, Monotonic.now());
        let mut answer = self.call_for_one(call, limits).await?;
        if let Some(applied) = Under::of(target).in_force(&mut answer)? {
            return Ok(applied);
        }
        let has_state = answer.old(0)?.is_some();
        let kept = Under::of(target).keep(&mut answer, 0)?;
        let is_another = has_state && kept.quota() != target.algorithm().quota();
        Ok(Applied { kept: is_another.then(|| kept.quota()), ..answer.applied(&kept)? })
    }

    /// Refunds in one call, or in two if the key has another quota by now under which the receipt still holds.
    async fn refund<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        cost: u64,
        receipt: Receipt,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, Fault> {
        let (under, mut quota) = (Under::of(target), self.carried_quota(target));
        loop {
            let (kept, asked) = (under.kept_under(quota.as_ref())?, Monotonic.now());
            let refund = script::refund(target.algorithm(), &kept, self.key::<A>(target.tag()), cost, receipt, asked);
            let mut call = refund.expect("something was charged");
            script::add_one(&mut call, OwnQuota { quota, conversion: None });
            let mut answer = self.call(&call, limits).await?;
            if let Some(applied) = under.in_force(&mut answer)? {
                return Ok(applied);
            }
            match under.kept_quota(&answer, quota) {
                Some(kept) => quota = kept,
                // What it held is not asked for.
                None => {
                    let (standing, now) = (Standing::default(), answer.now);
                    return Ok(Applied { now, old: None, standing, kept: None, charged: 0 });
                }
            }
        }
    }

    /// Bans a key in one call.
    async fn ban<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        span: Duration,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, Fault> {
        let mut answer = self.call(&script::ban(self.key::<A>(target.tag()), span), limits).await?;
        Ok(Under::of(target).in_force(&mut answer)?.ok_or(BadReply::State)?)
    }

    /// Lets a key owe what it has cost: reads what it holds, computes, and replaces it unless it has changed meanwhile.
    async fn owe<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        units: u64,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, Fault> {
        let (under, quota) = (Under::of(target), self.carried_quota(target));
        let mut attempts = Attempts::new(limits.deadline);
        let (mut swap, mut owing) = (None, None);
        loop {
            let mut answer = self.call(&script::swap(self.key::<A>(target.tag()), swap), limits).await?;
            if let Some(applied) = owing.filter(|_| answer.admitted > 0) {
                return Ok(applied);
            }
            if owing.is_some() {
                self.count_conversion(true);
                attempts.lost().await.map_err(|_| FaultKind::TimedOut)?;
            }
            let (applied, next) = under.owing(&mut answer, quota, units)?;
            let Some(next) = next else { return Ok(applied) };
            (swap, owing) = (Some(next), Some(applied));
        }
    }

    async fn apply<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, Fault> {
        match transition {
            Transition::Charge { cost, count } => self.charge_at(Monotonic.now(), target, cost, count, limits).await,
            Transition::Read => self.read(target, limits).await,
            Transition::Refund { cost, receipt } => self.refund(target, cost, receipt, limits).await,
            Transition::Reset => {
                let answer = self.call(&script::reset(self.key::<A>(target.tag())), limits).await?;
                Ok(answer.applied(target.algorithm())?)
            }
            Transition::Ban { span } => self.ban(target, span, limits).await,
            Transition::Owe { units } => self.owe(target, units, limits).await,
        }
    }
}

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

    fn check_fit(&self, algorithm: &A) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(algorithm.fits()?)
    }

    fn keeps_standing(&self, _: &A) -> bool {
        true
    }

    fn is_failing(&self, target: &Target<'_, A>) -> bool {
        self.redis.is_failing(|| self.key::<A>(target.tag()).slot())
    }

    fn describe(
        &self,
        limiter: &Arc<StoreInner<A::State, Self>>,
        algorithm: &A,
        description: Description,
    ) -> Description {
        store::describe(limiter, algorithm, description)
    }

    fn stats(&self) -> SharingStats {
        let [conversions, lost_swaps] =
            [&self.conversions, &self.lost_conversions].map(|count| count.load(Ordering::Relaxed));
        SharingStats { conversions, lost_swaps, number: None }
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.redis.health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(match reason {
            // A script is one step, so no attempt at one is lost.
            GaveUp::TimedOut | GaveUp::Contention => FaultKind::TimedOut.into(),
            GaveUp::Cancelled => FaultKind::Cancelled.into(),
            GaveUp::BreakerOpen => FaultKind::BreakerOpen.into(),
            GaveUp::TooManyInFlight => FaultKind::TooManyInFlight.into(),
            GaveUp::NoRuntime => FaultKind::NoRuntime.into(),
            GaveUp::Disagreement => Fault::from(BadReply::Disagreement),
        })
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("redis", &self.redis).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A reply from which nothing can be concluded.
impl From<BadReply> for Fault {
    fn from(reply: BadReply) -> Self {
        Self::new(FaultKind::Unintelligible, reply.to_string())
    }
}

/// Runs a charge in a task, so that it completes even if the caller is cancelled.
pub(crate) fn in_background(charge: impl Future<Output = Answered> + Send + 'static) -> Answer {
    let Ok(runtime) = Handle::try_current() else { return Answer::Ready(Err(failed(FaultKind::NoRuntime))) };
    let task = runtime.spawn(charge);
    Answer::Pending(Box::pin(async move { task.await.unwrap_or_else(|_| Err(failed(FaultKind::Cancelled))) }))
}

/// Wraps a fault into the error of a limiter, with the fault as its source.
pub(crate) fn failed(fault: impl Into<Fault>) -> LimiterError {
    let fault = fault.into();
    LimiterError::new(fault.to_string()).with_source(fault)
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Algorithm, CalendarWindow};
    use crate::store::redis::servers::RedisServer;
    use crate::values::{Outcome, PartitionKey};

    /// A process whose clock is wrong by a year charges the window of the server's time: in a second call for a new key,
    /// since the first one charged nothing, and in one call for a key whose window has begun.
    #[tokio::test]
    async fn windows_of_the_calendar_begin_by_the_server_s_clock() {
        let server = RedisServer::start();
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(5)).open().unwrap();
        let window = CalendarWindow::monthly(3).zone("Europe/Berlin").unwrap();
        let backend = RedisBackend::new(&redis, "test");
        let tag = backend.tags().of(&PartitionKey::from("key"));
        let charge_at = async |asked| {
            let limits = CallLimits { deadline: redis.deadline(), requests: 1 };
            let target = Target::new(&window, None, window.quota(), tag);
            let applied = backend.charge_at(asked, &target, 1, 1, limits).await.unwrap();
            applied.replay(&window, 1, 1).unwrap().0[0]
        };
        let year = Duration::from_secs(366 * 86_400);
        let now = Monotonic.now();
        let before = Timestamp::from_nanos(now.as_nanos() - u64::try_from(year.as_nanos()).unwrap());
        let end = window.end_of_window(now);
        let mut calls = 0;
        for (asked, extra_calls) in [(now.saturating_add(year), 2), (before, 1), (now, 1), (before, 1)] {
            let decision = charge_at(asked).await;
            calls += extra_calls;
            assert!(server.info("cmdstat_evalsha").starts_with(&format!("calls={calls},")), "{asked:?}");
            // Unless a month begins while this runs.
            let wait = match decision.outcome() {
                Outcome::Reject { retry_after } => retry_after.unwrap(),
                Outcome::Allow => decision.reset_after(),
            };
            let left = end.saturating_since(now);
            assert!(left.abs_diff(wait) < Duration::from_secs(60), "{wait:?} instead of {left:?}");
        }
        assert!(!charge_at(before).await.is_allowed());
    }

    #[tokio::test]
    async fn a_charge_whose_task_panics_is_cancelled() {
        async fn panics() -> Answered {
            panic!("on purpose")
        }
        let Answer::Pending(answer) = in_background(panics()) else { unreachable!("it has a runtime") };
        let error = answer.await.unwrap_err();
        let fault = error.source().and_then(|source| source.downcast_ref::<Fault>());
        assert_eq!(fault.map(Fault::kind), Some(FaultKind::Cancelled));
    }
}
