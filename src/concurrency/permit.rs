//! [`Permit`]: units in flight that are held without a layer.

use std::fmt;
use std::sync::Arc;

use super::counts::Counts;

/// Units of a key that are in flight until this is dropped. From [`Concurrency::acquire`](super::Concurrency::acquire).
///
/// Dropping it is one atomic operation, and takes a lock if others wait for the units.
#[must_use = "the units are released when the permit is dropped"]
pub struct Permit {
    counts: Arc<Counts>,
    slot: usize,
    units: u32,
}

impl Permit {
    pub(super) const fn new(counts: Arc<Counts>, slot: usize, units: u32) -> Self {
        Self { counts, slot, units }
    }

    /// The units that it holds.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.counts.release(self.slot, self.units);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("units", &self.units).finish_non_exhaustive()
    }
}
