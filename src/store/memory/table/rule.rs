//! The meaning that a table's words have: the trait that buckets and windows implement.

use std::fmt::Debug;

use super::word::{Tag, Word};
use crate::values::Decision;
use crate::values::time::Timestamp;

/// How the table reads and judges its words: a kind of bucket or window, with its quota.
///
/// A word keeps 36 bits of its key's debt [stamp](Self::stamp), which span sixteen epochs. A debt is owed for four
/// epochs at most, so it can be distinguished from a paid one, as the docs of `table/mod.rs` explain.
pub(in crate::store::memory) trait Rule: Copy + Send + Sync + 'static {
    /// A clock reading.
    type Now: Copy;

    /// A key's debt at some instant, as its word reads then.
    type Debt: Copy + Debug;

    /// Converts a timestamp from the store's clock.
    fn read(&self, now: Timestamp) -> Self::Now;

    /// Returns its windows' period if the wall clock names them.
    #[inline(always)]
    fn wall_period(&self) -> Option<u64> {
        None
    }

    /// Returns a debt as it reads by a clock that is this number of nanoseconds behind. If the wall clock names the
    /// windows, by whole windows.
    fn earlier(&self, debt: Self::Debt, nanos: u64) -> Self::Debt {
        let _ = nanos;
        debt
    }

    /// Returns the instant by which the keys with this tag are judged at `now`, which is no earlier.
    fn local(&self, now: Self::Now, tag: Tag) -> Self::Now;

    /// Returns the epoch for a clock reading.
    fn epoch(&self, now: Self::Now) -> u32;

    /// Returns `now`, moved so that keys are judged no earlier than when `epoch` began. Waits are still counted from
    /// the clock's own time.
    fn clamp(&self, now: Self::Now, epoch: u32) -> Self::Now;

    /// Returns the instant at which an epoch begins.
    fn epoch_start(&self, epoch: u32) -> Self::Now;

    /// Reads a word at `now`.
    fn owed(&self, word: Word, now: Self::Now) -> Self::Debt;

    /// Returns the debt for a key that owes nothing.
    fn nothing(&self, now: Self::Now) -> Self::Debt;

    /// Returns a debt as a number that means the same at all times. Zero stands for no debt.
    fn stamp(&self, debt: Self::Debt, now: Self::Now) -> u64;

    /// Returns the part of the debt with this stamp that is still owed, at most the greatest debt that a word can hold.
    fn stamped(&self, stamp: u64, now: Self::Now) -> Self::Debt;

    /// Adds two debts.
    fn sum(&self, one: Self::Debt, other: Self::Debt) -> Self::Debt;

    /// Decides whether `cost` units fit beside a debt. Charges nothing, because the table writes the debt after an
    /// admission.
    fn judge(&self, debt: Self::Debt, cost: u64, now: Self::Now) -> Ruling<Self::Debt>;

    /// Returns a ruling on `cost` in the numbers that clients get.
    fn decision(&self, ruling: Ruling<Self::Debt>, cost: u64, now: Self::Now) -> Decision;

    /// Returns whether a request was rejected because of a charge or a clock reading that is later than its own
    /// reading.
    fn is_late(&self, ruling: &Ruling<Self::Debt>, now: Self::Now) -> bool;

    /// Returns how much would be forgiven if the debt were forgotten, and zero if nothing is owed. Compared among keys
    /// in one table.
    fn size(&self, debt: Self::Debt) -> u64;

    /// Returns the nanoseconds until nothing is owed.
    fn nanos_until_paid(&self, debt: Self::Debt, now: Self::Now) -> u64;

    /// Returns whether the debt with this stamp is paid when `epoch` begins.
    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool;

    /// Returns the debt after `cost` units are refunded. `charged` is the tick at which a bucket's charge is paid off,
    /// or the window that was charged.
    fn refunded(&self, debt: Self::Debt, cost: u64, charged: u64, now: Self::Now) -> Self::Debt;
}

/// Returns the stamp for a key that owes nothing.
pub(in crate::store::memory) fn stamp_of_nothing<R: Rule>(rule: &R, now: R::Now) -> u64 {
    rule.stamp(rule.nothing(now), now)
}

/// The answer to a request, in its rule's units, which are small enough for registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) enum Ruling<D> {
    /// The request passes, and this is owed afterwards.
    Admit { debt: D },
    /// The request costs nothing.
    Peek { debt: D },
    /// The request has to wait.
    Reject { debt: D },
    /// The request costs more than ever fits.
    Never { debt: D },
    /// The table has no room for the key, for `wait` nanoseconds.
    Full { wait: u64 },
}
