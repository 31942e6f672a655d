//! Detects a layer that is mounted around itself and so charges each request twice.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use http::Extensions;
use smallvec::SmallVec;

/// The number of requests of a layer that are checked. One is enough to find a layer that is around itself on all
/// routes; the others find one that is so on some routes only.
const CHECKS: u32 = 1_000;

/// Marks the first requests of a layer, and detects one that arrives a second time. After [`CHECKS`] requests, or the
/// first detection, it costs one relaxed load.
pub(crate) struct Mounting {
    /// The identity of the layer.
    id: u64,
    checks_left: AtomicU32,
}

/// The layers that a request has passed.
#[derive(Clone, Default)]
struct Passed(SmallVec<[u64; 4]>);

impl Mounting {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), checks_left: AtomicU32::new(CHECKS) }
    }

    /// Marks a request, and returns whether it was marked before, by this layer; `true` at most once per layer.
    #[inline]
    pub(crate) fn mark(&self, request: &mut Extensions) -> bool {
        // Without `tracing`, the mistake could not be logged.
        cfg!(feature = "tracing") && self.checks_left.load(Ordering::Relaxed) > 0 && self.check(request)
    }

    #[cold]
    fn check(&self, request: &mut Extensions) -> bool {
        let passed = request.get_or_insert_default::<Passed>();
        if passed.0.contains(&self.id) {
            // If several threads detect it at once, the swap returns a count above zero to one of them.
            return self.checks_left.swap(0, Ordering::Relaxed) > 0;
        }
        passed.0.push(self.id);
        // Not `fetch_sub`: after the swap above, the count would wrap around, and checks would go on.
        let one_less = |left: u32| left.checked_sub(1);
        let _ = self.checks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        false
    }
}
