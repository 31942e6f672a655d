//! Words in one piece of memory that begins where a cache line or a system page does.

use crate::util::sync::AtomicU64;

/// A fixed number of words, all zero at first.
pub(crate) struct AlignedWords {
    words: Box<[AtomicU64]>,
    /// The words before it are not used.
    first: usize,
}

impl AlignedWords {
    /// Makes `count` words, the first at a multiple of `alignment` bytes. `None` if there is no memory for them.
    ///
    /// The system zeroes them when they are first touched, so words that are not used take no memory.
    #[cfg(not(sluice_loom))]
    pub(crate) fn new(count: usize, alignment: usize) -> Option<Self> {
        let word = size_of::<AtomicU64>();
        let words = bytemuck::allocation::try_zeroed_slice_box(count.checked_add(alignment / word)?).ok()?;
        let words: Box<[AtomicU64]> = words;
        let first = words.as_ptr().addr().wrapping_neg() % alignment / word;
        Some(Self { words, first })
    }

    #[cfg(sluice_loom)]
    pub(crate) fn new(count: usize, _: usize) -> Option<Self> {
        Some(Self { words: (0..count).map(|_| AtomicU64::new(0)).collect(), first: 0 })
    }

    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> &AtomicU64 {
        &self.words[self.first + index]
    }

    #[inline(always)]
    pub(crate) fn in_range(&self, start: usize, count: usize) -> &[AtomicU64] {
        &self.words[self.first + start..self.first + start + count]
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }
}
