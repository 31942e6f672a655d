//! What a limiter hands on when another takes its place.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What heirs of a limiter inherit from; opaque to all but limiters of its kind.
#[derive(Clone)]
pub struct Heritage(Arc<dyn Any + Send + Sync>);

impl Heritage {
    /// Hands on `inner`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(inner: Arc<T>) -> Self {
        Self(inner)
    }

    /// What was handed on, if it is of this type.
    #[must_use]
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::downcast(Arc::clone(&self.0)).ok()
    }
}

impl fmt::Debug for Heritage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Heritage")
    }
}

/// How a limiter, or a store (`H`), inherits: by [`Limiter::inherit`](crate::Limiter::inherit).
#[must_use]
pub struct Inheritance<H> {
    pub(crate) heir: Option<H>,
    pub(crate) keeps_capacity: bool,
    pub(crate) finish: Option<Finish>,
}

/// A step to be run once a change is in force.
pub(crate) type Finish = Box<dyn FnOnce() + Send>;

impl<H> Inheritance<H> {
    /// The limiter that was asked inherits itself.
    pub const fn in_place() -> Self {
        Self { heir: None, keeps_capacity: false, finish: None }
    }

    /// Another inherits and is to be put in force: one like the limiter that was asked, which has debts of its own.
    pub const fn by(heir: H) -> Self {
        Self { heir: Some(heir), keeps_capacity: false, finish: None }
    }

    /// Has `finish` run right after the change is in force, by the thread that makes it. For what takes its time, and what
    /// requests of before should still be counted in.
    pub fn then(mut self, finish: impl FnOnce() + Send + 'static) -> Self {
        self.finish = Some(Box::new(finish));
        self
    }

    pub(crate) fn and_then(mut self, finish: Option<Finish>) -> Self {
        self.finish = finish.or(self.finish);
        self
    }

    /// Says that the capacity stays that of the predecessor.
    pub const fn keeping_capacity(mut self, keeps_capacity: bool) -> Self {
        self.keeps_capacity = keeps_capacity;
        self
    }

    /// The heir, if it is another than the limiter that was asked.
    #[must_use]
    pub const fn heir(&self) -> Option<&H> {
        self.heir.as_ref()
    }

    /// Does what is to be done once the heir is in force. A [`LimitsHandle`](crate::LimitsHandle) does so.
    pub fn finish(self) {
        if let Some(finish) = self.finish {
            finish();
        }
    }

    /// The heir, if it is another than the limiter that was asked, in another form.
    pub fn map<T>(self, make: impl FnOnce(H) -> T) -> Inheritance<T> {
        Inheritance { heir: self.heir.map(make), keeps_capacity: self.keeps_capacity, finish: self.finish }
    }
}

impl<H> fmt::Debug for Inheritance<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inheritance").field("in_place", &self.heir.is_none()).finish_non_exhaustive()
    }
}
