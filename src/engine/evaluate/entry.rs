//! Entries: one policy's part in one request.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::decide::Decide;
use super::scope::Scope;
use crate::engine::key::{KeyCharge, KeyError};
use crate::engine::policy::{Attempt, DebtCharge, Fate, MissingKey, Policy, Precedence, Share};
use crate::limiter::hold::Hold;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Answer, Ask, Claim, Decision, Exception, Mode, Now, PartitionKey, Quota, Receipt, Retry};

/// A policy's part in one request: the key, the cost, and the limiter's decision.
pub(super) struct PolicyEntry {
    pub(super) key: PartitionKey,
    /// The key's ban, if it is banned.
    pub(super) ban: Option<Exception>,
    pub(super) decision: Option<Decision>,
    /// The policy's index.
    pub(super) policy: u32,
    pub(super) cost: u64,
    /// The key's own quota, looked up once. `None` if the policy's quota applies.
    pub(super) quota: Option<Quota>,
    /// Whether the limiter failed, and the local fallback decides.
    pub(super) fell_back: bool,
    /// `Charge`, or `Peek` if the request only checks whether its cost fits, or `UpTo` if its cost was spent already.
    pub(super) mode: Mode,
    pub(super) progress: Progress,
    /// The greatest share that the charge has crossed, if the policy reports crossings.
    pub(super) crossed: Option<Share>,
    /// Boxed because few entries have a stake.
    pub(super) stake: Option<Box<Stake>>,
}

/// How far an entry has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not charged yet, or the charge was refunded. A batch stores its answer in `decision` before that is acted on.
    #[default]
    Uncharged,
    /// Peeked at because the request is rejected. Nothing was charged.
    Previewed,
    /// Charged. Under a shadow also: rejected, counted, and let through.
    Charged,
    /// [`Charged`](Self::Charged), and the response will settle the charge.
    Open,
    /// Passes without a charge, because its key is allowed by hand, or because its limiter fails and the policy fails
    /// open.
    Exempt,
    /// The policy has no room, or cannot decide and fails closed. Set only if there are alternatives. Otherwise the
    /// entry's `decision` alone has the rejection.
    Rejected,
    /// [`Rejected`](Self::Rejected), but an alternative was charged.
    PassedOver,
}

/// The parts beside its charge that an entry has if the policy is [open-ended](Policy::is_open_ended). Dropping it
/// releases, or takes back, the parts that are left.
#[derive(Default)]
pub(super) struct Stake {
    /// The limiter's units that the request holds, from its admission on.
    hold: Option<Hold>,
    /// The charge to the key's debt, or the time that the request has to wait if the key owes too much.
    debt: Option<Result<DebtCharge, Duration>>,
    /// Present if the request has an idempotency key, and the policy charges a request once with all its retries.
    attempt: Option<Attempt>,
    /// The precedence among requests that wait in a limiter that sheds, unless it is the usual one.
    precedence: Option<Precedence>,
}

/// Two entries are stored inline, for example for a short and a long limit, or for one per client and one for all.
pub(super) type Entries = SmallVec<[PolicyEntry; 2]>;

/// The parts that a request's entries share in each [`Ask`].
#[derive(Default)]
pub(super) struct AskContext {
    pub(super) now: Now,
    /// The time that the client is willing to wait, if it sends one and a policy may delay the request.
    pub(super) patience: Option<Duration>,
}

/// The reason why a policy does not make an entry for a request.
pub(super) enum NoKey<R> {
    /// The policy does not apply.
    Skipped,
    /// The request lacks the key.
    Rejected(Box<R>),
}

/// Extracts the key that a policy charges, if it applies.
#[inline]
pub(super) fn key<D: Decide>(policy: &Policy<D>, head: &D::Subject<'_>) -> Result<PartitionKey, NoKey<D::Rejection>> {
    if !policy.applies_to(head) {
        note_skipped(policy);
        return Err(NoKey::Skipped);
    }
    let key = policy.selector.key.extract(head).inspect(|key| policy.note_key(key));
    key.or_else(|error| without_key(policy, &error))
}

