//! The bits in a slot.

/// The word that a [`SetAssociativeTable`](super::SetAssociativeTable) keeps for a key:
///
/// ```text
///   63          36 35                                   0
///  ┌──────────────┬──────────────────────────────────────┐
///  │ tag, 28 bits │ debt of the key, 36 bits             │
///  └──────────────┴──────────────────────────────────────┘
/// ```
///
/// No tag is zero, so that the word 0 is an empty slot and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct Word(u64);

/// 28 bits of a key's hash, which distinguish it from the other keys that may be in the same slots. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct Tag(u64);

/// The bits that a [`Rule`](super::rule::Rule) has for a key's debt.
pub(in crate::store::memory) const PAYLOAD_BITS: u32 = 36;
const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

/// The number of groups into which keys are drawn, by their tags. The keys in one group share an overflow slot when a
/// table is full, and have the same [phase](crate::algorithm::Algorithm::phase), so that the state in that slot means
/// the same to all.
pub(in crate::store::memory) const GROUPS: u64 = 512;

impl Tag {
    /// Makes a tag from a hash's lower 28 bits.
    pub(in crate::store::memory) const fn from_hash(hash: u64) -> Self {
        let bits = hash & (u64::MAX >> PAYLOAD_BITS);
        Self(if bits == 0 { 1 } else { bits })
    }

    /// Returns the tag with this [value](Self::value), if there is one.
    pub(in crate::store::memory) const fn with_value(value: u64) -> Option<Self> {
        if value == 0 || value > u64::MAX >> PAYLOAD_BITS { None } else { Some(Self(value)) }
    }

    pub(in crate::store::memory) const fn value(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(in crate::store::memory) const fn group(self) -> u64 {
        self.0 % GROUPS
    }

    /// Returns a tag of a group.
    pub(in crate::store::memory) const fn of_group(group: u64) -> Self {
        // Not `group` itself, which may be zero.
        Self(GROUPS + group % GROUPS)
    }

    /// Returns the number in 2^64 from which the group's phase is made.
    #[inline(always)]
    pub(in crate::store::memory) const fn phase_draw(self) -> u64 {
        self.group() * (u64::MAX / GROUPS)
    }
}

impl Word {
    pub(super) const EMPTY: Self = Self(0);

    /// Makes a word from a key's tag and the lower 36 bits in `payload`.
    pub(super) const fn new(tag: Tag, payload: u64) -> Self {
        Self(tag.0 << PAYLOAD_BITS | payload & PAYLOAD_MASK)
    }

    #[inline(always)]
    pub(super) const fn payload(self) -> u64 {
        self.0 & PAYLOAD_MASK
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn is(self, tag: Tag) -> bool {
        self.0 >> PAYLOAD_BITS == tag.0
    }

    pub(super) const fn tag(self) -> Tag {
        Tag(self.0 >> PAYLOAD_BITS)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns how far the payload is ahead of a number, modulo 2^36.
    #[inline(always)]
    pub(super) const fn ahead_of(self, number: u64) -> u64 {
        self.0.wrapping_sub(number) & PAYLOAD_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tag_is_zero() {
        assert_ne!(Tag::from_hash(0).value(), 0);
        assert_ne!(Tag::from_hash(1 << 28).value(), 0);
        assert!(!Word::new(Tag::from_hash(0), 0).is_empty());
    }
}
