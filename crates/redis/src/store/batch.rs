//! The charges of several limiters in one call.

#[cfg(test)]
mod tests;

use tokio::time::Instant;
use tower_sluice::LimiterError;
use tower_sluice::internal::redis::{KeyQuery, Member, TypedMember};
use tower_sluice::store::remote::{Alternatives, Applied, CallLimits, JointAnswer, JointBackend, Target};
use tower_sluice::time::{Clock, Monotonic};

use super::backend::{RedisBackend, failed};
use super::bundle::ScriptCaller;
use super::conversation::{ConversationPart, KeyPart, Quotas, Subject, converse};
use crate::connection::Fault;
use crate::connection::RedisFault as _;
use crate::script::{self, Scripted};

impl JointBackend for RedisBackend {
    type Part = dyn ConversationPart;
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
        let fault = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Fault>());
        fault.is_some_and(Fault::wants_single_keys)
    }
}

/// Begins the part of a call that charges the key of a query.
pub(super) fn member<A: Scripted>(query: KeyQuery<A, RedisBackend>, cost: u64) -> Box<dyn Member<RedisBackend>> {
    let key = query.inner.backend.key::<A>(query.tag);
    Box::new(KeyPart::charging(query, key, cost))
}

impl<A: Scripted> Subject<A> for KeyQuery<A, RedisBackend> {
    fn target(&self) -> Target<'_, A> {
        self.target()
    }

    fn quotas(&self) -> &Quotas {
        &self.inner.backend.quotas
    }
}

impl<A: Scripted> TypedMember for KeyPart<A, KeyQuery<A, RedisBackend>> {
    type Algorithm = A;
    type Backend = RedisBackend;

    fn query(&self) -> (&KeyQuery<A, RedisBackend>, u64) {
        (&self.subject, self.cost)
    }

    fn part(&self) -> &(dyn ConversationPart + 'static) {
        self
    }

    fn part_mut(&mut self) -> &mut (dyn ConversationPart + 'static) {
        self
    }

    /// The conversation has read it.
    fn read_part(&mut self) -> Result<(), LimiterError> {
        Ok(())
    }

    fn found(&self) -> (&Applied<A::State>, bool) {
        (&self.found, self.is_foreign)
    }
}
