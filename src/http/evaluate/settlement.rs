//! Charges whose amount is known only when the response is there.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Scope;
use super::annotations::Annotations;
use super::entry::{Entries, Entry};
use crate::http::head::ResponseHead;
use crate::http::reload::{InForce, Limits};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, Mode};

/// Entries that were charged before it was known what their request costs.
///
/// Dropped without a response, since the client has left or the service has failed, it leaves them charged.
pub(super) struct Settlement {
    limits: Arc<Limits>,
    in_force: Arc<InForce>,
    entries: Entries,
    since: Timestamp,
}

impl Settlement {
    pub(super) fn of(scope: Scope<'_>, mut entries: Entries) -> Self {
        let since = Monotonic.now();
        for entry in &mut entries {
            let policy = scope.policy(entry);
            if policy.settles_later() && entry.charged().is_some() {
                policy.open_charges().open(&entry.key, entry.cost, since);
                entry.is_open = true;
            }
        }
        Self { limits: Arc::clone(scope.limits), in_force: Arc::clone(scope.in_force), entries, since }
    }

    /// In the reverse order of the charges: see [`Receipt`](crate::values::Receipt).
    pub(super) fn settle(mut self, response: &ResponseHead<'_>) -> Annotations {
        let scope = Scope { limits: &self.limits, in_force: &self.in_force };
        for entry in self.entries.iter_mut().rev().filter(|entry| entry.is_open) {
            let policy = scope.policy(entry);
            policy.open_charges().note_duration(Monotonic.now().saturating_since(self.since));
            let Some(decision) = entry.decision else { continue };
            let cost = policy.final_cost(entry.cost, response);
            match cost.cmp(&entry.cost) {
                Ordering::Less => scope.refund(entry, decision.receipt(), entry.cost - cost),
                Ordering::Greater => scope.charge_more(entry, cost - entry.cost),
                Ordering::Equal => continue,
            }
            entry.recharge(policy, cost);
        }
        scope.annotate(&self.entries)
    }
}

impl Scope<'_> {
    fn charge_more(self, entry: &Entry, cost: u32) {
        let policy = self.heir_of(self.policy(entry));
        let ask = Ask::charge(&entry.key, cost);
        // Of a store that fails nothing can be had now.
        if entry.fell_back {
            let _ = policy.fall_back(&ask.to(Mode::Fallback));
        } else {
            policy.charge_up_to(&ask);
        }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        // After the refunds: in between, a rejection counts on a refund that has come already.
        for entry in self.entries.iter().filter(|entry| entry.is_open) {
            entry.policy_of(&self.in_force.policies).open_charges().close(&entry.key, entry.cost);
        }
    }
}
