//! The bits of a slot.

/// The word that the [`Counts`](super::counts::Counts) keep for a key:
///
/// ```text
///   63           32  31  30                          0
///  ┌───────────────┬────┬─────────────────────────────┐
///  │ tag, 32 bits  │ W  │ units in flight, 31 bits    │
///  └───────────────┴────┴─────────────────────────────┘
/// ```
///
/// *W* marks a key with waiters: a thread that changes its count has to lock its wait list.
///
/// A word without units and without waiters is free. Its tag stays until another key needs the slot, so that a key
/// which comes back finds its slot without a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CountWord(u64);

/// 32 bits of a key's hash, which distinguish it from the other keys that may be in the same slots. Never zero, so that
/// a slot that was never used belongs to no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CountTag(u32);

/// The most units that a key may have in flight.
pub(super) const MOST: u64 = (1 << 31) - 1;

const WAITERS: u64 = 1 << 31;

impl CountTag {
    /// Makes a tag from a hash's lower half.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) const fn from_hash(hash: u64) -> Self {
        let bits = hash as u32;
        Self(if bits == 0 { 1 } else { bits })
    }

    pub(super) const fn value(self) -> u32 {
        self.0
    }
}

impl CountWord {
    /// The word for a key with `units` in flight, at most [`MOST`], and without waiters.
    pub(super) const fn new(tag: CountTag, units: u64) -> Self {
        Self((tag.0 as u64) << 32 | units & MOST)
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn is(self, tag: CountTag) -> bool {
        self.0 >> 32 == tag.0 as u64
    }

    /// The units in flight.
    pub(super) const fn units(self) -> u64 {
        self.0 & MOST
    }

    pub(super) const fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }

    /// Whether another key may have the slot.
    pub(super) const fn is_free(self) -> bool {
        self.0 & (WAITERS | MOST) == 0
    }

    /// This word with these `units`, at most [`MOST`].
    #[must_use]
    pub(super) const fn with_units(self, units: u64) -> Self {
        Self(self.0 & !MOST | units & MOST)
    }

    #[must_use]
    pub(super) const fn with_waiters(self, has_waiters: bool) -> Self {
        Self(if has_waiters { self.0 | WAITERS } else { self.0 & !WAITERS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_parts_do_not_overlap() {
        for hash in [0, 1, u64::from(u32::MAX), u64::MAX] {
            let tag = CountTag::from_hash(hash);
            assert_ne!(tag.value(), 0, "the tag of a slot that was never used");
            for units in [0, 1, MOST] {
                let word = CountWord::new(tag, units);
                assert!(word.is(tag) && word.units() == units && !word.has_waiters());
                assert_eq!(word.is_free(), units == 0);
                let waited_for = word.with_waiters(true);
                assert!(waited_for.is(tag) && waited_for.units() == units && waited_for.has_waiters());
                assert!(!waited_for.is_free());
                assert_eq!(waited_for.with_waiters(false), word);
                assert_eq!(waited_for.with_units(7).with_waiters(false), CountWord::new(tag, 7));
                assert_eq!(CountWord::from_bits(word.bits()), word);
            }
        }
    }
}
