//! The second step of a live change: a policy inherits from its predecessor.
//!
//! 1. [`LayerState::replace`](crate::http::reload) pairs policies by name.
//! 2. [`Policy::inherit`] takes over the record, the metrics, the bans and the free retries, and asks the new limiter to inherit from the
//!    old one.
//! 3. [`Limiter::inherit`](crate::Limiter::inherit) takes over the debts. Its table (`limiter/traits.rs`) says what each
//!    limiter keeps. In memory, `store/memory/heir.rs` makes the new table.

use std::sync::Arc;

use crate::http::policy::definition::Policy;
use crate::values::{Finish, Inheritance};

/// What became of the budgets of the predecessor's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InheritedBudgets {
    /// The limiter has inherited them.
    Inherited,
    /// The limiter has inherited them with the capacity of its predecessor, in place of its own.
    InheritedWithCapacity,
    /// The limiter cannot inherit them: all keys start with a full budget.
    Lost,
}

impl Policy {
    /// Inherits from the policy that had this name before. Adds the steps to run once this one is in force to `finish`.
    ///
    /// Called before the change is in force, since a custom limiter may panic when it inherits: then `old` stays in
    /// force.
    pub(crate) fn inherit(&mut self, old: &Self, finish: &mut Vec<Finish>) -> InheritedBudgets {
        let bans = self.heritage.inherit(&old.heritage);
        let retries = self.after.retries.as_mut().zip(old.after.retries.as_ref());
        let retries = retries.and_then(|(new, old)| new.inherit(old));
        let (budgets, limiter) = self.inherit_limiter(old);
        finish.extend(bans.into_iter().chain(retries).chain(limiter));
        budgets
    }

    fn inherit_limiter(&mut self, old: &Self) -> (InheritedBudgets, Option<Finish>) {
        // If both policies have the same limiter, its state is ours already, even if it cannot inherit. `ptr_eq`
        // ignores vtables, of which one type may have several.
        let is_same = Arc::ptr_eq(&self.limiter, &old.limiter);
        let inheritance = if is_same { Some(Inheritance::in_place()) } else { self.limiter.inherit(&*old.limiter) };
        let Some(Inheritance { heir, keeps_capacity, finish }) = inheritance else {
            return (InheritedBudgets::Lost, None);
        };
        if let Some(heir) = heir {
            self.limiter = heir;
        }
        self.heritage.continue_line(&old.heritage);
        (if keeps_capacity { InheritedBudgets::InheritedWithCapacity } else { InheritedBudgets::Inherited }, finish)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::policy::heritage::Penalty;
    use crate::limiter::Limiter;
    use crate::values::{Answer, Ask, Decision, PartitionKey, Quota};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A custom limiter, which cannot inherit.
    struct Custom;

    impl Limiter for Custom {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            Decision::allow(1, 1).into()
        }
    }

    fn policy() -> Policy {
        Policy::new("p", Arc::new(Custom))
    }

    /// Bans at the second premature retry.
    fn banning() -> Policy {
        policy().penalty(Penalty::new(Quota::per_hour(1), HOUR))
    }

    fn replaced(old: &Policy, mut new: Policy) -> Policy {
        let mut steps = Vec::new();
        new.inherit(old, &mut steps);
        steps.into_iter().for_each(|finish| finish());
        new
    }

    fn retry_too_early(policy: &Policy) {
        let (key, penalty) = (PartitionKey::from("a"), policy.heritage.penalty.as_ref().unwrap());
        penalty.advise(&key, HOUR);
        penalty.note_rejection(None, &key, &Decision::reject(1, 0, Some(HOUR)));
    }

    fn bans(policy: &Policy) -> bool {
        policy.heritage.penalty.as_ref().unwrap().banned_for(&PartitionKey::from("a")).is_some()
    }

    fn with_a_ban() -> Policy {
        let old = banning();
        retry_too_early(&old);
        assert!(!bans(&old));
        retry_too_early(&old);
        assert!(bans(&old));
        old
    }

    #[test]
    fn a_penalty_inherits_bans_and_counts() {
        assert!(bans(&replaced(&with_a_ban(), banning())), "although the limiter cannot inherit");
        let old = banning();
        retry_too_early(&old);
        let new = replaced(&old, banning());
        assert!(!bans(&new));
        retry_too_early(&new);
        assert!(bans(&new), "the first one counts");
    }

    #[test]
    fn bans_are_kept_while_there_is_no_penalty() {
        let without = replaced(&replaced(&with_a_ban(), policy()), policy());
        assert!(without.heritage.former_bans.is_some());
        assert!(bans(&replaced(&without, banning())));
    }

    #[test]
    fn a_ban_that_is_kept_can_be_lifted() {
        let without = replaced(&with_a_ban(), policy());
        without.heritage.lift_ban(&PartitionKey::from("a"));
        assert!(!bans(&replaced(&without, banning())));
    }

    #[test]
    fn a_new_penalty_has_no_bans() {
        assert!(!bans(&replaced(&policy(), banning())));
    }

    #[test]
    fn without_penalties_there_is_nothing_to_keep() {
        assert!(replaced(&policy(), policy()).heritage.former_bans.is_none());
    }

    #[test]
    fn a_limiter_that_stays_keeps_its_budgets_even_if_it_cannot_inherit() {
        let custom = Arc::new(Custom);
        let with = |limiter: &Arc<Custom>| Policy::new("p", Arc::clone(limiter));
        let (old, mut same, mut other) = (with(&custom), with(&custom), policy());
        assert_eq!(
            (same.inherit(&old, &mut Vec::new()), same.heritage.is_of_line(&old.heritage)),
            (InheritedBudgets::Inherited, true)
        );
        assert_eq!(
            (other.inherit(&old, &mut Vec::new()), other.heritage.is_of_line(&old.heritage)),
            (InheritedBudgets::Lost, false)
        );
    }
}
