//! The transaction: prechecks a request's entries, charges one after the other, then commits, or rolls back.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::alternatives::Choice;
use super::decide::Decide;
use super::entry::{AskContext, Entries, PolicyEntry, Progress};
use super::open_request::OpenRequest;
use super::scope::Scope;
use crate::engine::outcome::{Admitted, Evaluated, Rejected};
use crate::engine::policy::Fate;
use crate::values::{Answer, Answers, Decision, FailureMode, LimiterError, MemberAnswers, Mode, Now, Pending};

/// A request's entries, charged up to `next`. If the transaction is dropped in between, they stay charged, because a
/// request that is cancelled while it waits is not refunded, except for estimates that its handler would have settled.
/// The units that it holds are released.
#[derive(Default)]
pub(super) struct Transaction {
    pub(super) entries: Entries,
    /// The index of the next entry to charge.
    pub(super) next: usize,
    pub(super) context: AskContext,
    /// A batch's answers to the entries from `next` on, in reverse order, so that the next one is popped.
    answers: Answers,
    /// If there are alternatives: the first limiter failure under a policy that fails closed, with its entry's index.
    pub(super) failure: Option<(usize, LimiterError)>,
    /// The policies to charge, if there are alternatives.
    pub(super) choice: Option<Box<Choice>>,
}

/// A transaction's state after [`reserve`](Transaction::reserve).
pub(super) enum TransactionProgress<D: Decide> {
    Done(Evaluated<D>),
    /// It waits for the answer to the next entry.
    One(Pending),
    /// It waits for the answers to a batch.
    Several(PendingAnswers),
    /// It waits for the answers to these entries, between which there is a choice.
    Members(Vec<usize>, PendingMembers),
}

type PendingAnswers = Pin<Box<dyn Future<Output = Answers> + Send>>;
pub(super) type PendingMembers = Pin<Box<dyn Future<Output = MemberAnswers> + Send>>;

impl Transaction {
    pub(super) fn with_patience(patience: Option<Duration>) -> Self {
        Self { context: AskContext { patience, ..AskContext::default() }, ..Self::default() }
    }

    /// A transaction whose first `charged` entries are charged already.
    pub(super) fn from_charged(entries: Entries, charged: usize, context: AskContext) -> Self {
        Self { entries, next: charged, context, ..Self::default() }
    }

