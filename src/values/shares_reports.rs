//! Limiters whose servers pass the reports of each process on to the others.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::values::{LimiterError, PartitionKey};

/// A limiter whose server keeps a text of each process for the others: the keys that it rejects most. And which process
/// reports that a key has crossed a share of its limit.
///
/// No request waits for it. A process writes in the background, and reads when somebody looks.
pub(crate) trait SharesReports: Send + Sync + 'static {
    /// Returns the hash that stands for a key in all processes, and shows nothing of it.
    fn tag(&self, key: &PartitionKey) -> u128;

    /// After `pause`, in the background, makes the reports of this process and writes them. If that fails, the next
    /// ones replace them.
    fn publish_after(&self, pause: Duration, make: Box<dyn FnOnce() -> Vec<Report> + Send>);

    /// Reads the reports of all processes, also of this one.
    fn collect(&self) -> Pin<Box<dyn Future<Output = Result<Vec<Report>, LimiterError>> + Send>>;

    /// Claims the report on the `crossing` of a key, which a number distinguishes from others of the key. Returns
    /// whether no process has claimed it within the `span` of an earlier claim.
    fn claim(
        &self,
        key: &PartitionKey,
        crossing: u32,
        span: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<bool, LimiterError>> + Send>>;
}

/// The report of one process on one hour. It replaces an earlier one of the same process and hour, and may be forgotten
/// once the next hour is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// The hours since the Unix epoch.
    pub hour: u64,
    /// The process.
    pub process: u64,
    /// What it reports.
    pub text: String,
}
