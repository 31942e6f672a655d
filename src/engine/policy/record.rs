//! A policy's record: the counts that its replacement continues.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::engine::policy::debts::Debts;
use crate::engine::policy::expiring::{CAPACITY, ExpiringTable};
use crate::engine::policy::limited_keys::LimitedKeys;
use crate::engine::policy::open_charges::OpenCharges;
use crate::engine::policy::overrides::Overrides;
use crate::limiter::health::Health;
use crate::util::references::References;
use crate::values::time::{Clock, Timestamp};

/// A policy's counters, its limiter's health, its open charges, and its keys' debts. Shared with the policy with its
/// name that replaces it.
///
/// Counters are relaxed, because nothing is published through them.
#[derive(Default)]
pub(crate) struct PolicyRecord {
    pub(crate) shadow_rejected: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(in crate::engine::policy) health: Health,
    /// Whether the limiter sheds now. A shed request counts as a failure, and an admitted one as a success.
    pub(in crate::engine::policy) shedding: Health,
    /// Made when first needed, because in most policies, charges do not await a response.
    open_charges: OnceLock<Box<OpenCharges>>,
    /// Made for the first debt.
    debts: OnceLock<Arc<Debts>>,
    /// Made for the first ban or allowance by hand.
    overrides: OnceLock<Overrides>,
    /// The references of charges by hand that this process has made.
    pub(in crate::engine::policy) charges_by_hand: References,
    /// Made for the first event that clients can cause.
    limited_keys: OnceLock<Box<LimitedKeys>>,
    /// Until when further crossings are not reported, by key and share. Made for the first crossing.
    crossed: OnceLock<Box<ExpiringTable<Timestamp>>>,
}

impl PolicyRecord {
    /// The charges that await their responses.
    pub(crate) fn open_charges(&self) -> &OpenCharges {
        self.open_charges.get_or_init(Box::default)
    }

    /// The keys' debts, if a key has ever owed something.
    pub(in crate::engine::policy) fn debts(&self) -> Option<&Arc<Debts>> {
        self.debts.get()
    }

    /// The bans and allowances by hand that this process keeps, if an operator has ever made one.
    #[inline]
    pub(in crate::engine::policy) fn overrides(&self) -> Option<&Overrides> {
        self.overrides.get()
    }

    /// The bans and allowances by hand. The first call makes the table, with this clock.
    pub(in crate::engine::policy) fn overrides_by(&self, clock: impl FnOnce() -> Arc<dyn Clock>) -> &Overrides {
        self.overrides.get_or_init(|| Overrides::new(clock()))
    }

    /// The keys that are limited, for events. The first call makes the table, with this clock.
    pub(in crate::engine::policy) fn limited_keys_by(&self, clock: impl FnOnce() -> Arc<dyn Clock>) -> &LimitedKeys {
        self.limited_keys.get_or_init(|| Box::new(LimitedKeys::new(clock())))
    }

    /// The crossings that were reported. The first call makes the table, with this clock.
    pub(in crate::engine::policy) fn crossed_by(
        &self,
        clock: impl FnOnce() -> Arc<dyn Clock>,
    ) -> &ExpiringTable<Timestamp> {
        self.crossed.get_or_init(|| Box::new(ExpiringTable::new(CAPACITY, clock())))
    }

    /// The keys' debts. The first call makes the table, with this clock.
    pub(in crate::engine::policy) fn debts_by(&self, clock: impl FnOnce() -> Arc<dyn Clock>) -> &Debts {
        self.debts.get_or_init(|| Arc::new(Debts::new(CAPACITY, clock())))
    }
}
