//! The constant texts for keys with their own quotas, for a bounded number of quotas.

use std::sync::OnceLock;

use super::interned::Constants;
use super::measure::Measure;
use crate::values::{Quota, Terms};

/// The field parts that are constant for all keys with one quota.
#[derive(Debug)]
pub(super) struct FieldsOfQuota {
    quota: Quota,
    pub(super) measure: Measure,
    /// `None` if too many texts are interned already.
    pub(super) constants: Option<&'static Constants>,
}

/// The quotas that a policy's keys have had, as far as there is room. A quota stays here until the next live change,
/// because most services have a few plans. If each customer has a negotiated quota, the first ones are served faster.
#[derive(Debug, Default)]
pub(super) struct Plans(OnceLock<Box<[OnceLock<FieldsOfQuota>]>>);

/// The most quotas per policy, some 20 KiB with their texts.
const SLOTS: usize = 64;

/// The number of slots in which a quota may be. A lookup that does not find a free slot has compared this number of
/// quotas in vain.
const PROBES: usize = 8;

impl Plans {
    /// Returns a quota's plan, made by `constants` if there is a free slot. `None` if there is no free slot.
    #[inline]
    pub(super) fn find_or_make(
        &self,
        quota: Quota,
        terms: Terms,
        constants: impl Fn(&Measure) -> Option<&'static Constants>,
    ) -> Option<&FieldsOfQuota> {
        let slots = self.0.get_or_init(|| (0..SLOTS).map(|_| OnceLock::new()).collect());
        let first = slot_of(quota);
        (first..first + PROBES).map(|slot| &slots[slot % SLOTS]).find_map(|slot| {
            let make = || {
                let measure = Measure::new(&terms.under(quota));
                FieldsOfQuota { quota, measure, constants: constants(&measure) }
            };
            // Meanwhile, another thread may make another quota's plan there.
            Some(slot.get_or_init(make)).filter(|plan| plan.quota == quota)
        })
    }
}

/// Returns the first slot to look at. Any spread will do, because quotas are the operator's choice, and all are
/// compared.
fn slot_of(quota: Quota) -> usize {
    let mixed = (quota.period_nanos() ^ quota.limit() << 32 ^ quota.max_burst()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed >> 58).expect("six bits")
}
