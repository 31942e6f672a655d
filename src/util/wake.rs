//! Wakes tasks, whose wakers are foreign code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes all of them. A waker that panics costs no other waiter its wake-up, and does not panic in the caller, which is
/// not at fault: the message has gone to the panic hook.
pub(crate) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}
