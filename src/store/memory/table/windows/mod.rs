//! The rule for windows whose state fits into the 36 bits that a `Word` leaves beside its tag.
//!
//! ```text
//!   35         c  c-1         0        35        2c  2c-1     c  c-1       0
//!  ┌────────────┬─────────────┐       ┌─────────────┬──────────┬───────────┐
//!  │ window     │ used        │       │ window      │ previous │ current   │
//!  └────────────┴─────────────┘       └─────────────┴──────────┴───────────┘
//!            fixed                                  sliding
//! ```
//!
//! A count takes as many bits as the limit, `c`. The window's index, modulo a power of two, has the other bits.
//!
//! # How many bits an index needs
//!
//! A table's epoch is 2^n windows, a sixteenth of the index's range. A state counts against its key for two windows, so
//! for two epochs at most; a bucket's debt is owed for four. So the rules for epochs in `table/mod.rs` hold for windows
//! as well: a page that is touched in a new epoch is swept first, and a word is read at the earliest in the epoch
//! before its page's. From there, a state is at most five epochs ahead, and up to six are read as "ahead". The other
//! nine are read as "behind", and no word becomes so old that it reads as "ahead" again.
//!
//! So four bits are enough to be right. Short windows need more, or pages would be swept all the time: [`EPOCH_NANOS`]
//! is the shortest epoch. [`Windows::new`] computes the limits that fit; greater ones take the locked table:
//!
//! | window | fixed, up to | sliding, up to |
//! |---|---|---|
//! | 1 ms | 524,287 | 511 |
//! | 1 s | 536,870,911 | 16,383 |
//! | 5 s and more | 4,294,967,295 | 65,535 |

mod counts;
mod rule;
#[cfg(all(test, not(sluice_loom)))]
mod tests;

pub(in crate::store::memory) use self::counts::{WindowCounts, WindowState};
pub(in crate::store::memory) use self::rule::WindowRule;

use std::num::NonZeroU64;

use super::word::{PAYLOAD_BITS, Tag};
use crate::algorithm::{FixedWindowState, SlidingWindowState};
use crate::values::time::Timestamp;
use crate::values::{DeferredTime, Quota};

pub(in crate::store::memory) type FixedRule = WindowRule<FixedWindowState>;
pub(in crate::store::memory) type SlidingRule = WindowRule<SlidingWindowState>;

/// An index counts sixteen epochs.
const EPOCHS_BITS: u32 = 4;

/// The shortest epoch, 4.3 seconds, because each page that is in use is swept once in an epoch, which takes about a
/// microsecond. It is also long enough that 32 bits can count the epochs in 584 years, the clock's range.
const EPOCH_NANOS: u128 = 1 << 32;

/// Where windows begin, and how words and epochs number them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct Windows {
    period: u64,
    /// `2^(64 + shift) / period`, rounded down, which is between 2^63 and 2^64.
    reciprocal: u64,
    shift: u32,
    /// An epoch is `1 << epoch_bits` windows.
    epoch_bits: u32,
    staggered: bool,
}

/// An instant among windows, which is by the key's own time, if windows are staggered.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) struct Moment {
    nanos: u64,
    /// The window that holds it.
    window: u64,
    /// The window to judge by: `window`, or a later window that some thread has read already.
    by: u64,
}

impl Moment {
    /// Whether the clock's own reading is in an earlier window.
    #[inline(always)]
    const fn is_before(self, window: u64) -> bool {
        self.window < window
    }
}

impl Windows {
    /// Makes the windows for `quota`, if `count_bits` bits of counts leave enough for an index.
    fn new(quota: &Quota, staggered: bool, count_bits: u32) -> Option<Self> {
        let period = quota.period_nanos();
        let epoch_bits = PAYLOAD_BITS.checked_sub(count_bits + EPOCHS_BITS)?;
        if u128::from(period) << epoch_bits < EPOCH_NANOS {
            return None;
        }
        let shift = u64::BITS - 1 - period.leading_zeros();
        let reciprocal = (1 << (u64::BITS + shift)) / u128::from(period);
        // A power of two would have 2^64.
        let reciprocal = u64::try_from(reciprocal).unwrap_or(u64::MAX);
        Some(Self { period, reciprocal, shift, epoch_bits, staggered })
    }

    /// Returns `nanos / period`, without dividing.
    ///
    /// The reciprocal is too small by at most one, and so is the estimate, which it makes smaller by less than `nanos /
    /// 2^64` and then rounds down. For windows that last a second or more, that is so rare that the branch is
    /// predicted.
    #[inline(always)]
    fn window_of(&self, nanos: u64) -> u64 {
        let estimate = multiply_high(nanos, self.reciprocal) >> self.shift;
        // The estimate is the quotient or one less, so the product and the difference do not overflow.
        let rest = nanos - estimate * self.period;
        if rest < self.period { estimate } else { one_more(estimate) }
    }

    #[inline(always)]
    fn read(&self, now: Timestamp) -> Moment {
        let nanos = now.as_nanos();
        let window = self.window_of(nanos);
        Moment { nanos, window, by: window }
    }

