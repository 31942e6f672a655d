//! Open requests: admitted, and not over. Their charges await settlement, they hold units that are in flight, or their
//! retries are [free](crate::ChargeOnce) once they are over.

use std::cmp;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap};

use super::entry::{Entries, PolicyEntry};
use super::observe::{ChargeOf, note_crossings};
use super::scope::Scope;
use crate::http::grpc;
use crate::http::head::{KeptHead, ResponseHead};
use crate::http::outcome::{Annotations, Ending, EndsWithBody, StaysOpen};
use crate::http::permits::{Held, Holds, Permits, release};
use crate::http::policy::{NoteCharge, Policy};
use crate::http::reload::{InForce, LayerState};
use crate::http::settlement::{Reports, Settlement};
use crate::limiter::hold::Hold;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, RequestEnd};

/// All entries of an admitted request. [Open](PolicyEntry::is_open) entries await settlement, the request may hold
/// units, and once it is over, its retries may be free.
///
/// Charges that depend on the response's head are settled [when it comes](Self::settle_head). The rest ends with the
/// body, and so with this value: it is dropped when the body has ended, has failed, or was dropped. Without a
/// response, since the client has disconnected or the service has failed, it is dropped as well: then charges stay,
/// unless the handler has reported another cost, and units are released.
///
/// A limiter that learns how requests end is told so with the units: see [`RequestEnd`].
pub(crate) struct OpenRequest {
    layer: Arc<LayerState>,
    in_force: Arc<InForce>,
    entries: Entries,
    since: Timestamp,
    /// The bytes of the body that were passed on so far, once there is a response.
    bytes: Option<u64>,
    /// The reports of the handler, if a policy awaits one.
    reports: Option<Arc<Reports>>,
    /// The units that the request holds until the head of its response has come, and until its body has ended.
    until_head: Holds,
    held: Option<Arc<Held>>,
    /// The head of a gRPC response, if charges depend on its status, which comes in the trailers.
    awaiting_status: Option<Box<KeptHead>>,
    ending: Ending,
}

impl OpenRequest {
    /// Whether the request of these entries is still open once it is committed.
    pub(super) fn is_needed(scope: Scope<'_>, entries: &[PolicyEntry]) -> bool {
        entries.iter().any(|entry| entry.awaits_retries() || scope.policy(entry).ends_with_response())
    }

    pub(super) fn new(scope: Scope<'_>, mut entries: Entries) -> Self {
        let since = Monotonic.now();
        let mut until_head = Holds::new();
        let mut until_end = Holds::new();
        for entry in &mut entries {
            let policy = scope.policy(entry);
            if policy.billing.settles_later() && entry.admission().is_some() {
                policy.lineage.record.open_charges().open(&entry.key, entry.cost, since);
                entry.is_open = true;
            }
            let ends = if policy.billing.releases_at_head { &mut until_head } else { &mut until_end };
            ends.extend(entry.take_hold());
        }
        // All policies have admitted the request. If its handler takes the units, they end so.
        until_end.iter_mut().for_each(|hold| hold.end_as(Some(RequestEnd::Served)));
        let awaits = |entry: &&PolicyEntry| entry.is_open && scope.policy(entry).billing.is_settled_by_handler();
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
            awaiting_status: None,
            ending: Ending::default(),
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope { layer: &self.layer, in_force: &self.in_force }
    }

