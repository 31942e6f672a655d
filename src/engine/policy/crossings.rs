//! Crossings: finds the charges that take the use of a key past a share of its limit, and reports them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::engine::domain::Domain;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::facts::Fact;
use crate::engine::policy::shares::{Crossing, Share};
use crate::values::{Decision, PartitionKey};

impl<D: Domain> Policy<D> {
    /// Calls `report` when the use of a key passes `share` of its limit: with 0.8, when a charge takes its use from
    /// below 80 % to 80 % or more. So a client can be warned before its first rejection. Each call adds a share.
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
    /// `report` runs on the task of the request, after its charge and before the inner service is called, so it must
    /// not block: spawn a task to send a mail ([guide](crate::guide::warnings)). With a limiter that shares crossings
    /// it runs on a task of its own. A panic in it is caught: the request, its charges and later reports are not
    /// affected. Crossings are also logged, [counted](crate::layer::RateLimitLayerBuilder::route), and
    /// [events](crate::layer::RateLimitLayerBuilder::on_transition).
    ///
    /// # When a key crosses a share
    ///
    /// The use of a key is its [limit](crate::Decision::limit) minus its
    /// [remaining](crate::Decision::remaining) units; of a bucket, the limit is the burst. A charge crosses a share if
    /// the use was less than the share of the limit before it, and is not afterwards. Both numbers are of one decision,
    /// so of concurrent charges exactly one crosses, in memory and on a server, under quotas of the keys' own, and
    /// whatever the cost. One charge may cross several shares: each is reported, the lowest first.
    ///
    /// Charges of admitted requests count, also of a [shadow](Self::shadow), and charges at the end of a response above
    /// the first ([settlements](Self::settle_by_handler)). A settlement on a server that leaves a
    /// [debt](Self::owe_shortfalls) counts as if all of it had been charged at once. Rejections and peeks cross
    /// nothing.
    ///
    /// A charge that is rolled back, since another policy rejects the request, is not reported. If it was the one that
    /// crossed, and others of the key came before it was taken back, the crossing is not reported. Nor is it if the
    /// client disconnects while the call to the server that makes the charge is in flight.
    ///
    /// # Once per window
    ///
    /// After a report, the same share of the same key is not reported again before the
    /// [`reset_after`](crate::Decision::reset_after) of its decision is over: a refund may take a key below the share,
    /// and a later charge above it again. For a fixed window or a window of the calendar, that is the end of the
    /// window; for a sliding window, the instant at which the charge counts no more; for a bucket, the time in which it
    /// fills up, so that a key that keeps sending at the rate of its limit is reported once in that time. A live change
    /// keeps this, a restart does not, and a [reset](crate::LimitsHandle::reset) of the key does not end it.
    ///
    /// # On several machines
    ///
    /// On Redis, on PostgreSQL and in another store [with records](crate::store::remote::RemoteStore::records), all
    /// processes report a crossing once: the process whose charge has crossed claims the report by a call
    /// in the background. If that call fails, it reports. If the process ends between the call and the report, no
    /// process does. While the [local fallback](crate::FailureMode::LocalFallback) decides, and with all other
    /// limiters, each process reports its own crossings. With a
    /// [lease](crate::store::remote::RemoteStore::leasing), the use includes units that a process has taken in advance,
    /// so a crossing may be seen early by these, or be missed.
    ///
    /// # Cost
    ///
    /// A policy with a share takes the general path of the layer in place of the short one. A crossing looks into a
    /// table of this process, 2 MiB for 65,536 keys and shares from the first crossing on; if there are more, the
    /// entries that end first are forgotten, and may be reported again. A policy without a share costs nothing.
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

    /// Logs and counts when the use of a key passes `share` of its limit, and reports the event to
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

    /// Whether it reports crossings.
    #[inline]
    pub(crate) fn watches_shares(&self) -> bool {
        !self.watched.is_empty()
    }

    /// The shares that an admission has crossed, the lowest first: `charged` units were charged.
    pub(crate) fn crossed_by(&self, admission: &Decision, charged: u64) -> impl Iterator<Item = Share> {
        self.watched.crossed_by(admission, charged)
    }

    /// Records that a key has crossed a share. Returns whether this process is to report it: it has not done so within
    /// the reset of an earlier crossing.
    pub(crate) fn begin_crossing(&self, key: &PartitionKey, share: Share, reset: Duration) -> bool {
        let place = PartitionKey::from_parts([key.as_bytes(), &share.millionths().to_le_bytes()]);
        self.lineage.record.crossed_by(|| self.clock()).update(&place, |end, now| {
            let begins = end.is_none();
            end.get_or_insert_with(|| now.saturating_add(reset));
            begins
        })
    }

    /// Reports a crossing to the log, the metrics, the hook of the layer and the function of the share.
    #[cold]
    pub(crate) fn report_crossing(&self, key: &PartitionKey, share: Share, decision: &Decision) {
        let crossing =
            Crossing { policy: &self.name, shadow: self.shadow, selector: &self.selector, key, share, decision };
        self.lineage.meter.crossed(share);
        // The request is admitted and charged, whatever a function of the program does.
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
    fn a_percentage_is_no_share() {
        let _ = Policy::new("p", Quota::per_second(1)).warn_at(80.0);
    }

    #[test]
    fn a_function_stays_if_the_share_is_set_again_without_one() {
        let policy = Policy::new("p", Quota::per_second(10)).on_crossing(0.5, |_| ()).warn_at(0.9).warn_at(0.5);
        let hooked = |share| policy.watched.hook_of(Share::new(share).unwrap()).is_some();
        assert_eq!([hooked(0.5), hooked(0.9)], [true, false]);
        let used_up = Decision::allow(10, 0);
        let all = policy.crossed_by(&used_up, 10);
        assert_eq!(all.map(Share::to_f64).collect::<Vec<_>>(), [0.5, 0.9]);
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// The charges of a window, in any order of sizes, against a count that cannot be wrong.
        #[test]
        fn each_share_is_crossed_by_the_charge_that_reaches_it(
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
