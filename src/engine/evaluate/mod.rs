//! Evaluates a request: asks a layer's policies, and charges either all that apply or no policy.
//!
//! In general, an evaluation is a [transaction], with four steps:
//!
//! 1. **Prepare**: each policy that applies makes an [entry](entry::PolicyEntry): a key, a cost, and the key's ban, if
//!    any.
//! 2. **Precheck**: every enforced entry except for the first is peeked at, if its limiter can be. (If the first charge
//!    is rejected, there is nothing to refund.) If an entry would be rejected, nothing is charged. Instead, the others
//!    are peeked at as well, and the request is [rejected] with the [longest
//!    wait](crate::http::reject::Rejection::limit_exceeded).
//! 3. **Reserve**: the entries are charged in turn, and those that are hard to refund come late. Limiters in memory
//!    come first. Then come servers, each in one call for all its entries (an entry that may be a free retry is charged
//!    by itself). Then come queues, so that no request waits only to be rejected, and last come shadows, which see only
//!    admitted requests.
//! 4. **Commit**, or **roll back**: a concurrent request may have used up the units that the precheck saw. If a charge
//!    is rejected for that reason, the charges made so far are refunded, the last one first.
//!
//! If there are [alternatives], a formula says which entries have to admit the request. Its choice is prechecked and
//! charged. If an entry rejects the request, the formula chooses others, and steps 2 and 3 are repeated. The
//! transaction is rolled back only if there is no choice left.
//!
//! If all policies are *plain*, which means that their limiters alone decide ([`InForce::is_plain`]), fast paths take
//! the common cases: one policy in [`evaluate()`], several in [`several`]. Another fast path, in [`held_request`], is
//! for a single policy whose requests hold units. In all other cases, the evaluation goes on as a transaction, from the
//! answers that it has.
//!
//! All but [`evaluate()`] is the layer's [longer path](LongerPath). A program whose layers never take it is not linked
//! with it.
//!
//! All entries are decided at [one instant](crate::values::Now). After a wait, the next entries are decided at a later
//! one. Decisions are [counted](observe) in one place, and become response [annotations] in another. Both work with the
//! decisions that were made, and never call a limiter. After the response, limiters are called only to settle [open
//! requests](open_request), whose charges depend on it.
//!
//! If a limiter fails, that is not a rejection: the policy's failure mode decides on the request.

mod alternatives;
mod annotations;
mod decide;
mod entry;
mod held_request;
mod observe;
mod open_request;
mod rejected;
mod scope;
mod several;
#[cfg(test)]
mod tests;
mod transaction;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::decide::Decide;
use self::entry::{Entries, NoKey, PolicyEntry};
pub(crate) use self::open_request::OpenRequest;
use self::scope::Scope;
use self::transaction::{Transaction, TransactionProgress};
use self::waiting::WaitingRequest;
use crate::engine::key::MarkIndex;
use crate::engine::outcome::{Admitted, Evaluation, Rejected};
use crate::engine::policy::{Fate, Policy};
use crate::engine::reload::{AskedOnce, InForce, LayerState, LongerPath};
use crate::engine::translate::Reading;
use crate::values::{Answer, Ask, Mode};

