//! The clock of a log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::time::{Clock, Timestamp};

/// The time in the log's lines. Clones share it.
///
/// Queues read tokio's clock, which is paused. If there are queues, this clock follows tokio's, so both always show the
/// same time, even between two lines, when a waiting request departs. Otherwise, it is a number, which is faster to
/// read.
#[derive(Clone, Default)]
pub(crate) struct LogClock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    nanos: AtomicU64,
    origin: OnceLock<Origin>,
}

/// One instant on both clocks.
struct Origin {
    nanos: u64,
    instant: Instant,
}

impl LogClock {
    /// Sets the time. Does nothing if the clock follows tokio's.
    pub(super) fn set(&self, nanos: u64) {
        self.0.nanos.store(nanos, Ordering::Relaxed);
    }

    /// Follows tokio's clock, whose present instant is `nanos`.
    pub(super) fn follow_tokio(&self, nanos: u64) {
        self.0.origin.get_or_init(|| Origin { nanos, instant: Instant::now() });
    }

    /// Converts a time to an instant on tokio's clock, if this clock follows it.
    pub(super) fn instant(&self, nanos: u64) -> Option<Instant> {
        let origin = self.0.origin.get()?;
        Some(origin.instant + Duration::from_nanos(nanos.saturating_sub(origin.nanos)))
    }

    pub(super) fn nanos(&self) -> u64 {
        match self.0.origin.get() {
            Some(origin) => {
                let elapsed = u64::try_from(origin.instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
                origin.nanos.saturating_add(elapsed)
            }
            None => self.0.nanos.load(Ordering::Relaxed),
        }
    }
}

impl Clock for LogClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos())
    }

    fn id(&self) -> Option<std::num::NonZeroUsize> {
        std::num::NonZeroUsize::new(Arc::as_ptr(&self.0).addr())
    }
}
