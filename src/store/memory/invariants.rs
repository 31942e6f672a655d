//! The invariants of whichever table a store has, for tests.

use super::MemoryTable;
use super::kept::{Kept, KeptTable, any_table};
#[cfg(feature = "calendar")]
use crate::algorithm::CalendarWindowState;
use crate::algorithm::{FixedWindowState, GcraState, SlidingWindowState};
use crate::values::Heritage;
use crate::values::time::{Clock, Timestamp};

impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    /// For tests, while no thread uses the table: panics if it is in disorder. Its clock must have shown no later time.
    pub(crate) fn check_invariants(&self) {
        if let Some(kept) = self.in_use() {
            kept.check_invariants(self.store.clock.now());
        }
    }
}

/// The same for the table that has this heritage, whose clock shows `now`.
pub(crate) fn check_invariants_of(heritage: &Heritage, now: Timestamp) {
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
