//! Detects layers that are mounted in a wrong way: around themselves, so that each request is charged twice, or built
//! for each request, so that each has its own counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Extensions;
use smallvec::SmallVec;

use crate::engine::first_requests::FirstRequests;
use crate::util::lock::Lock;

/// The number of requests that are checked per layer. One request is enough to detect a layer that is mounted around
/// itself on all routes. The others detect a layer that is mounted around itself only on some routes.
const CHECKS: u32 = 1_000;

/// A layer that is dropped after fewer requests was probably built for them.
const FEW: u32 = 10;

/// This number of layers that are dropped after [`FEW`] requests is not a coincidence.
const MANY: u32 = 100;

/// The most policy names whose layers are counted.
const MOST_NAMES: usize = 64;

/// Marks a layer's first requests, and detects a request that arrives a second time.
pub(crate) struct Mounting {
    /// The layer's identity.
    id: u64,
    first: FirstRequests<CHECKS>,
}

/// The layers that a request has passed.
#[derive(Clone, Default)]
struct Passed(SmallVec<[u64; 4]>);

impl Default for Mounting {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), first: FirstRequests::new() }
    }
}

impl Mounting {
    /// Whether the layer has had requests, but only a few.
    pub(crate) fn had_few_requests(&self) -> bool {
        (1..FEW).contains(&self.first.so_far())
    }

    /// Marks a request, and returns whether this layer has marked it before. `true` at most once per layer.
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

/// Counts a layer that is dropped after a few requests, by a policy's name. Returns how many there were, once there are
/// many.
pub(crate) fn note_short_lived(policy: &Arc<str>) -> Option<u32> {
    /// The first names, and how many layers each has had.
    static LAYERS: Lock<Vec<(Arc<str>, u32)>> = Lock::new(Vec::new());
    let layers = &mut *LAYERS.lock();
    if layers.len() < MOST_NAMES && !layers.iter().any(|(name, _)| name == policy) {
        layers.push((Arc::clone(policy), 0));
    }
    let (_, count) = layers.iter_mut().find(|(name, _)| name == policy)?;
    *count = count.saturating_add(1);
    (*count == MANY).then_some(MANY)
}
