//! `Portable`: states as bytes, for your own stores.

use std::error::Error;
use std::fmt;

use super::gcra::MOST_CARRIED;
use super::{Algorithm, FixedWindow, FixedWindowState, GcraState, SlidingWindow, SlidingWindowState, TokenBucket};
#[cfg(feature = "calendar")]
use super::{CalendarWindow, CalendarWindowState};
use crate::values::Quota;
use crate::values::time::{Timestamp, duration_from_nanos};

/// An algorithm whose states can be written as bytes, so that any key-value store can keep them.
///
/// All this crate's algorithms are portable. A state's bytes begin with the quota under which it was written, so that
/// it can be read under another one: the key keeps its used units, as after a [live change](crate::Limiter::inherit).
///
/// # The format
///
/// It is stable: a later version of this crate reads the bytes that this version writes. All numbers are big-endian.
/// Version 1 has 4-byte units, and is written if all a state's units fit; version 2 has 8-byte units.
///
/// | content, in this order | bytes |
/// |---|---|
/// | the version of the format: 1 or 2 | 1 |
/// | the algorithm: `b` a bucket, `f` a fixed window, `s` a sliding one, `c` one of the calendar | 1 |
/// | the quota's limit | 4 or 8 |
/// | the quota's burst; 0 if it has none of its own | 4 or 8 |
/// | the quota's period, in nanoseconds | 8 |
/// | bucket: when its debt will be paid, in units of 1/limit nanosecond since the [clock](crate::time::Clock)'s zero | 16 |
/// | fixed and sliding window: its number (its start divided by the period) | 8 |
/// | calendar: when the window ends, in nanoseconds | 8 |
/// | sliding window: what was used of the window before | 4 or 8 |
/// | all windows: what is used of it | 4 or 8 |
///
/// ```
/// use tower_sluice::algorithm::{Algorithm, Portable, TokenBucket};
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::Quota;
///
/// let (small, large) = (TokenBucket::new(Quota::per_hour(10)), TokenBucket::new(Quota::per_hour(5_000)));
/// let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
/// let (_, state) = small.decide(None, now, 3);
/// let bytes = small.to_bytes(&state.unwrap());
/// assert_eq!(bytes.len(), 34);
/// // Three units stay used under the greater quota.
/// let state = large.from_bytes(&bytes, now)?;
/// assert_eq!(large.decide(Some(state), now, 0).0.remaining(), 4_997);
/// # Ok::<_, tower_sluice::algorithm::UnknownState>(())
/// ```
pub trait Portable: Algorithm {
    /// Writes a state: at most 34 bytes for this crate's algorithms, or 50 if units do not fit into 32 bits.
    fn to_bytes(&self, state: &Self::State) -> Vec<u8>;

    /// Reads a state that this type has written, as it counts at `now` under this algorithm's quota.
    ///
    /// # Errors
    ///
    /// If the bytes are not a state of this algorithm, in a format version that this crate knows.
    #[allow(clippy::wrong_self_convention, reason = "the other half of `to_bytes`")]
    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<Self::State, UnknownState>;
}

/// Bytes that are not a state of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownState {
    /// A later version of this crate has written it, or something else.
    #[non_exhaustive]
    Version {
        /// The first byte; `None` if there are no bytes.
        version: Option<u8>,
    },
    /// Another algorithm has written it, or it is damaged.
    Content,
}

impl fmt::Display for UnknownState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { version: None } => f.write_str("the stored state is empty; delete the key"),
            Self::Version { version: Some(version) } => write!(
                f,
                "the stored state has version {version} of the format, and this crate knows up to version {WIDE}; \
                 upgrade this process, or give the store another prefix"
            ),
            Self::Content => f.write_str(
                "the stored state is not one of this algorithm; give each algorithm keys of its own, or delete the key",
            ),
        }
    }
}

impl Error for UnknownState {}

/// The version with units of 4 bytes.
const NARROW: u8 = 1;
/// The version with units of 8 bytes.
const WIDE: u8 = 2;

/// Writes a state: the head, its own number, and its counts.
fn write<const N: usize>(kind: u8, quota: &Quota, number: &[u8], counts: [u64; N]) -> Vec<u8> {
    let limit = quota.limit();
    let burst = quota.explicit_burst_or(0);
    let is_narrow = [limit, burst].iter().chain(&counts).all(|units| *units <= u32::MAX.into());
    let mut bytes = Vec::with_capacity(if is_narrow { 34 } else { 50 });
    bytes.extend([if is_narrow { NARROW } else { WIDE }, kind]);
    // The last four bytes are all of it, if it is narrow.
    let first = if is_narrow { 4 } else { 0 };
    let push = |bytes: &mut Vec<u8>, units: u64| bytes.extend(&units.to_be_bytes()[first..]);
    push(&mut bytes, limit);
    push(&mut bytes, burst);
    bytes.extend(quota.period_nanos().to_be_bytes());
    bytes.extend(number);
    counts.into_iter().for_each(|units| push(&mut bytes, units));
    bytes
}

