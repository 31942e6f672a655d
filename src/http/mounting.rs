//! Whether a layer is mounted around itself, so that each request is charged twice.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use http::Extensions;
use smallvec::SmallVec;

/// How many requests of a layer are looked at.
const LOOKS: u32 = 1_000;

/// Marks the first requests that come to a layer, and finds those that come a second time. After that, and after the first find,
/// it costs one relaxed load.
pub(crate) struct Mounting {
    /// Tells the layer from others.
    id: u64,
    looks_left: AtomicU32,
}

/// The layers that a request has come to.
#[derive(Clone, Default)]
struct Passed(SmallVec<[u64; 4]>);

impl Mounting {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), looks_left: AtomicU32::new(LOOKS) }
    }

    /// Whether a request has come to the layer before. Said once.
    #[inline]
    pub(crate) fn is_found_in(&self, request: &mut Extensions) -> bool {
        cfg!(feature = "tracing") && self.looks_left.load(Ordering::Relaxed) > 0 && self.look(request)
    }

    #[cold]
    fn look(&self, request: &mut Extensions) -> bool {
        let passed = request.get_or_insert_default::<Passed>();
        if passed.0.contains(&self.id) {
            // Of several threads, one finds looks left.
            return self.looks_left.swap(0, Ordering::Relaxed) > 0;
        }
        passed.0.push(self.id);
        let one_less = |left: u32| left.checked_sub(1);
        let _ = self.looks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        false
    }
}
