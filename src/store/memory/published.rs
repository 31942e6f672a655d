//! A shared value that threads read and publish without waiting for one another.

use std::sync::Arc;

#[cfg(not(sluice_loom))]
use arc_swap::ArcSwapOption;

/// A shared value, or none: the first thread that publishes one wins.
///
/// No thread waits for another one, wherever that was descheduled. (In models, a lock takes the place of this: it is
/// held for one step.)
pub(super) struct Published<T>(
    #[cfg(not(sluice_loom))] ArcSwapOption<T>,
    #[cfg(sluice_loom)] crate::util::sync::Mutex<Option<Arc<T>>>,
);

#[cfg(not(sluice_loom))]
impl<T> Published<T> {
    pub(super) fn nothing() -> Self {
        Self(ArcSwapOption::empty())
    }

    pub(super) fn new(value: Arc<T>) -> Self {
        Self(ArcSwapOption::new(Some(value)))
    }

    pub(super) fn get(&self) -> Option<Arc<T>> {
        self.0.load_full()
    }

    /// Publishes a value if there is none; returns the published one, which may be another thread's.
    pub(super) fn publish(&self, value: Arc<T>) -> Arc<T> {
        let before = self.0.compare_and_swap(&None::<Arc<T>>, Some(Arc::clone(&value)));
        before.as_ref().map_or(value, Arc::clone)
    }

    pub(super) fn replace(&self, value: Arc<T>) {
        self.0.store(Some(value));
    }

    pub(super) fn take(&self) -> Option<Arc<T>> {
        self.0.swap(None)
    }
}

#[cfg(sluice_loom)]
impl<T> Published<T> {
    pub(super) fn nothing() -> Self {
        Self(crate::util::sync::Mutex::new(None))
    }

    pub(super) fn new(value: Arc<T>) -> Self {
        Self(crate::util::sync::Mutex::new(Some(value)))
    }

    pub(super) fn get(&self) -> Option<Arc<T>> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn publish(&self, value: Arc<T>) -> Arc<T> {
        Arc::clone(self.0.lock().unwrap().get_or_insert(value))
    }

    pub(super) fn replace(&self, value: Arc<T>) {
        *self.0.lock().unwrap() = Some(value);
    }

    pub(super) fn take(&self) -> Option<Arc<T>> {
        self.0.lock().unwrap().take()
    }
}
