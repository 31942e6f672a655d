//! Limiters that shed each request while their server is full.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::values::Priority;

/// A limiter that sheds requests whoever has sent them, so that a layer need not find out who has. An overloaded server
/// has no time for it.
pub(crate) trait ShedsAnybody: Debug + Send + Sync {
    /// Whether a request of this cost would be shed now, without an estimate, whatever its key and its class are. If
    /// so, returns the counts of such requests, by their class: a layer that sheds the request counts it.
    fn sheds_anybody(&self, cost: u64) -> Option<&[AtomicU64; Priority::ALL.len()]>;
}

/// Returns the part of a limiter of one type that sheds, if it has that type.
pub(crate) type FindShedder = fn(&dyn Any) -> Option<Arc<dyn ShedsAnybody>>;
