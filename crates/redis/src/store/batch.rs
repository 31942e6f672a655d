//! Charges to several limiters in one call.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use tokio::time::Instant;
use tower_sluice::store::remote::{
    Alternatives, Applied, CallLimits, JointAnswer, JointBackend, JointCharge, KeyTag, Target,
};
use tower_sluice::time::{Clock, Monotonic, Timestamp};
use tower_sluice::{LimiterError, Quota};

use super::backend::{RedisBackend, failed};
use super::conversation::{ConversationPart, KeyPart, Quotas, Subject, converse};
use crate::connection::{Fault, FaultKind, RedisFault as _, ScriptCaller};
use crate::script::{self, BadReply, Charging, Key, ScriptCharge, ScriptReply, Scripted};

/// The part of a call about one key, with any algorithm.
#[allow(missing_debug_implementations, reason = "no public function returns it")]
pub struct JointPart(Box<dyn AnyPart>);

/// The part about a key with one algorithm.
trait AnyPart: ConversationPart {
    fn as_any(&self) -> &dyn Any;

    fn is_foreign(&self) -> bool;
}

/// A part's key, which outlives its question.
struct OwnKey<A> {
    algorithm: A,
    quota: Option<Quota>,
    limiter: Quota,
    tag: KeyTag,
    quotas: Arc<Quotas>,
}

impl<A: Scripted> Subject<A> for OwnKey<A> {
    fn target(&self) -> Target<'_, A> {
        Target::new(&self.algorithm, self.quota, self.limiter, self.tag)
    }

    fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

impl<A: Scripted> AnyPart for KeyPart<A, OwnKey<A>> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_foreign(&self) -> bool {
        self.is_foreign
    }
}

impl ConversationPart for JointPart {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn charge(&mut self, asked: Timestamp) -> ScriptCharge {
        self.0.charge(asked)
    }

    fn hear(&mut self, answer: &ScriptReply, index: usize, charging: &Charging) -> Result<bool, BadReply> {
        self.0.hear(answer, index, charging)
    }
}

impl JointBackend for RedisBackend {
    type Part = JointPart;
    type Caller = ScriptCaller;

    fn server(&self) -> usize {
        self.redis.id()
    }

    fn deadline(&self) -> Instant {
        self.redis.deadline()
    }

    fn caller(&self) -> ScriptCaller {
        self.scripts.clone()
    }

    fn can_share_a_call(&self, one: &Self::Part, other: &Self::Part) -> bool {
        one.key() != other.key() && self.redis.share_a_node(one.key().slot(), other.key().slot())
    }

    async fn decide(
        scripts: &ScriptCaller,
        parts: &mut [&mut Self::Part],
        alternatives: Option<&Alternatives>,
        limits: CallLimits,
    ) -> Result<JointAnswer, LimiterError> {
        let compose = |charges| script::decide_first(charges, alternatives);
        let send = |call| scripts.call(call, limits);
        let (answer, seen) = converse(Monotonic.wall(), parts, compose, send).await.map_err(failed)?;
        Ok(JointAnswer { charged: answer.admitted, now: seen.server, sent: seen.sent })
    }

    /// Some keys are being moved to another node, or they are in several slots.
    fn wants_single_keys(error: &LimiterError) -> bool {
        let fault = Error::source(error).and_then(|source| source.downcast_ref::<Fault>());
        fault.is_some_and(Fault::wants_single_keys)
    }
}

impl<A: Scripted> JointCharge<A> for RedisBackend {
    fn part(&self, target: &Target<'_, A>, cost: u64) -> JointPart {
        let subject = OwnKey {
            algorithm: target.algorithm().clone(),
            quota: target.quota(),
            limiter: target.limiter_quota(),
            tag: target.tag(),
            quotas: Arc::clone(&self.quotas),
        };
        JointPart(Box::new(KeyPart::charging(subject, self.key::<A>(target.tag()), cost)))
    }

    /// The conversation has read it.
    fn read_part(&self, _: &Target<'_, A>, part: &JointPart) -> Result<Applied<A::State>, LimiterError> {
        let part = part.0.as_any().downcast_ref::<KeyPart<A, OwnKey<A>>>();
        part.map(|part| part.found).ok_or_else(|| failed(FaultKind::Unintelligible))
    }

    fn is_foreign(&self, part: &JointPart) -> bool {
        part.0.is_foreign()
    }
}
