//! Atomics and locks: the standard library's, or loom's in its models.

#[cfg(all(feature = "http", not(sluice_loom)))]
pub(crate) use std::sync::atomic::AtomicBool;
#[cfg(not(sluice_loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(sluice_loom))]
pub(crate) use std::thread::yield_now;

#[cfg(sluice_loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(sluice_loom)]
pub(crate) use loom::thread::yield_now;

/// Does nothing, except in loom's models.
#[cfg(not(all(test, sluice_loom)))]
#[inline(always)]
pub(crate) const fn before_a_step() {}

/// Does nothing, except in loom's models: there, a fence makes loom honour `SeqCst`.
#[cfg(not(all(test, sluice_loom)))]
#[inline(always)]
pub(crate) const fn in_order() {}

#[cfg(all(test, sluice_loom))]
pub(crate) use self::in_models::{before_a_step, in_order};

#[cfg(all(test, sluice_loom))]
mod in_models {
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    loom::lazy_static! {
        static ref STEPS: AtomicU64 = AtomicU64::new(0);
    }

    /// Makes every step in every thread access one counter, too. Loom remembers only the last access to an atomic, so a
    /// thread that reads and then swaps hides its race with another thread's reading, and whole orders of events are
    /// never tried. Relaxed, it orders nothing.
    pub(crate) fn before_a_step() {
        STEPS.fetch_add(1, Ordering::Relaxed);
    }

    /// Orders a load after all threads' earlier steps. Loom treats `SeqCst` accesses as acquire and release, but it
    /// honours a fence.
    pub(crate) fn in_order() {
        fence(Ordering::SeqCst);
    }
}
