//! Limiters whose servers keep their keys' bans and debts.

use std::time::Duration;

use crate::values::{Ask, BanGrowth, Override, PartitionKey, Pending};

/// A limiter whose server keeps bans and debts beside the key states. All processes that share the limit share them,
/// too, and learn about them by the calls that they make anyway. [Resetting](crate::limiter::Mode::Reset) a key forgets
/// both.
pub(crate) trait KeepsStanding: Send + Sync + 'static {
    /// Bans a key, unless it is banned: all its requests are rejected, with a decision that [says
    /// so](crate::Decision::ban). If bans grow, and the server counts them, it computes the ban's length; otherwise,
    /// the ban lasts for `span`.
    fn ban(&self, key: &PartitionKey, span: Duration, growth: Option<BanGrowth>) -> Pending;

    /// Bans or allows a key as an operator says, or lifts both.
    fn override_key(&self, key: &PartitionKey, by_hand: Override) -> Pending;

    /// Charges a request's cost while units are left, and lets the key owe the rest.
    fn owe(&self, ask: &Ask<'_>) -> Pending;
}
