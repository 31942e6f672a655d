//! Items that stores on servers share with `store::remote` beyond its public API: a call's gate, the keys' hashes, and
//! the numbers in states and receipts.

#[cfg(feature = "test-util")]
pub mod testing;

use crate::algorithm::ChargedIn;
use crate::algorithm::gcra::Tat;
#[cfg(feature = "calendar")]
use crate::algorithm::{CalendarWindow, CalendarWindowState};
use crate::algorithm::{FixedWindowState, GcraState, SlidingWindowState};
use crate::limiter::Receipt;
#[cfg(feature = "calendar")]
use crate::values::time::Timestamp;

pub use crate::store::quota_change::has_units_of;
pub use crate::store::remote::backoff::pause as pause_after;
pub use crate::store::remote::circuit_breaker::CallFailure;
pub use crate::store::remote::gate::{CallGate, Evidence, Watch};
pub use crate::store::remote::negative_cache::Observation;
pub use crate::store::remote::tag::Tags;
pub use crate::util::undo::OnDrop;
pub use crate::values::REFERENCE_KEPT;

/// Algorithms' states, as the numbers in them.
pub trait StateParts: Copy {
    /// For a bucket, the time when its debt will be paid, in units of 1/limit nanosecond. For a window, its number, or
    /// when it ends, and its used units. For a sliding window, the used units in the window before come between these
    /// two.
    type Parts;

    /// Makes a state.
    fn from_parts(parts: Self::Parts) -> Self;

    /// Returns its numbers.
    fn parts(self) -> Self::Parts;
}

impl StateParts for GcraState {
    type Parts = u128;

    fn from_parts(tat: u128) -> Self {
        Self { tat }
    }

    fn parts(self) -> u128 {
        self.tat
    }
}

impl StateParts for FixedWindowState {
    type Parts = [u64; 2];

    fn from_parts([window, used]: [u64; 2]) -> Self {
        Self { window, used }
    }

    fn parts(self) -> [u64; 2] {
        [self.window, self.used]
    }
}

impl StateParts for SlidingWindowState {
    type Parts = [u64; 3];

    fn from_parts([window, previous, current]: [u64; 3]) -> Self {
        Self { window, previous, current }
    }

    fn parts(self) -> [u64; 3] {
        [self.window, self.previous, self.current]
    }
}

#[cfg(feature = "calendar")]
impl StateParts for CalendarWindowState {
    type Parts = (Timestamp, u64);

    fn from_parts((ends, used): (Timestamp, u64)) -> Self {
        Self { ends, used }
    }

    fn parts(self) -> (Timestamp, u64) {
        (self.ends, self.used)
    }
}

/// Returns when the calendar's window that holds `now` ends.
#[cfg(feature = "calendar")]
#[must_use]
pub fn end_of_window(window: &CalendarWindow, now: Timestamp) -> Timestamp {
    window.end_of_window(now)
}

/// Returns when a bucket's charge with this receipt is paid, and zero for another receipt.
#[must_use]
pub fn paid_at(receipt: Receipt) -> u128 {
    Tat::read(receipt)
}

/// Returns the window that the charge with this receipt was made in: its number, or for a calendar, when it ends.
#[must_use]
pub fn window_of(receipt: Receipt) -> Option<u64> {
    ChargedIn::read(receipt)
}