/// Extracts the keys that a policy charges, if it applies and a request may have several.
pub(super) fn charges<D: Decide>(
    policy: &Policy<D>,
    head: &D::Subject<'_>,
) -> Result<Vec<KeyCharge>, NoKey<D::Rejection>> {
    if !policy.applies_to(head) {
        note_skipped(policy);
        return Err(NoKey::Skipped);
    }
    let charges = policy.selector.key.extract_all(head);
    let charges = charges.inspect(|charges| charges.iter().for_each(|charge| policy.note_key(&charge.key)));
    charges.or_else(|error| Ok(vec![KeyCharge::new(without_key(policy, &error)?)]))
}

/// Counts a request to which a policy does not apply.
#[cold]
pub(super) fn note_skipped<D: Decide>(policy: &Policy<D>) {
    policy.note(Fate::Skipped, None, None);
}

/// The key in place of the missing one, if the policy's [`MissingKey`] provides one.
#[cold]
pub(super) fn without_key<D: Decide>(
    policy: &Policy<D>,
    error: &KeyError,
) -> Result<PartitionKey, NoKey<D::Rejection>> {
    policy.note_missing_key(error);
    if let Some(key) = policy.selector.key_without(error) {
        return Ok(key);
    }
    let is_missing = matches!(error, KeyError::Missing { .. });
    // Shadows never reject, so they skip requests that they cannot count.
    if policy.shadow || (is_missing && policy.selector.on_missing_key == MissingKey::Skip) {
        note_skipped(policy);
        return Err(NoKey::Skipped);
    }
    policy.note(Fate::MissingKey, None, None);
    Err(NoKey::Rejected(Box::new(D::reject_without_key(error))))
}

impl PolicyEntry {
    /// An entry without a ban or a decision.
    #[inline]
    pub(super) const fn new(policy: u32, key: PartitionKey, cost: u64, quota: Option<Quota>) -> Self {
        Self {
            key,
            ban: None,
            decision: None,
            policy,
            cost,
            quota,
            fell_back: false,
            mode: Mode::Charge,
            progress: Progress::Uncharged,
            crossed: None,
            stake: None,
        }
    }

    /// An entry with a precedence.
    #[cold]
    pub(super) fn preceding(
        policy: u32,
        key: PartitionKey,
        cost: u64,
        quota: Option<Quota>,
        precedence: Option<Precedence>,
    ) -> Self {
        let stake = precedence.is_some().then(|| Box::new(Stake { precedence, ..Stake::default() }));
        Self { stake, ..Self::new(policy, key, cost, quota) }
    }

    /// The entry for a key that is allowed by hand.
    pub(super) fn allowed_by_hand(policy: u32, key: PartitionKey) -> Self {
        Self { progress: Progress::Exempt, ..Self::new(policy, key, 0, None) }
    }

    /// The entry for a request to an [open-ended](Policy::is_open_ended) policy. A retry costs nothing if it is known
    /// to be free before the limiter decides.
    #[cold]
    #[inline(never)]
    pub(super) fn open_ended<D: Decide>(
        index: u32,
        policy: &Policy<D>,
        key: PartitionKey,
        head: &D::Subject<'_>,
    ) -> Self {
        let cost = policy.cost_of(head);
        let quota = policy.quota_of(head, &key);
        let attempt = policy.billing.attempt(&Ask::charge(&key, cost).under(quota), head);
        let cost = if attempt.as_ref().is_some_and(Attempt::is_free) { 0 } else { cost };
        let debt = policy.charge_debt(&key, cost, quota).transpose();
        let precedence = policy.precedence_of(head);
        let is_needed = attempt.is_some() || debt.is_some() || precedence.is_some();
        let stake = is_needed.then(|| Box::new(Stake { debt, attempt, precedence, hold: None }));
        Self { stake, ..Self::new(index, key, cost, quota) }
    }

