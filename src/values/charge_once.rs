//! Limiters that charge a request and its retries once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::values::time::Timestamp;
use crate::values::{Answer, Ask, PartitionKey, Quota, Receipt};

/// A request that may be a retry of an earlier one.
#[derive(Clone, Debug)]
pub(crate) struct Retry {
    /// The identity that a request and its retries share.
    pub(crate) request: PartitionKey,
    /// For how long retries are free, from the end of the response on.
    pub(crate) within: Duration,
    /// How many retries of a request are free.
    pub(crate) free_retries: u32,
    /// The budget for free retries of the policy key.
    pub(crate) budget: Quota,
    /// Where the limiter says until when the record lives, if it finds the request to be a free retry: on the
    /// [monotonic](crate::values::time::Monotonic) clock.
    pub(crate) record_ends: Option<Arc<OnceLock<Timestamp>>>,
}

/// A limiter whose store has the records of requests that are over, and the budgets of free retries: so all processes
/// that share the limit share them, too.
pub(crate) trait ChargingOnce: Send + Sync + 'static {
    /// Decides on a request: a free retry is admitted and charges the budget of its key, and all others are charged as
    /// ever. The decision on a free retry has a receipt that says so, for [`put_back`](Self::put_back), and
    /// the numbers of a key that was not charged.
    ///
    /// If it fails, nothing is known of the request, and the limiter that decides in its place charges it.
    fn decide(&self, ask: &Ask<'_>, retry: &Retry) -> Answer;

    /// Records that a charged request of this key is over, so that retries of it are free. One that has a record keeps
    /// it. In the background: if it fails, the retries are charged.
    fn begin(&self, key: &PartitionKey, retry: &Retry);

    /// Returns a free retry that was given up, or that another policy has rejected: to the record, if that is still
    /// there, and its `cost` to the budget of this key. In the background: if it fails, the next retry is charged.
    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64);
}
