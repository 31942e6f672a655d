//! The constant texts of keys with quotas of their own, for a bounded number of quotas.

use std::sync::OnceLock;

use super::interned::Constants;
use super::measure::Measure;
use crate::values::{Quota, Terms};

/// The parts of the fields that are constant for all keys with one quota.
#[derive(Debug)]
pub(super) struct FieldsOfQuota {
    quota: Quota,
    pub(super) measure: Measure,
    /// `None` if too many texts are interned already.
    pub(super) constants: Option<&'static Constants>,
}

/// The quotas that the keys of a policy have had, as far as there is room. A quota stays: most services have a few
/// plans, and with a quota negotiated for each customer the first ones are served faster, until the next live change.
#[derive(Debug, Default)]
pub(super) struct Plans(OnceLock<Box<[OnceLock<FieldsOfQuota>]>>);

/// The most quotas of a policy: some 20 KiB with their texts.
const SLOTS: usize = 64;

/// The slots in which a quota may be. A look-up that finds no free place has compared this many quotas in vain.
const PROBES: usize = 8;

impl Plans {
    /// Returns the plan of a quota, made by `constants` if there is a free slot; `None` if there is none.
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
            // Another thread may make the plan of another quota there meanwhile.
            Some(slot.get_or_init(make)).filter(|plan| plan.quota == quota)
        })
    }
}

/// Returns the first slot to look at. Any spread will do: quotas are the operator's choice, and all are compared.
fn slot_of(quota: Quota) -> usize {
    let mixed = (quota.period_nanos() ^ quota.limit() << 32 ^ quota.max_burst()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed >> 58).expect("six bits")
}
