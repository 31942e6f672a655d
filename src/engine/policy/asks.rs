//! A policy's calls to its limiter.

use std::time::Duration;

use crate::engine::domain::Domain;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::overrides::Overrides;
use crate::values::{Answer, Ask, Decision, Exception, LimiterError, Mode, Override, PartitionKey, Pending, Quota};

impl<D: Domain> Policy<D> {
    /// The decision from a peek, if the limiter answers one without waiting.
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

    /// The mode in which the limiter charges for a request that was admitted already, by the local fallback if it
    /// `fell_back`.
    pub(super) fn mode_of_shortfalls(&self, fell_back: bool) -> Mode {
        let is_local = fell_back && self.description.answers(Mode::Fallback);
        if is_local { Mode::Fallback } else { self.mode_of_shadows() }
    }

    /// Decides by the local fallback, if the limiter has one.
    pub(crate) fn fall_back(&self, ask: &Ask<'_>) -> Option<Answer> {
        self.description.answers(Mode::Fallback).then(|| self.limiter.decide(&ask.to(Mode::Fallback)))
    }

    /// Charges the remaining units, up to the cost, and forgives the rest.
    pub(super) fn charge_up_to(&self, ask: &Ask<'_>) {
        if self.description.answers(Mode::UpTo) {
            // We may drop a pending answer, because in this mode a limiter charges even then.
            let _ = self.limiter.decide(&ask.to(Mode::UpTo));
            return;
        }
        // A custom limiter that calls a server should answer `Mode::UpTo`: a pending answer charges nothing here.
        charge_left(ask, |ask| self.charge_as_shadow(ask).at_once());
    }

    /// Charges the local fallback's remaining units, up to the cost, and forgives the rest.
    pub(crate) fn fall_back_up_to(&self, ask: &Ask<'_>) {
        charge_left(ask, |ask| self.fall_back(ask)?.at_once());
    }

    /// Returns a key's state, without charging it. `quota` is the key's own quota, if a request provides it.
    pub(crate) async fn peek_at_key(&self, key: &PartitionKey, quota: Option<Quota>) -> Result<Decision, LimiterError> {
        // Charge 0 instead of a peek, because every limiter answers `Mode::Charge`. If no request provides the key's
        // quota, the limiter may know it from the last request.
        let ask = Ask::charge(key, 0).under(quota);
        let is_unknown = self.costs.quota.is_some() && quota.is_none();
        let ask = if is_unknown { ask.keeping_quota() } else { ask };
        let decision = self.limiter.decide(&ask).decided().await?;
        let decision = self.until_next_unit(&ask, decision);
        let decision =
            if is_unknown { self.after_debt_as_kept(key, decision) } else { self.after_debt(key, quota, decision) };
        Ok(match self.exception_before_limiter(key) {
            Some(ban) if ban.is_ban => decision.until_next().banned(&ban),
            Some(allowance) => Decision::allowed(decision.limit(), &allowance),
            None => decision,
        })
    }

    /// The decision on a key that is looked at, with the time until the next unit. If a limiter does not report that
    /// time, as a queue does not, its rejection of a peek at one unit does.
    fn until_next_unit(&self, ask: &Ask<'_>, decision: Decision) -> Decision {
        let is_used_up = decision.is_allowed() && decision.remaining() == 0 && decision.next_after().is_none();
        if !is_used_up || self.description.sheds() {
            return decision;
        }
        let next = self.peek(&ask.costing(1)).and_then(|rejection| rejection.retry_after());
        next.map_or(decision, |next| decision.with_next_after(next))
    }

    /// A key's ban or allowance, if it decides on requests before the limiter is asked. If a server keeps the bans, the
    /// server is asked instead.
    #[inline]
    pub(crate) fn exception_before_limiter(&self, key: &PartitionKey) -> Option<Exception> {
        if self.description.keeps_standing().is_some() { None } else { self.exception_here(key) }
    }

    /// A key's ban or allowance, as this process knows it. An allowance goes first, and then the ban that lasts longer.
    #[inline]
    pub(crate) fn exception_here(&self, key: &PartitionKey) -> Option<Exception> {
        let by_hand = self.lineage.record.overrides().and_then(|overrides| overrides.find(key));
        let Some(penalty) = self.penalty_for(key).filter(|_| by_hand.is_none_or(|by_hand| by_hand.is_ban)) else {
            return by_hand.filter(|_| !self.shadow);
        };
        let by_penalty = penalty.banned_for(key).map(Exception::of_penalty);
        by_hand.into_iter().chain(by_penalty).max_by_key(Exception::left)
    }

