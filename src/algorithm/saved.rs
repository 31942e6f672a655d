//! States in snapshots: as bytes, and moved to another process's clock.

#[cfg(feature = "calendar")]
use std::any::Any;
use std::any::TypeId;

#[cfg(feature = "calendar")]
use super::CalendarWindowState;
use super::gcra::MOST_CARRIED;
use super::window::start_of;
use super::{Algorithm, FixedWindowState, GcraState, Kind, SlidingWindowState};
use crate::values::Quota;
use crate::values::snapshot::{Gap, Input, put_number};
use crate::values::time::Timestamp;

/// A state from one of this crate's algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedState {
    Bucket(GcraState),
    Fixed(FixedWindowState),
    Sliding(SlidingWindowState),
    #[cfg(feature = "calendar")]
    Calendar(CalendarWindowState),
}

/// One of this crate's algorithms, by the letter that [`Portable`](super::Portable) writes.
pub(crate) fn letter_of<A: Algorithm>(algorithm: &A) -> Option<u8> {
    match algorithm.kind() {
        Kind::Bucket { .. } => Some(b'b'),
        Kind::FixedWindow { .. } => Some(b'f'),
        Kind::SlidingWindow { .. } => Some(b's'),
        #[cfg(feature = "calendar")]
        Kind::Other if (algorithm as &dyn Any).is::<super::CalendarWindow>() => Some(b'c'),
        Kind::Other => None,
    }
}

impl SavedState {
    /// Returns whether states with this letter are of the wanted type.
    pub(crate) fn is_read_as(wanted: TypeId, letter: u8) -> bool {
        match letter {
            b'b' => wanted == TypeId::of::<GcraState>(),
            b'f' => wanted == TypeId::of::<FixedWindowState>(),
            b's' => wanted == TypeId::of::<SlidingWindowState>(),
            #[cfg(feature = "calendar")]
            b'c' => wanted == TypeId::of::<CalendarWindowState>(),
            _ => false,
        }
    }

    /// Appends the state, with times counted from `then`, so that they take few bytes.
    pub(crate) fn write(self, quota: &Quota, then: Timestamp, bytes: &mut Vec<u8>) {
        let window_of = |window: u64| {
            let present = then.as_nanos() / quota.period_nanos();
            // Windows before this one take odd numbers.
            if window >= present { u128::from(window - present) << 1 } else { (u128::from(present - window) << 1) - 1 }
        };
        match self {
            Self::Bucket(GcraState { tat }) => {
                put_number(bytes, tat.saturating_sub(units(quota, then)));
            }
            Self::Fixed(FixedWindowState { window, used }) => {
                put_number(bytes, window_of(window));
                put_number(bytes, used);
            }
            Self::Sliding(SlidingWindowState { window, previous, current }) => {
                put_number(bytes, window_of(window));
                put_number(bytes, previous);
                put_number(bytes, current);
            }
            #[cfg(feature = "calendar")]
            Self::Calendar(CalendarWindowState { ends, used }) => {
                put_number(bytes, ends.as_nanos().saturating_sub(then.as_nanos()));
                put_number(bytes, used);
            }
        }
    }

