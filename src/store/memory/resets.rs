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

const GROUPS: usize = 256;

impl Resets {
    /// Copies the counts so far, for an heir of the same keys.
    pub(super) fn inherited(&self) -> Self {
        let Some(counts) = self.0.get() else { return Self::default() };
        let copies = counts.iter().map(|count| AtomicU32::new(count.load(Ordering::Acquire)));
        Self(OnceLock::from(copies.collect::<Box<_>>()))
    }

    /// Copies the counts as after a reset of all keys: nothing that was charged so far is refunded any more.
    pub(super) fn all_reset(&self) -> Self {
        let counts = self.inherited();
        counts.counts().iter().for_each(|count| {
            count.fetch_add(2, Ordering::Relaxed);
        });
        counts
    }

    /// Returns a key's count. To be read before a charge: then a reset in between counts as one after the charge, and
    /// its refund is dropped. Read after the charge, it could let a charge be refunded that the reset has cleared.
    #[inline(always)]
    pub(super) fn count(&self, hash: u64) -> u32 {
        self.0.get().map_or(0, |counts| of(counts, hash).load(Ordering::Acquire))
    }

    /// Runs what resets a key. Counts once before it, so that nothing is refunded from then on that was charged
    /// earlier; and once after it, so that nothing is refunded that is charged meanwhile, since the reset may clear
    /// that as well.
    pub(super) fn run(&self, hash: u64, reset: impl FnOnce()) {
        let count = of(self.counts(), hash);
        count.fetch_add(1, Ordering::AcqRel);
        reset();
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the receipt as its algorithm wrote it; `None` if its key was reset since.
    pub(super) fn open(&self, hash: u64, receipt: Receipt) -> Option<Receipt> {
        (receipt.changes() == stamp(self.count(hash))).then(|| receipt.after(0))
    }

    fn counts(&self) -> &[AtomicU32] {
        self.0.get_or_init(|| (0..GROUPS).map(|_| AtomicU32::new(0)).collect())
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

fn of(counts: &[AtomicU32], hash: u64) -> &AtomicU32 {
    #[allow(clippy::cast_possible_truncation)]
    let group = (hash >> 40) as usize % GROUPS;
    &counts[group]
}
