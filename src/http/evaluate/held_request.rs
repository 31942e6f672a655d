//! The hot path of one policy whose requests hold units, and await nothing else of their responses. If the request has
//! to wait, or the limiter has failed, a transaction goes on from the answer.
//!
//! An [open request](OpenRequest) keeps the entries of its transaction. A held one keeps its units alone: one
//! allocation for them, which it shares with the [`Permits`] in the extensions of the request, and one for these.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Extensions, HeaderMap};

use super::annotations::PlainDecision;
use super::ending::Ending;
use super::entry::{self, AskContext, Entries, NoKey, PolicyEntry};
#[cfg(doc)]
use super::open_request::OpenRequest;
use super::rejected::Rejected;
use super::scope::Scope;
use super::transaction::Transaction;
use super::{EndsWithBody, Evaluation};
use crate::http::head::{RequestHead, ResponseHead};
use crate::http::permits::{Held, Permits};
use crate::http::policy::{Fate, Policy, Precedence};
use crate::http::reject::{ForAnybody, ShedResponses, is_usual};
use crate::limiter::Hold;
use crate::util::log;
use crate::values::{Answer, Ask, Priority};

/// The units of an admitted request, until its body has ended, has failed, or was dropped; or, without a response,
/// until the client has disconnected or the service has failed.
pub(crate) struct HeldRequest {
    held: Arc<Held>,
    ending: Ending,
}

impl Scope<'_> {
    /// Evaluates a request by the only policy, whose requests hold units.
    #[inline(never)]
    pub(super) fn evaluate_held(self, policy: &Policy, head: &RequestHead<'_>) -> Evaluation {
        if let Some(shed) = self.in_force.shed_responses.as_ref().and_then(ShedResponses::for_anybody) {
            match self.shed_anybody(shed, policy, head) {
                Anybody::Shed => return Evaluation::Rejected(shed.response()),
                Anybody::Skipped => return Evaluation::Admitted(self.annotate_undecided()),
                Anybody::Asks => {}
            }
        }
        let key = match entry::key(policy, head) {
            Ok(key) => key,
            Err(NoKey::Skipped) => return Evaluation::Admitted(self.annotate_undecided()),
            Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
        };
        let cost = policy.cost_of(head);
        let quota = policy.quota_of(head, &key);
        let precedence = policy.precedence_of(head);
        let context = AskContext { patience: self.patience(head), ..AskContext::default() };
        let ask = Ask::charge(&key, cost).under(quota).within(context.patience).at(&context.now);
        let answer = policy.limiter.decide(&match precedence {
            Some(precedence) => precedence.of(ask),
            None => ask,
        });
        match &answer {
            Answer::Ready(Ok(decision)) if decision.is_allowed() => {
                // Before anything else, so that no panic loses the units.
                let hold = Hold::of_key(Arc::clone(&policy.limiter), key, decision, cost);
                policy.report_health(None);
                if policy.description.sheds() {
                    policy.note_not_shed();
                }
                policy.note(Fate::from_admission(decision), Some(hold.key()), Some(decision));
                let decided = PlainDecision { policy: 0, key: hold.key(), quota, decision };
                let known = self.annotate_plain(std::iter::once(decided));
                Evaluation::Admitted(known.holding(HeldRequest::new(hold, policy)))
            }
            Answer::Ready(Ok(decision)) if decision.ban().is_none() => {
                policy.report_health(None);
                let decided = PlainDecision { policy: 0, key: &key, quota, decision };
                self.respond_plain(policy, decided, head)
            }
            _ => {
                let mut entries = Entries::new();
                entries.push(PolicyEntry::preceding(0, key, cost, quota, precedence));
                let transaction = Transaction::from_charged(entries, 0, context);
                self.evaluate_transaction(transaction, Some(answer), head)
            }
        }
    }
}

/// What becomes of a request whose key is not known.
enum Anybody {
    Shed,
    /// The policy does not apply to it.
    Skipped,
    /// It has to ask the limiter.
    Asks,
}

impl Scope<'_> {
    /// Finds out whether the only policy sheds a request whoever has sent it, and counts that. The key is not
    /// extracted, since that would take longer than all the rest.
    #[cold]
    #[inline(never)]
    fn shed_anybody(self, shed: &ForAnybody, policy: &Policy, head: &RequestHead<'_>) -> Anybody {
        let Some(counts) = shed.shedder.sheds_anybody(policy.cost_of(head)) else { return Anybody::Asks };
        if log::has_decisions() || !is_usual(head) {
            return Anybody::Asks;
        }
        if !policy.applies_to(head) {
            entry::note_skipped(policy);
            return Anybody::Skipped;
        }
        let class = policy.precedence_of(head).map_or(Priority::default(), Precedence::priority);
        counts[class as usize].fetch_add(1, Ordering::Relaxed);
        policy.note_anybody_shed();
        Anybody::Shed
    }
}

impl HeldRequest {
    #[inline(always)]
    fn new(hold: Hold, policy: &Policy) -> Self {
        let watcher = policy.description.watcher_of((*policy.limiter).as_any());
        Self { held: Arc::new(Held::of_one(hold, watcher)), ending: Ending::default() }
    }

    /// Notes whether the method is `HEAD`. Lets the handler take the units.
    pub(super) fn begin(&mut self, is_head: bool, extensions: &mut Extensions) {
        self.ending.begin(is_head);
        Permits::insert(&self.held, extensions);
    }

    /// Notes the head of the response.
    pub(super) fn note_head(&mut self, response: &ResponseHead<'_>) {
        self.ending.note_head(response);
        self.held.begin_body();
    }
}

impl EndsWithBody for HeldRequest {
    fn note_poll(&self) {
        self.held.resume();
    }

    fn note_bytes(&mut self, _: usize) {
        self.held.hand_over();
    }

    fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.ending.note_trailers(trailers);
    }

    fn fail(&mut self) {
        self.ending.fail();
    }

    fn note_end(&self) {
        self.ending.note_end();
    }
}

impl Drop for HeldRequest {
    // Not inlined, so that requests that hold nothing do not pay for the registers.
    #[inline(never)]
    fn drop(&mut self) {
        self.held.release(self.ending.request_end());
    }
}
