//! Wakes tasks, whose wakers are foreign code, and lets other workers run them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes all tasks. A waker that panics costs no other waiter its wake-up, and does not panic in the caller, which is
/// not at fault. The message has gone to the panic hook.
pub(crate) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Lets any of the runtime's workers run the task that the caller has spawned or woken last.
///
/// A Tokio worker keeps that task in its own slot, from which no other worker takes it, and runs it when the present
/// task yields. If that task computes for a second first, the other one waits for a second, although other workers are
/// idle. The next task that is spawned takes the slot, and moves the previous task to the queue that all workers run.
pub fn let_others_take() {
    use tokio::runtime::{Handle, RuntimeFlavor};

    // In a runtime with one thread, no other worker could take it.
    if let Some(runtime) = Handle::try_current().ok().filter(|it| it.runtime_flavor() != RuntimeFlavor::CurrentThread) {
        drop(runtime.spawn(std::future::ready(())));
    }
}

/// A waker whose task owns this, and is dropped with its last waker.
#[cfg(all(test, not(sluice_loom)))]
pub(crate) fn owning<T: Send + 'static>(owned: T) -> Waker {
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    struct Task<T>(#[allow(dead_code, reason = "it is dropped")] Mutex<T>);

    impl<T: Send + 'static> Wake for Task<T> {
        fn wake(self: Arc<Self>) {}
    }

    Waker::from(Arc::new(Task(Mutex::new(owned))))
}