/// Returns the quota under which one of this crate's algorithms has written a state.
pub(crate) fn written_under(bytes: &[u8]) -> Option<Quota> {
    let kind = *bytes.get(1)?;
    Numbers::read(bytes, kind).ok().filter(|_| b"bfsc".contains(&kind)).map(|(quota, _)| quota)
}

/// A state's numbers that are not read yet, and whether its units have 8 bytes.
struct Numbers<'a>(&'a [u8], bool);

impl<'a> Numbers<'a> {
    /// Reads the head, and returns the quota with the numbers behind it.
    fn read(bytes: &'a [u8], kind: u8) -> Result<(Quota, Self), UnknownState> {
        let version = bytes.first().copied();
        let is_wide = match version {
            Some(NARROW) => false,
            Some(WIDE) => true,
            _ => return Err(UnknownState::Version { version }),
        };
        if bytes.get(1) != Some(&kind) {
            return Err(UnknownState::Content);
        }
        let mut numbers = Self(&bytes[2..], is_wide);
        let limit = numbers.units()?;
        let burst = numbers.units()?;
        let period = numbers.u64()?;
        let quota = Quota::try_per(limit, duration_from_nanos(period.into())).map_err(|_| UnknownState::Content)?;
        let quota = if burst == 0 { Ok(quota) } else { quota.try_burst(burst) };
        Ok((quota.map_err(|_| UnknownState::Content)?, numbers))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], UnknownState> {
        let (first, rest) = self.0.split_first_chunk().ok_or(UnknownState::Content)?;
        self.0 = rest;
        Ok(*first)
    }

    fn units(&mut self) -> Result<u64, UnknownState> {
        if self.1 { self.u64() } else { self.array().map(|bytes| u32::from_be_bytes(bytes).into()) }
    }

    fn u64(&mut self) -> Result<u64, UnknownState> {
        self.array().map(u64::from_be_bytes)
    }

    fn u128(&mut self) -> Result<u128, UnknownState> {
        self.array().map(u128::from_be_bytes)
    }

    /// Ends the state: nothing may follow.
    fn end<T>(self, value: T) -> Result<T, UnknownState> {
        if self.0.is_empty() { Ok(value) } else { Err(UnknownState::Content) }
    }
}

/// Above all TATs that a bucket writes: debts are cut at [`MOST_CARRIED`] units, and the time is below that.
const MOST_TAT: u128 = 2 * MOST_CARRIED;

impl Portable for TokenBucket {
    fn to_bytes(&self, state: &GcraState) -> Vec<u8> {
        write(b'b', &self.quota(), &{ state.tat }.to_be_bytes(), [])
    }

    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<GcraState, UnknownState> {
        let (quota, mut numbers) = Numbers::read(bytes, b'b')?;
        let tat = numbers.u128()?;
        if tat >= MOST_TAT {
            return Err(UnknownState::Content);
        }
        Ok(self.inherit(numbers.end(GcraState { tat })?, &quota, now))
    }
}

impl Portable for FixedWindow {
    fn to_bytes(&self, state: &FixedWindowState) -> Vec<u8> {
        write(b'f', &self.quota(), &state.window.to_be_bytes(), [state.used])
    }

    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<FixedWindowState, UnknownState> {
        let (quota, mut numbers) = Numbers::read(bytes, b'f')?;
        let state = FixedWindowState { window: numbers.u64()?, used: numbers.units()? };
        Ok(self.inherit(numbers.end(state)?, &quota, now))
    }
}

impl Portable for SlidingWindow {
    fn to_bytes(&self, state: &SlidingWindowState) -> Vec<u8> {
        write(b's', &self.quota(), &state.window.to_be_bytes(), [state.previous, state.current])
    }

    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<SlidingWindowState, UnknownState> {
        let (quota, mut numbers) = Numbers::read(bytes, b's')?;
        let window = numbers.u64()?;
        let previous = numbers.units()?;
        let current = numbers.units()?;
        let state = numbers.end(SlidingWindowState { window, previous, current })?;
        Ok(self.inherit(state, &quota, now))
    }
}

#[cfg(feature = "calendar")]
impl Portable for CalendarWindow {
    fn to_bytes(&self, state: &CalendarWindowState) -> Vec<u8> {
        write(b'c', &self.quota(), &state.ends.as_nanos().to_be_bytes(), [state.used])
    }

