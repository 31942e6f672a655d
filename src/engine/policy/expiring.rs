//! `ExpiringTable`: facts about a policy's keys that end by themselves, beside their budgets.

mod saved;

pub(super) use self::saved::{SavedEntries, SavedValue};

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use crate::store::{TableStats, next_table_number};
use crate::util::expiring_map::{ExpiringMap, HashTag};
use crate::util::keyed_hash::Secret;
use crate::util::log;
use crate::values::PartitionKey;
use crate::values::time::{Clock, Timestamp};

/// One value per key until it ends, for at least `capacity` keys. If there are more, the values that end first are
/// forgotten, which is counted, and logged once.
///
/// From the first value on, the table takes two slots per key that fits, each with the value and the key's hash. With
/// two slots, no set among two thousand fills up by chance before the whole table has reached its capacity.
pub(super) struct ExpiringTable<V> {
    entries: OnceLock<Entries<V>>,
    capacity: usize,
    clock: Arc<dyn Clock>,
    /// No value ends after this instant. Most services never ban a client. There, it is zero, and requests skip the
    /// lookup.
    latest: AtomicU64,
    number: u64,
    warning: Once,
}

/// The values, and the secret for the hash by which they are found. Both are made for the first value, or restored from
/// a snapshot before it.
struct Entries<V> {
    map: ExpiringMap<NonZeroU64, V, WAYS>,
    secret: Secret,
}

impl<V: Ends> Entries<V> {
    fn tag(&self, key: &PartitionKey) -> NonZeroU64 {
        NonZeroU64::new(self.secret.hash(key.as_bytes())).unwrap_or(NonZeroU64::MIN)
    }
}

/// A value in an `ExpiringTable`.
pub(super) trait Ends: Copy {
    fn ends(&self) -> Timestamp;
}

impl Ends for Timestamp {
    fn ends(&self) -> Timestamp {
        *self
    }
}

impl HashTag for NonZeroU64 {
    fn bits(self) -> u64 {
        self.get()
    }
}

/// The number of keys for which a table of bans or debts has room.
pub(super) const CAPACITY: usize = 65_536;

/// The slots per set. Half are used when the table has reached its capacity.
const WAYS: usize = 64;

/// The number of sets that an estimate counts.
const SAMPLED: usize = 4_096 / WAYS;

impl<V: Ends> ExpiringTable<V> {
    pub(super) fn new(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            entries: OnceLock::new(),
            capacity,
            clock,
            latest: AtomicU64::new(0),
            number: next_table_number(),
            warning: Once::new(),
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether all values have ended. The load can be relaxed, because a thread that has set a value sees its own
    /// write, and another thread that misses it decides as if its request had come just before.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        let latest = self.latest.load(Ordering::Relaxed);
        latest == 0 || latest <= self.now().as_nanos()
    }

    /// Returns a key's value, and the instant at which it has not ended.
    #[inline]
    pub(super) fn get(&self, key: &PartitionKey) -> Option<(V, Timestamp)> {
        if self.is_over() {
            return None;
        }
        let entries = self.entries.get()?;
        let value = entries.map.get(entries.tag(key))?;
        let now = self.now();
        (value.ends() > now).then_some((value, now))
    }

    /// Lets `step` set, replace or remove a key's value at an instant. A value that has ended is passed as `None`.
    pub(super) fn update<R>(&self, key: &PartitionKey, step: impl FnOnce(&mut Option<V>, Timestamp) -> R) -> R {
        let (mut step, mut result) = (Some(step), None);
        self.update_by(key, &mut |value, now| result = step.take().map(|step| step(value, now)));
        result.expect("the step is taken once")
    }

    /// [Updates](Self::update) by a step of any type, so that this is compiled once per value type.
    fn update_by(&self, key: &PartitionKey, step: &mut dyn FnMut(&mut Option<V>, Timestamp)) {
        let entries = self.entries.get_or_init(|| self.make(Secret::random()));
        let map = &entries.map;
        map.update(entries.tag(key), self.now(), &V::ends, |value| {
            // Read the clock under the lock, so that a key's steps see instants in order.
            let now = self.now();
            value.take_if(|value| value.ends() <= now);
            step(value, now);
            if let Some(value) = value {
                // Done under the lock, so before any lookup that could find the value.
                self.latest.fetch_max(value.ends().as_nanos(), Ordering::Relaxed);
            }
        });
        if map.evicted() > 0 {
            self.warning.call_once(log::table_filling_up);
        }
    }

    pub(super) fn forget(&self, key: &PartitionKey) {
        if let Some(entries) = self.entries.get() {
            entries.map.remove(entries.tag(key));
        }
    }

    pub(super) fn stats(&self) -> TableStats {
        let map = self.entries.get().map(|entries| &entries.map);
        let now = self.now();
        TableStats {
            capacity: self.capacity as u64,
            live_keys: map.map_or(0, |map| map.count(SAMPLED, |value| value.ends() > now)),
            evicted_live: map.map_or(0, ExpiringMap::evicted),
            number: map.map(|_| self.number),
            ..TableStats::default()
        }
    }

    const fn sets(&self) -> usize {
        self.capacity.saturating_mul(2).div_ceil(WAYS)
    }

    #[cold]
    fn make(&self, secret: Secret) -> Entries<V> {
        let map = ExpiringMap::new(self.sets()).unwrap_or_else(|| {
            panic!("a table for {} keys needs more memory than there is; choose a smaller capacity", self.capacity)
        });
        Entries { map, secret }
    }

    /// In bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.entries.get().map_or(0, |_| ExpiringMap::<NonZeroU64, V, WAYS>::size_of(self.sets()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::values::time::ManualClock;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn begin(table: &ExpiringTable<Timestamp>, key: u64) {
        table.update(&key.into(), |end, now| *end = Some(now.saturating_add(HOUR)));
    }

    #[test]
    fn a_table_keeps_keys_within_capacity() {
        let table = ExpiringTable::new(CAPACITY, Arc::new(ManualClock::new()));
        (0..CAPACITY as u64).for_each(|key| begin(&table, key));
        assert_eq!(table.stats().evicted_live, 0);
        assert!((0..CAPACITY as u64).all(|key| table.get(&key.into()).is_some()));
    }

    /// Evicted values are counted.
    #[test]
    fn floods_evict_and_ended_values_make_room() {
        let clock = ManualClock::new();
        let table = ExpiringTable::new(CAPACITY, Arc::new(clock.clone()));
        (0..140_000).for_each(|key| begin(&table, key));
        let TableStats { evicted_live, .. } = table.stats();
        let places = (table.sets() * WAYS) as u64;
        assert!(evicted_live >= 140_000 - places, "{evicted_live} evicted, of {places} places");
        clock.advance(HOUR);
        (0..30_000).for_each(|key| begin(&table, key));
        assert_eq!(table.stats().evicted_live, evicted_live);
    }

    #[test]
    fn the_first_value_allocates_the_table() {
        let table = ExpiringTable::<Timestamp>::new(CAPACITY, Arc::new(ManualClock::new()));
        assert!(table.get(&1_u64.into()).is_none() && table.is_over());
        table.forget(&1_u64.into());
        assert_eq!((table.size(), table.stats()), (0, TableStats { capacity: 65_536, ..TableStats::default() }));
        begin(&table, 1);
        assert_eq!(table.size() >> 20, 2);
    }
}
