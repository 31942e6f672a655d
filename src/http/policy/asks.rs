//! What a policy asks of its limiter.

use super::Policy;
use crate::values::{Ask, Check, Decision, LimiterError, Mode, PartitionKey};

impl Policy {
    /// The decision of a peek, if the limiter answers one without waiting.
    pub(crate) fn peek(&self, ask: &Ask<'_>) -> Option<Decision> {
        if self.description.answers(Mode::Peek) { self.limiter.decide(&ask.to(Mode::Peek)).at_once() } else { None }
    }

    /// Whether a peek says without waiting that the limiter would reject.
    pub(crate) fn would_reject(&self, ask: &Ask<'_>) -> bool {
        self.peek(ask).is_some_and(|decision| !decision.is_allowed())
    }

    /// Charges a request that passes whatever the answer is.
    pub(crate) fn charge_as_shadow(&self, ask: &Ask<'_>) -> Check {
        let mode = if self.description.answers(Mode::Shadow) { Mode::Shadow } else { Mode::Charge };
        self.limiter.decide(&ask.to(mode))
    }

    /// Decides by the local fallback, if the limiter has one.
    pub(crate) fn fall_back(&self, ask: &Ask<'_>) -> Option<Check> {
        self.description.answers(Mode::Fallback).then(|| self.limiter.decide(&ask.to(Mode::Fallback)))
    }

    /// Charges as many units as are left, and forgives the rest.
    pub(crate) fn charge_up_to(&self, ask: &Ask<'_>) {
        if self.description.answers(Mode::UpTo) {
            // A pending answer is dropped, which is fine: in this mode, a limiter charges even then.
            let _ = self.limiter.decide(&ask.to(Mode::UpTo));
            return;
        }
        // A pending answer is dropped unpolled, and what it would charge is forgiven: the response is ready, and waits
        // for no server. A custom limiter that calls one should answer `Mode::UpTo`.
        let Some(decision) = self.charge_as_shadow(ask).at_once() else { return };
        if let Some(left) = decision.partial_cost(ask.cost()) {
            let _ = self.charge_as_shadow(&ask.costing(left));
        }
    }

    /// Returns the state of a key, without charging it.
    pub(crate) async fn peek_at_key(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        // A charge of 0 instead of a peek: every limiter answers `Mode::Charge`, and nothing is charged.
        let decision = self.limiter.decide(&Ask::charge(key, 0)).decided().await?;
        Ok(match self.penalty_for(key).and_then(|penalty| penalty.banned_for(key)) {
            Some(left) => decision.banned_for(left),
            None => decision,
        })
    }

    /// Resets a key, so that it owes nothing. Its ban is lifted even if the limiter cannot reset it.
    pub(crate) async fn reset(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        if let Some(penalty) = &self.penalty {
            penalty.lift(key);
        }
        if !self.description.answers(Mode::Reset) {
            return Err(LimiterError::new(format!(
                "the limiter of policy `{}` cannot forget what a key owes",
                self.name
            )));
        }
        let check = self.limiter.decide(&Ask::reset(key));
        check.decided().await
    }
}