    #[inline]
    pub(super) fn policy_of<'a, D: Decide>(&self, policies: &'a [Policy<D>]) -> &'a Policy<D> {
        &policies[self.policy as usize]
    }

    /// The question that charges the entry, or peeks at it.
    #[inline]
    pub(super) fn ask<'a>(&'a self, context: &'a AskContext) -> Ask<'a> {
        let ask = Ask::charge(&self.key, self.cost).under(self.quota).within(context.patience).at(&context.now);
        let ask = ask.to(self.mode);
        match self.stake.as_ref().and_then(|stake| stake.precedence) {
            Some(precedence) => precedence.of(ask),
            None => ask,
        }
    }

    /// The entry's part in a call for several entries, if it can be in one.
    pub(super) fn claim<D: Decide>(&self, scope: Scope<'_, D>, context: &AskContext) -> Option<Box<dyn Claim>> {
        let policy = scope.policy(self);
        if policy.shadow || self.fell_back || self.may_be_free() || self.mode != Mode::Charge {
            return None;
        }
        scope.current(policy).description.batches()?.claim(&self.ask(context))
    }

    /// Records that the limiter has admitted and charged the request.
    #[inline]
    pub(super) fn admit<D: Decide>(&mut self, policy: &Policy<D>, admission: Decision, is_open_ended: bool) {
        self.decision = Some(admission);
        self.progress = Progress::Charged;
        if self.mode != Mode::Charge {
            self.keep(policy);
            return;
        }
        if is_open_ended {
            self.begin(policy, &admission);
        }
    }

    /// Records an admission that is never refunded: a `Peek` has charged nothing, and the units of `UpTo` are spent.
    #[cold]
    fn keep<D: Decide>(&mut self, policy: &Policy<D>) {
        if self.mode == Mode::Peek {
            self.uncharge(policy);
            // If the request is rejected, its cost is added back to the remaining units, but a peek has charged
            // nothing.
            self.cost = 0;
        }
    }

    /// Records that an [open-ended](Policy::is_open_ended) policy's limiter has admitted the request: from now on the
    /// request holds its units, and its charge to the key's debt stays.
    #[cold]
    fn begin<D: Decide>(&mut self, policy: &Policy<D>, admission: &Decision) {
        if policy.description.holds() {
            let mut hold = Hold::new(Arc::clone(&policy.limiter), &self.key, admission, self.cost);
            // This end applies until all policies admit the request: if one rejects it, or it is cancelled while it
            // waits for one, it was never served.
            hold.end_as(None);
            self.stake.get_or_insert_default().hold = Some(hold);
        }
        if policy.description.sheds() {
            policy.note_not_shed();
        }
        if let Some(Ok(debt)) = self.debt_mut() {
            debt.keep();
        }
        if admission.receipt().is_free_retry() {
            self.make_free(admission);
        }
        if policy.has_debts() {
            self.decision = self.decision.map(|decision| policy.after_debt(&self.key, self.quota, decision));
        }
    }

    /// Makes this the entry for a free retry, which costs nothing because the limiter has charged the budget for free
    /// retries.
    fn make_free(&mut self, admission: &Decision) {
        let cost = std::mem::take(&mut self.cost);
        if let Some(attempt) = self.attempt_mut() {
            attempt.found_free(cost, admission.receipt());
        }
        self.decision = Some(admission.with_receipt(Receipt::NONE));
    }

    /// Takes back the charge, except for units to refund: releases the units that the request holds, and ends its
    /// charge to the key's debt. Returns whether the request held units, in which case nothing is left to refund.
    pub(super) fn undo(&mut self) -> bool {
        if let Some(Ok(debt)) = self.debt_mut() {
            debt.take_back();
        }
        self.take_hold().is_some()
    }

    /// Takes the units that the request holds.
    pub(super) fn take_hold(&mut self) -> Option<Hold> {
        self.stake.as_mut()?.hold.take()
    }

    fn attempt(&self) -> Option<&Attempt> {
        self.stake.as_ref()?.attempt.as_ref()
    }

    fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        self.stake.as_mut()?.attempt.as_mut()
    }

    /// The request as a [`Retry`] for the limiter, if the limiter is to find out whether it is a free retry.
    fn retry(&self) -> Option<&Retry> {
        self.attempt()?.for_limiter()
    }

    /// Whether only a charge can determine that the request is not a free retry.
    pub(super) fn may_be_free(&self) -> bool {
        self.retry().is_some()
    }

    /// Charges the request, unless the policy's limiter finds that it is a free retry. If the limiter is not to look
    /// for one, does nothing and returns `None`.
    pub(super) fn charge_once<D: Decide>(&self, policy: &Policy<D>, context: &AskContext) -> Option<Answer> {
        let retry = self.retry()?;
        Some(policy.description.charges_once()?.decide(&self.ask(context), retry))
    }

    fn debt_mut(&mut self) -> Option<&mut Result<DebtCharge, Duration>> {
        self.stake.as_mut()?.debt.as_mut()
    }

    /// The time that the request has to wait, if its key owes too much.
    pub(super) fn debt_wait(&self) -> Option<Duration> {
        self.stake.as_ref()?.debt.as_ref()?.as_ref().err().copied()
    }

    /// The rejection for a request whose key owes too much, for a limiter that has made none.
    fn debt_rejection<D: Decide>(&self, policy: &Policy<D>) -> Option<Decision> {
        let limit = policy.description.max_cost().unwrap_or(0);
        self.debt_wait().map(|wait| Decision::reject(limit, 0, Some(wait)).with_reset_after(wait))
    }

    /// Charges a shadow, which counts a rejection instead if the key owes too much.
    pub(super) fn charge_shadow<D: Decide>(&self, policy: &Policy<D>, context: &AskContext) -> Answer {
        match self.debt_rejection(policy) {
            Some(rejection) => rejection.into(),
            None => policy.charge_as_shadow(&self.ask(context)),
        }
    }

    /// Records in the attempt that the request passes. The attempt is kept if it awaits the response.
    pub(super) fn admit_attempt(&mut self) {
        let is_charged = self.admission().is_some();
        if let Some(stake) = &mut self.stake {
            stake.attempt.take_if(|attempt| !attempt.admit(is_charged));
        }
    }

    /// Whether an attempt awaits the response's end.
    pub(super) fn awaits_retries(&self) -> bool {
        self.attempt().is_some()
    }

    /// Records that the charge was refunded, so that retries are charged.
    pub(super) fn void_attempt(&mut self) {
        if let Some(mut attempt) = self.stake.as_mut().and_then(|stake| stake.attempt.take()) {
            attempt.refunded();
        }
    }

    /// Whether the key's quota is suspended, so that the limiter rejects every request.
    fn is_suspended(&self) -> bool {
        self.quota.is_some_and(|quota| quota.is_suspended())
    }

    /// Whether the policy rejects the request, and no alternative was charged.
    pub(super) fn is_rejected(&self) -> bool {
        self.progress != Progress::PassedOver && self.decision.is_some_and(|decision| !decision.is_allowed())
    }

    /// Whether the response will settle the charge.
    pub(super) fn is_open(&self) -> bool {
        self.progress == Progress::Open
    }

    /// Whether the decision has nothing to refund, because a peek made it, or because the units of `UpTo` are spent.
    pub(super) fn is_preview(&self) -> bool {
        self.progress == Progress::Previewed || self.mode != Mode::Charge
    }

    /// The decision, if it admits the request, as a charge or as a [preview](Self::is_preview).
    pub(super) fn admission(&self) -> Option<&Decision> {
        self.decision.as_ref().filter(|decision| decision.is_allowed())
    }

    /// Rewrites the decision as if the first charge had been `cost`.
    pub(super) fn recharge<D: Decide>(&mut self, policy: &Policy<D>, cost: u64) {
        let terms = policy.terms_under(self.quota);
        self.decision = self.decision.map(|decision| decision.recharged(self.cost, cost, terms));
    }

    /// Rewrites the decision as if the entry had not been charged.
    pub(super) fn uncharge<D: Decide>(&mut self, policy: &Policy<D>) {
        if self.mode == Mode::UpTo {
            return;
        }
        if self.admission().is_some_and(|decision| self.is_preview() || decision.receipt() != Receipt::NONE) {
            self.recharge(policy, 0);
        }
    }

    /// Peeks, and returns `false` if the answer comes without waiting and predicts that the charge would be rejected.
    /// That decision is kept: if a charge is refunded meanwhile, a second peek might admit, and then no policy would
    /// have rejected the request.
    #[inline]
    pub(super) fn passes_precheck<D: Decide>(&mut self, policy: &Policy<D>, context: &AskContext) -> bool {
        match policy.peek(&self.ask(context)) {
            // Even for a key that is used up, the limiter may find a free retry.
            Some(rejection) if !rejection.is_allowed() && !self.may_be_free() => {
                self.preview(rejection);
                false
            }
            _ => true,
        }
    }

    /// Records a peek's decision.
    pub(super) fn preview(&mut self, decision: Decision) {
        self.decision = Some(decision);
        self.progress = Progress::Previewed;
    }

    /// Decides without charging, if the limiter can be peeked at without waiting.
    pub(super) fn peek<D: Decide>(&mut self, policy: &Policy<D>, context: &AskContext) {
        self.decision = policy.peek(&self.ask(context));
        self.progress = Progress::Previewed;
        if let Some(wait) = self.debt_wait() {
            let in_debt = self.decision.map(|decision| decision.banned_for(wait));
            self.decision = in_debt.or_else(|| self.debt_rejection(policy));
        }
        if let Some(ban) = self.ban {
            self.impose(policy, ban);
        }
    }

    /// Whether a balance's units suffice for the request now, but will have expired after `wait`. The decision has the
    /// time until they expire as its reset.
    pub(super) fn runs_out_within(&self, wait: Duration) -> bool {
        let lasts = self.admission().filter(|_| self.mode != Mode::UpTo).map(Decision::reset_after);
        lasts.is_some_and(|lasts| !lasts.is_zero() && lasts <= wait)
    }

    /// Makes the decision a rejection for good: no wait helps.
    pub(super) fn reject_for_good(&mut self) {
        self.decision = self.decision.map(|decision| Decision::reject(decision.limit(), decision.remaining(), None));
    }

    /// Handles a free retry that will be charged after `wait` because its record will have ended by then. If the charge
    /// would be rejected, the rejection becomes the decision. Returns whether the request is such a retry.
    pub(super) fn charge_after<D: Decide>(&mut self, policy: &Policy<D>, wait: Duration) -> bool {
        let Some(cost) = self.attempt_mut().and_then(|attempt| attempt.cost_after(wait)) else { return false };
        if let Some(stake) = &mut self.stake {
            // The request is rejected, so the free retry is not used up.
            stake.attempt = None;
        }
        let context = AskContext::default();
        let charged = policy.peek(&self.ask(&context).costing(cost));
        if let Some(rejection) = charged.filter(|charged| !charged.is_allowed()) {
            self.decision = Some(rejection);
        }
        true
    }

    /// Combines the decision with a ban. A suspended quota outlasts it.
    #[cold]
    pub(super) fn impose<D: Decide>(&mut self, policy: &Policy<D>, ban: Exception) {
        if self.is_suspended() {
            self.decision = Some(Decision::suspended());
            self.ban = None;
            return;
        }
        // If the limiter cannot be peeked at, take the wait that an earlier rejection advertised.
        let advised = || policy.penalty_for(&self.key)?.advised_for(&self.key);
        let unknown = || Decision::reject(policy.description.max_cost().unwrap_or(0), 0, advised().or(Some(ban.left)));
        self.decision = Some(self.decision.unwrap_or_else(unknown).banned(&ban));
        self.ban = Some(ban);
    }

    /// Whether refunding `units` may make room for the request. A queue takes back only its last waiter's charge.
    /// Refunds shorten a debt that this process keeps, but not one on a server.
    fn may_fit_after<D: Decide>(&self, policy: &Policy<D>, units: u64) -> bool {
        let owes_on_server = policy.billing.owes_shortfalls && policy.description.keeps_standing().is_some();
        let pays_debt = self.debt_wait().is_none_or(|wait| policy.pays_for(units, self.quota) >= wait);
        pays_debt && !owes_on_server && !policy.description.delays()
    }

    /// Records that the limiter has rejected the request. This may lead to a ban, or be due to charges that are about
    /// to be refunded.
    #[cold]
    pub(super) fn note_rejection<D: Decide>(&mut self, policy: &Policy<D>) {
        if self.ban.is_some() {
            return;
        }
        self.ban = self.decision.and_then(|decision| decision.ban());
        if let Some(ban) = self.ban {
            policy.remember_ban(&self.key, &ban);
            return;
        }
        if policy.billing.settles_later() && self.is_excused_by_refunds(policy) {
            return;
        }
        if let Some(ban) = self.decision.and_then(|rejection| policy.note_rejection(&self.key, &rejection)) {
            self.impose(policy, ban);
        }
    }

    /// Shortens the wait to the next refund, if refunds of open charges may make room for this request. Returns whether
    /// they also excuse the rejection, so that it must not lead to a ban.
    fn is_excused_by_refunds<D: Decide>(&mut self, policy: &Policy<D>) -> bool {
        let open_charges = policy.lineage.record.open_charges();
        let Some((refundable, soon)) = open_charges.expected(&self.key, Monotonic.now()) else { return false };
        let left = self.decision.map_or(0, |decision| decision.remaining());
        if left.saturating_add(refundable) < self.cost {
            return false;
        }
        if self.may_fit_after(policy, refundable) {
            self.decision = self.decision.map(|decision| decision.wait_at_most(soon));
        }
        open_charges.excuse(&self.key)
    }
}
