//! Limiters whose servers pass each process's reports on to the others.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::values::{LimiterError, PartitionKey};

/// A limiter whose server keeps a text from each process for the others: the keys that the process rejects most. The
/// server also decides which process reports that a key has crossed a share of its limit.
///
/// No request waits for it. A process writes in the background, and reads when an operator looks.
pub(crate) trait SharesReports: Send + Sync + 'static {
    /// Returns the hash that stands for a key in all processes, and shows nothing of it.
    fn tag(&self, key: &PartitionKey) -> u128;

    /// After `pause`, in the background, makes the reports of this process and writes them. If that fails, the next
    /// ones replace them.
    fn publish_after(&self, pause: Duration, make: Box<dyn FnOnce() -> Vec<Report> + Send>);

    /// Reads the reports from all processes, this one included.
    fn collect(&self) -> Pin<Box<dyn Future<Output = Result<Vec<Report>, LimiterError>> + Send>>;

    /// Claims the report on a key's `crossing`, a number that tells it from the key's other crossings. Returns whether
    /// the claim succeeds, which it does unless the `span` of an earlier claim still lasts.
    fn claim(
        &self,
        key: &PartitionKey,
        crossing: u32,
        span: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<bool, LimiterError>> + Send>>;
}

/// One process's report on one hour. It replaces an earlier one from this process on this hour, and may be forgotten
/// once the next hour is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// The hours since the Unix epoch.
    pub hour: u64,
    /// The process.
    pub process: u64,
    /// The report's text.
    pub text: String,
}