/// Evaluates a subject by the policies in force. If the only policy is plain and rejects the subject, `reject` makes
/// the rejection with [`reject_plain`].
///
/// This is the hot path for a single plain policy, which most layers have. Its charge does not need a transaction. All
/// other requests take the layer's [longer path](LongerPath::WHOLE), which this function must not name: see
/// [`LongerPath`].
#[inline]
pub(crate) fn evaluate<D: Decide>(
    layer: &Arc<LayerState<D>>,
    in_force: &Arc<InForce<D>>,
    head: &D::Subject<'_>,
    reject: impl FnOnce(Reading<'_>) -> Evaluation<D>,
) -> Evaluation<D> {
    let scope = Scope { layer, in_force };
    let policy = match (&*in_force.policies, in_force.is_plain()) {
        ([policy], true) => policy,
        (policies, true) => return (layer.longer_path().several)(layer, in_force, policies, head),
        ([policy], false) if in_force.is_held() => return (layer.longer_path().held)(layer, in_force, policy, head),
        _ => return (layer.longer_path().transaction)(layer, in_force, head),
    };
    // Borrow the key and the decision, because each is as large as a cache line.
    if !policy.applies_to(head) {
        return scope.admit_skipped(policy);
    }
    let extracted = policy.selector.key.extract(head);
    // Assigned only if the request does not have a key, and the policy provides one. Declared here, so that `key` can
    // borrow it.
    let substitute_key;
    let key = match &extracted {
        Ok(key) => {
            policy.note_key(key);
            key
        }
        Err(error) => match entry::without_key(policy, error) {
            Ok(key) => {
                substitute_key = key;
                &substitute_key
            }
            Err(NoKey::Skipped) => return Evaluation::Admitted(scope.annotate_undecided()),
            Err(NoKey::Rejected(rejection)) => return Evaluation::Rejected(Rejected::undecided(*rejection)),
        },
    };
    let cost = policy.cost_of(head);
    let quota = policy.quota_of(head, key);
    let patience = scope.patience(head);
    let answer = policy.limiter.decide(&Ask::charge(key, cost).under(quota).within(patience));
    if let Answer::Ready(Ok(decision)) = &answer {
        let decided = Reading { policy: 0, key, quota, decision };
        if decision.is_allowed() {
            policy.report_health(None);
            policy.note(Fate::from_admission(decision), Some(key), Some(decision));
            return scope.admit_plain(std::iter::once(decided));
        }
        if decision.ban().is_none() {
            policy.report_health(None);
            return reject(decided);
        }
    }
    // For a ban that a server keeps, a failure, or a wait, a transaction goes on from this answer.
    let asked = AskedOnce { key: key.clone(), cost, quota, patience, answer };
    (layer.longer_path().go_on)(layer, in_force, head, asked)
}

impl<D: Decide> LongerPath<D> {
    /// The longer path for all layers that have one.
    pub(crate) const WHOLE: &'static Self = &Self {
        several: |layer, in_force, policies, head| Scope { layer, in_force }.evaluate_several(policies, head),
        held: |layer, in_force, policy, head| Scope { layer, in_force }.evaluate_held(policy, head),
        transaction: |layer, in_force, head| {
            let scope = Scope { layer, in_force };
            scope.evaluate_transaction(Transaction::with_patience(scope.patience(head)), None, head)
        },
        go_on: |layer, in_force, head, AskedOnce { key, cost, quota, patience, answer }| {
            let mut transaction = Transaction::with_patience(patience);
            transaction.entries.push(PolicyEntry::new(0, key, cost, quota));
            Scope { layer, in_force }.evaluate_transaction(transaction, Some(answer), head)
        },
        note_offender: observe::note_offender,
        respond_alike: |layer, in_force, (key, quota, decision), head| {
            let decided = Reading { policy: 0, key, quota, decision };
            Scope { layer, in_force }.respond_alike(decided, head)
        },
        index_marks: |policies| MarkIndex::new(policies.iter().map(|policy| &*policy.selector.key)),
    };
}

/// Rejects a subject by the only policy.
#[inline(always)]
pub(crate) fn reject_plain<D: Decide>(
    layer: &Arc<LayerState<D>>,
    in_force: &Arc<InForce<D>>,
    decided: Reading<'_>,
    head: &D::Subject<'_>,
    finish: impl FnOnce(Rejected<D>) -> Evaluation<D>,
) -> Evaluation<D> {
    Scope { layer, in_force }.respond_plain(&in_force.policies[decided.policy], decided, head, finish)
}

/// Admits a subject that is exempt from all policies.
#[cold]
pub(crate) fn admit_exempt<D: Decide>(layer: &Arc<LayerState<D>>, in_force: &Arc<InForce<D>>) -> Admitted<D> {
    in_force.policies.iter().for_each(|policy| policy.note(Fate::Skipped, None, None));
    Scope { layer, in_force }.annotate_undecided()
}