    /// Reads a state for the algorithm with this letter.
    pub(crate) fn read(letter: u8, quota: &Quota, then: Timestamp, bytes: &mut Input<'_>) -> Option<Self> {
        let window = |bytes: &mut Input<'_>| {
            let number = bytes.number()?;
            let present = u128::from(then.as_nanos() / quota.period_nanos());
            let window =
                if number % 2 == 0 { present.checked_add(number >> 1) } else { present.checked_sub((number >> 1) + 1) };
            u64::try_from(window?).ok()
        };
        Some(match letter {
            b'b' => {
                let debt = bytes.number().filter(|debt| *debt <= MOST_CARRIED)?;
                Self::Bucket(GcraState { tat: units(quota, then) + debt })
            }
            b'f' => Self::Fixed(FixedWindowState { window: window(bytes)?, used: bytes.u64()? }),
            b's' => {
                let window = window(bytes)?;
                Self::Sliding(SlidingWindowState { window, previous: bytes.u64()?, current: bytes.u64()? })
            }
            #[cfg(feature = "calendar")]
            b'c' => {
                let ends = Timestamp::from_nanos(then.as_nanos().saturating_add(bytes.u64()?));
                Self::Calendar(CalendarWindowState { ends, used: bytes.u64()? })
            }
            _ => return None,
        })
    }

    /// Returns the state after a gap, by the clock behind it, if it still counts then.
    ///
    /// A bucket keeps its time. A window [of both clocks](Gap::has_same_windows) stays the same window, and ends as the
    /// later clock says. So does a window that the wall clock names, if both clocks show its time. By another clock,
    /// windows begin at other instants: a count then goes to the window in which its own would have ended. It counts
    /// for no shorter time than before, and for less than a period longer. A calendar window keeps its end, by the time
    /// that was left.
    pub(crate) fn moved(self, quota: &Quota, gap: Gap) -> Option<Self> {
        let period = quota.period_nanos();
        let present = gap.now.as_nanos() / period;
        let is_same = gap.has_same_windows(period);
        let has_same_name = gap.has_windows_of_same_name(period);
        // Returns the window in which a count that has `left` nanoseconds goes on.
        let moved_window = |left: u64| (gap.now.as_nanos().saturating_add(left).saturating_sub(1)) / period;
        // No key waits for longer than to the end of the next window.
        let last = present + 1;
        match self {
            Self::Bucket(GcraState { tat }) => {
                let debt = tat.saturating_sub(units(quota, gap.then));
                let debt = debt.saturating_sub(u128::from(gap.elapsed) * u128::from(quota.limit()));
                (debt > 0).then(|| Self::Bucket(GcraState { tat: units(quota, gap.now) + debt.min(MOST_CARRIED) }))
            }
            Self::Fixed(FixedWindowState { window, used }) => {
                let left = gap.left_until(start_of(quota, window.saturating_add(1)));
                let (window, counts) =
                    if has_same_name { (window, window >= present) } else { (moved_window(left), left > 0) };
                (counts && used > 0).then(|| Self::Fixed(FixedWindowState { window: window.min(last), used }))
            }
            Self::Sliding(state) if is_same => {
                let state = rolled(state, present)?;
                Some(Self::Sliding(SlidingWindowState { window: state.window.min(last), ..state }))
            }
            Self::Sliding(state) => {
                // As of the end of the gap, by the earlier clock.
                let state = rolled(state, gap.then.as_nanos().saturating_add(gap.elapsed) / period)?;
                let left = gap.left_until(start_of(quota, state.window.saturating_add(1)));
                let decayed = (u128::from(state.previous) * u128::from(left.min(period))).div_ceil(period.into());
                let current = state.current.saturating_add(u64::try_from(decayed).unwrap_or(u64::MAX));
                let window = moved_window(left).min(last);
                Some(Self::Sliding(SlidingWindowState { window, previous: 0, current }))
            }
            #[cfg(feature = "calendar")]
            Self::Calendar(state) => {
                let ends =
                    if has_same_name || state.ends == Timestamp::MAX { state.ends } else { gap.deadline(state.ends)? };
                (ends > gap.now && state.used > 0).then_some(Self::Calendar(CalendarWindowState { ends, ..state }))
            }
        }
    }
}

/// Returns the state as it counts in a window, if it does.
fn rolled(state: SlidingWindowState, present: u64) -> Option<SlidingWindowState> {
    let rolled = match present.checked_sub(state.window) {
        None | Some(0) => state,
        Some(1) => SlidingWindowState { window: present, previous: state.current, current: 0 },
        Some(_) => return None,
    };
    (rolled.previous > 0 || rolled.current > 0).then_some(rolled)
}

/// Returns an instant in a bucket's units.
fn units(quota: &Quota, at: Timestamp) -> u128 {
    u128::from(at.as_nanos()) * u128::from(quota.limit())
}
