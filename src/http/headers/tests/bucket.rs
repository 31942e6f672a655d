//! An oracle: a bucket in plain integers, and the numbers that fields should advertise for it.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::values::{Decision, Quota};

/// One second, in nanoseconds.
pub(super) const NANOS: u128 = 1_000_000_000;

/// The greatest Integer in a structured field (RFC 9651, section 3.3.1). Greater numbers are cut off there.
pub(super) const LARGEST: u128 = 10_u128.pow(15) - 1;

/// The longest wait that is advertised, in seconds, because clients keep it as milliseconds in a signed 32-bit timer.
pub(super) const LONGEST_WAIT: u128 = ((1 << 31) - 1) / 1_000;

/// `Measure` takes this part of a bucket's capacity off the remaining units, because if a store counts in ticks, its
/// state may be a tick too low. So its `t` may be shorter than the oracle's.
const TICKS: u128 = 1 << 32;

/// A bucket as one would explain it: a debt in nanoseconds times `limit` that decreases with time.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    quota: Quota,
    /// When the debt is paid, in nanoseconds times `limit`.
    paid_at: u128,
}

impl Bucket {
    pub(super) const fn new(quota: Quota) -> Self {
        Self { quota, paid_at: 0 }
    }

    /// The time that one unit takes, in nanoseconds times `limit`.
    fn interval(&self) -> u128 {
        self.quota.period().as_nanos()
    }

    fn capacity(&self) -> u128 {
        u128::from(self.quota.max_burst()) * self.interval()
    }

    fn scaled(&self, nanos: u128) -> u128 {
        nanos * u128::from(self.quota.limit())
    }

    pub(super) fn decide(&mut self, now: u64, cost: u64) -> Decision {
        let now = self.scaled(now.into());
        let limit = u128::from(self.quota.limit());
        let capacity = self.capacity();
        let after = self.paid_at.saturating_sub(now) + u128::from(cost) * self.interval();
        let span = |scaled: u128| {
            let nanos = scaled.div_ceil(limit);
            Duration::new(u64::try_from(nanos / NANOS).unwrap(), u32::try_from(nanos % NANOS).unwrap())
        };
        let is_allowed = after <= capacity;
        if is_allowed {
            self.paid_at = now + after;
        }
        let debt = self.paid_at.saturating_sub(now);
        let left = u64::try_from((capacity - debt) / self.interval()).unwrap();
        let burst = self.quota.max_burst();
        let decision = if is_allowed {
            Decision::allow(burst, left)
        } else {
            Decision::reject(burst, left, (cost <= burst).then(|| span(after - capacity)))
        };
        decision.with_reset_after(span(debt))
    }

    /// Returns the `r` of an admission, the whole units left, and its `t`: the seconds, rounded up, in which the
    /// remaining units are earned; with zero units left, the time to the next unit. At least 1.
    ///
    /// `t` has a range, because it is computed from a [`Decision`], which rounds the debt up, and `Measure` allows for
    /// a tick.
    pub(super) fn expected(&self, now: u64) -> (u128, RangeInclusive<u128>) {
        let seconds = |scaled: u128| scaled.div_ceil(self.scaled(NANOS)).clamp(1, LARGEST);
        let debt = self.paid_at.saturating_sub(self.scaled(now.into()));
        let free = self.capacity() - debt;
        // A `Decision` keeps nanoseconds if they fit into 64 bits, and milliseconds if not.
        let is_coarse = debt > self.scaled(u64::MAX.into());
        let rounding = self.scaled(if is_coarse { NANOS / 1_000 } else { 1 });
        match free / self.interval() {
            0 => {
                let wait = self.interval() - free;
                (0, seconds(wait)..=seconds(wait + rounding))
            }
            left => (left, seconds(free.saturating_sub(rounding + self.capacity() / TICKS))..=seconds(free)),
        }
    }
}
