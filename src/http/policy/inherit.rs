//! A live change: a policy inherits from its predecessor of the same name.

use std::sync::Arc;

use super::Policy;
use super::penalty::Penalty;
use crate::values::{Finish, Inheritance};

/// What a policy has inherited from its predecessor.
pub(crate) struct Inherited {
    /// Whether the limiter has inherited what its keys have used.
    pub(crate) inherits: bool,
    /// Whether the limiter keeps the capacity of its predecessor in place of its own.
    pub(crate) keeps_capacity: bool,
    /// The steps to run once the policy is in force.
    pub(crate) finish: Vec<Finish>,
}

impl Policy {
    /// Inherits from the policy that had this name before. Everything that can fail does so here, before the change is
    /// in force.
    pub(crate) fn inherit(&mut self, old: &Self) -> Inherited {
        self.record = Arc::clone(&old.record);
        self.meter.inherit(&old.meter);
        let bans = old.penalty.as_ref().map(Penalty::record).or(old.former_bans.as_ref());
        let finish = match (&mut self.penalty, bans) {
            (Some(penalty), Some(bans)) => penalty.inherit(bans, old.penalty.as_ref()),
            (None, bans) => {
                self.former_bans = bans.cloned();
                None
            }
            (Some(_), None) => None,
        };
        let mut finish: Vec<_> = finish.into_iter().collect();
        let is_same = std::ptr::addr_eq(Arc::as_ptr(&self.limiter), Arc::as_ptr(&old.limiter));
        let inheritance = if is_same { Some(Inheritance::in_place()) } else { self.limiter.inherit(&*old.limiter) };
        let Some(inheritance) = inheritance else {
            return Inherited { inherits: false, keeps_capacity: false, finish };
        };
        if let Some(heir) = inheritance.heir {
            self.limiter = heir;
        }
        self.lineage = Arc::clone(&old.lineage);
        finish.extend(inheritance.finish);
        Inherited { inherits: true, keeps_capacity: inheritance.keeps_capacity, finish }
    }

    /// Whether this policy has inherited, perhaps through others, from `old`.
    pub(crate) fn has_inherited_from(&self, old: &Self) -> bool {
        Arc::ptr_eq(&self.lineage, &old.lineage)
    }
}
