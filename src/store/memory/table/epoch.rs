//! The epoch up to which a page was swept.

use crate::util::sync::{AtomicU64, Ordering, before_a_step};

/// The epochs for 64 sets, in one atomic. All accesses are sequentially consistent, because sweepers and writers rely
/// on one order of these accesses and the compare-and-swaps on words.
#[derive(Default)]
pub(super) struct Page(AtomicU64);

impl Page {
    #[inline(always)]
    pub(super) fn load(&self) -> Epochs {
        before_a_step();
        Epochs(self.0.load(Ordering::SeqCst))
    }

    pub(super) fn replace(&self, old: Epochs, new: Epochs) -> Result<u64, u64> {
        before_a_step();
        self.0.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst)
    }
}

/// The epoch up to which a page has been swept, twice; or, during a sweep, the epoch before and the epoch to come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Epochs(u64);

impl Epochs {
    /// A page that is being swept.
    pub(super) const fn sweeping(old: u32, new: u32) -> Self {
        Self((old as u64) << u32::BITS | new as u64)
    }

    /// A page that has been swept up to an epoch.
    pub(super) const fn swept(epoch: u32) -> Self {
        Self::sweeping(epoch, epoch)
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) const fn latest(self) -> u32 {
        self.0 as u32
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) const fn before(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    pub(super) const fn is_swept(self) -> bool {
        self.before() == self.latest()
    }

    /// Returns the epoch at whose beginning words in this page are judged at the earliest: the epoch before the latest.
    /// From an earlier instant, debts could not be distinguished from paid words. Every debt in the page is paid less
    /// than seven epochs after that beginning.
    #[inline(always)]
    pub(super) const fn earliest(self) -> u32 {
        self.latest().saturating_sub(1)
    }
}
