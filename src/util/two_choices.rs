//! A table's two sets in which a key may be: the "power of two choices" (Y. Azar and others, STOC 1994).

/// Returns the first candidate among `sets` sets, drawn from a number below 2^32.
#[inline(always)]
pub(crate) const fn first(sets: usize, draw: u64) -> usize {
    scale(draw, sets)
}

/// Returns the second candidate, which follows from the first and the key's tag, and is any set but the first.
#[inline(always)]
pub(crate) const fn second(sets: usize, first: usize, tag: u64) -> usize {
    // Multiplied by 2^32 / φ, so that tags in a row choose sets far apart.
    let mixed = tag.wrapping_mul(0x9e37_79b1) & 0xffff_ffff;
    let second = first + 1 + scale(mixed, sets - 1);
    if second < sets { second } else { second - sets }
}

/// Returns `count` times a fraction of 2^32.
#[allow(clippy::cast_possible_truncation)] // It is less than `count`.
const fn scale(fraction: u64, count: usize) -> usize {
    ((fraction * count as u64) >> 32) as usize
}
