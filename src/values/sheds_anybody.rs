//! Limiters that shed each request while their server is full.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::values::Priority;

/// A limiter that sheds requests without looking at their keys, so that an overloaded server spends no time on finding
/// out who sent them.
pub(crate) trait ShedsAnybody: Debug + Send + Sync {
    /// Whether a request with this cost would be shed now, without an estimate, for any key and any class.
    fn sheds_anybody(&self, cost: u64) -> bool;

    /// Counts a request in this class that a layer has shed without a decision.
    fn count_shed(&self, class: Priority);
}

/// Returns the shedding part of a limiter, if the limiter has the type that this function is for.
pub(crate) type FindShedder = fn(&dyn Any) -> Option<Arc<dyn ShedsAnybody>>;
