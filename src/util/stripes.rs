//! The striped lock: one mutex among several, chosen by a key's tag.

use crate::util::sync::Mutex;

/// More than a machine has threads, so that two threads rarely want the same stripe.
const MOST: usize = if cfg!(sluice_loom) { 2 } else { 256 };

pub(crate) struct Stripes(Box<[Stripe]>);

/// A mutex on its own cache line, so that threads that take different stripes do not slow each other down.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

impl Stripes {
    /// Makes fewer for a table with few sets.
    pub(crate) fn new(sets: usize) -> Self {
        Self((0..sets.next_power_of_two().min(MOST)).map(|_| Stripe::default()).collect())
    }

    /// Locks a key's stripe. Hold it while a key that is not found is searched again, and inserted.
    pub(crate) fn lock(&self, tag: u64) -> impl Drop + '_ {
        let stripe = usize::try_from(tag % self.0.len() as u64).expect("below the number of stripes");
        // It guards no data that a panic could leave half done.
        self.0[stripe].0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
