//! Open charges: refundable charges whose responses are still awaited.

use std::collections::HashMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::util::keyed_hash::Secret;
use crate::util::lock::Shards;
use crate::values::PartitionKey;
use crate::values::time::{Timestamp, duration_from_nanos, nanos_of};

/// A policy's refundable charges that are not settled yet, by key.
///
/// A rejection that such charges cause is not misconduct, and may be brief, because they may be refunded within the
/// time that a response takes. Each open charge excuses a bounded number of rejections. Otherwise, a client that holds
/// one response open could send without limit. The requests in flight bound the number of charges.
pub(crate) struct OpenCharges {
    /// Sharded by hash, so that requests with different keys seldom take the same lock.
    shards: Shards<ChargeShard>,
    secret: Secret,
    /// The moving average over all response durations, in nanoseconds. Zero while it is unknown.
    mean: AtomicU64,
}

struct ChargeShard {
    open: HashMap<PartitionKey, OpenCharge>,
    recent: [Recent; RECENT],
}

/// The moving average over one key's response durations. Two keys that share a slot forget each other.
#[derive(Clone, Copy, Default)]
struct Recent {
    /// A part of the key's hash.
    tag: u32,
    /// In microseconds, 71 minutes at most. Zero while it is unknown.
    mean: u32,
}

/// The number of shards. Two requests with different keys take the same lock in one case in `SHARDS`. It is held for
/// one lookup.
const SHARDS: usize = 16;

/// The number of keys per shard whose durations are known. All shards have 1,024, in 8 KiB.
const RECENT: usize = 64;

/// A response's expected duration before the first one has ended.
const UNKNOWN: Duration = Duration::from_secs(1);

/// The bounds of advertised waits. Less would make clients retry in a busy loop, and more would not be an estimate.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The multiple of the usual duration after which a response is no longer expected. If it were smaller, rejections
/// would count towards a ban during more responses that are merely slow; if it were greater, a client could avoid bans
/// for longer by holding a response open.
const LATE: u32 = 4;

/// The rejections that each open charge excuses. A client has about that number of requests in flight before a response
/// advertises a wait.
const EXCUSED: u64 = 10;

#[derive(Clone, Copy)]
struct OpenCharge {
    requests: u64,
    units: u64,
    /// When the latest charge was made.
    newest: Timestamp,
    /// The rejections that were excused since the first of these charges.
    excused: u64,
}

impl OpenCharges {
    /// Locks a key's shard. Returns the key's hash, too.
    fn shard(&self, key: &PartitionKey) -> (MutexGuard<'_, ChargeShard>, u64) {
        let hash = self.secret.hash(key.as_bytes());
        (self.shards.lock(hash), hash)
    }

    /// Opens a charge, whose response is awaited from `now` on.
    pub(crate) fn open(&self, key: &PartitionKey, cost: u64, now: Timestamp) {
        let (mut shard, _) = self.shard(key);
        let open =
            shard.open.entry(key.clone()).or_insert(OpenCharge { requests: 0, units: 0, newest: now, excused: 0 });
        open.requests += 1;
        open.units = open.units.saturating_add(cost);
        open.newest = now;
    }

    /// Closes a charge that was [opened](Self::open), because it is settled after its response, which `took` this time,
    /// or because it has no response.
    pub(crate) fn close(&self, key: &PartitionKey, cost: u64, took: Option<Duration>) {
        let (mut shard, hash) = self.shard(key);
        if let Some(took) = took {
            shard.note_duration(hash, took);
            self.note_duration(took);
        }
        // Most keys have one request at a time, so remove the entry first, which takes one lookup.
        let Some((key, mut open)) = shard.open.remove_entry(key) else { return };
        open.requests -= 1;
        open.units = open.units.saturating_sub(cost);
        if open.requests > 0 {
            shard.open.insert(key, open);
        }
    }

    /// Returns whether a rejection that a key's open charges have caused is excused, and counts it.
    pub(crate) fn excuse(&self, key: &PartitionKey) -> bool {
        let (mut shard, _) = self.shard(key);
        let Some(open) = shard.open.get_mut(key) else { return false };
        open.excused += 1;
        open.excused <= open.requests.saturating_mul(EXCUSED)
    }

    /// Records the duration of a response to any key.
    fn note_duration(&self, took: Duration) {
        let took = nanos_of(took).max(1);
        // Two threads that load the same mean lose one sample, which is fine for an estimate, so we use relaxed loads
        // and stores instead of a compare-and-swap loop.
        self.mean.store(averaged(self.mean.load(Ordering::Relaxed), took), Ordering::Relaxed);
    }

    /// Returns a key's refundable units, and the expected time until they are refunded, if there are any.
    ///
    /// The time is the mean duration of the key's own responses. While that is unknown, it is the mean over all
    /// responses, but [`UNKNOWN`] at most, because a stranger may send requests that take any time.
    ///
    /// Charges whose responses take more than [`LATE`] times the usual duration (and more than 1 s) do not count.
    /// Otherwise, a client could avoid bans by holding a response open.
    pub(crate) fn expected(&self, key: &PartitionKey, now: Timestamp) -> Option<(u64, Duration)> {
        let (open, own) = {
            let (shard, hash) = self.shard(key);
            (*shard.open.get(key)?, shard.duration(hash))
        };
        let usual = match self.mean.load(Ordering::Relaxed) {
            0 => UNKNOWN,
            mean => duration_from_nanos(mean.into()).clamp(SHORTEST, LONGEST),
        };
        let is_late = now.saturating_since(open.newest) > usual.saturating_mul(LATE).max(UNKNOWN);
        let expected = own.map_or(usual.min(UNKNOWN), |own| own.clamp(SHORTEST, LONGEST));
        (!is_late).then_some((open.units, expected))
    }
}

