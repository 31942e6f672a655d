//! The parts that fixed and sliding windows share: window numbers, receipts, and phases.

use std::time::Duration;

use crate::values::{Issuer, Proof, Quota, Receipt};

/// Why a window accepts no burst but its limit.
pub(super) const NO_BURST: &str =
    "a window admits its whole limit at once and has no other burst: leave the burst out, or use a bucket";

/// Returns the start of a window, which is numbered from the beginning of time.
pub(super) const fn start_of(quota: &Quota, window: u64) -> u64 {
    window.saturating_mul(quota.period_nanos())
}

/// Returns `draw` / 2^64 of the period.
pub(super) fn phase(quota: &Quota, draw: u64) -> Duration {
    let nanos = (u128::from(draw) * u128::from(quota.period_nanos())) >> u64::BITS;
    Duration::from_nanos(u64::try_from(nanos).expect("less than the period"))
}

/// The window in which a charge was made.
pub(crate) struct ChargedIn(pub(crate) u64);

impl ChargedIn {
    /// Reads the window from a receipt, if it names one.
    pub(crate) fn read(receipt: Receipt) -> Option<u64> {
        receipt.read().map(|Self(window)| window)
    }
}

impl Proof for ChargedIn {
    const ISSUER: Issuer = Issuer::Window;

    #[inline(always)]
    fn into_value(self) -> u128 {
        self.0.into()
    }

    #[allow(clippy::cast_possible_truncation)] // No more was written.
    fn from_value(window: u128) -> Self {
        Self(window as u64)
    }
}
