use crate::store::memory::slots::before_a_step;
use crate::util::sync::{AtomicU64, Ordering};

/// What is known of 64 lines together.
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

/// The epoch up to which a page has been gone through, twice; or, while somebody goes through it, the one
/// before and the one to come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Epochs(u64);

impl Epochs {
    pub(super) const fn renewing(old: u32, new: u32) -> Self {
        Self((old as u64) << u32::BITS | new as u64)
    }

    /// An epoch up to which a page has been gone through.
    pub(super) const fn settled(epoch: u32) -> Self {
        Self::renewing(epoch, epoch)
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) const fn latest(self) -> u32 {
        self.0 as u32
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) const fn before(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    pub(super) const fn is_settled(self) -> bool {
        self.before() == self.latest()
    }

    /// The epoch at whose beginning words of this page are judged at the earliest, since distances from earlier could not be
    /// told: the one before the latest. What is in the page is paid less than seven epochs after that began.
    #[inline(always)]
    pub(super) const fn earliest(self) -> u32 {
        self.latest().saturating_sub(1)
    }
}