impl<D: Decide> Scope<'_, D> {
    /// Admits a request to which the only policy does not apply.
    #[cold]
    fn admit_skipped(self, policy: &Policy<D>) -> Evaluation<D> {
        entry::note_skipped(policy);
        Evaluation::Admitted(self.annotate_undecided())
    }

    /// Evaluates a request as a transaction. Without an `answer`, it begins with the first step, and the transaction
    /// must not have entries. With an `answer`, which belongs to the next entry, the entries exist already, and the
    /// third step goes on from it.
    #[inline(never)]
    fn evaluate_transaction(
        self,
        mut transaction: Transaction,
        answer: Option<Answer>,
        head: &D::Subject<'_>,
    ) -> Evaluation<D> {
        if answer.is_none() {
            if let Err(rejection) = self.prepare(&mut transaction.entries, head) {
                return Evaluation::Rejected(Rejected::undecided(*rejection));
            }
            if !transaction.precheck(self) {
                return self.reject_prechecked(transaction);
            }
        }
        match transaction.reserve(self, answer) {
            TransactionProgress::Done(Ok(annotations)) => Evaluation::Admitted(annotations),
            TransactionProgress::Done(Err(rejected)) => Evaluation::Rejected(*rejected),
            progress => Evaluation::Pending(Box::pin(WaitingRequest::new(transaction, progress, self))),
        }
    }

    /// Rejects a request that failed the precheck. Nothing has been charged.
    #[cold]
    fn reject_prechecked(self, mut transaction: Transaction) -> Evaluation<D> {
        transaction.peek_undecided(self);
        Evaluation::Rejected(self.reject(&mut transaction.entries))
    }

    /// Makes the entries for all policies that apply. A policy with marks is looked at only if the request has its
    /// marks. Returns the rejection if the request lacks a key that it must have.
    #[inline]
    fn prepare(self, entries: &mut Entries, head: &D::Subject<'_>) -> Result<(), Box<D::Rejection>> {
        self.in_force.look_for_overrides();
        let by_marks = self.in_force.by_marks(LongerPath::WHOLE);
        let concerned = by_marks.and_then(|by_marks| by_marks.find(D::marks(&self.layer.settings.own, head)));
        if let Some(concerned) = concerned {
            return concerned.into_iter().try_for_each(|index| self.prepare_policy(entries, index, head));
        }
        (0..).zip(&self.in_force.policies).try_for_each(|(index, _)| self.prepare_policy(entries, index, head))
    }

    /// Makes a policy's entry, if it applies.
    #[inline]
    fn prepare_policy(self, entries: &mut Entries, index: u32, head: &D::Subject<'_>) -> Result<(), Box<D::Rejection>> {
        let policy = &self.in_force.policies[index as usize];
        if policy.selector.has_several_keys {
            return self.prepare_several(entries, index, policy, head);
        }
        match entry::key(policy, head) {
            Ok(key) => {
                let ban = policy.exception_before_limiter(&key);
                if ban.is_some_and(|exception| !exception.is_ban) {
                    entry::note_skipped(policy);
                    if self.in_force.formula.is_some() {
                        entries.push(PolicyEntry::allowed_by_hand(index, key));
                    }
                    return Ok(());
                }
                // Two calls of `push`, so that an entry in the common case is built in its place in `entries`.
                if self.in_force.is_open_ended() {
                    let entry = PolicyEntry::open_ended(index, policy, key, head);
                    entries.push(PolicyEntry { ban, ..entry });
                } else {
                    let cost = policy.cost_of(head);
                    let quota = policy.quota_of(head, &key);
                    entries.push(PolicyEntry { ban, ..PolicyEntry::new(index, key, cost, quota) });
                }
                Ok(())
            }
            Err(NoKey::Skipped) => Ok(()),
            Err(NoKey::Rejected(rejection)) => Err(rejection),
        }
    }

    /// Makes an entry for each key, under a policy for which a request may have several.
    #[cold]
    fn prepare_several(
        self,
        entries: &mut Entries,
        index: u32,
        policy: &Policy<D>,
        head: &D::Subject<'_>,
    ) -> Result<(), Box<D::Rejection>> {
        let charges = match entry::charges(policy, head) {
            Ok(charges) => charges,
            Err(NoKey::Skipped) => return Ok(()),
            Err(NoKey::Rejected(rejection)) => return Err(rejection),
        };
        let mut is_skipped = true;
        for charge in charges {
            let ban = policy.exception_before_limiter(&charge.key);
            if ban.is_some_and(|exception| !exception.is_ban) {
                continue;
            }
            // A cost that was spent already is counted in any case.
            let ban = ban.filter(|_| charge.mode != Mode::UpTo);
            is_skipped = false;
            let cost = charge.cost.unwrap_or_else(|| policy.cost_of(head));
            let quota = policy.quota_of_charge(head, &charge);
            let mode = charge.mode;
            entries.push(PolicyEntry { ban, mode, ..PolicyEntry::new(index, charge.key, cost, quota) });
        }
        if is_skipped {
            entry::note_skipped(policy);
        }
        Ok(())
    }

    /// The time that the client is willing to wait, if it sends one and a policy may delay the request.
    #[inline]
    fn patience(self, head: &D::Subject<'_>) -> Option<Duration> {
        if self.in_force.delays { D::patience(head) } else { None }
    }
}
