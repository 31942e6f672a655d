//! [`Permit`]: units in flight that are held without a layer.

use std::fmt;
use std::sync::Arc;

use super::counts::Counts;
#[cfg(feature = "redis")]
use super::redis::Leased;

/// Units of a key that are in flight until this is dropped. From [`Concurrency::acquire`](super::Concurrency::acquire),
/// or from the `acquire` of a `RedisConcurrency`.
///
/// Dropping it is one atomic operation, and takes a lock if others wait for the units. Units on Redis are released in the
/// background, by one call.
#[must_use = "the units are released when the permit is dropped"]
#[doc(alias("semaphore", "guard"))]
pub struct Permit(Held);

/// Releases its units when it is dropped.
enum Held {
    Here(InTable),
    #[cfg(feature = "redis")]
    OnRedis(Leased),
}

/// Units in a slot of a table.
struct InTable {
    counts: Arc<Counts>,
    slot: usize,
    units: u64,
}

impl Permit {
    pub(super) const fn new(counts: Arc<Counts>, slot: usize, units: u64) -> Self {
        Self(Held::Here(InTable { counts, slot, units }))
    }

    #[cfg(feature = "redis")]
    pub(super) const fn leased(units: Leased) -> Self {
        Self(Held::OnRedis(units))
    }

    /// The units that it holds.
    #[must_use]
    pub const fn units(&self) -> u64 {
        match &self.0 {
            Held::Here(held) => held.units,
            #[cfg(feature = "redis")]
            Held::OnRedis(held) => held.units(),
        }
    }
}

impl Drop for InTable {
    fn drop(&mut self) {
        self.counts.release(self.slot, self.units);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("units", &self.units()).finish_non_exhaustive()
    }
}