    /// Returns the instant by which a key is judged if windows are staggered. It is later than the clock's, by less
    /// than a period.
    ///
    /// Epochs are counted by the clock, so no key's time is earlier than the time by which its page is swept.
    fn shifted(&self, now: Moment, tag: Tag) -> Moment {
        let nanos = now.nanos.saturating_add(multiply_high(tag.phase_draw(), self.period));
        // The phase is less than a period, so this is in the clock's window, or in the next one.
        let window = now.window + u64::from(nanos - now.window * self.period >= self.period);
        Moment { nanos, window, by: now.by.max(window) }
    }

    const fn begin(&self, epoch: u32) -> u64 {
        (epoch as u64) << self.epoch_bits
    }

    /// Returns the distance in windows from `earliest` to the window whose index, modulo 2^`bits`, is `index`. Returns
    /// `None` if that window is before `earliest`.
    #[inline(always)]
    const fn ahead(&self, index: u64, bits: u32, earliest: u64) -> Option<u64> {
        let ahead = index.wrapping_sub(earliest) & (u64::MAX >> (u64::BITS - bits));
        if ahead > 6 << self.epoch_bits { None } else { Some(ahead) }
    }

    /// Returns the latest window that a word can hold, seen from the window that keys are judged by.
    const fn latest(&self, now: Moment) -> u64 {
        now.by.saturating_add(2 << self.epoch_bits)
    }

    /// Returns the nanoseconds from `now` until a window begins.
    #[inline(always)]
    const fn nanos_until(&self, window: u64, now: Moment) -> u64 {
        self.start_of(window).saturating_sub(now.nanos)
    }

    #[inline(always)]
    const fn start_of(&self, window: u64) -> u64 {
        window.saturating_mul(self.period)
    }

    /// Returns the weight that `count`, taken in the window before `window`, still has: its share in the rest of the
    /// period, rounded up.
    ///
    /// Let ρ be the reciprocal and `e` its error, which is less than one. Then the share, in units of 2^-64, is too
    /// small by less than `left × e / 2^shift + 2`, which is less than four; and `count` times the share by less than
    /// 2^-30. So the estimate is the quotient rounded down, or one less; and the rest is less than two periods, and may
    /// be computed modulo 2^64.
    #[inline(always)]
    fn carried(&self, count: u32, window: u64, now: Moment) -> u32 {
        if count == 0 {
            return 0;
        }
        let elapsed = now.nanos.saturating_sub(self.start_of(window));
        let (count, left) = (u64::from(count), self.period - elapsed);
        let share = (u128::from(left) * u128::from(self.reciprocal)) >> self.shift;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let estimate = multiply_high(count, share);
        let rest = count.wrapping_mul(left).wrapping_sub(estimate.wrapping_mul(self.period));
        let carried = estimate + u64::from(rest > 0) + u64::from(rest > self.period);
        u32::try_from(carried).expect("no more than the count")
    }

    /// Returns the wait until `count`, taken in the window before `window`, weighs at most `room`.
    fn decay(&self, count: u32, room: u32, window: u64, now: Moment) -> DeferredTime {
        let Some(over) = count.checked_sub(room).filter(|over| *over > 0) else {
            return nanos(self.nanos_until(window, now));
        };
        self.short_decay(count, over, window, now).unwrap_or_else(|| self.long_decay(count, room, window, now))
    }

    /// Returns the wait until `over / count` of a period after the window begins, if the arithmetic fits 64 bits.
    fn short_decay(&self, count: u32, over: u32, window: u64, now: Moment) -> Option<DeferredTime> {
        let start = window.checked_mul(self.period)?;
        // If the window ends after the clock's range, so does the wait, at the end of the range, as in `long_decay`.
        start.checked_add(self.period)?;
        let count = NonZeroU64::new(count.into())?;
        let decay = self.period.checked_mul(over.into())?;
        let owed = if start >= now.nanos {
            decay.checked_add((start - now.nanos).checked_mul(count.get())?)?
        } else {
            decay.saturating_sub((now.nanos - start).checked_mul(count.get())?)
        };
        Some(DeferredTime::Quotient { owed, per: count })
    }

    #[cold]
    fn long_decay(&self, count: u32, room: u32, window: u64, now: Moment) -> DeferredTime {
        let kept = u128::from(room) * u128::from(self.period) / u128::from(count);
        let decay = self.period - u64::try_from(kept).expect("room is below count, so this is below the period");
        nanos(self.start_of(window).saturating_add(decay).saturating_sub(now.nanos))
    }
}

/// Wraps nanoseconds, which become a [`Duration`](std::time::Duration) only when a caller asks for one.
#[inline(always)]
const fn nanos(nanos: u64) -> DeferredTime {
    DeferredTime::Quotient { owed: nanos, per: NonZeroU64::MIN }
}

#[allow(clippy::cast_possible_truncation)]
#[inline(always)]
const fn multiply_high(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> u64::BITS) as u64
}

/// Extracts a count of `bits` bits that begins at bit `first`.
#[allow(clippy::cast_possible_truncation)] // It has 32 bits at most.
#[inline(always)]
const fn count(payload: u64, first: u32, bits: u32) -> u32 {
    (payload >> first & (u64::MAX >> (u64::BITS - bits))) as u32
}

/// Cold, so that it is compiled to a branch. The processor does not wait for a predicted branch, but would for a
/// conditional move.
#[cold]
const fn one_more(estimate: u64) -> u64 {
    estimate + 1
}

/// Returns the number of bits that counts up to `greatest` take.
const fn bits_of(greatest: u64) -> u32 {
    u64::BITS - greatest.leading_zeros()
}
