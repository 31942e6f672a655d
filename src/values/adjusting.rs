//! Limiters that enter credits and charges by hand themselves.

use std::future::Future;
use std::pin::Pin;

use crate::values::{Ask, Credit, Decision, LimiterError, PartitionKey};

/// The state of a key after a credit or a charge by hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adjusted {
    /// The decision on a request of cost 0 afterwards.
    pub(crate) decision: Decision,
    /// Whether its reference was known, so that nothing was done.
    pub(crate) is_repeated: bool,
}

/// The outcome of a call of a server.
pub(crate) type PendingAdjustment = Pin<Box<dyn Future<Output = Result<Adjusted, LimiterError>> + Send>>;

/// A limiter that enters credits and charges by hand with their references, in one atomic step: so of those with one
/// reference, however many arrive at once and in how many processes, one is entered.
pub(crate) trait Adjusting: Send + Sync + 'static {
    /// Adds units to a key; `None` if the limiter [keeps no](Self::keeps_credits) units that are credited.
    fn credit(&self, key: &PartitionKey, credit: &Credit) -> Option<PendingAdjustment>;

    /// Whether the limiter keeps units that are credited.
    fn keeps_credits(&self) -> bool;

    /// Charges units to a key: those that are left, and the others as a debt.
    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment;
}
