//! Limiters that enter credits and charges by hand themselves.

use std::future::Future;
use std::pin::Pin;

use crate::values::{Ask, Credit, Decision, LimiterError, PartitionKey};

/// A key's state after a credit or a charge by hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adjusted {
    /// The decision on a request of cost 0 afterwards.
    pub(crate) decision: Decision,
    /// Whether its reference was known, so that nothing was done.
    pub(crate) is_repeated: bool,
}

/// The outcome of a server call.
pub(crate) type PendingAdjustment = Pin<Box<dyn Future<Output = Result<Adjusted, LimiterError>> + Send>>;

/// A limiter that enters a credit or a charge by hand together with its reference, in one atomic step. If several with
/// one reference arrive at once, in any number of processes, one is entered.
pub(crate) trait Adjusting: Send + Sync + 'static {
    /// Adds units to a key; `None` if the limiter [keeps no](Self::keeps_credits) credited units.
    fn credit(&self, key: &PartitionKey, credit: &Credit) -> Option<PendingAdjustment>;

    /// Whether the limiter keeps credited units.
    fn keeps_credits(&self) -> bool;

    /// Charges units to a key: those that are left, and the others as a debt.
    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment;
}
