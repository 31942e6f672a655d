//! Detects a layer that is mounted around itself and so charges each request twice.

use std::sync::atomic::{AtomicU64, Ordering};

use http::Extensions;
use smallvec::SmallVec;

use crate::http::first_requests::FirstRequests;

/// The number of requests of a layer that are checked. One request is enough to detect a layer that is mounted around
/// itself on all routes; the others detect a layer that is mounted around itself on some routes only.
const CHECKS: u32 = 1_000;

/// Marks the first requests of a layer, and detects a request that arrives a second time.
pub(crate) struct Mounting {
    /// The identity of the layer.
    id: u64,
    first: FirstRequests<CHECKS>,
}

/// The layers that a request has passed.
#[derive(Clone, Default)]
struct Passed(SmallVec<[u64; 4]>);

impl Mounting {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), first: FirstRequests::new() }
    }

    /// Marks a request, and returns whether this layer has marked it before; `true` at most once per layer.
    #[inline]
    pub(crate) fn mark(&self, request: &mut Extensions) -> bool {
        let second = self.first.check(|| {
            let passed = request.get_or_insert_default::<Passed>();
            let is_second = passed.0.contains(&self.id);
            passed.0.push(self.id);
            is_second.then_some(())
        });
        second.is_some()
    }
}
