//! Open requests are admitted and not over. Their charges await settlement, they hold units in flight, or their retries
//! are [free](crate::ChargeOnce) once they are over.

use std::cmp;
use std::sync::Arc;
use std::time::Duration;

use super::decide::Decide;
use super::entry::{Entries, PolicyEntry, Progress};
use super::observe::{ChargeOf, note_crossings};
use super::scope::Scope;
use crate::engine::outcome::Admitted;
use crate::engine::permits::{Held, Holds, release};
use crate::engine::policy::{NoteCharge, Policy};
use crate::engine::reload::{InForce, LayerState};
use crate::engine::settlement::{Reports, Settlement};
use crate::engine::translate::Progress as _;
use crate::engine::verdict::Verdict;
use crate::limiter::hold::Hold;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, RequestEnd};

/// An admitted request with all its entries. [Open](Progress::Open) entries await settlement, the request may
/// hold units, and once it is over, its retries may be free.
///
/// Charges that depend on the response's head are settled [when it comes](Self::settle_by). The rest ends with the
/// body, and so with this value: it is dropped when the body has ended, has failed, or was dropped. If there is no
/// response, because the client has disconnected or the service has failed, dropping it releases the units, and charges
/// stay, unless the handler has reported another cost.
///
/// A limiter that learns how requests end gets the end together with the units: see [`RequestEnd`].
pub(crate) struct OpenRequest<D: Decide> {
    layer: Arc<LayerState<D>>,
    in_force: Arc<InForce<D>>,
    entries: Entries,
    since: Timestamp,
    /// The body bytes that were passed on so far, once there is a response.
    bytes: Option<u64>,
    /// The handler's reports, if a policy awaits one.
    reports: Option<Arc<Reports>>,
    /// The units that the request holds until the response's head has come, and until the body has ended.
    until_head: Holds,
    held: Option<Arc<Held>>,
    /// The domain's knowledge about the outcome so far.
    pub(crate) progress: D::Progress,
}

impl<D: Decide> OpenRequest<D> {
    /// Whether a request with these entries is still open once it is committed.
    pub(super) fn is_needed(scope: Scope<'_, D>, entries: &[PolicyEntry]) -> bool {
        entries.iter().any(|entry| entry.awaits_retries() || scope.policy(entry).ends_with_response())
    }

    pub(super) fn new(scope: Scope<'_, D>, mut entries: Entries) -> Self {
        let since = Monotonic.now();
        let mut until_head = Holds::new();
        let mut until_end = Holds::new();
        for entry in &mut entries {
            let policy = scope.policy(entry);
            if policy.billing.settles_later() && entry.admission().is_some() {
                policy.lineage.record.open_charges().open(&entry.key, entry.cost, since);
                entry.progress = Progress::Open;
            }
            let ends = if policy.billing.releases_at_head { &mut until_head } else { &mut until_end };
            ends.extend(entry.take_hold());
        }
        // All policies have admitted the request. If its handler takes the units, this is their end.
        until_end.iter_mut().for_each(|hold| hold.end_as(Some(RequestEnd::Served)));
        let awaits = |entry: &&PolicyEntry| entry.is_open() && scope.policy(entry).billing.is_settled_by_handler();
        let awaiting = entries.iter().filter(awaits).map(|entry| Arc::clone(&scope.policy(entry).name));
        let reports = Some(Reports::for_policies(awaiting)).filter(|reports| !reports.is_empty()).map(Arc::new);
        let watcher = |hold: &Hold| {
            let policy = scope.in_force.policies.iter().find(|policy| hold.is_of(&policy.limiter))?;
            policy.description.watcher_of((*policy.limiter).as_any())
        };
        let held = (!until_end.is_empty()).then(|| Arc::new(Held::new(until_end, watcher)));
        Self {
            layer: Arc::clone(scope.layer),
            in_force: Arc::clone(scope.in_force),
            entries,
            since,
            bytes: None,
            reports,
            until_head,
            held,
            progress: D::Progress::default(),
        }
    }

