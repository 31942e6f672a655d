//! [`Hold`]: units of a limiter that are held until a request is over.

use std::fmt;
use std::sync::Arc;

use crate::limiter::Limiter;
use crate::values::{Decision, PartitionKey, Receipt};

/// Units in flight, of a limiter whose requests [hold](crate::Description::holding) them. Dropped, it releases them.
///
/// It keeps the limiter that was charged: after a live change, the units are released where they were taken.
pub(crate) struct Hold {
    limiter: Arc<dyn Limiter>,
    key: PartitionKey,
    receipt: Receipt,
    units: u64,
}

impl Hold {
    /// Holds the units of an admission, until this is dropped.
    pub(crate) fn new(limiter: &Arc<dyn Limiter>, key: &PartitionKey, admission: &Decision, units: u64) -> Self {
        Self { limiter: Arc::clone(limiter), key: key.clone(), receipt: admission.receipt(), units }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.limiter.refund(&self.key, self.receipt, self.units);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("units", &self.units).finish_non_exhaustive()
    }
}