    /// The time since this process made a key's ban or allowance by hand, or first saw it.
    pub(crate) fn override_age(&self, key: &PartitionKey) -> Option<Duration> {
        self.lineage.record.overrides()?.age(key)
    }

    /// Whether this process keeps a ban or an allowance by hand, or a debt, that its limiter does not know.
    pub(crate) fn has_overrides(&self) -> bool {
        let is_here = self.description.keeps_standing().is_none();
        self.has_debts() || is_here && self.lineage.record.overrides().is_some_and(|overrides| !overrides.are_over())
    }

    /// The bans and allowances by hand that this process keeps or has seen, with their keys as text.
    pub(crate) fn overrides(&self) -> Vec<(String, Exception)> {
        let all = self.lineage.record.overrides().map(Overrides::all).unwrap_or_default();
        all.into_iter().map(|(key, exception)| (self.selector.text_of(&key), exception)).collect()
    }

    /// Bans or allows a key on the server that keeps bans, if one does.
    pub(crate) fn override_on_server(&self, key: &PartitionKey, by_hand: Override) -> Option<Pending> {
        self.description.keeps_standing().map(|server| server.override_key(key, by_hand))
    }

    /// Bans or allows a key in this process.
    pub(crate) fn override_here(&self, key: &PartitionKey, by_hand: Override) -> Result<(), LimiterError> {
        self.lineage.record.overrides_by(|| self.clock()).set(key, by_hand)
    }

    /// Remembers a ban that a server has reported, for its outages.
    pub(crate) fn remember_ban(&self, key: &PartitionKey, ban: &Exception) {
        match self.penalty_for(key) {
            Some(penalty) => penalty.remember(key, ban.left),
            // The server reports it with each rejection, and a look costs other requests less than a write.
            None if self.lineage.record.overrides().is_some_and(|overrides| overrides.knows(key, ban)) => {}
            // If there are too many to remember, the server still knows this one.
            None => drop(self.override_here(key, Override::Ban { span: ban.left, reason: ban.reason })),
        }
    }

    /// Reports an operator's act on a key. This process forgets a ban that the act ends, and remembers an override that
    /// it has made on a server, to list it, and for outages.
    pub(crate) fn note_override(&self, key: &PartitionKey, by_hand: Override) {
        if !matches!(by_hand, Override::Ban { .. }) {
            self.lineage.lift_ban(key);
        }
        if self.description.keeps_standing().is_some() {
            // If there are too many to remember, the server still knows this one.
            let _ = self.override_here(key, by_hand);
        }
        self.report_override(key, by_hand);
    }

    /// Records that the limiter has rejected a request. Returns the ban, if the key is banned.
    #[cold]
    pub(crate) fn note_rejection(&self, key: &PartitionKey, rejection: &Decision) -> Option<Exception> {
        let server = self.description.keeps_standing();
        let (left, begins) = self.penalty_for(key)?.note_rejection(server, key, rejection)?;
        let ban = Exception::of_penalty(left);
        if begins {
            self.note_banned(key, ban);
        }
        Some(ban)
    }

    /// Resets a key, so that it owes nothing. Its ban is lifted even if the limiter fails, or cannot reset it.
    pub(crate) async fn reset(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        self.lineage.lift_ban(key);
        if let Some(overrides) = self.lineage.record.overrides() {
            overrides.set(key, Override::Lift)?;
        }
        self.forgive(key);
        if self.description.answers(Mode::Reset) {
            // Report before the call, because an operator who does not wait for it has acted nevertheless.
            self.report_reset(key);
        } else {
            self.report_override(key, Override::Lift);
            return Err(LimiterError::unsupported_by(&self.name, Mode::Reset));
        }
        self.limiter.decide(&Ask::reset(key)).decided().await
    }
}

/// Charges the remaining units in two steps: first the whole cost, and if that is rejected, the units that the
/// rejection reports. `charge` returns the decision on one step, unless it is pending. A pending answer is dropped
/// unpolled, and its charge is forgiven, because the response is ready and must not wait for a server or a queue.
fn charge_left(ask: &Ask<'_>, charge: impl Fn(&Ask<'_>) -> Option<Decision>) {
    if let Some(left) = charge(ask).and_then(|decision| decision.partial_cost(ask.cost())) {
        let _ = charge(&ask.costing(left));
    }
}
