use std::fmt::Debug;

use super::word::{Tag, Word};
use crate::values::Decision;
use crate::values::time::Timestamp;

/// How the table reads and judges its words: a kind of bucket or window, with its quota.
///
/// A word keeps 36 bits of the [stamp](Self::stamp) of its key's debt, which is so many of sixteen epochs. A debt is owed for
/// four epochs at most, so it can be told from what was paid; the head of `compact.rs` says how.
pub(super) trait Rule: Copy + Send + Sync + 'static {
    /// A reading of the clock.
    type Now: Copy;

    /// What a key owes as of some instant: how its word reads then.
    type Debt: Copy + Debug;

    fn read(&self, now: Timestamp) -> Self::Now;

    /// The instant by which the keys with this tag are judged at `now`, which is no earlier.
    fn of_key(&self, now: Self::Now, tag: Tag) -> Self::Now;

    fn epoch(&self, now: Self::Now) -> u32;

    /// `now`, but to judge no earlier than when `epoch` began. Waits are counted from the clock's own time to that, and on.
    fn clamp(&self, now: Self::Now, epoch: u32) -> Self::Now;

    /// The instant at which an epoch begins.
    fn beginning(&self, epoch: u32) -> Self::Now;

    /// How a word reads.
    fn owed(&self, word: Word, now: Self::Now) -> Self::Debt;

    /// What a key owes that owes nothing.
    fn nothing(&self, now: Self::Now) -> Self::Debt;

    /// A debt as a number that means the same at all times. Zero stands for no debt.
    fn stamp(&self, debt: Self::Debt, now: Self::Now) -> u64;

    /// What is owed of the debt with this stamp, but no more than a word can tell.
    fn stamped(&self, stamp: u64, now: Self::Now) -> Self::Debt;

    /// Both debts together.
    fn joined(&self, one: Self::Debt, other: Self::Debt) -> Self::Debt;

    fn judge(&self, debt: Self::Debt, cost: u32, now: Self::Now) -> Ruling<Self::Debt>;

    /// A ruling on `cost` in the numbers that clients get.
    fn decision(&self, ruling: Ruling<Self::Debt>, cost: u32, now: Self::Now) -> Decision;

    /// Whether a request was rejected for what was charged, or read, at a later time than its own reading of the clock.
    fn is_late(&self, ruling: &Ruling<Self::Debt>, now: Self::Now) -> bool;

    /// How much would be forgiven if it were forgotten, and zero if nothing is owed. Compared among keys of one table.
    fn size(&self, debt: Self::Debt) -> u64;

    /// The nanoseconds until nothing is owed.
    fn left(&self, debt: Self::Debt, now: Self::Now) -> u64;

    /// Whether nothing of the debt with this stamp is owed any more when `epoch` begins.
    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool;

    /// What is owed after `cost` units are given back. `charged` is the tick at which a bucket's charge is paid off, or the
    /// window that was charged.
    fn refunded(&self, debt: Self::Debt, cost: u32, charged: u64, now: Self::Now) -> Self::Debt;
}

/// The answer to a request, in the units of its rule: small enough for registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ruling<D> {
    /// It passes, and this is owed afterwards.
    Admit { debt: D },
    /// It asks for nothing.
    Peek { debt: D },
    /// It has to wait.
    Reject { debt: D },
    /// It costs more than ever fits.
    Never { debt: D },
    /// The table has no room for its key, for so many nanoseconds.
    Full { wait: u64 },
}
