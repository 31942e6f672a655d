//! The calls of a policy to its limiter.

use std::time::Duration;

use crate::http::policy::definition::Policy;
use crate::values::{Answer, Ask, Decision, LimiterError, Mode, PartitionKey};

impl Policy {
    /// The decision of a peek, if the limiter answers one without waiting.
    pub(crate) fn peek(&self, ask: &Ask<'_>) -> Option<Decision> {
        if self.description.answers(Mode::Peek) { self.limiter.decide(&ask.to(Mode::Peek)).at_once() } else { None }
    }

    /// Charges a request that passes regardless of the answer.
    pub(crate) fn charge_as_shadow(&self, ask: &Ask<'_>) -> Answer {
        self.limiter.decide(&ask.to(self.mode_of_shadows()))
    }

    /// The mode in which the limiter charges a request that passes regardless of the answer.
    fn mode_of_shadows(&self) -> Mode {
        if self.description.answers(Mode::Shadow) { Mode::Shadow } else { Mode::Charge }
    }

    /// The mode in which it charges for a request that was admitted already, by the local fallback if it `fell_back`.
    pub(super) fn mode_of_shortfalls(&self, fell_back: bool) -> Mode {
        let is_local = fell_back && self.description.answers(Mode::Fallback);
        if is_local { Mode::Fallback } else { self.mode_of_shadows() }
    }

    /// Decides by the local fallback, if the limiter has one.
    pub(crate) fn fall_back(&self, ask: &Ask<'_>) -> Option<Answer> {
        self.description.answers(Mode::Fallback).then(|| self.limiter.decide(&ask.to(Mode::Fallback)))
    }

    /// Charges the units that are left, up to the cost, and forgives the rest.
    pub(super) fn charge_up_to(&self, ask: &Ask<'_>) {
        if self.description.answers(Mode::UpTo) {
            // A pending answer is dropped, which is fine: in this mode, a limiter charges even then.
            let _ = self.limiter.decide(&ask.to(Mode::UpTo));
            return;
        }
        // A custom limiter that calls a server should answer `Mode::UpTo`: a pending answer charges nothing here.
        charge_left(ask, |ask| self.charge_as_shadow(ask).at_once());
    }

    /// Charges the local fallback the units that it has left, up to the cost, and forgives the rest.
    pub(super) fn fall_back_up_to(&self, ask: &Ask<'_>) {
        charge_left(ask, |ask| self.fall_back(ask)?.at_once());
    }

    /// Returns the state of a key, without charging it.
    pub(crate) async fn peek_at_key(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        // A charge of 0 instead of a peek: every limiter answers `Mode::Charge`, and nothing is charged. No request
        // provides the key's quota here: the limiter may know it from the last request.
        let ask = Ask::charge(key, 0);
        let ask = if self.how_much.quota.is_some() { ask.keeping_quota() } else { ask };
        let decision = self.after_debt_as_kept(key, self.limiter.decide(&ask).decided().await?);
        Ok(match self.ban_before_limiter(key) {
            Some(left) => decision.banned_for(left),
            None => decision,
        })
    }

    /// The rest of the ban of a key, if its requests are rejected before their limiter is asked. If a server keeps
    /// the bans, the server is asked instead.
    #[inline]
    pub(crate) fn ban_before_limiter(&self, key: &PartitionKey) -> Option<Duration> {
        self.penalty_for(key).filter(|_| self.description.keeps_standing().is_none())?.banned_for(key)
    }

    /// Records a rejection by the limiter. Returns the ban, if the key is banned.
    #[cold]
    pub(crate) fn note_rejection(&self, key: &PartitionKey, rejection: &Decision) -> Option<Duration> {
        self.penalty_for(key)?.note_rejection(self.description.keeps_standing(), key, rejection)
    }

    /// Resets a key, so that it owes nothing. Its ban is lifted even if the limiter fails, or cannot reset it.
    pub(crate) async fn reset(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        self.heritage.lift_ban(key);
        self.forgive(key);
        if !self.description.answers(Mode::Reset) {
            return Err(LimiterError::unsupported_by(&self.name, Mode::Reset));
        }
        self.limiter.decide(&Ask::reset(key)).decided().await
    }
}

/// Charges the units that are left in two steps: first all units of the cost, and if that is rejected, the units that
/// the rejection reports. `charge` returns the decision on one step, unless it is pending. A pending answer is
/// dropped unpolled, and its charge is forgiven: the response is ready, and waits for no server and no turn.
fn charge_left(ask: &Ask<'_>, charge: impl Fn(&Ask<'_>) -> Option<Decision>) {
    if let Some(left) = charge(ask).and_then(|decision| decision.partial_cost(ask.cost())) {
        let _ = charge(&ask.costing(left));
    }
}
