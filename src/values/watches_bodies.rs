//! Limiters whose units may be taken back while the reader of a response does not read.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::values::{PartitionKey, Receipt};

/// A limiter that watches response bodies while their requests hold its units, and takes the units back if a body's
/// reader has been silent for too long.
///
/// A server does not poll a body while the client lets it send nothing, so the body can't report that it stands still.
/// The limiter looks itself, when it needs units.
pub(crate) trait WatchesBodies: Debug + Send + Sync {
    /// The present instant, in nanoseconds since a start that the limiter has chosen.
    fn now(&self) -> u64;

    /// Watches a body from now on. Returns its place.
    fn watch(&self, body: Arc<dyn WatchedBody>) -> usize;

    /// Forgets a body that was given this place, if it is still there.
    fn forget(&self, place: usize, body: &dyn WatchedBody);

    /// Ends a request whose units were taken back: they no longer count for the key.
    fn end(&self, key: &PartitionKey, units: u64, receipt: Receipt);
}

/// A body whose request holds units.
pub(crate) trait WatchedBody: Send + Sync {
    /// The instant since which its reader has not taken the next frame. `None` while the handler or the body works, and
    /// if there is nothing to take back.
    fn silent_since(&self) -> Option<u64>;

    /// Takes the units back, unless the reader has gone on, or the request has ended. From then on the units count for
    /// its key alone, and their holder calls [`WatchesBodies::end`] in place of releasing them. `since` comes from
    /// [`silent_since`](Self::silent_since).
    fn take_back(&self, since: u64) -> Option<(&PartitionKey, u64)>;
}

/// Returns a limiter's watcher, if the limiter has the type that this function is for.
pub(crate) type FindWatcher = fn(&dyn Any) -> Option<Arc<dyn WatchesBodies>>;
