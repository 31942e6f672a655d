//! [`WatchedUnits`]: units that a request holds, and that its limiter takes back while the response's reader does not
//! take the next frame.

use std::sync::Arc;

use crate::util::sync::{AtomicU64, Ordering, before_a_step};
use crate::values::{PartitionKey, WatchedBody, WatchesBodies};

/// One request's units, and how far its response has come.
///
/// # Concurrency
///
/// The task that polls the body, a limiter that takes the units back, and a handler that takes its permits along change
/// `progress` by compare-and-swap. Exactly one of the last two succeeds first, and the units' holder learns from
/// [`end`](Self::end) which one, so that the units are released once, or once for the key.
#[derive(Debug)]
pub(crate) struct WatchedUnits {
    watcher: Arc<dyn WatchesBodies>,
    key: PartitionKey,
    units: u64,
    /// One of the constants below, or the instant from which on the reader was silent, plus one.
    progress: AtomicU64,
}

/// The handler works on the head, or the body on its next frame.
const WORKING: u64 = 0;
/// The units were taken back.
const TAKEN_BACK: u64 = u64::MAX - 1;
/// The units were released, or the handler has taken them along.
const ENDED: u64 = u64::MAX;

impl WatchedUnits {
    /// The units of a request that its handler works on.
    #[inline(always)]
    pub(crate) fn new(watcher: Arc<dyn WatchesBodies>, key: PartitionKey, units: u64) -> Self {
        Self { watcher, key, units, progress: AtomicU64::new(WORKING) }
    }

    pub(crate) fn watcher(&self) -> &dyn WatchesBodies {
        &*self.watcher
    }

    /// Notes that the server has the head or a frame: the reader is next.
    #[inline]
    pub(crate) fn hand_over(&self) {
        if self.load() == WORKING {
            self.replace(WORKING, silent_from(self.watcher.now()));
        }
    }

    /// Notes that the server asks for the next frame: the body is next.
    #[inline]
    pub(crate) fn resume(&self) {
        let progress = self.load();
        if !matches!(progress, WORKING | TAKEN_BACK | ENDED) {
            // Fails if the units were taken back meanwhile.
            self.replace(progress, WORKING);
        }
    }

    /// Ends the watch: the holder of the units releases them, or the handler takes them along. Returns whether they
    /// were taken back before.
    pub(crate) fn end(&self) -> bool {
        before_a_step();
        self.progress.swap(ENDED, Ordering::AcqRel) == TAKEN_BACK
    }

    #[cfg(test)]
    pub(crate) fn is_taken_back(&self) -> bool {
        self.load() == TAKEN_BACK
    }

    fn load(&self) -> u64 {
        before_a_step();
        self.progress.load(Ordering::Acquire)
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        before_a_step();
        self.progress.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Saturates at 584 years, below the constants.
fn silent_from(now: u64) -> u64 {
    now.min(TAKEN_BACK - 2) + 1
}

impl WatchedBody for WatchedUnits {
    fn silent_since(&self) -> Option<u64> {
        match self.load() {
            WORKING | TAKEN_BACK | ENDED => None,
            since => Some(since - 1),
        }
    }

    fn take_back(&self, since: u64) -> Option<(&PartitionKey, u64)> {
        self.replace(silent_from(since), TAKEN_BACK).then_some((&self.key, self.units))
    }
}
