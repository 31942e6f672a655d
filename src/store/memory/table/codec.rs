//! Words and states: the trait by which the states of keys become words, and words become states again.

use std::any::Any;

use super::rule::Rule;
use super::word::Tag;
use crate::store::memory::quota_state::{QuotaState, StateType};
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

/// A [`Rule`] whose words stand for states of an algorithm under one quota, the limiter's.
pub(in crate::store::memory) trait Codec: Rule {
    /// The state of the algorithm that makes the same decisions.
    type State: Copy + 'static;

    /// Returns the rule of a quota with words that hold `units` units, the most that some key may owe, if there are
    /// such words. The words of a bucket may [hold](Self::most_units) fewer.
    fn holding(quota: &Quota, staggered: bool, units: u64) -> Option<Self>;

    /// Returns the rule for the table of a number, which its receipts may carry.
    fn numbered(self, _: u64) -> Self {
        self
    }

    /// Reads a receipt as the charge that [`Rule::refunded`] takes, if that is known. The charge may be by one of the
    /// rules `before`: the oldest first, each with the instant until which it was in force.
    fn charged(&self, receipt: Receipt, before: &[(Self, Timestamp)]) -> Option<u64>;

    /// Returns the most units that a key may owe: the units of its quota, or if it has inherited, the most that a word
    /// holds.
    fn most_units(&self, has_inherited: bool) -> u64;

    /// Returns the most units that may be charged under a quota.
    fn most_of(quota: &Quota) -> u64;

    /// Returns how many units a state owes.
    fn units_of(entry: &QuotaState<Self::State>, at: Timestamp) -> u64;

    /// Passes a debt at `at` to `act`: as a state under the quota of the rule, unless its own form is wanted.
    fn with_state(
        &self,
        debt: Self::Debt,
        wanted: StateType,
        own: &Quota,
        at: Timestamp,
        act: &mut dyn FnMut(&dyn Any),
    );

    /// Returns the [stamp](Rule::stamp) of a state under the quota of the rule, cut to the greatest debt that a word
    /// can hold. The state of a bucket may be under any quota: it owes the same number of tokens.
    fn stamp_of(&self, tag: Tag, entry: QuotaState<Self::State>, at: Timestamp) -> u64;

    /// Returns the first stamp of nothing at which the debt with this stamp is paid.
    fn ends(&self, stamp: u64) -> u64;
}
