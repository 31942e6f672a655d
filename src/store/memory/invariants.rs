//! The invariants of whichever table a store has, for tests.

use super::{Kept, MemoryStore, Table, any_table};
#[cfg(feature = "calendar")]
use crate::algorithm::CalendarWindowState;
use crate::algorithm::{FixedWindowState, GcraState, SlidingWindowState};
use crate::values::Heritage;
use crate::values::time::{Clock, Timestamp};

impl<S: Copy + Send + 'static, C: Clock> MemoryStore<S, C> {
    /// For tests of this crate, while no thread uses the store: panics if its table is in disorder. Its clock must have
    /// shown no later time.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        if let Some(kept) = self.kept.get() {
            kept.check_invariants(self.clock.now());
        }
    }
}

/// For tests of this crate: [the same](MemoryStore::check_invariants) for the store that has this heritage, whose clock
/// shows `now`.
pub fn check_invariants_of(heritage: &Heritage, now: Timestamp) {
    let is_checked = check_if::<GcraState>(heritage, now)
        || check_if::<FixedWindowState>(heritage, now)
        || check_if::<SlidingWindowState>(heritage, now);
    #[cfg(feature = "calendar")]
    let is_checked = is_checked || check_if::<CalendarWindowState>(heritage, now);
    assert!(is_checked, "not the heritage of a limiter in memory, with an algorithm of this crate");
}

/// Checks the store of a heritage, if its states are of this type.
fn check_if<S: Copy + Send + 'static>(heritage: &Heritage, now: Timestamp) -> bool {
    heritage.downcast::<Kept<S>>().map(|kept| kept.check_invariants(now)).is_some()
}

impl<S: Copy + Send + 'static> Kept<S> {
    fn check_invariants(&self, now: Timestamp) {
        any_table!(&self.table, table => table.check_invariants(now));
        if let Some(quotas) = self.quotas.get() {
            quotas.check_invariants(now);
        }
    }
}