    /// Settles the charges that depend on the head of the response, or on the status in its trailers.
    fn settle_by_head(&mut self, response: &ResponseHead<'_>) {
        let took = self.took();
        let Self { layer, in_force, entries, .. } = self;
        let scope = Scope { layer, in_force };
        for entry in entries.iter_mut().rev().filter(|entry| entry.is_open) {
            let policy = scope.policy(entry);
            if let Some(cost) = policy.billing.cost_by_head(entry.cost, response) {
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

    /// The cost of an entry that is settled at the end of the body. Without one, the first charge stays.
    fn final_cost(&self, policy: &Policy) -> Option<u64> {
        if policy.billing.is_charged_by_content() {
            return self.bytes;
        }
        self.reports.as_ref()?.end(policy.name())
    }
}

impl StaysOpen for OpenRequest {
    fn begin(&mut self, is_head: bool, extensions: &mut Extensions) {
        self.ending.begin(is_head);
        if let Some(verdict) = self.scope().verdict(&self.entries) {
            verdict.extend_request(extensions);
        }
        if let Some(reports) = &self.reports {
            Settlement::insert(reports, extensions);
        }
        if let Some(held) = &self.held {
            Permits::insert(held, extensions);
        }
    }

    /// Settles the charges that depend on the head of the response, in reverse order: see
    /// [`Receipt`](crate::values::Receipt). Releases the units that are held until then.
    fn settle_head(&mut self, response: &ResponseHead<'_>) -> Annotations {
        self.ending.note_head(response);
        let end = self.ending.at_head();
        release(&mut self.until_head, end);
        if let Some(held) = &self.held {
            held.begin_body();
        }
        self.bytes = Some(0);
        let by_head = |entry: &PolicyEntry| entry.is_open && self.scope().policy(entry).billing.is_settled_by_head();
        if self.entries.iter().any(by_head) && grpc::has_status_in_trailers(response.headers()) {
            self.awaiting_status = Some(Box::new(response.into()));
        } else {
            self.settle_by_head(response);
        }
        let Self { layer, in_force, entries, reports, .. } = self;
        let scope = Scope { layer, in_force };
        // The cost that the handler has reported by now is shown. The charge follows at the end: the handler may
        // report another cost until then.
        let shown = |entry: &&mut PolicyEntry| entry.is_open && scope.policy(entry).billing.is_settled_by_handler();
        let mut charged = Vec::new();
        for entry in entries.iter_mut().filter(shown) {
            let policy = scope.policy(entry);
            if let Some(cost) = reports.as_ref().and_then(|reports| reports.so_far(policy.name())) {
                charged.push((entry.policy, entry.decision));
                entry.show_cost(policy, cost);
            }
        }
        let annotations = scope.annotate(entries, scope.verdict(entries));
        for (policy, decision) in charged {
            if let Some(entry) = entries.iter_mut().find(|entry| entry.policy == policy) {
                entry.decision = decision;
            }
        }
        annotations
    }

    fn lasts(&self) -> bool {
        self.held.is_some() || self.entries.iter().any(|entry| entry.is_open || entry.awaits_retries())
    }
}

impl EndsWithBody for OpenRequest {
    fn note_poll(&self) {
        if let Some(held) = &self.held {
            held.resume();
        }
    }

    fn note_bytes(&mut self, bytes: usize) {
        if let Some(held) = &self.held {
            held.hand_over();
        }
        self.bytes = self.bytes.map(|before| before.saturating_add(bytes as u64));
    }

    fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.ending.note_trailers(trailers);
        if let Some(head) = self.awaiting_status.take() {
            self.settle_by_head(&ResponseHead::from(&head.with(trailers)));
        }
    }

    fn fail(&mut self) {
        self.ending.fail();
    }

    fn note_end(&self) {
        self.ending.note_end();
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        // Units are released first, so that a waiter need not wait for the settlements.
        let end = self.ending.request_end();
        release(&mut self.until_head, end);
        if let Some(held) = &self.held {
            held.release(end);
        }
        let took = self.took();
        let mut entries = std::mem::take(&mut self.entries);
        let scope = self.scope();
        for entry in entries.iter_mut().rev().filter(|entry| entry.is_open) {
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
    pub(super) fn settle(&mut self, scope: Scope<'_>, cost: u64) {
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

    /// Rewrites the decision as if `cost` had been charged for the request. A shortfall beyond the units that are
    /// left is not shown: it is forgiven, or owed from the next request on.
    fn show_cost(&mut self, policy: &Policy, cost: u64) {
        if let Some(decision) = self.decision {
            self.recharge(policy, cost.min(self.cost.saturating_add(decision.remaining())));
        }
    }

    /// Closes the charge, after it was settled. If it were closed first, a request that is rejected between the two
    /// steps would not find the refund and not expect it, and so would advertise the full wait and count for a ban.
    /// In this order, such a request at worst expects a refund that has been made already.
    fn close(&mut self, policy: &Policy, took: Option<Duration>) {
        policy.lineage.record.open_charges().close(&self.key, self.cost, took);
        self.is_open = false;
    }
}

impl Scope<'_> {
    /// Charges a shortfall.
    fn charge_more(self, entry: &PolicyEntry, cost: u64) {
        let policy = self.current(self.policy(entry));
        let ask = Ask::charge(&entry.key, cost).under(entry.quota);
        policy.charge_shortfall(&ask, entry.fell_back, self.crossing_note(entry));
    }

    /// Reports the shares that a charge beyond the first of an entry crosses, if its policy reports crossings.
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
