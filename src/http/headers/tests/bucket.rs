//! An oracle: a bucket in plain integers, and the numbers that fields should advertise for it.

use std::time::Duration;

use crate::values::{Decision, Quota};

const NANOS: u128 = 1_000_000_000;

/// A bucket as one would explain it: a debt in nanoseconds times `limit` that decreases with time.
pub(super) struct Bucket {
    pub(super) quota: Quota,
    pub(super) paid_at: u128,
}

impl Bucket {
    pub(super) const fn new(quota: Quota) -> Self {
        Self { quota, paid_at: 0 }
    }

    fn interval(&self) -> u128 {
        self.quota.period().as_nanos()
    }

    fn units(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.quota.limit())
    }

    pub(super) fn decide(&mut self, now: u64, cost: u32) -> Decision {
        let (now, limit) = (self.units(now), u128::from(self.quota.limit()));
        let capacity = u128::from(self.quota.max_burst()) * self.interval();
        let after = self.paid_at.saturating_sub(now) + u128::from(cost) * self.interval();
        let span = |units: u128| {
            let nanos = units.div_ceil(limit);
            Duration::new(u64::try_from(nanos / NANOS).unwrap(), u32::try_from(nanos % NANOS).unwrap())
        };
        let is_allowed = after <= capacity;
        if is_allowed {
            self.paid_at = now + after;
        }
        let debt = self.paid_at.saturating_sub(now);
        let left = u32::try_from((capacity - debt) / self.interval()).unwrap();
        let burst = self.quota.max_burst();
        let decision = if is_allowed {
            Decision::allow(burst, left)
        } else {
            Decision::deny(burst, left, (cost <= burst).then(|| span(after - capacity)))
        };
        decision.with_reset_after(span(debt))
    }

    /// Returns the `r` and `t` of an admission: the whole units left and the seconds, rounded up, in which they are
    /// earned; with none left, the time to the next unit, at least 1.
    pub(super) fn expected(&self, now: u64) -> (u128, u128) {
        let second = NANOS * u128::from(self.quota.limit());
        let capacity = u128::from(self.quota.max_burst()) * self.interval();
        let free = capacity - self.paid_at.saturating_sub(self.units(now));
        match free / self.interval() {
            0 => (0, (self.interval() - free).div_ceil(second).max(1)),
            left => (left, free.div_ceil(second)),
        }
    }
}
