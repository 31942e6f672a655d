//! Helpers that several modules share.

#[cfg(feature = "http")]
use std::future::Future;
#[cfg(feature = "http")]
use std::pin::Pin;

pub(crate) mod aligned_words;
pub(crate) mod base64;
#[cfg(all(test, feature = "tracing", not(sluice_loom)))]
#[path = "../../tests/support/log.rs"]
pub(crate) mod captured_log;
#[cfg(all(test, not(sluice_loom)))]
#[path = "../../tests/support/cases.rs"]
pub(crate) mod cases;
#[cfg(all(test, not(sluice_loom)))]
#[path = "../../tests/support/effort.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
pub(crate) mod effort;
pub(crate) mod expiring_map;
#[cfg(any(all(feature = "http", not(all(feature = "axum", feature = "metrics"))), not(feature = "precise-timer"),))]
pub(crate) mod feature;
#[cfg(any(feature = "http", sluice_loom))]
pub(crate) mod idle_flag;
pub(crate) mod keyed_hash;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod order;
pub(crate) mod random;
pub(crate) mod references;
#[cfg(feature = "http")]
pub(crate) mod space_saving;
pub(crate) mod stripes;
pub(crate) mod sync;
#[cfg(all(test, not(sluice_loom)))]
#[path = "../../tests/support/trace.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
pub(crate) mod trace;
pub(crate) mod two_choices;
pub(crate) mod undo;
pub(crate) mod wake;

/// Runs a future in the background, if this thread is in a runtime. Otherwise drops it.
#[cfg(feature = "http")]
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        // Boxed as one type, because Tokio's tasks are compiled for each future type.
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        runtime.spawn(future);
    }
}
