use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::values::{Decision, Receipt};

/// How often keys were reset, for one in 256 keys together.
///
/// A reset pays all that a key owes, and so what is given back for earlier charges would be paid twice. So receipts carry the
/// count at the time of their charge, and what is given back under another count is dropped. Nothing is kept, and receipts
/// are as the algorithm wrote them, until the first reset.
#[derive(Default)]
pub(super) struct Resets(OnceLock<Box<[AtomicU32]>>);

const GROUPS: usize = 256;

impl Resets {
    /// The same counts so far, for an heir of the same keys.
    pub(super) fn inherited(&self) -> Self {
        let Some(counts) = self.0.get() else { return Self::default() };
        let copies = counts.iter().map(|count| AtomicU32::new(count.load(Ordering::Acquire)));
        Self(OnceLock::from(copies.collect::<Box<_>>()))
    }

    /// The same, after a reset of all: nothing is given back any more for what was charged so far.
    pub(super) fn all_reset(&self) -> Self {
        let counts = self.inherited();
        counts.counts().iter().for_each(|count| {
            count.fetch_add(2, Ordering::Relaxed);
        });
        counts
    }

    /// To be read before a charge: then a reset that comes in between is taken for one that came after it.
    #[inline(always)]
    pub(super) fn count(&self, hash: u64) -> u32 {
        self.0.get().map_or(0, |counts| of(counts, hash).load(Ordering::Acquire))
    }

    /// Runs what resets a key. Counted before, so that nothing is given back from then on for what was charged earlier; and
    /// after it, so that nothing is for what is charged meanwhile, which may be forgotten as well.
    pub(super) fn run(&self, hash: u64, reset: impl FnOnce()) {
        let count = of(self.counts(), hash);
        count.fetch_add(1, Ordering::AcqRel);
        reset();
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// The receipt as its algorithm wrote it; `None` if its key was reset since.
    pub(super) fn open(&self, hash: u64, receipt: Receipt) -> Option<Receipt> {
        (receipt.changes() == stamp(self.count(hash))).then(|| receipt.after(0))
    }

    fn counts(&self) -> &[AtomicU32] {
        self.0.get_or_init(|| (0..GROUPS).map(|_| AtomicU32::new(0)).collect())
    }
}

/// A decision whose receipt carries the count at the time of its charge.
#[cold]
pub(super) fn stamped(decision: Decision, count: u32) -> Decision {
    decision.with_receipt(decision.receipt().after(stamp(count)))
}

/// Never that of a charge before the first reset, and the same only after tens of thousands of resets.
fn stamp(count: u32) -> u16 {
    let most = u32::from(u16::MAX);
    if count == 0 { 0 } else { u16::try_from((count - 1) % most + 1).expect("no more than the most") }
}

fn of(counts: &[AtomicU32], hash: u64) -> &AtomicU32 {
    #[allow(clippy::cast_possible_truncation)]
    let group = (hash >> 40) as usize % GROUPS;
    &counts[group]
}
