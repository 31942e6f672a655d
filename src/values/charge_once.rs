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
    /// How many retries per request are free.
    pub(crate) free_retries: u32,
    /// The policy key's budget for free retries.
    pub(crate) budget: Quota,
    /// The limiter sets this to the record's end, on the [monotonic](crate::values::time::Monotonic) clock, if it finds
    /// that the request is a free retry.
    pub(crate) record_ends: Option<Arc<OnceLock<Timestamp>>>,
}

/// A limiter whose store keeps the records on requests that are over, and the budgets for free retries. All processes
/// that share the limit share them, too.
pub(crate) trait ChargingOnce: Send + Sync + 'static {
    /// Decides on a request: a free retry is admitted and charged to its key's budget, and all other requests are
    /// charged as ever. The decision on a free retry has a receipt that says so, for [`put_back`](Self::put_back), and
    /// the numbers from before a charge.
    ///
    /// If it fails, nothing is known about the request, and the limiter that decides in its place charges it.
    fn decide(&self, ask: &Ask<'_>, retry: &Retry) -> Answer;

    /// Records that a charged request on this key is over, so that its retries are free. An existing record stays. Runs
    /// in the background; if it fails, the retries are charged.
    fn begin(&self, key: &PartitionKey, retry: &Retry);

    /// Returns a free retry that was given up, or that another policy has rejected: to the record, if that is still
    /// there, and its `cost` to this key's budget. Runs in the background; if it fails, the next retry is charged.
    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64);
}
