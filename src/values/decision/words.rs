//! The two words in which a [`Decision`](super::Decision) keeps its units, and below them its flags and its delay.

use crate::values::Quota;

/// The limit, in the highest 50 bits, so that it is read by a shift. Below it are 12 bits for the delay, and in the
/// lowest two the [`OutcomeKind`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) u64);

/// The units that are left, as in [`Limit`]. Below them are 12 bits for the delay, whether the reset is in
/// milliseconds, and whether the wait is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Remaining(pub(super) u64);

/// The bits below the units.
const BELOW_UNITS: u32 = 14;

const _: () = assert!(Quota::MAX_UNITS >> (u64::BITS - BELOW_UNITS) == 0, "all units fit above the other bits");

/// The delay's bits in each word.
pub(super) const DELAY_BITS: u32 = BELOW_UNITS - 2;
pub(super) const DELAY_MASK: u64 = ((1 << DELAY_BITS) - 1) << 2;
pub(super) const WAIT_COARSE: u64 = 1;
pub(super) const RESET_COARSE: u64 = 1 << 1;

/// The delay is in milliseconds. Below this bit is the number.
pub(super) const DELAY_COARSE: u64 = 1 << (u32::BITS + 2 * DELAY_BITS - 1);

impl Limit {
    #[inline(always)]
    pub(super) const fn new(limit: u64, kind: OutcomeKind) -> Self {
        debug_assert!(limit <= Quota::MAX_UNITS);
        Self(limit << BELOW_UNITS | kind as u64)
    }

    #[inline(always)]
    pub(super) const fn units(self) -> u64 {
        self.0 >> BELOW_UNITS
    }

    #[inline(always)]
    pub(super) const fn kind(self) -> OutcomeKind {
        match self.0 & 0b11 {
            0 => OutcomeKind::Allow,
            1 => OutcomeKind::Reject,
            2 => OutcomeKind::UntilReleased,
            _ => OutcomeKind::Never,
        }
    }
}

impl Remaining {
    #[inline(always)]
    pub(super) const fn new(units: u64) -> Self {
        debug_assert!(units <= Quota::MAX_UNITS);
        Self(units << BELOW_UNITS)
    }

    #[inline(always)]
    pub(super) const fn units(self) -> u64 {
        self.0 >> BELOW_UNITS
    }

    #[inline(always)]
    pub(super) const fn with_units(self, units: u64) -> Self {
        Self(Self::new(units).0 | self.0 & ((1 << BELOW_UNITS) - 1))
    }

    #[inline(always)]
    pub(super) const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    #[inline(always)]
    pub(super) const fn with(self, flag: u64, is_set: bool) -> Self {
        Self(if is_set { self.0 | flag } else { self.0 & !flag })
    }
}

/// A custom limiter may have any limit. This crate's limiters stay below.
#[inline(always)]
pub(super) const fn at_most_max(units: u64) -> u64 {
    if units > Quota::MAX_UNITS { Quota::MAX_UNITS } else { units }
}

/// An [`Outcome`](super::Outcome) without the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutcomeKind {
    Allow,
    /// Rejected until `wait` is over.
    Reject,
    /// Rejected until the key's other requests end.
    UntilReleased,
    /// Rejected with any wait.
    Never,
}
