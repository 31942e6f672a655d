//! The record of a policy: what a policy that replaces it continues to count.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::http::policy::after::{Debts, OpenCharges};
use crate::http::policy::expiring::CAPACITY;
use crate::limiter::Health;
use crate::values::time::Clock;

/// The counters of a policy, the health of its limiter, its open charges, and what its keys owe. Shared with the policy of
/// its name that replaces it.
///
/// Counters are relaxed: nothing is published through them.
#[derive(Default)]
pub(crate) struct PolicyRecord {
    pub(crate) shadow_rejected: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(in crate::http::policy) health: Health,
    /// Made when it is first needed: the charges of most policies await no response.
    open_charges: OnceLock<Box<OpenCharges>>,
    /// Made for the first debt.
    debts: OnceLock<Arc<Debts>>,
}

impl PolicyRecord {
    /// The charges that await their responses.
    pub(crate) fn open_charges(&self) -> &OpenCharges {
        self.open_charges.get_or_init(Box::default)
    }

    /// What keys owe, if one has ever owed something.
    pub(in crate::http::policy) fn debts(&self) -> Option<&Arc<Debts>> {
        self.debts.get()
    }

    /// What keys owe, by this clock if none has owed anything yet.
    pub(in crate::http::policy) fn debts_by(&self, clock: impl FnOnce() -> Arc<dyn Clock>) -> &Debts {
        self.debts.get_or_init(|| Arc::new(Debts::new(CAPACITY, clock())))
    }
}
