//! Rejected requests: their status and reason, and the penalties that note them. [`Rejection::limit_exceeded`] computes
//! the wait that they advertise, from the verdict.

use std::time::Duration;

use http::Response;

use super::annotations::{PlainDecision, verdict_of};
use super::entry::PolicyEntry;
use super::scope::Scope;
use crate::http::body::RejectionBody;
use crate::http::head::RequestHead;
use crate::http::headers::{LONGEST_ADVERTISED, append_server_timing};
use crate::http::outcome::{Evaluation, Rejected};
use crate::http::policy::{Fate, Policy};
use crate::http::reject::{Rejection, Wait};
use crate::http::reload::LayerState;
use crate::values::{LimiterError, PartitionKey};

impl Rejected {
    /// Makes the response.
    pub(crate) fn respond(mut self, layer: &LayerState, head: &RequestHead<'_>) -> Response<RejectionBody> {
        let mut response = layer.settings.responder.respond(&mut self.rejection, head, self.fields);
        if let Some(waited) = self.waited {
            append_server_timing(response.headers_mut(), waited);
        }
        if layer.settings.adds_verdict {
            self.rejection.into_verdict().insert_into(response.extensions_mut());
        }
        response
    }
}

impl Scope<'_> {
    /// Rejects a request with these entries. At least one entry is rejected, and no charge remains.
    ///
    /// The [advertised wait](Rejection::retry_after) is recorded by the penalty of every policy that rejects: a client
    /// that retries sooner misbehaves, and no other client does.
    #[cold]
    pub(super) fn reject(self, entries: &mut [PolicyEntry]) -> Rejected {
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
        // Again, since a ban or a retry may have lengthened the wait.
        self.reject_units_that_expire(entries);
        // One policy sets the status and the reason: a suspended quota goes first, since no wait helps; then a ban, so
        // that the response names it; then a rate limit, before an overloaded server; then a policy that no wait helps;
        // then a policy whose wait is not known; then the longest wait.
        let is_shed = |entry: &PolicyEntry| wait_of(policies, entry).is_estimate();
        let rank = |entry: &PolicyEntry| {
            let is_suspended = entry.decision.is_some_and(|decision| decision.is_suspended());
            (is_suspended, entry.ban.is_some(), wait_of(policies, entry))
        };
        let (_, decisive) = self.greatest(entries, rank).expect("one is rejected");
        let (wait, _) = self.greatest(entries, |entry| wait_of(policies, entry)).expect("one is rejected");
        let policy = decisive.policy_of(policies);
        let is_by_hand = decisive.ban.is_some_and(|ban| ban.is_by_hand());
        // The ban of a penalty is the client's own doing, even if others share the key: so it is answered 429, not 503.
        let is_due_to_others = is_shared(policy, &decisive.key) && (decisive.ban.is_none() || is_by_hand);
        let is_overloaded = decisive.ban.is_none() && is_shed(decisive);
        let decisive_ban = decisive.ban;
        let is_suspended = decisive_ban.is_none() && decisive.decision.is_some_and(|decision| decision.is_suspended());
        let status = if is_suspended {
            policy.suspended_status()
        } else {
            policy.rejection_status(is_due_to_others || is_overloaded)
        };
        uncharge(policies, entries);
        let verdict = verdict_of(policies, entries);
        let rejection = match decisive_ban {
            Some(_) if is_by_hand => Rejection::banned_by_hand(status, wait, verdict),
            Some(_) => Rejection::banned(status, wait, verdict),
            None if is_suspended => Rejection::suspended(status, verdict),
            None if is_overloaded => Rejection::overloaded(status, wait, verdict),
            None => Rejection::limit_exceeded(status, wait, verdict),
        };
        // The wait that the response advertises: waits of months are shortened.
        if let Some(wait) = rejection.retry_after().map(|wait| wait.min(LONGEST_ADVERTISED)) {
            for entry in entries.iter().filter(|entry| is_rejected(entry)) {
                if let Some(penalty) = entry.policy_of(policies).penalty_for(&entry.key) {
                    penalty.advise(&entry.key, wait);
                }
            }
        }
        Rejected { rejection, fields: self.fields(entries), waited: self.waited(entries) }
    }

    /// Answers a request that the only policy of a [plain](crate::http::reload::InForce::is_plain) layer rejects, or of
    /// one whose requests [hold](crate::http::reload::InForce::is_held) units.
    #[cold]
    pub(super) fn respond_plain(
        self,
        policy: &Policy,
        decided: PlainDecision<'_>,
        head: &RequestHead<'_>,
    ) -> Evaluation {
        self.note_rejected(policy, Fate::Rejected, decided.key, decided.decision);
        if self.in_force.shed_responses.is_some() && decided.decision.is_shed() {
            let PlainDecision { key, quota, decision, .. } = decided;
            return (self.layer.longer_path().respond_alike)(self.layer, self.in_force, (key, quota, decision), head);
        }
        self.respond(self.reject_plain(policy, decided), head)
    }

    /// Answers a request that was shed as another one with this wait was.
    #[cold]
    pub(super) fn respond_alike(self, decided: PlainDecision<'_>, head: &RequestHead<'_>) -> Evaluation {
        let policy = &self.in_force.policies[decided.policy];
        let Some(shed) = &self.in_force.shed_responses else {
            return self.respond(self.reject_plain(policy, decided), head);
        };
        let respond = || self.reject_plain(policy, decided).respond(self.layer, head);
        let may_shed_anybody = self.in_force.sheds_anybody;
        let shedder = || policy.description.shedder_of((*policy.limiter).as_any()).filter(|_| may_shed_anybody);
        Evaluation::Rejected(shed.get_or_make(decided.decision.retry_after(), head, respond, shedder))
    }

    /// Rejects such a request as [`reject`](Self::reject) would: the policy has no penalty, and nothing else was
    /// charged.
    fn reject_plain(self, policy: &Policy, decided: PlainDecision<'_>) -> Rejected {
        let is_suspended = decided.decision.is_suspended();
        let is_shared = is_shared(policy, decided.key);
        let wait = Wait::of(decided.decision, policy.description.sheds());
        let decided = std::iter::once(decided);
        let verdict = self.plain_verdict(decided.clone());
        let rejection = if is_suspended {
            Rejection::suspended(policy.suspended_status(), verdict)
        } else if wait.is_estimate() {
            Rejection::overloaded(policy.rejection_status(true), wait, verdict)
        } else {
            Rejection::limit_exceeded(policy.rejection_status(is_shared), wait, verdict)
        };
        Rejected { rejection, fields: self.plain_fields(decided), waited: None }
    }

    /// A free retry is charged once its record has ended. If the record ends before the wait is over, the wait must
    /// cover the charge, too.
    fn charge_after_wait(self, entries: &mut [PolicyEntry]) {
        let policies = &*self.in_force.policies;
        // The estimate of an overloaded server counts for nothing.
        let is_enforced = |entry: &PolicyEntry| {
            let policy = self.policy(entry);
            !policy.shadow && !policy.description.sheds()
        };
        loop {
            let wait = self.greatest(entries, |entry| wait_of(policies, entry));
            let Some((Wait::After(wait), _)) = wait else { return };
            let mut enforced = entries.iter_mut().filter(|entry| is_enforced(entry));
            // Each retry is found at most once, so the loop ends.
            if !enforced.any(|entry| entry.charge_after(&self.current(self.policy(entry)), wait)) {
                return;
            }
        }
    }

    /// Units of a balance may suffice for the request now, and have expired when the wait is over. Then the balance
    /// rejects the request, too, and no wait helps, unless there is an alternative.
    fn reject_units_that_expire(self, entries: &mut [PolicyEntry]) {
        if !self.in_force.keeps_credits {
            return;
        }
        let policies = &*self.in_force.policies;
        let expires = |policy: &Policy| !policy.shadow && policy.description.keeps_credits();
        loop {
            let wait = self.greatest(entries, |entry| wait_of(policies, entry)).map(|(wait, _)| wait);
            let Some(Wait::After(wait)) = wait else { return };
            // As clients are told.
            let wait = Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
            let runs_out = |entry: &&mut PolicyEntry| expires(entry.policy_of(policies)) && entry.runs_out_within(wait);
            // Each is found once, and each makes the wait longer, so those that were passed for a shorter one stay so.
            let Some(entry) = entries.iter_mut().find(runs_out) else { return };
            entry.reject_for_good();
            self.mark_passed_over(entries);
        }
    }

    /// Rejects a request since the limiter of `policy` cannot decide. No charge remains.
    #[cold]
    pub(super) fn fail(self, policy: &Policy, error: &LimiterError, entries: &mut [PolicyEntry]) -> Rejected {
        uncharge(&self.in_force.policies, entries);
        let verdict = verdict_of(&self.in_force.policies, entries);
        let rejection = Rejection::limiter_failed(policy, error, verdict);
        Rejected { rejection, fields: self.fields(entries), waited: self.waited(entries) }
    }
}

/// The wait of an entry that rejects the request.
fn wait_of(policies: &[Policy], entry: &PolicyEntry) -> Wait {
    let sheds = entry.policy_of(policies).description.sheds();
    entry.decision.map_or(Wait::After(Duration::ZERO), |decision| Wait::of(&decision, sheds))
}

/// Whether all clients share the key.
fn is_shared(policy: &Policy, key: &PartitionKey) -> bool {
    policy.selector.key.is_shared() || *key == PartitionKey::SHARED
}

/// Makes policies that would have admitted the request report the units that are left without its charge.
fn uncharge(policies: &[Policy], entries: &mut [PolicyEntry]) {
    entries.iter_mut().for_each(|entry| entry.uncharge(entry.policy_of(policies)));
}
