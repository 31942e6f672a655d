//! [`RedisBackend`]: one limiter's transitions, as script calls.

use std::fmt;
use std::sync::Arc;

use tower_sluice::limiter::Override;
use tower_sluice::store::remote::{Applied, Attempts, CallLimits, KeyTag, Standing, Target, Transition};
use tower_sluice::time::{Clock, Monotonic, Timestamp};
use tower_sluice::{LimiterError, Quota};

use super::conversation::{KeyPart, Quotas, converse};
use crate::connection::{Fault, FaultKind, Redis, ScriptCaller};
use crate::script::{self, BadReply, Key, KeyNames, KeyText, ScriptCharge, ScriptReply, Scripted, Swap, TextUnder};

/// One limiter's keys on Redis.
pub struct RedisBackend {
    pub(super) redis: Redis,
    pub(super) names: KeyNames,
    pub(super) name: Box<str>,
    pub(super) scripts: ScriptCaller,
    pub(super) quotas: Arc<Quotas>,
}

impl RedisBackend {
    pub(super) fn new(redis: &Redis, name: &str) -> Self {
        let names = KeyNames::new(redis.prefix(), name, redis.secret());
        Self {
            redis: redis.clone(),
            names,
            name: name.into(),
            scripts: ScriptCaller::new(redis),
            quotas: Arc::default(),
        }
    }

    /// Returns the name of the key that holds an algorithm's states.
    pub(super) fn key<A: Scripted>(&self, tag: KeyTag) -> Key {
        self.names.key(tag, A::KIND)
    }

    /// Returns the part of a conversation that charges one key.
    pub(super) fn part<'a, A: Scripted>(
        &'a self,
        target: Target<'a, A>,
        cost: u64,
    ) -> KeyPart<A, (Target<'a, A>, &'a Quotas)> {
        let key = self.key::<A>(target.tag());
        KeyPart::charging((target, &self.quotas), key, cost)
    }

    /// Reads a state, and the quota that it is kept under.
    async fn read<A: Scripted>(&self, target: &Target<'_, A>, limits: CallLimits) -> Result<Applied<A::State>, Fault> {
        let read = ScriptCharge::new(target.algorithm(), self.key::<A>(target.tag()), 0, Monotonic.wall());
        let call = read.leaving_other_marks().alone();
        let answer = self.scripts.call(call, limits).await?;
        let of_mark = |mark| self.quotas.of_mark(mark);
        let under = TextUnder::new(target, &of_mark);
        let now = answer.now;
        let text = answer.text(0)?;
        if text.standing.is_in_force(now) {
            return Ok(in_force(&under, &answer)?);
        }
        let (old, kept) = state_as_kept(&under, &text, now)?;
        Ok(Applied { now, old, standing: Standing::default(), kept, charged: answer.admitted })
    }

    /// Changes a key's standing: reads its text, lets `change` compute the next one, and replaces it unless it has
    /// changed meanwhile.
    async fn change_standing<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        limits: CallLimits,
        change: impl Fn(Option<&[u8]>, Timestamp) -> Result<(Applied<A::State>, Option<Swap>), BadReply>,
    ) -> Result<Applied<A::State>, Fault> {
        let mut attempts = Attempts::new(limits.deadline);
        let mut swap = None;
        let mut owing = None;
        loop {
            let answer = self.scripts.call(script::swap(self.key::<A>(target.tag()), swap), limits).await?;
            if let Some(applied) = owing.filter(|_| answer.admitted > 0) {
                return Ok(applied);
            }
            if owing.is_some() {
                self.quotas.count(true);
                attempts.lost().await.map_err(|_| FaultKind::TimedOut)?;
            }
            let (applied, next) = change(answer.old(0)?, answer.now)?;
            let Some(next) = next else { return Ok(applied) };
            swap = Some(next);
            owing = Some(applied);
        }
    }

    pub(super) async fn apply<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, Fault> {
        let key = || self.key::<A>(target.tag());
        let bans = || self.names.bans(target.tag());
        let send = |call| self.scripts.call(call, limits);
        let of_mark = |mark| self.quotas.of_mark(mark);
        let under = TextUnder::new(target, &of_mark);
        match transition {
            Transition::Charge { cost, count } => {
                let mut part = self.part(*target, cost).with_count(count, limits.requests);
                converse(Monotonic.wall(), &mut [&mut part], script::alone, send).await?;
                Ok(part.found)
            }
            Transition::Refund { cost, receipt } => {
                let mut part = self.part(*target, cost).refunding(receipt);
                converse(Monotonic.wall(), &mut [&mut part], script::alone, send).await?;
                Ok(Applied { charged: 0, ..part.found })
            }
            Transition::Reset => {
                let now = send(script::reset([key(), bans()])).await?.now;
                Ok(Applied { now, old: None, standing: Standing::default(), kept: None, charged: 0 })
            }
            Transition::Ban { span, growth } => {
                let call = match growth {
                    Some(growth) => script::growing_ban(key(), bans(), &growth),
                    None => script::ban(key(), span),
                };
                let answer = send(call).await?;
                Ok(in_force(&under, &answer)?)
            }
            Transition::Override(by_hand) => {
                let change = |holds: Option<&[u8]>, now| under.overriding(holds, now, by_hand);
                let applied = self.change_standing(target, limits, change).await?;
                if !matches!(by_hand, Override::Ban { .. }) {
                    // Its bans are forgotten, too.
                    send(script::reset([bans()])).await?;
                }
                Ok(applied)
            }
            Transition::Owe { units } => {
                let quota = self.quotas.carried(target);
                self.change_standing(target, limits, |holds, now| under.owing(holds, now, quota, units)).await
            }
            // A read: the enum may grow, but not in the version that this package is pinned to.
            _ => self.read(target, limits).await,
        }
    }
}

