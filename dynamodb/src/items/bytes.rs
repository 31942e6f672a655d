//! The numbers of states, read and written through their [portable bytes](Portable).

use tower_sluice::Quota;
use tower_sluice::algorithm::Portable;
use tower_sluice::time::Timestamp;

use super::BadItem;

/// The version of the format.
const VERSION: u8 = 1;

/// How many bytes stand before the numbers.
const HEAD: usize = 18;

/// Which algorithm has written a state, in its bytes.
pub(super) const BUCKET: u8 = b'b';
pub(super) const FIXED_WINDOW: u8 = b'f';
pub(super) const SLIDING_WINDOW: u8 = b's';
#[cfg(feature = "calendar")]
pub(super) const CALENDAR_WINDOW: u8 = b'c';

/// Returns the length of a quota's period.
pub(super) fn period_nanos(quota: &Quota) -> u64 {
    u64::try_from(quota.period().as_nanos()).expect("periods are kept as 64 bits of nanoseconds")
}

/// Makes a state of its numbers, big-endian, which were counted under `from`.
pub(super) fn state<A: Portable>(
    algorithm: &A,
    kind: u8,
    from: &Quota,
    numbers: &[u8],
    now: Timestamp,
) -> Result<A::State, BadItem> {
    let mut bytes = Vec::with_capacity(HEAD + numbers.len());
    bytes.extend([VERSION, kind]);
    bytes.extend(from.limit().to_be_bytes());
    bytes.extend(from.max_burst().to_be_bytes());
    bytes.extend(period_nanos(from).to_be_bytes());
    bytes.extend(numbers);
    algorithm.from_bytes(&bytes, now).map_err(|_| BadItem)
}

/// Returns the numbers of a state, big-endian.
pub(super) fn numbers<A: Portable, const N: usize>(algorithm: &A, state: &A::State) -> [u8; N] {
    algorithm.to_bytes(state)[HEAD..].try_into().expect("the format of the states is stable")
}
