//! Settlement: charges whose final amount depends on the response.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Scope;
use super::annotations::Annotations;
use super::entry::{Entries, Entry, take_attempts};
use crate::http::head::ResponseHead;
use crate::http::reload::{InForce, LayerState};
use crate::values::Ask;
use crate::values::time::{Clock, Monotonic, Timestamp};

/// All entries of an admitted request; those that are [open](Entry::is_open) await settlement.
///
/// If it is dropped without a response, since the client has disconnected or the service has failed, they stay charged.
pub(super) struct Settlement {
    layer: Arc<LayerState>,
    in_force: Arc<InForce>,
    entries: Entries,
    since: Timestamp,
}

impl Settlement {
    pub(super) fn of(scope: Scope<'_>, mut entries: Entries) -> Self {
        let since = Monotonic.now();
        for entry in &mut entries {
            let policy = scope.policy(entry);
            if policy.settles_later() && entry.admission().is_some() {
                policy.open_charges().open(&entry.key, entry.cost, since);
                entry.is_open = true;
            }
        }
        Self { layer: Arc::clone(scope.layer), in_force: Arc::clone(scope.in_force), entries, since }
    }

    /// Settles the charges in reverse order: see [`Receipt`](crate::values::Receipt).
    pub(super) fn settle(mut self, response: &ResponseHead<'_>) -> Annotations {
        let scope = Scope { layer: &self.layer, in_force: &self.in_force };
        let took = Monotonic.now().saturating_since(self.since);
        for entry in self.entries.iter_mut().rev() {
            let Some(decision) = entry.decision.filter(|_| entry.is_open) else { continue };
            let policy = scope.policy(entry);
            policy.open_charges().note_duration(took);
            let cost = policy.final_cost(entry.cost, response);
            if let Some(attempt) = entry.attempt.as_mut().filter(|_| cost == 0) {
                attempt.refunded();
            }
            match cost.cmp(&entry.cost) {
                Ordering::Less => scope.refund(entry, decision.receipt(), entry.cost - cost),
                Ordering::Greater => scope.charge_more(entry, cost - entry.cost),
                Ordering::Equal => continue,
            }
            // The rest of a shortfall is forgiven, so it is not reported as owed.
            entry.recharge(policy, cost.min(entry.cost.saturating_add(decision.remaining())));
        }
        scope.annotate(&self.entries).until_over(take_attempts(&mut self.entries))
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        // Only now, after `settle` has refunded. If charges were closed first, a request that is rejected between the
        // two would neither find the refund nor expect it, and so would advertise the full wait and count for a ban. As
        // it is, such a request at worst expects a refund that has been made already.
        for entry in self.entries.iter().filter(|entry| entry.is_open) {
            entry.policy_of(&self.in_force.policies).open_charges().close(&entry.key, entry.cost);
        }
    }
}

impl Scope<'_> {
    /// Charges a shortfall as far as units are left.
    fn charge_more(self, entry: &Entry, cost: u32) {
        let policy = self.current(self.policy(entry));
        let ask = Ask::charge(&entry.key, cost);
        // The limiter failed on this request, so the rest is charged where the first part was.
        if entry.fell_back {
            policy.fall_back_up_to(&ask);
        } else {
            policy.charge_up_to(&ask);
        }
    }
}
