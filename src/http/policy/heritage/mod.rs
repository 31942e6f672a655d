//! The state that a policy takes over from its predecessor: counts, metrics, bans, debts, offenders.

mod limited_keys;
mod metrics;
mod offenders;
mod overrides;
mod penalty;
mod record;

use std::sync::Arc;

pub(crate) use self::limited_keys::LimitedKeys;
pub(crate) use self::metrics::{Fate, PolicyMeter};
pub use self::offenders::ShowKey;
pub(crate) use self::offenders::{Hour, OffenderRecord, Scheduled, TrackedOffenders};
pub(crate) use self::overrides::Overrides;
pub(super) use self::overrides::SavedOverrides;
pub use self::penalty::Penalty;
pub(super) use self::penalty::PenaltyRecord;
pub(crate) use self::record::PolicyRecord;
use crate::values::PartitionKey;

/// The state that a policy passes on to the next policy of its name.
pub(crate) struct PolicyHeritage {
    /// Shared by a policy and the policies whose limiters have inherited from its own.
    pub(super) lineage: Arc<()>,
    pub(crate) record: Arc<PolicyRecord>,
    pub(crate) meter: PolicyMeter,
    pub(crate) penalty: Option<Penalty>,
    /// The bans of a penalty that a live change removed, in case a later change adds one again.
    pub(super) former_bans: Option<Arc<PenaltyRecord>>,
    /// The keys that are rejected most, if they are tracked.
    pub(crate) offenders: Option<TrackedOffenders>,
}

impl PolicyHeritage {
    pub(super) fn new(policy: Arc<str>, delays: bool) -> Self {
        let meter = PolicyMeter::new(policy, delays);
        Self {
            lineage: Arc::default(),
            record: Arc::default(),
            meter,
            penalty: None,
            former_bans: None,
            offenders: None,
        }
    }

    /// Whether the limiter has inherited, perhaps through others, from the limiter of `old`.
    pub(crate) fn is_of_line(&self, old: &Self) -> bool {
        Arc::ptr_eq(&self.lineage, &old.lineage)
    }

    /// Lifts the ban of a key, also a ban that is kept while there is no penalty.
    pub(super) fn lift_ban(&self, key: &PartitionKey) {
        if let Some(penalty) = &self.penalty {
            penalty.lift(key);
        }
        if let Some(bans) = &self.former_bans {
            bans.lift(key);
        }
    }
}
