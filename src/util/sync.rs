//! Atomics and locks: the standard library's, or loom's in its models.

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
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(sluice_loom)]
pub(crate) use loom::thread::yield_now;
