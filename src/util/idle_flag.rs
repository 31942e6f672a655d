//! [`IdleFlag`] shows on the hot path that there is nothing to look up.

use super::sync::{AtomicBool, Ordering};

/// Whether nothing is in force. A thread that puts something in force clears it, and a thread that has found nothing
/// sets it.
///
/// A thread that sets it looks both before and after. If it sets the flag after the flag was cleared, its swap reads a
/// value from then on, so its second look sees that something is in force, and it clears the flag again. If it sets the
/// flag first, the flag is cleared in the end.
#[derive(Debug)]
pub(crate) struct IdleFlag(AtomicBool);

impl IdleFlag {
    /// Makes a flag that is not set.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Relaxed, because a request that misses the change came just before it.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Called after something was put in force.
    pub(crate) fn clear(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }

    /// Sets the flag if nothing is in force.
    #[inline]
    pub(crate) fn set_if(&self, is_idle: impl Fn() -> bool) {
        if is_idle() {
            self.0.swap(true, Ordering::AcqRel);
            if !is_idle() {
                self.clear();
            }
        }
    }
}

#[cfg(all(test, sluice_loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    /// A flag, and the number of changes in force.
    struct Shared {
        flag: IdleFlag,
        in_force: AtomicU64,
    }

    /// In every order, the flag is not set in the end while something is in force.
    #[test]
    fn no_flag_hides_a_change() {
        loom::model(|| {
            let shared = Arc::new(Shared { flag: IdleFlag::new(), in_force: AtomicU64::new(0) });
            let look = |shared: &Shared| shared.flag.set_if(|| shared.in_force.load(Ordering::Relaxed) == 0);
            let other = Arc::clone(&shared);
            let finder = thread::spawn(move || {
                look(&other);
                look(&other);
            });
            let other = Arc::clone(&shared);
            let operator = thread::spawn(move || {
                other.in_force.store(1, Ordering::Relaxed);
                other.flag.clear();
            });
            finder.join().unwrap();
            operator.join().unwrap();
            // A swap, since loom lets a load return a value from before the last swap.
            assert!(!shared.flag.0.swap(false, Ordering::AcqRel));
            shared.in_force.store(0, Ordering::Relaxed);
            look(&shared);
            assert!(shared.flag.0.swap(true, Ordering::AcqRel));
        });
    }
}
