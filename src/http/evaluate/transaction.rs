//! Reserves all entries, or none.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::entry::{Entries, Entry, Moment};
use super::settlement::Settlement;
use super::{Annotations, Evaluated, Scope, observe};
use crate::http::policy::Fate;
use crate::http::policy::{FailureMode, Policy};
use crate::http::reload::Successor;
use crate::values::{Answers, Check, Claim, Decision, LimiterError, Now, Pending, Receipt};

/// The entries of a request, reserved up to `next`. Dropped in the middle, it leaves them charged: a request that
/// was cancelled while it waited has cost what it cost.
#[derive(Default)]
pub(super) struct Transaction {
    pub(super) entries: Entries,
    pub(super) next: usize,
    pub(super) moment: Moment,
    /// To the entries from `next` on, as far as they were decided together. In reverse, the first one last.
    answers: Answers,
}

/// How far a transaction has come.
pub(super) enum Progress {
    Done(Evaluated),
    One(Pending),
    /// The answers to several entries at once.
    Several(Pin<Box<dyn Future<Output = Answers> + Send>>),
}

impl Transaction {
    pub(super) fn within(patience: Option<Duration>) -> Self {
        Self { moment: Moment { patience, ..Moment::default() }, ..Self::default() }
    }

    /// Whether an entry would be rejected after others were charged, or a key is banned. The entry that is charged first is not
    /// peeked at: its charge is all or none by itself. Nor are shadows, which reject nothing.
    #[inline]
    pub(super) fn would_be_rejected(&self, scope: Scope<'_>) -> bool {
        self.entries.iter().enumerate().any(|(index, entry)| {
            let policy = scope.policy(entry);
            entry.ban.is_some() || (index > 0 && !policy.is_shadow() && policy.would_reject(&entry.ask(&self.moment)))
        })
    }

    /// Peeks at all entries on which nothing was decided, for a request that is rejected: the wait is the longest of all.
    #[cold]
    pub(super) fn foresee(&mut self, scope: Scope<'_>) {
        let undecided = |entry: &&mut Entry| entry.decision.is_none() && !scope.policy(entry).is_shadow();
        for entry in self.entries.iter_mut().filter(undecided) {
            entry.precheck(scope.policy(entry), &self.moment);
        }
    }

    /// Charges entry after entry, up to what must be waited for, or to the end. `answer` is that to the next entry, if it was
    /// charged already.
    #[inline]
    pub(super) fn reserve(&mut self, scope: Scope<'_>, mut answer: Option<Check>) -> Progress {
        while let Some(entry) = self.entries.get_mut(self.next) {
            let policy = scope.policy(entry);
            let check = match answer.take() {
                Some(check) => check,
                None if policy.answers_at_once() => policy.limiter().decide(&entry.ask(&self.moment)),
                None => match self.charge(scope) {
                    Charge::One(check) => check,
                    Charge::Several(pending) => return Progress::Several(pending),
                },
            };
            match check {
                // By far the most.
                Check::Ready(Ok(decision)) if decision.is_allowed() => {
                    let entry = &mut self.entries[self.next];
                    entry.decision = Some(decision);
                    if !entry.fell_back {
                        policy.report_health(None);
                    }
                    self.next += 1;
                }
                Check::Ready(checked) => match self.take(scope, checked) {
                    Taken::Passes => self.next += 1,
                    Taken::FallsBack(check) => answer = Some(check),
                    Taken::Ends(end) => return Progress::Done(Err(Box::new(self.roll_back(scope, end)))),
                },
                Check::Pending(pending) => return Progress::One(pending),
            }
        }
        Progress::Done(Ok(self.commit(scope)))
    }

    /// Charges the next entry where that is more than to ask a limiter that answers at once.
    #[inline(never)]
    fn charge(&mut self, scope: Scope<'_>) -> Charge {
        if let Some(answer) = self.answers.pop() {
            return Charge::One(Check::Ready(answer));
        }
        let entry = &self.entries[self.next];
        let policy = scope.heir_of(scope.policy(entry));
        if scope.policy(entry).is_shadow() {
            return Charge::One(policy.charge_as_shadow(&entry.ask(&self.moment)));
        }
        if let Some(pending) = self.charge_together(scope) {
            return Charge::Several(pending);
        }
        Charge::One(policy.limiter().decide(&self.entries[self.next].ask(&self.moment)))
    }

    /// Has the next entry decided together with those after it whose limiters are in the same store, and puts them
    /// right behind it; `None` if there are no others.
    fn charge_together(&mut self, scope: Scope<'_>) -> Option<Pin<Box<dyn Future<Output = Answers> + Send>>> {
        if self.next + 1 == self.entries.len() {
            return None;
        }
        let claim = |entry: &Entry| -> Option<Box<dyn Claim>> {
            let policy = scope.policy(entry);
            let batches = policy.description().batches().filter(|_| !policy.is_shadow());
            batches?.claim(&entry.key, entry.cost)
        };
        let first = claim(&self.entries[self.next])?;
        let mut others = Vec::new();
        for index in self.next + 1..self.entries.len() {
            if let Some(other) = claim(&self.entries[index]).filter(|other| other.store() == first.store()) {
                others.push(other);
                self.entries[self.next + others.len()..=index].rotate_right(1);
            }
        }
        if others.is_empty() { None } else { Some(first.decide_all(others)) }
    }