    fn scope(&self) -> Scope<'_, D> {
        Scope { layer: &self.layer, in_force: &self.in_force }
    }

    /// Settles the charges that depend on the outcome, in reverse order: see [`Receipt`](crate::values::Receipt).
    pub(crate) fn settle_by(&mut self, outcome: &D::Outcome<'_>) {
        let took = self.took();
        let Self { layer, in_force, entries, .. } = self;
        let scope = Scope { layer, in_force };
        for entry in entries.iter_mut().rev().filter(|entry| entry.is_open()) {
            let policy = scope.policy(entry);
            if let Some(cost) = policy.billing.cost_by_head(entry.cost, outcome) {
                entry.settle(scope, cost);
                entry.close(policy, Some(took));
                if cost == 0 {
                    entry.void_attempt();
                }
            }
        }
    }

    fn took(&self) -> Duration {
        Monotonic.now().saturating_since(self.since)
    }

    /// The cost for an entry that is settled at the body's end. If it is `None`, the first charge stays.
    fn final_cost(&self, policy: &Policy<D>) -> Option<u64> {
        if policy.billing.is_charged_by_content() {
            return self.bytes;
        }
        self.reports.as_ref()?.end(policy.name())
    }

    /// The verdict so far, if the layer adds one, and the handle that reports the cost, if a policy awaits one.
    pub(crate) fn look(&self) -> (Option<Verdict>, Option<Settlement>) {
        (self.verdict(), self.reports().map(|reports| Settlement::new(Arc::clone(reports), None)))
    }

    /// The verdict so far, if the layer adds one.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.scope().verdict(&self.entries)
    }

    /// The handler's reports on the subject, if a policy awaits one.
    pub(crate) const fn reports(&self) -> Option<&Arc<Reports>> {
        self.reports.as_ref()
    }

    /// The units that the subject holds until it is over.
    pub(crate) const fn held(&self) -> Option<&Arc<Held>> {
        self.held.as_ref()
    }

    /// Whether charges depend on the outcome.
    pub(crate) fn awaits_outcome(&self) -> bool {
        let by_head = |entry: &PolicyEntry| entry.is_open() && self.scope().policy(entry).billing.is_settled_by_head();
        self.entries.iter().any(by_head)
    }

    /// Notes that the outcome begins: releases the units that are held until then, and starts to count bytes.
    pub(crate) fn begin_outcome(&mut self, end: RequestEnd) {
        release(&mut self.until_head, end);
        if let Some(held) = &self.held {
            held.begin_body();
        }
        self.bytes = Some(0);
    }

    /// Counts the outcome's bytes.
    pub(crate) fn note_bytes(&mut self, bytes: usize) {
        if let Some(held) = &self.held {
            held.hand_over();
        }
        self.bytes = self.bytes.map(|before| before.saturating_add(bytes as u64));
    }

    /// Reports the decisions, with the costs that are known by now.
    pub(crate) fn report(&mut self) -> Admitted<D> {
        let Self { layer, in_force, entries, reports, .. } = self;
        let scope = Scope { layer, in_force };
        // Show the cost that the handler has reported by now. The charge follows at the end, because the handler may
        // report another cost until then.
        let shown = |entry: &&mut PolicyEntry| entry.is_open() && scope.policy(entry).billing.is_settled_by_handler();
        let mut charged = Vec::new();
        for entry in entries.iter_mut().filter(shown) {
            let policy = scope.policy(entry);
            if let Some(cost) = reports.as_ref().and_then(|reports| reports.so_far(policy.name())) {
                charged.push((entry.policy, entry.decision));
                entry.show_cost(policy, cost);
            }
        }
        let reported = scope.annotate(entries, scope.verdict(entries));
        for (policy, decision) in charged {
            if let Some(entry) = entries.iter_mut().find(|entry| entry.policy == policy) {
                entry.decision = decision;
            }
        }
        reported
    }

    /// Whether anything remains to be done when the subject is over.
    pub(crate) fn lasts(&self) -> bool {
        self.held.is_some() || self.entries.iter().any(|entry| entry.is_open() || entry.awaits_retries())
    }
}

impl<D: Decide> Drop for OpenRequest<D> {
    fn drop(&mut self) {
        // Release units first, so that a waiter need not wait for the settlements.
        let end = self.progress.end();
        release(&mut self.until_head, end);
        if let Some(held) = &self.held {
            held.release(end);
        }
        let took = self.took();
        let mut entries = std::mem::take(&mut self.entries);
        let scope = self.scope();
        for entry in entries.iter_mut().rev().filter(|entry| entry.is_open()) {
            let policy = scope.policy(entry);
            let cost = self.final_cost(policy);
            if let Some(cost) = cost {
                entry.settle(scope, cost);
            }
            entry.close(policy, cost.map(|_| took));
        }
    }
}

impl PolicyEntry {
    /// Charges `cost` for the request instead of the charge on arrival.
    pub(super) fn settle<D: Decide>(&mut self, scope: Scope<'_, D>, cost: u64) {
        let Some(decision) = self.decision else { return };
        match cost.cmp(&self.cost) {
            cmp::Ordering::Less => {
                scope.refund(self, decision.receipt(), self.cost - cost);
                scope.policy(self).refund_debt(&self.key, self.cost - cost);
            }
            cmp::Ordering::Greater => scope.charge_more(self, cost - self.cost),
            cmp::Ordering::Equal => return,
        }
        self.show_cost(scope.policy(self), cost);
    }

    /// Rewrites the decision as if `cost` had been charged for the request. A shortfall beyond the remaining units is
    /// not shown, because it is forgiven, or owed from the next request on.
    fn show_cost<D: Decide>(&mut self, policy: &Policy<D>, cost: u64) {
        if let Some(decision) = self.decision {
            self.recharge(policy, cost.min(self.cost.saturating_add(decision.remaining())));
        }
    }

    /// Closes the charge, after it was settled. If it were closed first, a request rejected between the two steps would
    /// not see the refund, and would not expect it: it would advertise the full wait, and count for a ban. In this
    /// order, such a request at worst expects a refund that has been made already.
    fn close<D: Decide>(&mut self, policy: &Policy<D>, took: Option<Duration>) {
        policy.lineage.record.open_charges().close(&self.key, self.cost, took);
        self.progress = Progress::Charged;
    }
}

impl<D: Decide> Scope<'_, D> {
    /// Charges a shortfall.
    fn charge_more(self, entry: &PolicyEntry, cost: u64) {
        let policy = self.current(self.policy(entry));
        let ask = Ask::charge(&entry.key, cost).under(entry.quota);
        policy.charge_shortfall(&ask, entry.fell_back, self.crossing_note(entry));
    }

    /// Reports the shares that an entry's later charges cross, if its policy reports crossings.
    fn crossing_note(self, entry: &PolicyEntry) -> Option<NoteCharge> {
        if !self.policy(entry).watches_shares() {
            return None;
        }
        let in_force = Arc::clone(self.in_force);
        let PolicyEntry { policy, ref key, quota, fell_back, .. } = *entry;
        let key = key.clone();
        Some(Box::new(move |decision, units| {
            let charge = ChargeOf { policy, key: &key, fell_back };
            let decision = charge.policy_of(&in_force).after_debt(&key, quota, *decision);
            note_crossings(&in_force, charge, &decision, units);
        }))
    }
}
