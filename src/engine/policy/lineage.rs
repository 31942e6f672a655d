//! The state that policies with one name share through every live change: counts, metrics, bans, offenders.

use std::sync::Arc;

use crate::engine::policy::bans::{Penalty, PenaltyRecord};
use crate::engine::policy::metrics::PolicyMeter;
use crate::engine::policy::offender_record::TrackedOffenders;
use crate::engine::policy::record::PolicyRecord;
use crate::values::PartitionKey;

/// The state that a policy passes on to the next policy with its name.
pub(crate) struct Lineage {
    /// Shared by a policy and the policies whose limiters have inherited from its own.
    pub(super) line: Arc<()>,
    pub(crate) record: Arc<PolicyRecord>,
    pub(crate) meter: PolicyMeter,
    pub(crate) penalty: Option<Penalty>,
    /// The bans from a penalty that a live change removed, in case a later change adds one again.
    pub(super) former_bans: Option<Arc<PenaltyRecord>>,
    /// The keys that are rejected most, if they are tracked.
    pub(crate) offenders: Option<TrackedOffenders>,
}

impl Lineage {
    pub(super) fn new(policy: Arc<str>, delays: bool) -> Self {
        let meter = PolicyMeter::new(policy, delays);
        Self { line: Arc::default(), record: Arc::default(), meter, penalty: None, former_bans: None, offenders: None }
    }

    /// Whether the limiter has inherited, perhaps through others, from the limiter of `old`.
    pub(crate) fn is_of_line(&self, old: &Self) -> bool {
        Arc::ptr_eq(&self.line, &old.line)
    }

    /// Lifts a key's ban, also a ban that is kept while there is no penalty.
    pub(super) fn lift_ban(&self, key: &PartitionKey) {
        if let Some(penalty) = &self.penalty {
            penalty.lift(key);
        }
        if let Some(bans) = &self.former_bans {
            bans.lift(key);
        }
    }
}
