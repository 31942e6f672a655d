//! Shares of limits, and crossings, when a key's use passes one.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::engine::policy::selector::WritesKeys;
use crate::values::{Decision, PartitionKey};

/// A share of a limit, in millionths: above 0, and at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share(NonZeroU32);

const WHOLE: u32 = 1_000_000;

impl Share {
    /// `None` for shares outside (0, 1], and for shares that are rounded to zero millionths.
    #[allow(clippy::float_arithmetic, reason = "programs write 0.8; it is rounded here, once")]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to a million")]
    pub(crate) fn new(share: f64) -> Option<Self> {
        if !(share > 0.0 && share <= 1.0) {
            return None;
        }
        NonZeroU32::new((share * f64::from(WHOLE)).round() as u32).map(Self)
    }

    #[allow(clippy::float_arithmetic, reason = "for reports alone")]
    pub(crate) fn to_f64(self) -> f64 {
        f64::from(self.0.get()) / f64::from(WHOLE)
    }

    #[cfg(test)]
    pub(super) fn of_millionths(millionths: u32) -> Self {
        Self(NonZeroU32::new(millionths).unwrap())
    }

    pub(crate) const fn millionths(self) -> u32 {
        self.0.get()
    }

    /// This share of `limit` in units, rounded up.
    fn units_of(self, limit: u64) -> u64 {
        let units = (u128::from(limit) * u128::from(self.0.get())).div_ceil(WHOLE.into());
        u64::try_from(units).expect("at most the limit")
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f64().fmt(f)
    }
}

/// Reports a crossing to the program.
pub(super) type CrossingHook = Box<dyn Fn(&Crossing<'_>) + Send + Sync>;

/// The shares at which a policy reports crossings, in ascending order, each with its function, if it has one.
#[derive(Default)]
pub(super) struct WatchedShares(Vec<(Share, Option<CrossingHook>)>);

impl WatchedShares {
    /// Adds a share. If a share is added several times, its last function counts.
    pub(super) fn watch(&mut self, share: Share, hook: Option<CrossingHook>) {
        match self.0.binary_search_by_key(&share, |(share, _)| *share) {
            Ok(index) if hook.is_some() => self.0[index].1 = hook,
            Ok(_) => {}
            Err(index) => self.0.insert(index, (share, hook)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A share's function, if it has one.
    pub(super) fn hook_of(&self, share: Share) -> Option<&CrossingHook> {
        self.0.iter().find(|(watched, _)| *watched == share)?.1.as_ref()
    }

    /// The shares that an admission has crossed, the lowest first: `charged` units were charged.
    pub(super) fn crossed_by(&self, admission: &Decision, charged: u64) -> impl Iterator<Item = Share> {
        let limit = admission.limit();
        let after = limit.saturating_sub(admission.remaining());
        let before = after.saturating_sub(charged);
        let reached_by = |used| self.0.partition_point(|(share, _)| share.units_of(limit) <= used);
        self.0[reached_by(before)..reached_by(after)].iter().map(|(share, _)| *share)
    }
}

/// A key's use has passed a share of its limit: see [`on_crossing`](crate::Policy::on_crossing).
#[derive(Clone, Copy)]
pub struct Crossing<'a> {
    pub(super) policy: &'a str,
    pub(super) shadow: bool,
    pub(super) selector: &'a dyn WritesKeys,
    pub(super) key: &'a PartitionKey,
    pub(super) share: Share,
    pub(super) decision: &'a Decision,
}

impl<'a> Crossing<'a> {
    /// The policy's name.
    #[must_use]
    pub const fn policy(&self) -> &'a str {
        self.policy
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &'a PartitionKey {
        self.key
    }

    /// The key [as an operator types it](crate::policy::KeyOf). Keys may be personal data.
    #[must_use]
    pub fn key_text(&self) -> String {
        self.selector.text_of(self.key)
    }

    /// The share that was crossed, rounded to a millionth.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share.to_f64()
    }

    /// The units that are used after the charge, rounded up to whole units.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.limit().saturating_sub(self.decision.remaining())
    }

    /// The key's [limit](Decision::limit), which is the burst for a bucket.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.decision.limit()
    }

    /// The time until the key is [as if it had never been seen](Decision::reset_after), if it sends no more requests:
    /// the end of its window, or the time in which its bucket fills up.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.decision.reset_after()
    }

    /// Whether the policy is a [shadow](crate::Policy::shadow), which never rejects requests.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }
}

/// Without the key.
impl fmt::Debug for Crossing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crossing")
            .field("policy", &self.policy())
            .field("share", &self.share())
            .field("used", &self.used())
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Quota;

    #[test]
    fn shares_are_kept_in_millionths() {
        for (share, kept) in [(0.8, 800_000), (0.95, 950_000), (1.0, 1_000_000), (0.000_001, 1), (1.0 / 3.0, 333_333)] {
            assert_eq!(Share::new(share).map(Share::millionths), Some(kept));
        }
        for share in [0.0, -0.5, 1.000_000_1, 80.0, f64::NAN, f64::INFINITY, 0.000_000_4] {
            assert_eq!(Share::new(share), None, "{share}");
        }
        assert_eq!(Share::new(0.8).unwrap().to_string(), "0.8");
    }

    #[test]
    fn shares_round_up_to_whole_units() {
        let units = |share, limit| Share::new(share).unwrap().units_of(limit);
        assert_eq!([units(0.8, 10), units(0.8, 11), units(0.8, 1), units(1.0, 7)], [8, 9, 1, 7]);
        assert_eq!(units(1.0, Quota::MAX_UNITS), Quota::MAX_UNITS);
        assert_eq!(units(0.000_001, Quota::MAX_UNITS), 1_000_000_000);
    }
}
