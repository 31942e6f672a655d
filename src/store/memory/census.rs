//! How many keys are live, by a look at some of the lines: keys are spread over them evenly.

/// So many lines are looked at, of a table that has more.
pub(super) const LINES: usize = 512;

/// How many are live in `total` lines, if so many are in those that were `seen`. Rounded up, so that it is zero only if
/// none was met.
pub(super) fn extrapolate(live: usize, seen: usize, total: usize) -> u64 {
    let live = (live as u128 * total as u128).div_ceil(seen.max(1) as u128);
    u64::try_from(live).unwrap_or(u64::MAX)
}