/// Adds a sample to a moving average, with a weight of one eighth, like a round trip in RFC 6298. If the mean is zero,
/// there are no samples yet.
const fn averaged(mean: u64, took: u64) -> u64 {
    if mean == 0 { took } else { mean - mean / 8 + took / 8 }
}

impl ChargeShard {
    /// Returns the slot for a key's duration, and its tag.
    fn slot(hash: u64) -> (usize, u32) {
        let index = usize::try_from(hash / SHARDS as u64 % RECENT as u64).expect("less than `RECENT`");
        (index, u32::try_from(hash >> 32).expect("32 bits"))
    }

    /// Records the duration of a response to the key with this hash.
    fn note_duration(&mut self, hash: u64, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        let (index, tag) = Self::slot(hash);
        let recent = &mut self.recent[index];
        let before = if recent.tag == tag { recent.mean } else { 0 };
        let mean = averaged(before.into(), took.into());
        *recent = Recent { tag, mean: u32::try_from(mean).unwrap_or(u32::MAX) };
    }

    /// Returns the mean duration of the recent responses to the key with this hash, if it is known.
    fn duration(&self, hash: u64) -> Option<Duration> {
        let (index, tag) = Self::slot(hash);
        let recent = self.recent[index];
        (recent.tag == tag && recent.mean > 0).then(|| Duration::from_micros(recent.mean.into()))
    }
}

impl Default for OpenCharges {
    fn default() -> Self {
        let new_shard = || ChargeShard { open: HashMap::new(), recent: [Recent::default(); RECENT] };
        Self { shards: Shards::new(SHARDS, new_shard), secret: Secret::random(), mean: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Quota;

    /// Completes a request with this key, whose response takes `took`.
    fn respond(charges: &OpenCharges, key: &PartitionKey, took: Duration) {
        charges.open(key, 0, Timestamp::from_nanos(0));
        charges.close(key, 0, Some(took));
    }

    /// Keys in one shard have equal hashes modulo `SHARDS`.
    #[test]
    fn a_shards_keys_use_all_slots() {
        for shard in [0, 1, 15] {
            let hashes = (0..RECENT as u64).map(|number| shard + number * SHARDS as u64);
            let mut slots: Vec<_> = hashes.map(|hash| ChargeShard::slot(hash).0).collect();
            slots.sort_unstable();
            assert!(slots.into_iter().eq(0..RECENT));
        }
    }

    #[test]
    fn charges_are_expected_until_they_are_settled() {
        let charges = OpenCharges::default();
        let key = PartitionKey::from("key");
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        assert_eq!(charges.expected(&key, at(0)), None);
        charges.open(&key, 2, at(0));
        charges.open(&key, 3, at(10));
        assert_eq!(charges.expected(&key, at(20)), Some((5, UNKNOWN)));
        charges.close(&key, 2, Some(Duration::from_millis(20)));
        assert_eq!(charges.expected(&key, at(20)), Some((3, Duration::from_millis(20))));
        charges.close(&key, 3, None);
        assert_eq!(charges.expected(&key, at(20)), None);
    }

    /// Regression: a key whose own requests take 52 ms waited nearly 30 seconds, because other clients' requests took
    /// that long.
    #[test]
    fn others_slow_responses_lengthen_no_wait() {
        // A fixed secret: with a random one, two keys may share a slot.
        let charges = OpenCharges { secret: Secret::from_bytes([7; 16]), ..OpenCharges::default() };
        let now = Timestamp::from_nanos(0);
        let key = PartitionKey::from("key");
        let fresh = PartitionKey::from("fresh");
        let millis = Duration::from_millis;
        for _ in 0..20 {
            respond(&charges, &key, millis(52));
        }
        for _ in 0..1_000 {
            respond(&charges, &PartitionKey::from("stranger"), Duration::from_secs(30));
        }
        for key in [&key, &fresh] {
            charges.open(key, 1, now);
        }
        assert_eq!(charges.expected(&key, now), Some((1, millis(52))));
        // This key's durations are unknown, so at most a second is assumed.
        assert_eq!(charges.expected(&fresh, now), Some((1, UNKNOWN)));
        // Enough strangers take every slot, so that the key's own durations are forgotten.
        for stranger in 0..10_000_u32 {
            respond(&charges, &PartitionKey::from(stranger), Duration::from_secs(30));
        }
        assert_eq!(charges.expected(&key, now), Some((1, UNKNOWN)));
    }

    /// They are late after four times the usual duration, but never within a second.
    #[test]
    fn late_responses_are_no_longer_expected() {
        let key = PartitionKey::from("key");
        let millis = Duration::from_millis;
        for (usual, last) in [(millis(20), UNKNOWN), (millis(250), UNKNOWN), (millis(300), 4 * millis(300))] {
            let charges = OpenCharges::default();
            respond(&charges, &key, usual);
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
    fn expected_waits_are_bounded_means() {
        let key = PartitionKey::from("key");
        let millis = Duration::from_millis;
        let hour = Duration::from_secs(3_600);
        for (durations, expected) in [
            (&[millis(80)][..], millis(80)),
            (&[millis(80), millis(160)], millis(90)),
            (&[Duration::ZERO], SHORTEST),
            (&[hour], LONGEST),
            (&[Duration::MAX, Duration::MAX], LONGEST),
        ] {
            let charges = OpenCharges::default();
            charges.open(&key, Quota::MAX_UNITS, Timestamp::from_nanos(0));
            durations.iter().for_each(|took| respond(&charges, &key, *took));
            let known = charges.expected(&key, Timestamp::from_nanos(0));
            assert_eq!(known, Some((Quota::MAX_UNITS, expected)), "{durations:?}");
        }
    }
}
