//! This process's recent observations of keys, from which it predicts which write will apply.
//!
//! A wrong prediction costs a write that does nothing. It never changes a decision, since each write carries the
//! condition under which it is right. So the table may forget keys, and may take one key for another.

use std::hash::BuildHasher;
#[cfg(not(test))]
use std::hash::RandomState as Hasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many keys a limiter remembers, in 200 kilobytes.
const KEYS: usize = 4_096;

/// Requests for different keys should not wait for each other.
const LOCKS: usize = 16;

/// An observation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// When the bucket's debt will be paid as far as this process knows, in units of its rate; and how often, when such
    /// a debt was paid, others had put the bucket into debt, from 0 to [`ALWAYS_BUSY`].
    Bucket {
        /// The theoretical arrival time.
        tat: u128,
        /// The higher, the more of the last requests found a debt by others.
        busy: u8,
    },
    /// A window.
    Window {
        /// Its number, or when it ends.
        window: u64,
        /// Units used in the previous window, if they still count.
        previous: u64,
        /// Units used in this window.
        used: u64,
    },
}

/// Others had the bucket in debt at each of the last requests.
pub(crate) const ALWAYS_BUSY: u8 = 15;

/// Hints, with their keys' hashes.
type Places = Box<[Option<(u64, Hint)>]>;

/// Hashes without secret keys, so that in a test, the same keys share a place in each run.
#[cfg(test)]
type Hasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// One limiter's hints: each key has one place, which it may lose to another key.
#[derive(Debug)]
pub(crate) struct Hints {
    hasher: Hasher,
    places: [Mutex<Places>; LOCKS],
}

impl Hints {
    pub(crate) fn new() -> Self {
        let places = std::array::from_fn(|_| Mutex::new(vec![None; KEYS / LOCKS].into()));
        Self { hasher: Hasher::default(), places }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Hint> {
        let (hash, index) = self.find(key);
        self.lock(hash)[index].filter(|(seen, _)| *seen == hash).map(|(_, hint)| hint)
    }

    /// Remembers a hint, or forgets the key.
    pub(crate) fn set(&self, key: &str, hint: Option<Hint>) {
        let (hash, index) = self.find(key);
        let place = &mut self.lock(hash)[index];
        match hint {
            Some(hint) => *place = Some((hash, hint)),
            None if place.is_some_and(|(seen, _)| seen == hash) => *place = None,
            None => {}
        }
    }

    #[allow(clippy::cast_possible_truncation)] // A remainder.
    fn find(&self, key: &str) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        (hash, (hash as usize / LOCKS) % (KEYS / LOCKS))
    }

    #[allow(clippy::cast_possible_truncation)] // A remainder.
    fn lock(&self, hash: u64) -> MutexGuard<'_, Places> {
        // Nothing panics under this lock, and a hint may have any value.
        self.places[hash as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hint_is_kept() {
        let hints = Hints::new();
        let hint = |tat| Hint::Bucket { tat, busy: 0 };
        assert_eq!(hints.get("a"), None);
        hints.set("a", Some(hint(1)));
        hints.set("a", Some(hint(2)));
        assert_eq!((hints.get("a"), hints.get("b")), (Some(hint(2)), None));
        hints.set("a", None);
        assert_eq!(hints.get("a"), None);
    }

    #[test]
    fn most_keys_keep_their_places() {
        let hints = Hints::new();
        let name = |key: u32| format!("key {key}");
        (0..1_000).for_each(|key| {
            hints.set(&name(key), Some(Hint::Window { window: key.into(), previous: 0, used: key.into() }))
        });
        let kept = (0..1_000).filter(|key| hints.get(&name(*key)).is_some()).count();
        // A thousand keys in 4,096 places: 88 % on average.
        assert!(kept > 800, "{kept}");
    }
}
