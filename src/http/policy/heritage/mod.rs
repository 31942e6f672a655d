//! What a policy takes over from the one that it replaces: counts, metrics, bans, debts.

mod metrics;
mod penalty;
mod record;

use std::sync::Arc;

pub(crate) use self::metrics::{Fate, PolicyMeter};
pub use self::penalty::Penalty;
use self::penalty::PenaltyRecord;
pub(crate) use self::record::PolicyRecord;
use crate::values::{Finish, PartitionKey};

/// What the policies of one name have in common, one after the other.
pub(crate) struct PolicyHeritage {
    /// Shared by a policy and those whose limiters have inherited from its own.
    lineage: Arc<()>,
    pub(crate) record: Arc<PolicyRecord>,
    pub(crate) meter: PolicyMeter,
    pub(crate) penalty: Option<Penalty>,
    /// The bans of a penalty that a live change removed, in case a later change adds one again.
    pub(super) former_bans: Option<Arc<PenaltyRecord>>,
}

impl PolicyHeritage {
    pub(super) fn new(policy: Arc<str>, delays: bool) -> Self {
        let meter = PolicyMeter::new(policy, delays);
        Self { lineage: Arc::default(), record: Arc::default(), meter, penalty: None, former_bans: None }
    }

    /// Takes over the heritage of the policy that had this name before. Returns the step to run once the policy is in
    /// force.
    ///
    /// Bans outlive budgets: a ban is a deadline that was advertised to the client, whatever the quota is now. So a
    /// policy inherits bans even if its limiter cannot inherit, and keeps them while it has no penalty itself.
    pub(super) fn inherit(&mut self, old: &Self) -> Option<Finish> {
        self.record = Arc::clone(&old.record);
        self.meter.inherit(&old.meter);
        let bans = old.penalty.as_ref().map(Penalty::record).or(old.former_bans.as_ref())?;
        let Some(penalty) = &mut self.penalty else {
            self.former_bans = Some(Arc::clone(bans));
            return None;
        };
        penalty.inherit(bans, old.penalty.as_ref())
    }

    /// Records that the limiter has inherited from that of `old`.
    pub(super) fn continue_line(&mut self, old: &Self) {
        self.lineage = Arc::clone(&old.lineage);
    }

    /// Whether the limiter has inherited, perhaps through others, from that of `old`.
    pub(crate) fn is_of_line(&self, old: &Self) -> bool {
        Arc::ptr_eq(&self.lineage, &old.lineage)
    }

    /// Lifts the ban of a key, also one that is kept while there is no penalty.
    pub(super) fn lift_ban(&self, key: &PartitionKey) {
        if let Some(penalty) = &self.penalty {
            penalty.lift(key);
        }
        if let Some(bans) = &self.former_bans {
            bans.lift(key);
        }
    }
}
