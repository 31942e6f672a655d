//! `Scope`: the policies that apply to a request, also during a live change.

use std::ops::Deref;
use std::sync::Arc;

use super::decide::Decide;
use super::entry::PolicyEntry;
use crate::engine::policy::Policy;
use crate::engine::reload::{InForce, LayerState, PolicyInForce};
use crate::values::{Ask, Receipt};

/// A layer, and the policies that were in force when a request arrived. They apply to it even if others are put in
/// force meanwhile. After a wait, their [heirs'](Self::current) limiters decide.
pub(super) struct Scope<'a, D: Decide> {
    pub(super) layer: &'a Arc<LayerState<D>>,
    pub(super) in_force: &'a Arc<InForce<D>>,
}

/// By hand, because a derived `Clone` or `Copy` would require `D: Copy`.
impl<D: Decide> Clone for Scope<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Decide> Copy for Scope<'_, D> {}

impl<'a, D: Decide> Scope<'a, D> {
    #[inline]
    pub(super) fn policy(self, entry: &PolicyEntry) -> &'a Policy<D> {
        entry.policy_of(&self.in_force.policies)
    }

    /// The policy to ask in place of `policy` once the request may have waited: the heir in force, if there was a live
    /// change since the request came and a limiter has inherited. In this way, charges, refunds and peeks after a wait
    /// use the same limiter as later requests.
    ///
    /// The key, the cost, the modes and the penalty of `policy` stay in use.
    ///
    /// `Transaction::charge_next` does not call this for a policy that [decides at once](Policy::answers_at_once). Such
    /// policies are charged before the first wait. The exception is a custom limiter that can be peeked at, and so
    /// is charged among them, but answers a charge later. Policies behind it are charged as if the request had not
    /// waited.
    pub(super) fn current(self, policy: &'a Policy<D>) -> Current<'a, D> {
        self.layer.heir_of(self.in_force, policy).map_or(Current::Unchanged(policy), Current::Heir)
    }

    /// Takes back the charge of an entry, if it was charged.
    pub(super) fn take_back(self, entry: &mut PolicyEntry) {
        // If the request held the units, `undo` has released them, and a refund would give them back a second time.
        let was_held = entry.undo();
        if let Some(decision) = entry.admission().filter(|_| !was_held && !entry.is_preview()) {
            self.refund(entry, decision.receipt(), entry.cost);
        }
    }

    /// Refunds a part of an entry's charge.
    pub(super) fn refund(self, entry: &PolicyEntry, receipt: Receipt, cost: u64) {
        let policy = self.current(self.policy(entry));
        policy.limiter.refund(&Ask::charge(&entry.key, cost).under(entry.quota), receipt, cost);
    }
}

/// See [`Scope::current`].
pub(super) enum Current<'a, D: Decide> {
    Unchanged(&'a Policy<D>),
    Heir(PolicyInForce<D>),
}

impl<D: Decide> Deref for Current<'_, D> {
    type Target = Policy<D>;

    fn deref(&self) -> &Policy<D> {
        match self {
            Self::Unchanged(policy) => policy,
            Self::Heir(heir) => heir,
        }
    }
}
