//! Crossings: finds the charges that take a key's use past a share of its limit, and reports them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::engine::domain::Domain;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::facts::Fact;
use crate::engine::policy::shares::{Crossing, Share};
use crate::values::{Decision, PartitionKey};

impl<D: Domain> Policy<D> {
    /// Calls `report` when a key's use passes `share` of its limit. With 0.8, that is when a charge takes the use from
    /// below 80 % to 80 % or more. So you can warn a client before its first rejection. Each call adds a share.
    ///
    /// ```
    /// use tower_sluice::key::User;
    /// use tower_sluice::{MissingKey, Policy, Quota, SlidingWindow};
    ///
    /// let monthly = Policy::new("api", SlidingWindow::new(Quota::per_day(10_000)))
    ///     .key(User::key())
    ///     .on_missing_key(MissingKey::Skip)
    ///     .on_crossing(0.8, |crossing| {
    ///         let (used, limit) = (crossing.used(), crossing.limit());
    ///         eprintln!("{} has used {used} of {limit}", crossing.key_text());
    ///     });
    /// ```
    ///
    /// `report` runs on the request's task, after its charge and before the inner service is called, so it must not
    /// block: spawn a task to send a mail ([guide](crate::guide::warnings)). With a limiter that shares crossings, it
    /// runs on a separate task. A panic in it is caught: the request, its charges and later reports are not affected.
    /// Crossings are also logged, [counted](crate::guide::monitoring#metrics), and
    /// [events](crate::layer::RateLimitLayerBuilder::on_transition).
    ///
    /// # When a key crosses a share
    ///
    /// A key's use is its [limit](crate::Decision::limit) minus its [remaining](crate::Decision::remaining) units,
    /// where a bucket's limit is its burst. A charge crosses a share if the use was less than this share of the limit
    /// before it, and is not afterwards. Both numbers come from one decision, so exactly one among concurrent charges
    /// crosses, in memory and on a server, under the keys' own quotas, and at any cost. If one charge crosses several
    /// shares, each is reported, the lowest first.
    ///
    /// Charges for admitted requests count, also under a [shadow](Self::shadow), and so do further charges when a
    /// response ends ([settlements](Self::settle_by_handler)). A settlement on a server that leaves a
    /// [debt](Self::owe_shortfalls) counts as if all of it had been charged at once. Rejections and peeks do not cross
    /// a share.
    ///
    /// A charge that is rolled back, because another policy rejects the request, is not reported. If it was the one
    /// that crossed, and others for the key came before it was taken back, the crossing is not reported. It is not
    /// reported either if the client disconnects while the call to the server that makes the charge is in flight.
    ///
    /// # Once per window
    ///
    /// After a report, the same share is not reported again for this key before the decision's
    /// [`reset_after`](crate::Decision::reset_after) is over, because a refund may take a key below the share, and a
    /// later charge above it again. For a fixed or calendar window, that is the window's end. For a sliding window, it
    /// is the instant at which the charge stops counting. For a bucket, it is the time in which it fills up, so that a
    /// key that keeps sending at its limit's rate is reported once in that time. A live change keeps this, a restart
    /// does not, and [resetting](crate::LimitsHandle::reset) the key does not end it.
    ///
    /// # On several machines
    ///
    /// On Redis, on PostgreSQL and in another store [with records](crate::store::remote::RemoteStore::records), a
    /// crossing is reported once across all processes: the process whose charge has crossed claims the report by a call
    /// in the background. If that call fails, this process reports. If it ends between the call and the report, no
    /// process does. While the [local fallback](crate::FailureMode::LocalFallback) decides, and with all other
    /// limiters, each process reports its own crossings. With a [lease](crate::store::remote::RemoteStore::leasing),
    /// the use includes units that a process has taken in advance, so a crossing may be seen early by these, or be
    /// missed.
    ///
    /// # Cost
    ///
    /// A policy with a share takes the layer's general path in place of the fast path. A crossing looks into this
    /// process's table, 2 MiB for 65,536 keys and shares from the first crossing on. If there are more, the entries
    /// that end first are forgotten, and may be reported again. A policy without a share costs nothing.
    ///
    /// # Panics
    ///
    /// If `share` is not above 0 and at most 1 (80 % is 0.8), or less than a millionth.
    #[track_caller]
    #[doc(alias("alert", "threshold", "80%"))]
    pub fn on_crossing(mut self, share: f64, report: impl Fn(&Crossing<'_>) + Send + Sync + 'static) -> Self {
        self.options.set(Fact::OnCrossing);
        self.watched.watch(checked(share), Some(Box::new(report)));
        self
    }

    /// Logs and counts when a key's use passes `share` of its limit, and reports the event to
    /// [`on_transition`](crate::layer::RateLimitLayerBuilder::on_transition): [`on_crossing`](Self::on_crossing)
    /// without a function.
    ///
    /// # Panics
    ///
    /// As [`on_crossing`](Self::on_crossing).
    #[track_caller]
    pub fn warn_at(mut self, share: f64) -> Self {
        self.options.set(Fact::OnCrossing);
        self.watched.watch(checked(share), None);
        self
    }

    /// Whether the policy reports crossings.
    #[inline]
    pub(crate) fn watches_shares(&self) -> bool {
        !self.watched.is_empty()
    }

    /// The shares that an admission has crossed, the lowest first: `charged` units were charged.
    pub(crate) fn crossed_by(&self, admission: &Decision, charged: u64) -> impl Iterator<Item = Share> {
        self.watched.crossed_by(admission, charged)
    }

    /// Records that a key has crossed a share. Returns `true` if this process should report it, because no earlier
    /// crossing is within its reset.
    pub(crate) fn begin_crossing(&self, key: &PartitionKey, share: Share, reset: Duration) -> bool {
        let place = PartitionKey::from_parts([key.as_bytes(), &share.millionths().to_le_bytes()]);
        self.lineage.record.crossed_by(|| self.clock()).update(&place, |end, now| {
            let begins = end.is_none();
            end.get_or_insert_with(|| now.saturating_add(reset));
            begins
        })
    }

    /// Reports a crossing to the log, the metrics, the layer's hook and the share's function.
    #[cold]
    pub(crate) fn report_crossing(&self, key: &PartitionKey, share: Share, decision: &Decision) {
        let crossing =
            Crossing { policy: &self.name, shadow: self.shadow, selector: &self.selector, key, share, decision };
        self.lineage.meter.crossed(share);
        // The request is admitted and charged, even if the program's function panics.
        let _ = catch_unwind(AssertUnwindSafe(|| self.report_crossed(&crossing)));
        if let Some(hook) = self.watched.hook_of(share) {
            let _ = catch_unwind(AssertUnwindSafe(|| hook(&crossing)));
        }
    }
}

#[track_caller]
fn checked(share: f64) -> Share {
    Share::new(share).unwrap_or_else(|| {
        panic!("a share of {share}: it must be above 0 and at most 1; 80 % is 0.8");
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::cases::cases;
    use crate::values::Quota;

    #[test]
    #[should_panic(expected = "a share of 80: it must be above 0 and at most 1; 80 % is 0.8")]
    fn percentages_are_not_shares() {
        let _ = Policy::new("p", Quota::per_second(1)).warn_at(80.0);
    }

    /// `warn_at` sets the share again, without a function.
    #[test]
    fn a_share_keeps_its_function() {
        let policy = Policy::new("p", Quota::per_second(10)).on_crossing(0.5, |_| ()).warn_at(0.9).warn_at(0.5);
        let hooked = |share| policy.watched.hook_of(Share::new(share).unwrap()).is_some();
        assert_eq!([hooked(0.5), hooked(0.9)], [true, false]);
        let used_up = Decision::allow(10, 0);
        let all = policy.crossed_by(&used_up, 10);
        assert_eq!(all.map(Share::to_f64).collect::<Vec<_>>(), [0.5, 0.9]);
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Compares a window's charges, in any order of sizes, with a plain count.
        #[test]
        fn the_reaching_charge_crosses_each_share(
            limit in 1..1_000_u64,
            costs in prop::collection::vec(0..50_u64, 0..100),
            millionths in prop::collection::vec(1..=1_000_000_u32, 0..4),
        ) {
            let mut policy = Policy::new("p", Quota::per_second(1));
            millionths.iter().for_each(|share| policy.watched.watch(Share::of_millionths(*share), None));
            let mut used = 0;
            for cost in costs.into_iter().filter(|cost| *cost <= limit) {
                if used + cost > limit {
                    used = 0;
                }
                let is_reached = |share: u32, used: u64| {
                    u128::from(used) * 1_000_000 >= u128::from(share) * u128::from(limit)
                };
                let is_crossed = |share: &u32| !is_reached(*share, used) && is_reached(*share, used + cost);
                let mut expected: Vec<_> = millionths.iter().copied().filter(is_crossed).collect();
                expected.sort_unstable();
                expected.dedup();
                used += cost;
                let decision = Decision::allow(limit, limit - used);
                let crossed: Vec<_> = policy.crossed_by(&decision, cost).map(Share::millionths).collect();
                prop_assert_eq!(crossed, expected);
            }
        }
    }
}
