//! Open charges: refundable charges whose responses are still awaited.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::util::keyed_hash::Secret;
use crate::values::PartitionKey;
use crate::values::time::{Timestamp, duration_from_nanos, nanos_of};

/// The refundable charges of a policy that are not settled yet, by key.
///
/// A rejection that such charges cause is not misconduct, and may be brief: they may be refunded within the time that a
/// response takes. Bounded by the requests in flight.
pub(crate) struct OpenCharges {
    /// Sharded by hash, so that requests of different keys seldom take the same lock.
    shards: [Mutex<HashMap<PartitionKey, Open>>; SHARDS],
    secret: Secret,
    /// The moving average of the duration of responses, in nanoseconds; zero while none is known.
    mean: AtomicU64,
}

/// Two requests of different keys take the same lock in one of so many cases. It is held for one lookup.
const SHARDS: usize = 16;

/// The expected duration of a response while none is known.
const UNKNOWN: Duration = Duration::from_secs(1);

/// The bounds of advertised waits: less would make clients retry in a busy loop, and more would be no estimate.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The multiple of the usual duration after which a response is no longer expected. If it were smaller, rejections
/// would count towards a ban during more responses that are merely slow; if it were greater, a client could avoid bans
/// for longer by holding a response open.
const LATE: u32 = 4;

#[derive(Clone, Copy)]
struct Open {
    requests: u64,
    units: u64,
    /// The instant of the latest charge.
    newest: Timestamp,
}

impl OpenCharges {
    fn shard(&self, key: &PartitionKey) -> MutexGuard<'_, HashMap<PartitionKey, Open>> {
        let hash = self.secret.hash(key.as_bytes());
        let index = usize::try_from(hash % SHARDS as u64).expect("less than `SHARDS`");
        // A panic under the lock leaves no entry half written, so a poisoned lock is safe to use.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a charge, whose response is awaited from `now` on.
    pub(crate) fn open(&self, key: &PartitionKey, cost: u32, now: Timestamp) {
        let mut shard = self.shard(key);
        let open = shard.entry(key.clone()).or_insert(Open { requests: 0, units: 0, newest: now });
        open.requests += 1;
        open.units += u64::from(cost);
        open.newest = now;
    }

    /// Closes a charge that was [opened](Self::open): it is settled, or has no response.
    pub(crate) fn close(&self, key: &PartitionKey, cost: u32) {
        let mut shard = self.shard(key);
        // Removed first, since most keys have one request at a time: then it is looked up once.
        let Some((key, mut open)) = shard.remove_entry(key) else { return };
        open.requests -= 1;
        open.units = open.units.saturating_sub(cost.into());
        if open.requests > 0 {
            shard.insert(key, open);
        }
    }

    /// Records the duration of a response.
    pub(crate) fn note_duration(&self, took: Duration) {
        let took = nanos_of(took).max(1);
        // Two threads that load the same mean lose one of their samples, which is fine for an estimate; hence relaxed
        // loads and stores instead of a compare-and-swap loop. A sample has a weight of one eighth, like a round
        // trip in RFC 6298.
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => took,
            mean => mean - mean / 8 + took / 8,
        };
        self.mean.store(mean, Ordering::Relaxed);
    }

    /// Returns the refundable units of a key, and the expected time until they are refunded; `None` if there are none.
    ///
    /// Charges whose responses take more than [`LATE`] times as long as usual (and more than 1 s) do not count:
    /// otherwise, a client could avoid bans by holding a response open.
    pub(crate) fn expected(&self, key: &PartitionKey, now: Timestamp) -> Option<(u64, Duration)> {
        let open = *self.shard(key).get(key)?;
        let usual = match self.mean.load(Ordering::Relaxed) {
            0 => UNKNOWN,
            mean => duration_from_nanos(mean.into()).clamp(SHORTEST, LONGEST),
        };
        let is_late = now.saturating_since(open.newest) > usual.saturating_mul(LATE).max(UNKNOWN);
        (!is_late).then_some((open.units, usual))
    }
}

impl Default for OpenCharges {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, secret: Secret::random(), mean: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_expected_until_they_are_settled() {
        let (charges, key) = (OpenCharges::default(), PartitionKey::from("key"));
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        assert_eq!(charges.expected(&key, at(0)), None);
        charges.open(&key, 2, at(0));
        charges.open(&key, 3, at(10));
        assert_eq!(charges.expected(&key, at(20)), Some((5, UNKNOWN)));
        charges.close(&key, 2);
        charges.note_duration(Duration::from_millis(20));
        assert_eq!(charges.expected(&key, at(20)), Some((3, Duration::from_millis(20))));
        charges.close(&key, 3);
        assert_eq!(charges.expected(&key, at(20)), None);
    }

    #[test]
    fn responses_are_late_after_four_times_the_usual_duration_but_never_within_a_second() {
        let (key, millis) = (PartitionKey::from("key"), Duration::from_millis);
        for (usual, last) in [(millis(20), UNKNOWN), (millis(250), UNKNOWN), (millis(300), 4 * millis(300))] {
            let charges = OpenCharges::default();
            charges.note_duration(usual);
            // The latest charge counts.
            charges.open(&key, 1, Timestamp::from_nanos(0));
            let latest = Timestamp::from_nanos(10);
            charges.open(&key, 1, latest);
            let last = latest.saturating_add(last);
            assert_eq!(charges.expected(&key, last), Some((2, usual)));
            assert_eq!(charges.expected(&key, last.saturating_add(Duration::from_nanos(1))), None, "{usual:?}");
        }
    }

    #[test]
    fn the_expected_wait_is_the_mean_duration_within_bounds() {
        let key = PartitionKey::from("key");
        let (millis, hour) = (Duration::from_millis, Duration::from_secs(3_600));
        for (durations, expected) in [
            (&[millis(80)][..], millis(80)),
            (&[millis(80), millis(160)], millis(90)),
            (&[Duration::ZERO], SHORTEST),
            (&[hour], LONGEST),
            (&[Duration::MAX, Duration::MAX], LONGEST),
        ] {
            let charges = OpenCharges::default();
            charges.open(&key, u32::MAX, Timestamp::from_nanos(0));
            durations.iter().for_each(|took| charges.note_duration(*took));
            let units = u32::MAX.into();
            assert_eq!(charges.expected(&key, Timestamp::from_nanos(0)), Some((units, expected)), "{durations:?}");
        }
    }
}
