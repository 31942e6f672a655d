//! The numbers in states, read and written through their [portable bytes](Portable).

use tower_sluice::Quota;
use tower_sluice::algorithm::Portable;
use tower_sluice::time::Timestamp;

use super::BadItem;

/// The version of the format in which units have 8 bytes. States whose units all fit into 4 are written in version 1.
const WIDE: u8 = 2;

/// The bytes that identify a state's algorithm.
pub(super) const BUCKET: u8 = b'b';
pub(super) const FIXED_WINDOW: u8 = b'f';
pub(super) const SLIDING_WINDOW: u8 = b's';
#[cfg(feature = "calendar")]
pub(super) const CALENDAR_WINDOW: u8 = b'c';

/// Returns the length of a quota's period.
pub(super) fn period_nanos(quota: &Quota) -> u64 {
    u64::try_from(quota.period().as_nanos()).expect("periods are kept as 64 bits of nanoseconds")
}

/// Makes a state from its numbers, which were counted under `from`: a bucket's number alone, or a window's number and
/// its counts.
pub(super) fn state<A: Portable>(
    algorithm: &A,
    kind: u8,
    from: &Quota,
    (number, counts): (&[u8], &[u64]),
    now: Timestamp,
) -> Result<A::State, BadItem> {
    let mut bytes = vec![WIDE, kind];
    for number in [from.limit(), from.max_burst(), period_nanos(from)] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(number);
    counts.iter().for_each(|count| bytes.extend(count.to_be_bytes()));
    algorithm.from_bytes(&bytes, now).map_err(|_| BadItem)
}

/// Returns the arguments for [`state`]: a number of `N` bytes, big-endian, and the counts.
pub(super) fn numbers<A: Portable, const N: usize, const COUNTS: usize>(
    algorithm: &A,
    state: &A::State,
) -> ([u8; N], [u64; COUNTS]) {
    let bytes = algorithm.to_bytes(state);
    let width = if bytes[0] == WIDE { 8 } else { 4 };
    // They follow the version, the kind, limit, burst and period.
    let (number, counts) = bytes[2 + 2 * width + 8..].split_at(N);
    let mut counts = counts.chunks(width).map(|count| count.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let number = number.try_into().expect("the format of the states is stable");
    (number, std::array::from_fn(|_| counts.next().expect("the format of the states is stable")))
}
