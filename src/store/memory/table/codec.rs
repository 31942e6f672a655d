//! Words and states: the trait by which keys' states become words, and words become states again.

use std::any::Any;

use super::rule::Rule;
use super::word::Tag;
use crate::store::memory::quota_state::{QuotaState, StateType};
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

/// A [`Rule`] whose words stand for an algorithm's states under one quota, the limiter's.
pub(in crate::store::memory) trait Codec: Rule {
    /// The algorithm's state that makes the same decisions.
    type State: Copy + 'static;

    /// Returns the rule for a quota with words that hold `units` units, the most that some key may owe, if there are
    /// such words. A bucket's words may [hold](Self::most_units) fewer.
    fn holding(quota: &Quota, staggered: bool, units: u64) -> Option<Self>;

    /// Returns the rule for the table with a number, which its receipts may carry.
    fn numbered(self, _: u64) -> Self {
        self
    }

    /// Reads a receipt as the charge that [`Rule::refunded`] takes, if that is known. The charge may be by an earlier
    /// rule in `before`, which has the oldest first, each with the instant until which it was in force.
    fn charged(&self, receipt: Receipt, before: &[(Self, Timestamp)]) -> Option<u64>;

    /// Returns the most units that a key may owe: its quota's units, or if it has inherited, the most that a word
    /// holds.
    fn most_units(&self, has_inherited: bool) -> u64;

    /// Returns the most units that may be charged under a quota.
    fn most_of(quota: &Quota) -> u64;

    /// Returns how many units a state owes.
    fn units_of(entry: &QuotaState<Self::State>, at: Timestamp) -> u64;

    /// Passes a debt at `at` to `act`: as a state under the rule's quota, unless its own form is wanted.
    fn with_state(
        &self,
        debt: Self::Debt,
        wanted: StateType,
        own: &Quota,
        at: Timestamp,
        act: &mut dyn FnMut(&dyn Any),
    );

    /// Returns the [stamp](Rule::stamp) for a state under the rule's quota, cut to the greatest debt that a word can
    /// hold. A bucket's state may be under any quota, because it owes the same number of tokens.
    fn stamp_of(&self, tag: Tag, entry: QuotaState<Self::State>, at: Timestamp) -> u64;

    /// Returns the first debt-free stamp at which the debt with this stamp is paid.
    fn ends(&self, stamp: u64) -> u64;
}
