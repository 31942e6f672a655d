//! Rejections, and the waits that they advertise.

use std::time::Duration;

use http::Response;

use super::annotations::{Annotations, verdict};
use super::entry::Entry;
use super::{Scope, observe};
use crate::http::body::RejectionBody;
use crate::http::head::RequestHead;
use crate::http::policy::Policy;
use crate::http::reject::Rejection;
use crate::http::reload::Limits;
use crate::values::{LimiterError, PartitionKey};

/// A request that does not pass, with what its response carries beside the rejection.
pub(crate) struct Rejected {
    rejection: Rejection,
    annotations: Annotations,
}

/// Of a request that no policy decided on.
impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, annotations: Annotations::default() }
    }
}

impl Rejected {
    /// The response to it.
    pub(crate) fn respond(mut self, limits: &Limits, head: &RequestHead<'_>) -> Response<RejectionBody> {
        let mut response = limits.settings.responder.respond(&mut self.rejection, head);
        self.annotations.write(&mut response);
        response
    }
}

impl Scope<'_> {
    /// The rejection of entries of which at least one is rejected, and none is charged (any more).
    ///
    /// # Waits
    ///
    /// The wait that is advertised is the longest of all policies that reject, their bans included, and none if no wait helps one
    /// of them. A request that is sent again after it, alone on its keys, is admitted. It is noted with every penalty: whoever
    /// comes sooner misbehaves, and nobody else.
    #[cold]
    pub(super) fn reject(self, entries: &mut [Entry]) -> Rejected {
        let policies = &*self.in_force.policies;
        let is_rejected = |entry: &Entry| entry.is_rejected() && !entry.policy_of(policies).is_shadow();
        for entry in entries.iter_mut().filter(|entry| is_rejected(entry)) {
            entry.note_rejection(entry.policy_of(policies));
        }
        observe::rejected(policies, entries);
        // The policy that keeps the client out longest speaks for all; for ever, if no wait helps. Or one that has banned it,
        // which the client should know.
        let wait = |entry: &&Entry| {
            let wait = entry.decision.and_then(|decision| decision.retry_after()).unwrap_or(Duration::MAX);
            (entry.ban.is_some(), wait)
        };
        // Of equals the first one, which `max_by_key` would not return.
        let rejecting = entries.iter().filter(|entry| is_rejected(entry)).rev();
        let longest = rejecting.max_by_key(wait).expect("one is rejected");
        // What one client did to be banned is nobody else's fault.
        let is_banned = longest.ban.is_some();
        let policy = longest.policy_of(policies);
        let is_shared = policy.has_shared_key() || longest.key == PartitionKey::SHARED;
        let status = policy.rejection_status(is_shared && !is_banned);
        uncharge(policies, entries);
        let verdict = verdict(policies, entries);
        let rejection =
            if is_banned { Rejection::banned(status, verdict) } else { Rejection::limit_exceeded(status, verdict) };
        if let Some(wait) = rejection.retry_after() {
            for entry in entries.iter().filter(|entry| is_rejected(entry)) {
                if let Some(penalty) = entry.policy_of(policies).penalty_for(&entry.key) {
                    penalty.advise(&entry.key, wait);
                }
            }
        }
        Rejected { rejection, annotations: self.annotate(entries) }
    }

    /// The rejection of a request on which the limiter of `policy` could not decide. No entry is charged (any more).
    #[cold]
    pub(super) fn fail(self, policy: &Policy, error: &LimiterError, entries: &mut [Entry]) -> Rejected {
        uncharge(&self.in_force.policies, entries);
        let verdict = verdict(&self.in_force.policies, entries);
        let rejection = Rejection::limiter_failed(policy, error.is_closed(), verdict);
        Rejected { rejection, annotations: self.annotate(entries) }
    }
}

/// Policies that would have admitted the request report what is left without it.
fn uncharge(policies: &[Policy], entries: &mut [Entry]) {
    entries.iter_mut().for_each(|entry| entry.uncharge(entry.policy_of(policies)));
}