    /// Prechecks one entry after the other, and returns `false` at the first that rejects the request, because its key
    /// is banned or owes too much, or because its charge would be rejected after others were charged. The first entry
    /// is not peeked at: if its charge is rejected, nothing has to be refunded. Shadows are not peeked at, because they
    /// never reject.
    #[inline]
    pub(super) fn precheck<D: Decide>(&mut self, scope: Scope<'_, D>) -> bool {
        if let Some(formula) = &scope.in_force.formula {
            return self.precheck_members(scope, formula);
        }
        let may_owe = scope.in_force.is_open_ended();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let policy = scope.policy(entry);
            let is_in_debt = may_owe && entry.debt_wait().is_some() && !policy.shadow;
            if entry.ban.is_some() || is_in_debt {
                return false;
            }
            let is_peeked_at = index > 0 && !policy.shadow && entry.mode != Mode::UpTo;
            if is_peeked_at && !entry.passes_precheck(policy, &self.context) {
                return false;
            }
        }
        true
    }

    /// Peeks at a rejected request's undecided entries, because the response advertises the longest wait over all
    /// policies. The request may have waited, so the policies [in force now](Scope::current) are asked.
    #[cold]
    pub(super) fn peek_undecided<D: Decide>(&mut self, scope: Scope<'_, D>) {
        // A cost that was spent already cannot be rejected.
        let rejects = |entry: &PolicyEntry| !scope.policy(entry).shadow && entry.mode != Mode::UpTo;
        let undecided = |entry: &&mut PolicyEntry| entry.decision.is_none() && rejects(entry);
        for entry in self.entries.iter_mut().filter(undecided) {
            entry.peek(&scope.current(scope.policy(entry)), &self.context);
        }
    }

    /// Charges one entry after the other, and commits after the last one. Returns earlier if the request has to wait
    /// for an answer, or is rejected, which rolls the transaction back. `known_answer` is the answer to the next entry,
    /// if its limiter was asked before.
    #[inline]
    pub(super) fn reserve<D: Decide>(
        &mut self,
        scope: Scope<'_, D>,
        mut known_answer: Option<Answer>,
    ) -> TransactionProgress<D> {
        loop {
            if let Some(formula) = scope.in_force.formula.as_ref().filter(|_| known_answer.is_none()) {
                if let Err(cause) = self.choose_next(scope, formula) {
                    return TransactionProgress::Done(Err(Box::new(self.roll_back(scope, cause))));
                }
            }
            if self.next == self.entries.len() {
                return TransactionProgress::Done(Ok(self.commit(scope)));
            }
            let answer = match known_answer.take().map_or_else(|| self.charge_next(scope), EntryCharge::One) {
                EntryCharge::One(Answer::Ready(answer)) => answer,
                EntryCharge::One(Answer::Pending(pending)) => return TransactionProgress::One(pending),
                EntryCharge::Several(pending) => return TransactionProgress::Several(pending),
                EntryCharge::Members(members, pending) => return TransactionProgress::Members(members, pending),
            };
            if let Err(cause) = self.apply(scope, answer) {
                return TransactionProgress::Done(Err(Box::new(self.roll_back(scope, cause))));
            }
        }
    }

    /// Charges the next entry.
    #[inline]
    fn charge_next<D: Decide>(&mut self, scope: Scope<'_, D>) -> EntryCharge {
        let entry = &self.entries[self.next];
        let policy = scope.policy(entry);
        // A policy that answers at once is charged before the first wait, so we do not look up its heir.
        // `Scope::current` has the details, and one exception.
        if policy.answers_at_once() && !entry.fell_back {
            return EntryCharge::One(policy.limiter.decide(&entry.ask(&self.context)));
        }
        self.charge_next_slow(scope)
    }

    /// Acts on the answer to the next entry, and goes on to the entry behind it, unless the next one has to be charged
    /// again or the formula chooses another.
    ///
    /// # Errors
    ///
    /// If the transaction has to be rolled back.
    #[inline]
    fn apply<D: Decide>(&mut self, scope: Scope<'_, D>, answer: Result<Decision, LimiterError>) -> Result<(), Cause> {
        let entry = &mut self.entries[self.next];
        let admission = match &answer {
            Ok(decision) if decision.is_allowed() => *decision,
            // The cost was spent already and does not fit whole, so the remaining units are charged, and the request is
            // admitted.
            Ok(rejection) if entry.mode == Mode::UpTo => used_up(rejection),
            _ => return self.apply_rejection(scope, answer),
        };
        let policy = scope.policy(entry);
        entry.admit(policy, admission, scope.in_force.is_open_ended());
        if !entry.fell_back {
            policy.report_health(None);
        }
        self.next += 1;
        Ok(())
    }

    /// Acts on a rejection or a failure as [`apply`](Self::apply) does.
    #[cold]
    fn apply_rejection<D: Decide>(
        &mut self,
        scope: Scope<'_, D>,
        answer: Result<Decision, LimiterError>,
    ) -> Result<(), Cause> {
        match self.resolve(scope, answer) {
            Resolution::Continue => self.next += 1,
            Resolution::FallBack => {}
            Resolution::RollBack(cause) if scope.in_force.formula.is_some() => self.pass_over(cause),
            Resolution::RollBack(cause) => return Err(cause),
        }
        Ok(())
    }

    /// Counts the decisions, now that all entries are charged, and returns the admission.
    #[inline]
    fn commit<D: Decide>(&mut self, scope: Scope<'_, D>) -> Admitted<D> {
        scope.note_committed(&mut self.entries);
        if scope.in_force.is_open_ended() {
            self.entries.iter_mut().for_each(PolicyEntry::admit_attempt);
            if OpenRequest::is_needed(scope, &self.entries) {
                return Admitted::Open(D::open(OpenRequest::new(scope, std::mem::take(&mut self.entries))));
            }
        }
        scope.annotate(&self.entries, scope.verdict(&self.entries))
    }

    /// Charges the next entry, if its limiter does not decide at once, by itself or in one call with later entries on
    /// the same store.
    #[inline(never)]
    fn charge_next_slow<D: Decide>(&mut self, scope: Scope<'_, D>) -> EntryCharge {
        let entry = &self.entries[self.next];
        let policy = scope.current(scope.policy(entry));
        if entry.fell_back {
            let unsupported = || LimiterError::unsupported(Mode::Fallback).into();
            let mut ask = entry.ask(&self.context);
            if entry.mode == Mode::UpTo {
                policy.fall_back_up_to(&ask);
                ask = ask.costing(0);
            }
            return EntryCharge::One(policy.fall_back(&ask).unwrap_or_else(unsupported));
        }
        if entry.mode != Mode::Charge {
            return EntryCharge::One(policy.limiter.decide(&entry.ask(&self.context)));
        }
        // The last batch has charged it already.
        if let Some(answer) = self.answers.pop() {
            return EntryCharge::One(Answer::Ready(answer));
        }
        // It may be a free retry, which the limiter finds out in a separate call.
        if let Some(answer) = entry.charge_once(&policy, &self.context) {
            return EntryCharge::One(answer);
        }
        if scope.policy(entry).shadow {
            return EntryCharge::One(entry.charge_shadow(&policy, &self.context));
        }
        if let Some((members, pending)) = self.charge_members(scope) {
            return EntryCharge::Members(members, pending);
        }
        let claim = |entry: &PolicyEntry| entry.claim(scope, &self.context);
        let may_batch = scope.in_force.formula.is_none() && self.next + 1 < self.entries.len();
        let first = if may_batch { claim(entry) } else { None };
        if let Some(first) = first {
            let mut others = Vec::new();
            for index in self.next + 1..self.entries.len() {
                if let Some(other) = claim(&self.entries[index]).filter(|other| other.store() == first.store()) {
                    others.push(other);
                    // Move the entry right behind the batch's entries so far, so that the batch stays together.
                    self.entries[self.next + others.len()..=index].rotate_right(1);
                }
            }
            if !others.is_empty() {
                return EntryCharge::Several(first.decide_all(others));
            }
        }
        EntryCharge::One(policy.limiter.decide(&self.entries[self.next].ask(&self.context)))
    }

    /// Stores a batch's answers. All decisions are set before the first is acted on, because a rejection names every
    /// policy that rejects. The first rejection moves to the front with its entry. Otherwise, a request that one policy
    /// rejects could be answered with another's failure.
    pub(super) fn set_answers(&mut self, mut answers: Answers) {
        let entries = &mut self.entries[self.next..];
        for (entry, answer) in entries.iter_mut().zip(&answers) {
            entry.decision = answer.as_ref().ok().copied();
        }
        if let Some(rejected) = entries.iter().position(PolicyEntry::is_rejected) {
            entries[..=rejected].rotate_right(1);
            answers[..=rejected].rotate_right(1);
        }
        answers.reverse();
        self.answers = answers;
    }

    /// Determines the consequence if the next entry is rejected or its limiter fails.
    #[cold]
    fn resolve<D: Decide>(&mut self, scope: Scope<'_, D>, answer: Result<Decision, LimiterError>) -> Resolution {
        let entry = &mut self.entries[self.next];
        let policy = scope.policy(entry);
        // If the operator has closed the limiter, its requests are rejected. That does not count as a failure, and the
        // failure mode does not apply.
        let is_closed = answer.as_ref().is_err_and(LimiterError::is_closed);
        // A fallback says nothing about the limiter's health, and the failure was reported before.
        if !entry.fell_back && !is_closed {
            policy.report_health(answer.as_ref().err());
        }
        let error = match answer {
            // Rejected by a shadow: counted, and passes.
            Ok(decision) if policy.shadow => {
                entry.decision = Some(decision);
                entry.progress = Progress::Charged;
                policy.lineage.record.shadow_rejected.fetch_add(1, Ordering::Relaxed);
                return Resolution::Continue;
            }
            // Rejected.
            Ok(decision) => {
                entry.decision = Some(decision);
                return Resolution::RollBack(Cause::Rejected);
            }
            Err(error) => error,
        };
        // Failed, and this process knows that the key is banned: rejected.
        let ban = policy.exception_here(&entry.key).filter(|exception| exception.is_ban);
        if let Some(ban) = ban.filter(|_| !is_closed) {
            entry.impose(policy, ban);
            return Resolution::RollBack(Cause::Rejected);
        }
        // Failed for the first time, and the policy falls back: the fallback decides, and counts for a shadow.
        if !entry.fell_back && !is_closed && scope.current(policy).falls_back() {
            entry.fell_back = true;
            if entry.mode == Mode::Peek {
                // A fallback cannot be peeked at, and must not be charged.
                entry.cost = 0;
            }
            return Resolution::FallBack;
        }
        // Failed, and the policy is a shadow, even a closed one, or fails open: passes uncounted.
        if policy.shadow || (policy.on_failure == FailureMode::Allow && !is_closed) {
            policy.note(Fate::LimiterFailed, Some(&entry.key), None);
            entry.progress = Progress::Exempt;
            return Resolution::Continue;
        }
        // Failed, and the policy fails closed, has no fallback, or was closed: answered 503.
        policy.note(Fate::LimiterFailed, Some(&entry.key), None);
        Resolution::RollBack(Cause::Failed(error))
    }

    /// With alternatives: records that the next entry is rejected or its limiter failed.
    pub(super) fn reject_next<D: Decide>(&mut self, scope: Scope<'_, D>, answer: Result<Decision, LimiterError>) {
        if let Resolution::RollBack(cause) = self.resolve(scope, answer) {
            self.pass_over(cause);
        }
    }

    /// Refunds the charges made so far, the last one first: see [`Receipt`](crate::values::Receipt).
    #[cold]
    pub(super) fn roll_back<D: Decide>(&mut self, scope: Scope<'_, D>, cause: Cause) -> Rejected<D> {
        // Take back all entries, not only those before `next`, because a batch may have charged later ones.
        self.entries.iter_mut().rev().for_each(|entry| scope.take_back(entry));
        match cause {
            Cause::Rejected => {
                // The precheck was earlier, but waits are advertised from now on, by the policies in force now.
                self.context.now = Now::new();
                self.peek_undecided(scope);
                scope.reject(&mut self.entries)
            }
            Cause::Failed(error) => {
                let policy = scope.policy(&self.entries[self.next]);
                scope.fail(policy, &error, &mut self.entries)
            }
        }
    }
}

/// The decision if a cost that was spent already does not fit whole: the key has nothing left.
#[cold]
fn used_up(rejection: &Decision) -> Decision {
    Decision::allow(rejection.limit(), 0).with_reset_after(rejection.reset_after())
}

/// The charge for one entry, or for several in one call.
enum EntryCharge {
    One(Answer),
    Several(PendingAnswers),
    Members(Vec<usize>, PendingMembers),
}

/// The consequence if an entry is rejected or its limiter fails.
enum Resolution {
    /// The request passes this entry nevertheless.
    Continue,
    /// The local fallback decides instead.
    FallBack,
    RollBack(Cause),
}

/// The reason why a transaction is rolled back.
pub(super) enum Cause {
    Rejected,
    Failed(LimiterError),
}
