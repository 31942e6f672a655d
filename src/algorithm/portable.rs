//! `Portable`: states as bytes, for stores of one's own.

use std::error::Error;
use std::fmt;

use super::{Algorithm, FixedWindow, FixedWindowState, GcraState, SlidingWindow, SlidingWindowState, TokenBucket};
#[cfg(feature = "calendar")]
use super::{CalendarWindow, CalendarWindowState};
use crate::values::Quota;
use crate::values::time::{Timestamp, duration_from_nanos};

/// An algorithm whose states can be written as bytes, so that any key-value store can keep them.
///
/// All algorithms of this crate are. The bytes of a state begin with the quota under which it was written, so that it
/// can be read under another one: the key keeps what it has used, as after a [live change](crate::Limiter::inherit).
///
/// # The format
///
/// It is stable: a later version of this crate reads what this one writes. All numbers are big-endian.
///
/// | bytes | content |
/// |---|---|
/// | 0 | the version of the format: 1 |
/// | 1 | the algorithm: `b` a bucket, `f` a fixed window, `s` a sliding one, `c` one of the calendar |
/// | 2 to 5 | the quota's limit |
/// | 6 to 9 | the quota's burst; 0 if it has none of its own |
/// | 10 to 17 | the quota's period, in nanoseconds |
/// | bucket: 18 to 33 | when its debt will be paid, in units of 1/limit nanosecond since the [clock](crate::time::Clock)'s zero |
/// | fixed window: 18 to 25, 26 to 29 | its number (its start divided by the period); what is used of it |
/// | sliding window: 18 to 25, 26 to 29, 30 to 33 | its number; what was used of the window before it; what is used of it |
/// | calendar: 18 to 25, 26 to 29 | when the window ends, in nanoseconds; what is used of it |
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
    /// Writes a state: at most 34 bytes for the algorithms of this crate.
    fn to_bytes(&self, state: &Self::State) -> Vec<u8>;

    /// Reads a state that this type has written, as it counts at `now` under the quota of this algorithm.
    ///
    /// # Errors
    ///
    /// If the bytes are no state of this algorithm, in a version of the format that this crate knows.
    #[allow(clippy::wrong_self_convention, reason = "the other half of `to_bytes`")]
    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<Self::State, UnknownState>;
}

/// Bytes that are no state of an algorithm.
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
                "the stored state has version {version} of the format, and this crate knows version {VERSION}; \
                 upgrade this process, or give the store another prefix"
            ),
            Self::Content => f.write_str(
                "the stored state is not one of this algorithm; give each algorithm keys of its own, or delete the key",
            ),
        }
    }
}

impl Error for UnknownState {}

const VERSION: u8 = 1;

/// The first bytes of a state, up to its numbers.
fn head(kind: u8, quota: &Quota) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(34);
    bytes.extend([VERSION, kind]);
    bytes.extend(quota.limit().to_be_bytes());
    bytes.extend(quota.explicit_burst_or(0).to_be_bytes());
    bytes.extend(quota.period_nanos().to_be_bytes());
    bytes
}

/// Returns the quota under which a state of an algorithm of this crate was written.
#[cfg_attr(not(feature = "remote"), allow(dead_code))]
pub(crate) fn written_under(bytes: &[u8]) -> Option<Quota> {
    let kind = *bytes.get(1)?;
    Numbers::of(bytes, kind).ok().filter(|_| b"bfsc".contains(&kind)).map(|(quota, _)| quota)
}

/// The numbers of a state that are not read yet.
struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    /// Reads the head, and returns the quota with the numbers behind it.
    fn of(bytes: &'a [u8], kind: u8) -> Result<(Quota, Self), UnknownState> {
        let version = bytes.first().copied();
        if version != Some(VERSION) {
            return Err(UnknownState::Version { version });
        }
        if bytes.get(1) != Some(&kind) {
            return Err(UnknownState::Content);
        }
        let mut numbers = Self(&bytes[2..]);
        let (limit, burst, period) = (numbers.u32()?, numbers.u32()?, numbers.u64()?);
        let quota = Quota::try_per(limit, duration_from_nanos(period.into())).map_err(|_| UnknownState::Content)?;
        Ok((if burst == 0 { quota } else { quota.burst(burst) }, numbers))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], UnknownState> {
        let (first, rest) = self.0.split_first_chunk().ok_or(UnknownState::Content)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, UnknownState> {
        self.array().map(u32::from_be_bytes)
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

/// The greatest TAT that a bucket has ever written: debts are cut at 2^110 units, and the time is below 2^96.
const MOST_UNITS: u128 = 1 << 111;

macro_rules! portable_bucket {
    ($($bucket:ty),+) => {$(
        impl Portable for $bucket {
            fn to_bytes(&self, state: &GcraState) -> Vec<u8> {
                let mut bytes = head(b'b', &self.quota());
                bytes.extend(state.tat.to_be_bytes());
                bytes
            }

            fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<GcraState, UnknownState> {
                let (quota, mut numbers) = Numbers::of(bytes, b'b')?;
                let tat = numbers.u128()?;
                if tat >= MOST_UNITS {
                    return Err(UnknownState::Content);
                }
                Ok(self.inherit(numbers.end(GcraState { tat })?, &quota, now))
            }
        }
    )+};
}

portable_bucket!(TokenBucket);

impl Portable for FixedWindow {
    fn to_bytes(&self, state: &FixedWindowState) -> Vec<u8> {
        let mut bytes = head(b'f', &self.quota());
        bytes.extend(state.window.to_be_bytes());
        bytes.extend(state.used.to_be_bytes());
        bytes
    }

    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<FixedWindowState, UnknownState> {
        let (quota, mut numbers) = Numbers::of(bytes, b'f')?;
        let state = FixedWindowState { window: numbers.u64()?, used: numbers.u32()? };
        Ok(self.inherit(numbers.end(state)?, &quota, now))
    }
}

impl Portable for SlidingWindow {
    fn to_bytes(&self, state: &SlidingWindowState) -> Vec<u8> {
        let mut bytes = head(b's', &self.quota());
        bytes.extend(state.window.to_be_bytes());
        bytes.extend(state.previous.to_be_bytes());
        bytes.extend(state.current.to_be_bytes());
        bytes
    }

    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<SlidingWindowState, UnknownState> {
        let (quota, mut numbers) = Numbers::of(bytes, b's')?;
        let (window, previous, current) = (numbers.u64()?, numbers.u32()?, numbers.u32()?);
        let state = numbers.end(SlidingWindowState { window, previous, current })?;
        Ok(self.inherit(state, &quota, now))
    }
}

#[cfg(feature = "calendar")]
impl Portable for CalendarWindow {
    fn to_bytes(&self, state: &CalendarWindowState) -> Vec<u8> {
        let mut bytes = head(b'c', &self.quota());
        bytes.extend(state.ends.as_nanos().to_be_bytes());
        bytes.extend(state.used.to_be_bytes());
        bytes
    }

    /// What still counts does so in the present window, whatever calendar it was counted by.
    fn from_bytes(&self, bytes: &[u8], now: Timestamp) -> Result<CalendarWindowState, UnknownState> {
        let (quota, mut numbers) = Numbers::of(bytes, b'c')?;
        let (ends, used) = (Timestamp::from_nanos(numbers.u64()?), numbers.u32()?);
        let state = numbers.end(CalendarWindowState { ends, used })?;
        Ok(self.inherit(state, &quota, now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Stored states outlive a version of the crate: these bytes may not change.
    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
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
}
