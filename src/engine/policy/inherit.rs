//! The second step of a live change: a policy inherits from its predecessor.
//!
//! 1. [`LayerState::replace`](crate::engine::reload) pairs policies by name.
//! 2. [`Policy::inherit`] takes over the record, the metrics, the bans and the free retries, and asks the new limiter
//!    to inherit from the old one.
//! 3. [`Limiter::inherit`](crate::Limiter::inherit) takes over the debts. Its table (`limiter/traits.rs`) documents
//!    the state that each limiter keeps. In memory, `store/memory/heir.rs` makes the new table.

use std::sync::Arc;

use crate::engine::domain::Domain;
use crate::engine::policy::bans::Penalty;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::lineage::Lineage;
use crate::engine::policy::log;
use crate::values::Finish;

/// The result of replacing policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    not_inherited: Vec<String>,
    keeping_capacity: Vec<String>,
    pub(crate) removed: Vec<String>,
}

impl Replaced {
    /// The policies that had a predecessor but could not inherit from it, so that all their keys start with full
    /// budgets; see [`Limiter::inherit`](crate::Limiter::inherit).
    #[must_use]
    pub fn not_inherited(&self) -> &[String] {
        &self.not_inherited
    }

    /// The policies whose limiters keep the previous capacity, and not the requested one. If you change the capacity
    /// several times, the fourth change takes effect only once the debts from before the first are paid. The next
    /// change tries again.
    #[must_use]
    pub fn kept_capacity(&self) -> &[String] {
        &self.keeping_capacity
    }

    /// The policies that were in force before and are no longer.
    #[must_use]
    pub fn removed(&self) -> &[String] {
        &self.removed
    }
}

impl<D: Domain> Policy<D> {
    /// Inherits from the policy that had this name before. Adds the steps to run once this policy is in force to
    /// `finish`.
    ///
    /// Called before the change is in force: if a custom limiter panics when it inherits, `old` stays in force.
    pub(crate) fn inherit(&mut self, old: &Self, replaced: &mut Replaced, finish: &mut Vec<Finish>) {
        let lineage = &mut self.lineage;
        // Every field is listed, so that a new one does not compile before it is inherited.
        let Lineage { line, record, meter, penalty: old_penalty, former_bans, offenders } = &old.lineage;
        lineage.record = Arc::clone(record);
        lineage.meter.inherit(meter);
        // Bans outlive budgets, because a ban is a deadline that was advertised to the client, regardless of the
        // current quota. So a policy inherits bans even if its limiter cannot inherit, and keeps them while it does not
        // have a penalty itself.
        if let Some(bans) = old_penalty.as_ref().map(Penalty::record).or(former_bans.as_ref()) {
            match &mut lineage.penalty {
                Some(penalty) => finish.extend(penalty.inherit(bans, old_penalty.as_ref())),
                None => lineage.former_bans = Some(Arc::clone(bans)),
            }
        }
        // We do not add up rejections by a shadow and rejections by an enforced policy.
        let offenders = lineage.offenders.as_mut().zip(offenders.as_ref());
        if let Some((new, old)) = offenders.filter(|_| self.shadow == old.shadow) {
            new.record = Arc::clone(&old.record);
        }
        let retries = self.billing.retries.as_mut().zip(old.billing.retries.as_ref());
        finish.extend(retries.and_then(|(new, old)| new.inherit(old)));
        // If both policies have the same limiter, no state has to move, even if it cannot inherit. `ptr_eq` ignores
        // vtables, because one type may have several.
        if !Arc::ptr_eq(&self.limiter, &old.limiter) {
            let Some(inheritance) = self.limiter.inherit(&*old.limiter) else {
                log::not_inherited(&self.name);
                replaced.not_inherited.push(self.name.to_string());
                return;
            };
            if inheritance.keeps_capacity {
                replaced.keeping_capacity.push(self.name.to_string());
            }
            finish.extend(inheritance.put_in_place(&mut self.limiter));
        }
        self.lineage.line = Arc::clone(line);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::policy::offender_record::ShowKey;
    use crate::limiter::Limiter;
    use crate::values::time::{Clock, Wall};
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
        new.inherit(old, &mut Replaced::default(), &mut steps);
        steps.into_iter().for_each(|finish| finish());
        new
    }

    fn retry_too_early(policy: &Policy) {
        let key = PartitionKey::from("a");
        let penalty = policy.lineage.penalty.as_ref().unwrap();
        penalty.advise(&key, HOUR);
        penalty.note_rejection(None, &key, &Decision::reject(1, 0, Some(HOUR)));
    }

    fn bans(policy: &Policy) -> bool {
        policy.lineage.penalty.as_ref().unwrap().banned_for(&PartitionKey::from("a")).is_some()
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
    fn bans_survive_without_a_penalty() {
        let without = replaced(&replaced(&with_a_ban(), policy()), policy());
        assert!(without.lineage.former_bans.is_some());
        assert!(bans(&replaced(&without, banning())));
    }

    #[test]
    fn kept_bans_can_be_lifted() {
        let without = replaced(&with_a_ban(), policy());
        without.lineage.lift_ban(&PartitionKey::from("a"));
        assert!(!bans(&replaced(&without, banning())));
    }

    #[test]
    fn a_new_penalty_has_no_bans() {
        assert!(!bans(&replaced(&policy(), banning())));
    }

    /// The limiter cannot inherit, but offenders continue in any case, as metrics do.
    #[test]
    fn offenders_continue_unless_shadow_changes() {
        let total = |policy: &Policy| policy.lineage.offenders.as_ref().unwrap().record.in_both_hours(Wall.now()).total;
        let old = policy().track_offenders(ShowKey::whole());
        old.lineage.offenders.as_ref().unwrap().record.note(&PartitionKey::from("a"));
        assert_eq!(total(&replaced(&old, policy().track_offenders(ShowKey::hash()))), 1);
        assert_eq!(total(&replaced(&old, policy().track_offenders(ShowKey::hash()).shadow())), 0);
        assert!(replaced(&old, policy()).lineage.offenders.is_none(), "names are not kept without the option");
    }

    #[test]
    fn nothing_is_kept_without_penalties() {
        assert!(replaced(&policy(), policy()).lineage.former_bans.is_none());
    }

    /// The limiter cannot inherit, but both policies share it.
    #[test]
    fn an_unchanged_limiter_keeps_its_budgets() {
        let custom = Arc::new(Custom);
        let with = |limiter: &Arc<Custom>| Policy::new("p", Arc::clone(limiter));
        let old = with(&custom);
        for (mut new, inherits) in [(with(&custom), true), (policy(), false)] {
            let mut replaced = Replaced::default();
            new.inherit(&old, &mut replaced, &mut Vec::new());
            assert_eq!(replaced.not_inherited().is_empty(), inherits);
            assert_eq!(new.lineage.is_of_line(&old.lineage), inherits);
        }
    }
}