    /// Units that still count do so in the present window, under any calendar. Units in the next window stay there,
    /// because the clock was set back.
    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<CalendarWindowState, UnknownState> {
        let (quota, mut numbers) = Numbers::read(bytes, b'c')?;
        let ends = Timestamp::from_nanos(numbers.u64()?);
        let used = numbers.units()?;
        let state = numbers.end(CalendarWindowState { ends, used })?;
        Ok(if self.is_of_next_window(&state, now) { state } else { self.inherit(state, &quota, now) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Stored states outlive a version of the crate: these bytes may not change.
    #[test]
    fn version_1_bytes_never_change() {
        let quota = Quota::per(7, Duration::from_secs(60));
        let now = Timestamp::from_nanos(120_000_000_001);
        let head = |kind: &str| format!("01{kind}00000007000000000000000df8475800");
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let bucket = TokenBucket::new(quota);
        let tat = 120_000_000_001_u128 * 7 + 2 * 60_000_000_000;
        let state = bucket.decide(None, now, 2).1.unwrap();
        assert_eq!(hex(bucket.to_bytes(&state)), format!("{}{tat:032x}", head("62")));
        let fixed = FixedWindow::new(quota);
        let state = fixed.decide(None, now, 5).1.unwrap();
        assert_eq!(hex(fixed.to_bytes(&state)), format!("{}{:016x}{:08x}", head("66"), 2, 5));
        let sliding = SlidingWindow::new(quota);
        let state = SlidingWindowState { window: 2, previous: 6, current: 1 };
        assert_eq!(hex(sliding.to_bytes(&state)), format!("{}{:016x}{:08x}{:08x}", head("73"), 2, 6, 1));
        let burst = TokenBucket::new(quota.burst(9));
        assert!(hex(burst.to_bytes(&GcraState { tat: 0 })).starts_with("01620000000700000009"));
    }

    /// Both numbers are written with 64 bits if either does not fit into 32.
    #[test]
    fn version_2_bytes_never_change() {
        let quota = Quota::per(7_000_000_000, Duration::from_secs(60));
        let head = |kind: &str, burst: u64| format!("02{kind}{:016x}{burst:016x}0000000df8475800", 7_000_000_000_u64);
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let state = GcraState { tat: 5 << 100 };
        assert_eq!(hex(TokenBucket::new(quota).to_bytes(&state)), format!("{}{:032x}", head("62", 0), 5_u128 << 100));
        let burst = TokenBucket::new(quota.burst(9)).to_bytes(&state);
        assert_eq!(hex(burst), format!("{}{:032x}", head("62", 9), 5_u128 << 100));
        let state = FixedWindowState { window: 2, used: 5 };
        assert_eq!(hex(FixedWindow::new(quota).to_bytes(&state)), format!("{}{:016x}{:016x}", head("66", 0), 2, 5));
        // The limit was lowered: the used units do not fit, and the limit does.
        let small = Quota::per(7, Duration::from_secs(60));
        let now = Timestamp::from_nanos(120_000_000_001);
        let fixed = FixedWindow::new(small);
        let sliding = SlidingWindow::new(small);
        let state = FixedWindowState { window: 2, used: 7_000_000_000 };
        assert_eq!(fixed.from_bytes(&fixed.to_bytes(&state), now), Ok(state));
        for counts in [[u64::MAX, 0], [0, u64::MAX], [u64::from(u32::MAX), 1], [1, 1 << 32]] {
            let state = SlidingWindowState { window: 2, previous: counts[0], current: counts[1] };
            let bytes = sliding.to_bytes(&state);
            assert_eq!(bytes.len(), if counts.iter().all(|count| *count <= u32::MAX.into()) { 34 } else { 50 });
            assert_eq!(sliding.from_bytes(&bytes, now), Ok(state));
        }
    }

    #[test]
    fn units_above_the_maximum_are_rejected() {
        let quota = Quota::per(Quota::MAX_UNITS, Duration::from_secs(60)).burst(Quota::MAX_UNITS);
        let bucket = TokenBucket::new(quota);
        let now = Timestamp::from_nanos(5);
        let bytes = bucket.to_bytes(&GcraState { tat: 7 });
        assert_eq!(bucket.from_bytes(&bytes, now), Ok(GcraState { tat: 7 }));
        for first in [2, 10] {
            let mut greater = bytes.clone();
            greater[first..first + 8].copy_from_slice(&(Quota::MAX_UNITS + 1).to_be_bytes());
            assert_eq!(bucket.from_bytes(&greater, now), Err(UnknownState::Content));
        }
    }
}
