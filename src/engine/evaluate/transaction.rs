//! The transaction: prechecks the entries of a request, charges one after the other, then commits, or rolls back.

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

/// The entries of a request, charged up to `next`. If the transaction is dropped in between, they stay charged: a
/// request that was cancelled while it waited is not refunded. The units that it holds are released.
#[derive(Default)]
pub(super) struct Transaction {
    pub(super) entries: Entries,
    /// The index of the next entry to charge.
    pub(super) next: usize,
    pub(super) context: AskContext,
    /// The answers of a batch to the entries from `next` on, in reverse order, so that the next one is popped.
    answers: Answers,
    /// The first failure of a limiter whose policy fails closed, with the index of the entry, if there are
    /// alternatives.
    pub(super) failure: Option<(usize, LimiterError)>,
    /// The policies that are to be charged, if there are alternatives.
    pub(super) choice: Option<Box<Choice>>,
}

/// The state of a transaction after [`reserve`](Transaction::reserve).
pub(super) enum TransactionProgress<D: Decide> {
    Done(Evaluated<D>),
    /// It waits for the answer to the next entry.
    One(Pending),
    /// It waits for the answers to a batch of entries.
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

    /// Prechecks one entry after the other, and returns `false` at the first that rejects the request: its key is
    /// banned or owes too much, or its charge would be rejected after others were charged. The first entry is not
    /// peeked at, since nothing has to be refunded if its charge is rejected. Shadows are not peeked at, since they
    /// reject nothing.
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

    /// Peeks at all undecided entries of a rejected request, since the response advertises the longest wait of all
    /// policies. The request may have waited, so the policies [in force now](Scope::current) are asked.
    #[cold]
    pub(super) fn peek_undecided<D: Decide>(&mut self, scope: Scope<'_, D>) {
        // A cost that was spent already rejects nothing.
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
        let is_open_ended = scope.in_force.is_open_ended();
        loop {
            if let Some(formula) = scope.in_force.formula.as_ref().filter(|_| known_answer.is_none()) {
                if let Err(cause) = self.choose_next(scope, formula) {
                    return TransactionProgress::Done(Err(Box::new(self.roll_back(scope, cause))));
                }
            }
            let Some(entry) = self.entries.get_mut(self.next) else { break };
            let policy = scope.policy(entry);
            let answer = match known_answer.take() {
                Some(answer) => answer,
                // Such a policy is charged before the first wait, so its heir after a live change is not looked up:
                // `Scope::current` has the details, and one exception.
                None if policy.answers_at_once() && !entry.fell_back => {
                    policy.limiter.decide(&entry.ask(&self.context))
                }
                None => match self.charge(scope) {
                    EntryCharge::One(answer) => answer,
                    EntryCharge::Several(pending) => return TransactionProgress::Several(pending),
                    EntryCharge::Members(members, pending) => return TransactionProgress::Members(members, pending),
                },
            };
            match answer {
                // The common case: admitted.
                Answer::Ready(Ok(decision)) if decision.is_allowed() => {
                    let entry = &mut self.entries[self.next];
                    entry.admit(policy, decision, is_open_ended);
                    if !entry.fell_back {
                        policy.report_health(None);
                    }
                    self.next += 1;
                }
                // Not all of a cost that was spent already fits.
                Answer::Ready(Ok(rejection)) if self.entries[self.next].mode == Mode::UpTo => {
                    let entry = &mut self.entries[self.next];
                    entry.admit(policy, used_up(&rejection), is_open_ended);
                    if !entry.fell_back {
                        policy.report_health(None);
                    }
                    self.next += 1;
                }
                Answer::Ready(result) => match self.resolve(scope, result) {
                    Resolution::Continue => self.next += 1,
                    Resolution::FallBack => {}
                    Resolution::RollBack(cause) if scope.in_force.formula.is_some() => self.pass_over(cause),
                    Resolution::RollBack(cause) => {
                        return TransactionProgress::Done(Err(Box::new(self.roll_back(scope, cause))));
                    }
                },
                Answer::Pending(pending) => return TransactionProgress::One(pending),
            }
        }
        // All entries are charged: commit.
        scope.note_committed(&mut self.entries);
        if is_open_ended {
            self.entries.iter_mut().for_each(PolicyEntry::admit_attempt);
            if OpenRequest::is_needed(scope, &self.entries) {
                let open = OpenRequest::new(scope, std::mem::take(&mut self.entries));
                return TransactionProgress::Done(Ok(Admitted::Open(D::open(open))));
            }
        }
        TransactionProgress::Done(Ok(scope.annotate(&self.entries, scope.verdict(&self.entries))))
    }

    /// Charges the next entry, if its limiter does not decide at once: by itself, or in one call with the later entries
    /// of the same store.
    #[inline(never)]
    fn charge<D: Decide>(&mut self, scope: Scope<'_, D>) -> EntryCharge {
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
        // Charged by the last batch already.
        if let Some(answer) = self.answers.pop() {
            return EntryCharge::One(Answer::Ready(answer));
        }
        // Perhaps a free retry: the limiter finds that out in a call of its own.
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
                    // The entry moves right behind the entries of the batch so far, so that the batch stays together.
                    self.entries[self.next + others.len()..=index].rotate_right(1);
                }
            }
            if !others.is_empty() {
                return EntryCharge::Several(first.decide_all(others));
            }
        }
        EntryCharge::One(policy.limiter.decide(&self.entries[self.next].ask(&self.context)))
    }

    /// Stores the answers of a batch. All decisions are set before the first is acted on, since a rejection names every
    /// policy that rejects. The first rejection, with its entry, moves to the front: otherwise, a request that one
    /// policy rejects could be answered with the failure of another.
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

    /// Determines the consequence of a rejection or a failure of the next entry.
    #[cold]
    fn resolve<D: Decide>(&mut self, scope: Scope<'_, D>, answer: Result<Decision, LimiterError>) -> Resolution {
        let entry = &mut self.entries[self.next];
        let policy = scope.policy(entry);
        // The operator has closed the limiter, so that its requests are rejected. That is no failure: it is not counted
        // as one, and the failure mode does not apply.
        let is_closed = answer.as_ref().is_err_and(LimiterError::is_closed);
        // A fallback says nothing about the health of the limiter, whose failure was reported before.
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

    /// Records the rejection or the failure of the next entry, if there are alternatives.
    pub(super) fn reject_next<D: Decide>(&mut self, scope: Scope<'_, D>, answer: Result<Decision, LimiterError>) {
        if let Resolution::RollBack(cause) = self.resolve(scope, answer) {
            self.pass_over(cause);
        }
    }

    /// Refunds the charges made so far, the last one first: see [`Receipt`](crate::values::Receipt).
    #[cold]
    pub(super) fn roll_back<D: Decide>(&mut self, scope: Scope<'_, D>, cause: Cause) -> Rejected<D> {
        // Of all entries, not only those before `next`: a batch may have charged later ones.
        self.entries.iter_mut().rev().for_each(|entry| scope.take_back(entry));
        match cause {
            Cause::Rejected => {
                // The precheck was earlier: waits are advertised as of now, and by the policies of now.
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

/// The decision on a cost that was spent already, if not all of it fits: the key has nothing left.
#[cold]
fn used_up(rejection: &Decision) -> Decision {
    Decision::allow(rejection.limit(), 0).with_reset_after(rejection.reset_after())
}

/// The charge of one entry, or of several in one call.
enum EntryCharge {
    One(Answer),
    Several(PendingAnswers),
    Members(Vec<usize>, PendingMembers),
}

/// The consequence of a rejection or a failure of one entry.
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
