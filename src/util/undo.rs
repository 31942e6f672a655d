//! Undoes or completes work that is dropped before its end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tokio::runtime::Handle;

/// Runs when it is dropped, unless the work that it stands for has ended.
pub struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    /// Begins the work.
    pub const fn new(undo: F) -> Self {
        Self(Some(undo))
    }

    /// Ends the work.
    pub fn end(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

impl<F: FnOnce()> fmt::Debug for OnDrop<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDrop").field("has_ended", &self.0.is_none()).finish_non_exhaustive()
    }
}

type UndoCall<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A call, and the function that gives back its result.
struct PendingUndo<T, F, U>
where
    T: 'static,
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    /// `None` once the call has ended.
    work: Option<(UndoCall<T>, F)>,
    runtime: Handle,
}

/// Awaits a call. If this is dropped meanwhile, the call goes on in the background on `runtime`, and `undo` gives back
/// its result.
pub(crate) fn complete_or_undo<T: 'static, F, U>(
    runtime: Handle,
    call: impl Future<Output = T> + Send + 'static,
    undo: F,
) -> impl Future<Output = T>
where
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    // Boxed at once, since the call takes far more memory than the rest, and is over when that begins.
    let mut pending = PendingUndo { work: Some((Box::pin(call), undo)), runtime };
    async move {
        let (call, _) = pending.work.as_mut().expect("it is awaited once");
        let outcome = call.await;
        drop(pending.work.take());
        outcome
    }
}

impl<T, F, U> Drop for PendingUndo<T, F, U>
where
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some((call, undo)) = self.work.take() {
            self.runtime.spawn(async move { undo(call.await).await });
        }
    }
}
