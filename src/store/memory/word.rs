/// What a [`CompactTable`](super::compact::CompactTable) keeps of a key, in one word:
///
/// ```text
///   63          36 35                                   0
///  ┌──────────────┬──────────────────────────────────────┐
///  │ tag, 28 bits │ when the debt is paid, mod 2^36 ticks │
///  └──────────────┴──────────────────────────────────────┘
/// ```
///
/// No tag is zero, so that the word 0 is an empty slot and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u64);

/// Tells a key from the others that may live in the same slots. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u64);

/// What a [`Rule`](super::rule::Rule) keeps of a key.
pub(super) const PAYLOAD_BITS: u32 = 36;
const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

impl Tag {
    /// From 28 bits of a hash.
    pub(super) const fn from_hash(hash: u64) -> Self {
        let bits = hash & (u64::MAX >> PAYLOAD_BITS);
        Self(if bits == 0 { 1 } else { bits })
    }

    pub(super) const fn value(self) -> u64 {
        self.0
    }
}

impl Word {
    pub(super) const EMPTY: Self = Self(0);

    /// A key with the lower 36 bits of `payload`.
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

    #[allow(dead_code)]
    pub(super) const fn tag(self) -> Tag {
        Tag(self.0 >> PAYLOAD_BITS)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ticks from `now` until the debt is paid, zero if it is.
    ///
    /// What is stored is modulo 2^36. A debt is at most four epochs of 2^32 ticks ahead, and seen from up to
    /// two epochs before its page's: what is farther ahead than seven is taken to be behind. The table
    /// sees to it that no word grows as old as nine.
    #[inline(always)]
    pub(super) const fn debt(self, now: u64) -> u64 {
        if self.is_empty() {
            return nothing();
        }
        let distance = self.0.wrapping_sub(now) & PAYLOAD_MASK;
        let is_paid = distance > 7 << 32;
        if is_paid { 0 } else { distance }
    }
}

/// Words that are found by their tag are never empty: that branch is foreseen, and not waited for.
#[cold]
const fn nothing() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debts_are_told_across_the_wrap() {
        let tag = Tag::from_hash(0x0abc_def0);
        for now in [0, 1, 5, PAYLOAD_MASK - 3, PAYLOAD_MASK, PAYLOAD_MASK + 1, 1 << 40, u64::MAX - 7] {
            for debt in [0, 1, 1_000, 1 << 34] {
                let word = Word::new(tag, now.wrapping_add(debt));
                assert_eq!(word.debt(now), debt, "{debt} at {now}");
                assert!(word.is(tag) && !word.is_empty());
                // Paid, and long paid.
                for later in [1, 1 << 30, (9 << 32) - 1] {
                    assert_eq!(
                        word.debt(now.wrapping_add(debt).wrapping_add(later)),
                        0,
                        "{debt} at {now}, {later} later"
                    );
                }
            }
        }
        assert_eq!(Word::EMPTY.debt(u64::MAX), 0);
        assert_eq!(Word::EMPTY.debt(PAYLOAD_MASK), 0);
    }

    #[test]
    fn no_tag_is_zero() {
        assert_ne!(Tag::from_hash(0).value(), 0);
        assert_ne!(Tag::from_hash(1 << 28).value(), 0);
        assert!(!Word::new(Tag::from_hash(0), 0).is_empty());
    }
}
