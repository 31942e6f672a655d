//! How a limiter inherits the state of the one it replaces.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::snapshot::{Commit, SavedTable, TableSink, Unfit, WallClock};

/// The state that a table hands on to its heirs, which may have other types of algorithms.
pub(crate) struct Heritage(Arc<dyn Any + Send + Sync>);

impl Heritage {
    /// Wraps the state to hand on.
    pub(crate) fn new<T: Any + Send + Sync>(inner: Arc<T>) -> Self {
        Self(inner)
    }

    /// Returns the state, if it has this type.
    pub(crate) fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::downcast(Arc::clone(&self.0)).ok()
    }
}

/// A limiter whose keys' states are in a table that takes part in live changes.
pub(crate) trait KeepsStates: Send + Sync + 'static {
    /// Hands the states on. From now on, the limiter counts as used: it inherits nothing itself.
    fn heritage(&self) -> Heritage;

    /// Makes the table for the keys' own [quotas](crate::limiter::Ask::under), so that no request has to.
    fn take_quotas(&self);

    /// Writes the states for a snapshot. The inner error says why they are not in it.
    fn save(&self, _: &mut dyn TableSink) -> io::Result<Result<(), Unfit>> {
        Ok(Err(Unfit::skipped("its state is on a server, which outlives this process")))
    }

    /// Decodes and checks states from a snapshot, and changes nothing. Returns the step that puts them into use.
    fn prepare(&self, _: SavedTable, _: WallClock) -> Result<Commit, Unfit> {
        Err(Unfit::skipped("its state is on a server, which outlives this process"))
    }

    /// For tests, while no thread uses the limiter: panics if its table in memory is in disorder at `now`.
    #[cfg(feature = "test-util")]
    fn check_invariants(&self, now: crate::values::time::Timestamp) {
        panic!("its table is not in memory, and unchecked at {now:?}");
    }
}

/// The result of [`Limiter::inherit`](crate::Limiter::inherit): the heir (`H`, a limiter or a store), and the steps to
/// take once it is in force.
#[must_use]
pub struct Inheritance<H> {
    pub(crate) heir: Option<H>,
    pub(crate) keeps_capacity: bool,
    pub(crate) finish: Option<Finish>,
}

/// A step to run once a change is in force.
pub(crate) type Finish = Box<dyn FnOnce() + Send>;

impl<H> Inheritance<H> {
    /// The limiter itself inherits.
    pub const fn in_place() -> Self {
        Self { heir: None, keeps_capacity: false, finish: None }
    }

    /// Another limiter inherits, and you must put it in force: an equal one, in place of the limiter that was asked,
    /// which holds its own debts already.
    pub const fn by(heir: H) -> Self {
        Self { heir: Some(heir), keeps_capacity: false, finish: None }
    }

    /// Runs `finish` right after the change is in force, on the thread that makes the change. For slow work, and for
    /// work that should include the requests from before the change. A second call replaces the first.
    pub fn then(self, finish: impl FnOnce() + Send + 'static) -> Self {
        Self { finish: Some(Box::new(finish)), ..self }
    }

    /// Calls [`then`](Self::then), if there is something to run.
    pub(crate) fn and_then(self, finish: Option<Finish>) -> Self {
        Self { finish: finish.or(self.finish), ..self }
    }

    /// Sets whether the heir keeps the predecessor's capacity in place of its own; by default it does not.
    pub const fn keeping_capacity(mut self, keeps_capacity: bool) -> Self {
        self.keeps_capacity = keeps_capacity;
        self
    }

    /// Replaces the limiter that was asked, if the heir is another one. Returns the step to run once it is in force.
    pub(crate) fn put_in_place(self, asked: &mut H) -> Option<Finish> {
        if let Some(heir) = self.heir {
            *asked = heir;
        }
        self.finish
    }

    /// The heir, if it is not the limiter that was asked.
    #[must_use]
    pub const fn heir(&self) -> Option<&H> {
        self.heir.as_ref()
    }

    /// Runs the step that follows once the heir is in force. A [`LimitsHandle`](crate::LimitsHandle) calls this.
    pub fn finish(self) {
        if let Some(finish) = self.finish {
            finish();
        }
    }

    /// Converts the heir, if it is not the limiter that was asked.
    pub fn map<T>(self, make: impl FnOnce(H) -> T) -> Inheritance<T> {
        Inheritance { heir: self.heir.map(make), keeps_capacity: self.keeps_capacity, finish: self.finish }
    }
}

impl<H> fmt::Debug for Inheritance<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inheritance").field("in_place", &self.heir.is_none()).finish_non_exhaustive()
    }
}