/// Returns a state as it is kept, and its quota, if that is not the caller's.
pub(super) fn state_as_kept<A: Scripted>(
    under: &TextUnder<'_, A>,
    text: &KeyText<'_>,
    now: Timestamp,
) -> Result<(Option<A::State>, Option<Quota>), BadReply> {
    let kept = under.kept(text)?;
    let state = text.state(&kept, now)?;
    let is_another = state.is_some() && kept.quota() != under.algorithm.quota();
    Ok((state, is_another.then(|| kept.quota())))
}

/// The outcome for a key whose standing is in force: the call has charged nothing.
fn in_force<A: Scripted>(under: &TextUnder<'_, A>, answer: &ScriptReply) -> Result<Applied<A::State>, BadReply> {
    let now = answer.now;
    let text = answer.text(0)?;
    answer.charged(0)?;
    if !text.standing.is_in_force(now) {
        return Err(BadReply::State);
    }
    let old = under.state_at(&text, text.standing.until().max(now))?;
    Ok(Applied { now, old, standing: text.standing, kept: None, charged: 0 })
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

/// Wraps a fault into a limiter's error, with the fault as its source.
pub(crate) fn failed(fault: impl Into<Fault>) -> LimiterError {
    fault.into().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tower_sluice::algorithm::{Algorithm, CalendarWindow};
    use tower_sluice::internal::remote::testing::{ReadCalendar as _, ReplayApplied as _};
    use tower_sluice::time::Timestamp;
    use tower_sluice::{Outcome, PartitionKey};

    use super::*;
    use crate::support::servers::RedisServer;

    /// A process whose clock is wrong by a year charges the window at the server's time: in a second call for a new
    /// key, since the first one charged nothing, and in one call for a key whose window has begun.
    #[tokio::test]
    async fn calendar_windows_begin_by_the_servers_clock() {
        let server = RedisServer::start();
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(5)).open().unwrap();
        let window = CalendarWindow::monthly(3).zone("Europe/Berlin").unwrap();
        let backend = RedisBackend::new(&redis, "test");
        let tag = backend.names.tag(&PartitionKey::from("key"));
        let charge_at = async |asked| {
            let limits = CallLimits::until(redis.deadline());
            let mut part = backend.part(Target::new(&window, None, window.quota(), tag), 1);
            converse(asked, &mut [&mut part], script::alone, |call| backend.scripts.call(call, limits)).await.unwrap();
            part.found.replay(&window, 1, 1).unwrap().0[0]
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
}
