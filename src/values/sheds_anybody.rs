//! Limiters that shed each request while their server is full.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::values::Priority;

/// A limiter that sheds requests whoever has sent them, so that a layer need not find out who has. An overloaded server
/// has no time for it.
pub(crate) trait ShedsAnybody: Debug + Send + Sync {
    /// Whether a request of this cost would be shed now, without an estimate, whatever its key and its class are.
    fn sheds_anybody(&self, cost: u64) -> bool;

    /// Counts a request of this class that a layer has shed so.
    fn count_shed(&self, class: Priority);
}

/// Returns the part of a limiter of one type that sheds, if it has that type.
pub(crate) type FindShedder = fn(&dyn Any) -> Option<Arc<dyn ShedsAnybody>>;