    /// A rejection is to name all that reject, so all decisions are noted before the first is acted on. That one is acted on
    /// first, so that a client that one policy rejects does not hear that another failed.
    pub(super) fn take_answers(&mut self, mut answers: Answers) {
        let entries = &mut self.entries[self.next..];
        for (entry, answer) in entries.iter_mut().zip(&answers) {
            entry.decision = answer.as_ref().ok().copied();
        }
        if let Some(rejected) = entries.iter().position(Entry::is_rejected) {
            entries[..=rejected].rotate_right(1);
            answers[..=rejected].rotate_right(1);
        }
        answers.reverse();
        self.answers = answers;
    }

    /// Takes an answer that does not simply admit the entry whose turn it was.
    #[cold]
    fn take(&mut self, scope: Scope<'_>, answer: Result<Decision, LimiterError>) -> Taken {
        let entry = &mut self.entries[self.next];
        let policy = scope.policy(entry);
        let is_closed = answer.as_ref().is_err_and(LimiterError::is_closed);
        if !entry.fell_back && !is_closed {
            policy.report_health(answer.as_ref().err());
            if answer.is_err() {
                policy.count_failure();
            }
        }
        let error = match answer {
            Ok(decision) => {
                entry.decision = Some(decision);
                if policy.is_shadow() {
                    policy.count_shadow_denial();
                    return Taken::Passes;
                }
                return Taken::Ends(End::Rejected);
            }
            Err(error) => error,
        };
        if policy.is_shadow() || (policy.failure_mode() == FailureMode::Allow && !is_closed) {
            policy.note(Fate::StoreError, Some(&entry.key), None);
            return Taken::Passes;
        }
        if policy.failure_mode() == FailureMode::LocalFallback && !entry.fell_back && !is_closed {
            entry.fell_back = true;
            let guard = scope.heir_of(policy).fall_back(&entry.ask(&self.moment));
            return Taken::FallsBack(guard.unwrap_or(Check::Ready(Err(error))));
        }
        policy.note(Fate::StoreError, Some(&entry.key), None);
        Taken::Ends(End::Failed(error))
    }

    /// All entries are charged.
    fn commit(&mut self, scope: Scope<'_>) -> Annotations {
        observe::committed(&scope.in_force.policies, &self.entries);
        if self.entries.iter().any(|entry| scope.policy(entry).settles_later()) {
            return Annotations::unsettled(Settlement::of(scope, std::mem::take(&mut self.entries)));
        }
        scope.annotate(&self.entries)
    }

    /// Refunds the charges made so far, the last one first: see [`Receipt`].
    #[cold]
    fn roll_back(&mut self, scope: Scope<'_>, end: End) -> super::Rejected {
        for entry in self.entries.iter().rev() {
            // Those decided together may have been charged, although their turn has not come.
            if let Some(decision) = entry.charged() {
                scope.refund(entry, decision.receipt(), entry.cost);
            }
        }
        match end {
            End::Rejected => {
                // Later than when they were peeked at.
                self.moment.now = Now::new();
                self.foresee(scope);
                scope.reject(&mut self.entries)
            }
            End::Failed(error) => {
                let policy = scope.policy(&self.entries[self.next]);
                scope.fail(policy, &error, &mut self.entries)
            }
        }
    }
}

enum Charge {
    One(Check),
    Several(Pin<Box<dyn Future<Output = Answers> + Send>>),
}

enum Taken {
    /// The entry does not keep the request out.
    Passes,
    /// What this process knows alone decides in its place.
    FallsBack(Check),
    Ends(End),
}

/// Why a transaction is rolled back.
enum End {
    Rejected,
    Failed(LimiterError),
}

impl<'a> Scope<'a> {
    /// Refunds a part of what an entry was charged.
    pub(super) fn refund(self, entry: &Entry, receipt: Receipt, cost: u32) {
        self.heir_of(self.policy(entry)).limiter().refund(&entry.key, receipt, cost);
    }

    /// The policy that is to be asked now in place of `policy`: the one that inherited from it, if there was a change since the
    /// request came. So a slow request neither uses nor wipes what the limiter of before still knows.
    pub(super) fn heir_of(self, policy: &'a Policy) -> Heir<'a> {
        self.limits.successor(self.in_force, policy).map_or(Heir::Itself(policy), Heir::Successor)
    }
}

/// See [`Scope::heir_of`].
pub(super) enum Heir<'a> {
    Itself(&'a Policy),
    Successor(Successor),
}

impl std::ops::Deref for Heir<'_> {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        match self {
            Self::Itself(policy) => policy,
            Self::Successor(successor) => successor,
        }
    }
}
