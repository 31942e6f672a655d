//! Rejected requests: their status and reason, and the penalties that note them. [`Wait`] orders the waits that they
//! may advertise.

use std::time::Duration;

use super::annotations::verdict_of;
use super::decide::Decide;
use super::entry::PolicyEntry;
use super::scope::Scope;
use crate::engine::outcome::{Evaluation, Rejected};
use crate::engine::policy::{Fate, Policy};
use crate::engine::reason::{Reason, Refusal, Wait};
use crate::engine::translate::Reading;
use crate::engine::verdict::{PolicyVerdict, Verdict};
use crate::values::time::seconds_ceil;
use crate::values::{LimiterError, PartitionKey};

impl<D: Decide> Scope<'_, D> {
    /// Rejects a request with these entries. At least one entry is rejected, and no charge remains.
    ///
    /// Every rejecting policy's penalty records the [advertised wait](crate::engine::translate::Translate::advertised),
    /// because only a client that retries sooner misbehaves.
    #[cold]
    pub(super) fn reject(self, entries: &mut [PolicyEntry]) -> Rejected<D> {
        let policies = &*self.in_force.policies;
        self.mark_passed_over(entries);
        self.reject_units_that_expire(entries);
        let is_rejected = |entry: &PolicyEntry| entry.is_rejected() && !entry.policy_of(policies).shadow;
        for entry in entries.iter_mut().filter(|entry| is_rejected(entry)) {
            entry.note_rejection(entry.policy_of(policies));
        }
        self.note_all_rejected(entries);
        if self.in_force.is_open_ended() {
            self.charge_after_wait(entries);
        }
        // Repeat this, because a ban or a retry may have lengthened the wait.
        self.reject_units_that_expire(entries);
        // One policy sets the status and the reason. A suspended quota goes first, because no wait helps. Then comes a
        // ban, so that the response names it. Otherwise the order is that in `Wait`: a policy that no wait helps, one
        // whose wait is not known, the longest wait, and an overloaded server last.
        let is_shed = |entry: &PolicyEntry| wait_of(policies, entry).is_estimate();
        let rank = |entry: &PolicyEntry| {
            let is_suspended = entry.decision.is_some_and(|decision| decision.is_suspended());
            (is_suspended, entry.ban.is_some(), wait_of(policies, entry))
        };
        let (_, decisive) = self.combine(entries, rank).expect("one is rejected");
        let (wait, _) = self.combine(entries, |entry| wait_of(policies, entry)).expect("one is rejected");
        let policy = decisive.policy_of(policies);
        let is_by_hand = decisive.ban.is_some_and(|ban| ban.is_by_hand());
        // A penalty's ban is the client's own doing, even if others share the key, so the answer is 429, not 503.
        let is_due_to_others = is_shared(policy, &decisive.key) && (decisive.ban.is_none() || is_by_hand);
        let is_overloaded = decisive.ban.is_none() && is_shed(decisive);
        let decisive_ban = decisive.ban;
        let is_suspended = decisive_ban.is_none() && decisive.decision.is_some_and(|decision| decision.is_suspended());
        uncharge(policies, entries);
        let verdict = verdict_of(policies, entries);
        let reason = match decisive_ban {
            Some(_) if is_by_hand => Reason::BannedByHand,
            Some(_) => Reason::Banned,
            None if is_suspended => Reason::Suspended,
            None if is_overloaded => Reason::Overloaded,
            None => Reason::LimitExceeded,
        };
        let refusal = Refusal { reason, is_due_to_others: is_due_to_others || is_overloaded, wait };
        let rejection = D::reject(policy, refusal, verdict);
        // Take the wait that the response advertises, because waits for months are shortened.
        if let Some(wait) = D::advertised(&rejection) {
            for entry in entries.iter().filter(|entry| is_rejected(entry)) {
                if let Some(penalty) = entry.policy_of(policies).penalty_for(&entry.key) {
                    penalty.advise(&entry.key, wait);
                }
            }
        }
        Rejected { rejection, fields: self.fields(entries), waited: self.waited(entries) }
    }

    /// Answers a request that the only policy rejects, in a layer that is
    /// [plain](crate::engine::reload::InForce::is_plain) or whose requests
    /// [hold](crate::engine::reload::InForce::is_held) units.
    #[inline(always)]
    pub(super) fn respond_plain(
        self,
        policy: &Policy<D>,
        decided: Reading<'_>,
        head: &D::Subject<'_>,
        finish: impl FnOnce(Rejected<D>) -> Evaluation<D>,
    ) -> Evaluation<D> {
        self.note_rejected(policy, Fate::Rejected, decided.key, decided.decision);
        if self.in_force.shed_replies.is_some() && decided.decision.is_shed() {
            let Reading { key, quota, decision, .. } = decided;
            return (self.layer.longer_path().respond_alike)(self.layer, self.in_force, (key, quota, decision), head);
        }
        finish(self.reject_plain(policy, decided))
    }

    /// Answers a shed request with the reply that other shed requests with this wait share.
    #[cold]
    pub(super) fn respond_alike(self, decided: Reading<'_>, head: &D::Subject<'_>) -> Evaluation<D> {
        let policy = &self.in_force.policies[decided.policy];
        let Some(shed) = &self.in_force.shed_replies else {
            return Evaluation::Rejected(self.reject_plain(policy, decided));
        };
        let make = || D::reply(self.layer, self.reject_plain(policy, decided), head);
        let may_shed_anybody = self.in_force.sheds_anybody;
        let shedder = || policy.description.shedder_of((*policy.limiter).as_any()).filter(|_| may_shed_anybody);
        Evaluation::Replied(shed.get_or_make(decided.decision.retry_after(), head, make, shedder))
    }

    /// Rejects a request by the only policy as [`reject`](Self::reject) would, since the policy has no penalty, and
    /// nothing else was charged.
    #[inline(always)]
    fn reject_plain(self, policy: &Policy<D>, decided: Reading<'_>) -> Rejected<D> {
        let is_suspended = decided.decision.is_suspended();
        let is_shared = is_shared(policy, decided.key);
        let wait = Wait::of(decided.decision, policy.description.sheds());
        let verdict = Verdict::of_one(PolicyVerdict::new(policy, *decided.decision, false));
        let decided = std::iter::once(decided);
        let refusal = |reason, is_due_to_others| Refusal { reason, is_due_to_others, wait };
        // Three calls, so that each is compiled for its reason.
        let rejection = if is_suspended {
            D::reject(policy, refusal(Reason::Suspended, is_shared), verdict)
        } else if wait.is_estimate() {
            D::reject(policy, refusal(Reason::Overloaded, true), verdict)
        } else {
            D::reject(policy, refusal(Reason::LimitExceeded, is_shared), verdict)
        };
        Rejected { rejection, fields: self.plain_fields(decided), waited: None }
    }

    /// A free retry is charged once its record has ended. If the record ends before the wait is over, the wait must
    /// cover the charge, too.
    fn charge_after_wait(self, entries: &mut [PolicyEntry]) {
        let policies = &*self.in_force.policies;
        // An overloaded server's estimate does not count.
        let is_enforced = |entry: &PolicyEntry| {
            let policy = self.policy(entry);
            !policy.shadow && !policy.description.sheds()
        };
        loop {
            let wait = self.combine(entries, |entry| wait_of(policies, entry));
            let Some((Wait::After(wait), _)) = wait else { return };
            let mut enforced = entries.iter_mut().filter(|entry| is_enforced(entry));
            // Each retry is found at most once, so the loop terminates.
            if !enforced.any(|entry| entry.charge_after(&self.current(self.policy(entry)), wait)) {
                return;
            }
        }
    }

    /// A balance's units may suffice for the request now, but expire before the wait is over. In that case the balance
    /// rejects the request, too, and no wait helps, unless there is an alternative.
    fn reject_units_that_expire(self, entries: &mut [PolicyEntry]) {
        if !self.in_force.keeps_credits {
            return;
        }
        let policies = &*self.in_force.policies;
        let expires = |policy: &Policy<D>| !policy.shadow && policy.description.keeps_credits();
        loop {
            let wait = self.combine(entries, |entry| wait_of(policies, entry)).map(|(wait, _)| wait);
            let Some(Wait::After(wait)) = wait else { return };
            // Round up as the response does.
            let wait = Duration::from_secs(seconds_ceil(wait));
            let runs_out = |entry: &&mut PolicyEntry| expires(entry.policy_of(policies)) && entry.runs_out_within(wait);
            // Each entry is found once and makes the wait longer, so entries that ran out within a shorter wait still
            // do.
            let Some(entry) = entries.iter_mut().find(runs_out) else { return };
            entry.reject_for_good();
            self.mark_passed_over(entries);
        }
    }

    /// Rejects a request since the limiter of `policy` cannot decide. No charge remains.
    #[cold]
    pub(super) fn fail(self, policy: &Policy<D>, error: &LimiterError, entries: &mut [PolicyEntry]) -> Rejected<D> {
        uncharge(&self.in_force.policies, entries);
        let verdict = verdict_of(&self.in_force.policies, entries);
        let rejection = D::reject_for_failure(policy, error, verdict);
        Rejected { rejection, fields: self.fields(entries), waited: self.waited(entries) }
    }
}

/// The wait of an entry that rejects the request.
fn wait_of<D: Decide>(policies: &[Policy<D>], entry: &PolicyEntry) -> Wait {
    let sheds = entry.policy_of(policies).description.sheds();
    entry.decision.map_or(Wait::After(Duration::ZERO), |decision| Wait::of(&decision, sheds))
}

/// Whether all clients share the key.
fn is_shared<D: Decide>(policy: &Policy<D>, key: &PartitionKey) -> bool {
    policy.selector.key.is_shared() || *key == PartitionKey::SHARED
}

/// Makes policies that would have admitted the request report the remaining units without its charge.
fn uncharge<D: Decide>(policies: &[Policy<D>], entries: &mut [PolicyEntry]) {
    entries.iter_mut().for_each(|entry| entry.uncharge(entry.policy_of(policies)));
}
