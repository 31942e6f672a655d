//! Counts resets, so that no charge from before a reset is refunded after it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::values::{Decision, Receipt};

/// How often keys were reset, with one count for each 256th of all keys.
///
/// A reset clears a key's whole debt, so a refund of an earlier charge would be paid twice. Therefore receipts carry
/// the count at their charge, and a refund under another count is dropped. Before the first reset there are no counts,
/// and receipts are as the algorithm wrote them.
#[derive(Default)]
pub(super) struct Resets(OnceLock<Box<[AtomicU32]>>);

/// The number of counts, which take one kibibyte, from the first reset on. A reset drops the refunds of one in `COUNTS`
/// other keys.
const COUNTS: usize = 256;

impl Resets {
    /// Copies the counts so far, for an heir with the same keys.
    pub(super) fn inherited(&self) -> Self {
        let Some(counts) = self.0.get() else { return Self::default() };
        let copies = counts.iter().map(|count| AtomicU32::new(count.load(Ordering::Acquire)));
        Self(OnceLock::from(copies.collect::<Box<_>>()))
    }

    /// Copies the counts as they would be if all keys were reset, so that no earlier charge is refunded any more.
    pub(super) fn all_reset(&self) -> Self {
        let copy = self.inherited();
        for count in copy.counts() {
            // One reset adds two.
            count.fetch_add(2, Ordering::Relaxed);
        }
        copy
    }

    /// Whether a key was ever reset.
    #[inline(always)]
    pub(super) fn has_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns a key's count. Read it before a charge, because a reset in between then counts as later than the charge,
    /// and drops the charge's refund. A count read after the charge could let a charge be refunded that the reset has
    /// cleared.
    pub(super) fn count(&self, hash: u64) -> u32 {
        self.0.get().map_or(0, |counts| count_of(counts, hash).load(Ordering::Acquire))
    }

    /// Runs a key's `reset`. Counts once before it, so that earlier charges are not refunded any more, and once after
    /// it, so that charges made meanwhile are not refunded, because the reset may clear them as well.
    pub(super) fn run(&self, hash: u64, reset: impl FnOnce()) {
        let count = count_of(self.counts(), hash);
        count.fetch_add(1, Ordering::AcqRel);
        reset();
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the receipt as its algorithm wrote it, unless its key was reset after the charge.
    pub(super) fn open(&self, hash: u64, receipt: Receipt) -> Option<Receipt> {
        (receipt.changes() == stamp(self.count(hash))).then(|| receipt.after(0))
    }

    fn counts(&self) -> &[AtomicU32] {
        self.0.get_or_init(|| (0..COUNTS).map(|_| AtomicU32::new(0)).collect())
    }
}

/// Returns the decision with a receipt that carries the count at its charge.
#[cold]
pub(super) fn with_count(decision: Decision, count: u32) -> Decision {
    decision.with_receipt(decision.receipt().after(stamp(count)))
}

/// Returns a count in 16 bits. It is zero only before the first reset, and repeats only after tens of thousands of
/// resets.
fn stamp(count: u32) -> u16 {
    let most = u32::from(u16::MAX);
    if count == 0 { 0 } else { u16::try_from((count - 1) % most + 1).expect("at most `u16::MAX`") }
}

/// Returns the count that a key shares with the keys whose hashes have the same eight bits. Any eight bits would do.
fn count_of(counts: &[AtomicU32], hash: u64) -> &AtomicU32 {
    #[allow(clippy::cast_possible_truncation)] // The remainder depends on the low bits only.
    let index = (hash >> 40) as usize % COUNTS;
    &counts[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_count_without_resets_stamps_zero() {
        let most = u32::from(u16::MAX);
        let last = u32::MAX;
        for (count, expected) in [(0, 0), (1, 1), (most, u16::MAX), (most + 1, 1), (last, u16::MAX)] {
            assert_eq!(stamp(count), expected, "{count}");
        }
    }
}
