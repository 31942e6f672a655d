//! Resets, counted so that no charge from before one is refunded after it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::values::{Decision, Receipt};

/// How often keys were reset, with one count for each 256th of all keys.
///
/// A reset clears all that a key owes, so a refund of an earlier charge would be paid twice. Therefore receipts carry
/// the count at the time of their charge, and a refund under another count is dropped. Until the first reset nothing is
/// kept, and receipts are as the algorithm wrote them.
#[derive(Default)]
pub(super) struct Resets(OnceLock<Box<[AtomicU32]>>);

/// One kibibyte of counts, from the first reset on. A reset drops the refunds of one in so many other keys.
const COUNTS: usize = 256;

impl Resets {
    /// Copies the counts so far, for an heir of the same keys.
    pub(super) fn inherited(&self) -> Self {
        let Some(counts) = self.0.get() else { return Self::default() };
        let copies = counts.iter().map(|count| AtomicU32::new(count.load(Ordering::Acquire)));
        Self(OnceLock::from(copies.collect::<Box<_>>()))
    }

    /// Copies the counts as after a reset of all keys: nothing that was charged so far is refunded any more.
    pub(super) fn all_reset(&self) -> Self {
        let copy = self.inherited();
        for count in copy.counts() {
            // As much as one reset counts.
            count.fetch_add(2, Ordering::Relaxed);
        }
        copy
    }

    /// Whether a key was ever reset.
    #[inline(always)]
    pub(super) fn has_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns a key's count. To be read before a charge: then a reset in between counts as one after the charge, and
    /// its refund is dropped. Read after the charge, it could let a charge be refunded that the reset has cleared.
    pub(super) fn count(&self, hash: u64) -> u32 {
        self.0.get().map_or(0, |counts| count_of(counts, hash).load(Ordering::Acquire))
    }

    /// Runs what resets a key. Counts once before it, so that nothing is refunded from then on that was charged
    /// earlier; and once after it, so that nothing is refunded that is charged meanwhile, since the reset may clear
    /// that as well.
    pub(super) fn run(&self, hash: u64, reset: impl FnOnce()) {
        let count = count_of(self.counts(), hash);
        count.fetch_add(1, Ordering::AcqRel);
        reset();
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the receipt as its algorithm wrote it; `None` if its key was reset since.
    pub(super) fn open(&self, hash: u64, receipt: Receipt) -> Option<Receipt> {
        (receipt.changes() == stamp(self.count(hash))).then(|| receipt.after(0))
    }

    fn counts(&self) -> &[AtomicU32] {
        self.0.get_or_init(|| (0..COUNTS).map(|_| AtomicU32::new(0)).collect())
    }
}

/// Returns the decision with a receipt that carries the count at the time of its charge.
#[cold]
pub(super) fn with_count(decision: Decision, count: u32) -> Decision {
    decision.with_receipt(decision.receipt().after(stamp(count)))
}

/// Returns a count in 16 bits: never that of a charge before the first reset, and the same again only after tens of
/// thousands of resets.
fn stamp(count: u32) -> u16 {
    let most = u32::from(u16::MAX);
    if count == 0 { 0 } else { u16::try_from((count - 1) % most + 1).expect("no more than the most") }
}

/// Returns the count that a key shares with those whose hashes have the same eight bits; any eight would do.
fn count_of(counts: &[AtomicU32], hash: u64) -> &AtomicU32 {
    #[allow(clippy::cast_possible_truncation)] // The remainder is that of the low bits.
    let index = (hash >> 40) as usize % COUNTS;
    &counts[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_later_count_is_stamped_like_that_of_no_reset() {
        let (most, last) = (u32::from(u16::MAX), u32::MAX);
        for (count, expected) in [(0, 0), (1, 1), (most, u16::MAX), (most + 1, 1), (last, u16::MAX)] {
            assert_eq!(stamp(count), expected, "{count}");
        }
    }
}
