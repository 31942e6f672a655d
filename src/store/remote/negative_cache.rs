//! The negative cache: the keys that were used up when this process last asked, and until when they certainly are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::tag::{KeyTag, KnownKeys, known_keys};
use crate::values::Decision;
use crate::values::time::Timestamp;

/// The states that keys had when nothing could be taken. They reject requests without a call, and never admit one.
///
/// A key's debt grows by the charges of others and shrinks with time alone. So a known state implies an instant until
/// which the server would certainly reject, and until then it need not be asked.
///
/// # Staleness
///
/// A refund or a reset by another process may free units without the knowledge of this one. Until it asks again, it
/// rejects requests that the server would admit. So the first request that finds an entry older than `VERIFY_EVERY`
/// verifies it by a call, while the others are still rejected. A key with steady requests is thus rejected wrongly for
/// up to `VERIFY_EVERY` and one call's time. If verifying calls fail, one is made every `VERIFY_EVERY`, and the entry
/// is ignored from `MAX_AGE` on.
///
/// # Clocks
///
/// Two clocks matter: the server's wall clock, by which a state says when units are free, and our monotonic clock,
/// which measures an entry's age. They may show different times, but must run at the same rate within one part in
/// `DRIFT_DIVISOR`, which also states the cost if they differ more. If the server's clock is stepped, or this machine
/// is suspended, entries may be wrong for the time under *Staleness*.
pub(crate) struct NegativeCache<S> {
    entries: KnownKeys<KnownEntry<S>>,
    /// For each group of keys, the first nanosecond after one was last forgotten. The answer to a call that was sent
    /// earlier is not stored.
    forgotten: Box<[AtomicU64; GROUPS]>,
}

/// The number of groups, whose times take 2 KiB. A group is forgotten as one, so the answers to calls in flight for one
/// in 256 other keys are not stored either, which costs each such key one more call.
const GROUPS: usize = 256;

/// How long an entry is used before one request verifies it, so a key that is used up costs two calls per second.
const VERIFY_EVERY: Duration = Duration::from_millis(500);

/// Two clocks drift apart by at most one part in this number, if each is off by at most 500 parts per million. This is
/// the slew rate of `adjtime`, by which `ntpd -x` corrects an offset. Other daemons slew faster, `chronyd` by up to
/// 83,333 parts per million unless it is configured (`maxslewrate`). While it does, a key may be rejected for too long,
/// or a wait be too short, by the same part of the entry's age, which is 42 ms at `VERIFY_EVERY`. The server's own
/// decisions stay exact.
const DRIFT_DIVISOR: u32 = 1_000;

/// An entry beyond this age is ignored, in case the calls that should have verified it failed.
const MAX_AGE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct KnownEntry<S> {
    state: S,
    observed: Observation,
    /// When it was verified, or when a request set out to verify it.
    verified: Timestamp,
}

/// A reading of the server's clock, made between two readings on ours.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "who calls the server writes all of it")]
pub struct Observation {
    /// The server's clock.
    pub server: Timestamp,
    /// Our clock before the call.
    pub sent: Timestamp,
    /// Our clock after the answer.
    pub answered: Timestamp,
}

impl Observation {
    /// Returns a time no later than the server's clock shows when ours shows `now`.
    fn earliest(self, now: Timestamp) -> Timestamp {
        let passed = now.saturating_since(self.answered);
        self.server.saturating_add(passed.saturating_sub(passed / DRIFT_DIVISOR))
    }

    /// Returns a time no earlier than the server's clock shows when ours shows `now`.
    fn latest(self, now: Timestamp) -> Timestamp {
        let passed = now.saturating_since(self.sent);
        self.server.saturating_add(passed.saturating_add(passed / DRIFT_DIVISOR))
    }
}

impl<S: Copy> KnownEntry<S> {
    fn ends(&self) -> Timestamp {
        self.observed.answered.saturating_add(MAX_AGE)
    }

    fn rejection(&self, now: Timestamp, rejected: impl Fn(S, Timestamp) -> Option<Decision>) -> Option<Decision> {
        if now.saturating_since(self.observed.answered) > MAX_AGE {
            return None;
        }
        let rejected_at = |time| rejected(self.state, time);
        rejected_at(self.observed.latest(now)).and_then(|_| rejected_at(self.observed.earliest(now)))
    }
}

impl<S: Copy> NegativeCache<S> {
    /// Makes an empty cache.
    #[allow(clippy::new_without_default, reason = "it takes a mebibyte")]
    pub(crate) fn new() -> Self {
        Self { entries: known_keys(), forgotten: Box::new(std::array::from_fn(|_| AtomicU64::new(0))) }
    }

    /// Returns the rejection that the server would answer, if that is certain. `rejected` computes it for a state and a
    /// time, if the request is rejected then. Returns `None` as well for the request that must verify the entry.
    ///
    /// A rejection is certain if even the latest time that the server's clock may show is too early. The advertised
    /// wait is counted from the earliest, so that a client that waits for it does not come too early.
    pub(crate) fn rejection(
        &self,
        tag: KeyTag,
        now: Timestamp,
        rejected: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        let (entry, is_due) = self.entries.change(tag, |entry| {
            let is_due = now.saturating_since(entry.verified) > VERIFY_EVERY;
            // Marked before the call is made, so that the other requests are rejected meanwhile.
            if is_due {
                entry.verified = now;
            }
            (*entry, is_due)
        })?;
        if is_due { None } else { entry.rejection(now, rejected) }
    }

    /// Returns the [`rejection`](Self::rejection), and leaves it to another request to verify the entry.
    pub(crate) fn peek(
        &self,
        tag: KeyTag,
        now: Timestamp,
        rejected: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        self.entries.get(tag)?.rejection(now, rejected)
    }

    /// Records the answer to a call: stores a used-up key's state, and removes any other key.
    pub(crate) fn note(&self, tag: KeyTag, used_up: Option<S>, observed: Observation) {
        match used_up {
            Some(state) => {
                let entry = KnownEntry { state, observed, verified: observed.answered };
                self.entries.update(tag, observed.answered, &KnownEntry::ends, |value| {
                    // A call that was sent before the key was forgotten is not evidence: an entry that is there by now
                    // is from a later call, and stays. Read under the set's lock, as `forget` explains.
                    if observed.sent.as_nanos() >= self.last_forgotten(tag).load(Ordering::Relaxed) {
                        *value = Some(entry);
                    }
                });
            }
            // If this answer is late, the entry may be from a call that was sent after this one. Its removal costs one
            // call, and rejects no request wrongly. And an entry that is stored at this moment might as well be stored
            // later.
            None if self.entries.get(tag).is_some() => self.entries.remove(tag),
            None => {}
        }
    }

    fn last_forgotten(&self, tag: KeyTag) -> &AtomicU64 {
        #[allow(clippy::cast_possible_truncation, reason = "which bits are used does not matter")]
        let group = tag.short() as usize % GROUPS;
        &self.forgotten[group]
    }

    /// Removes a key whose debt has shrunk faster than by time, at this time on our clock.
    pub(crate) fn forget(&self, tag: KeyTag, now: Timestamp) {
        // Marked first, then removed under the set's lock, under which `note` reads the mark and stores. If `note`
        // locks the set first, its entry is removed here. If it locks the set second, the lock makes the mark visible,
        // and `note` does not store the answer to a call that was sent earlier. So the mark itself may be relaxed. In
        // the other order, an earlier answer could be stored between the removal and the mark.
        self.last_forgotten(tag).fetch_max(now.as_nanos().saturating_add(1), Ordering::Relaxed);
        self.entries.remove(tag);
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, GcraState, SlidingWindowState, TokenBucket};
    use crate::store::remote::query::CachedState;
    use crate::store::remote::tag::{SETS, Tags};
    use crate::values::{PartitionKey, Quota};

    const SECOND: u64 = 1_000_000_000;

    fn tag(key: &str) -> KeyTag {
        Tags::new(b"").of(&PartitionKey::from(key))
    }

    fn at_nanos(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// Our clock counts seconds since the request, and the server's shows a thousand more.
    fn observed() -> Observation {
        Observation { server: at_nanos(1_000 * SECOND), sent: at_nanos(0), answered: at_nanos(SECOND / 10) }
    }

    fn rejected(
        negative_cache: &NegativeCache<GcraState>,
        bucket: TokenBucket,
        key: &str,
        cost: u64,
        now: u64,
    ) -> Option<Decision> {
        negative_cache.peek(tag(key), at_nanos(now), |state, time| {
            Some(bucket.decide(Some(state), time, cost).0).filter(|decision| !decision.is_allowed())
        })
    }

    #[test]
    fn cached_rejections_and_waits_are_certain() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let negative_cache = NegativeCache::new();
        let (_, state) = bucket.decide(None, observed().server, 5);
        negative_cache.note(tag("a"), state, observed());

        // One token is free when the server's clock shows 1,001: at our second 1 at the latest. By the advertised wait
        // it is there at 1.1, since the answer may have been under way for 0.1 seconds; and 0.4 ms later, since our
        // clock may have run fast by one part in 1,000 for the 0.4 seconds since the answer.
        let rejected = |key, cost, now| rejected(&negative_cache, bucket, key, cost, now);
        assert_eq!(rejected("a", 1, SECOND / 2).unwrap().retry_after(), Some(Duration::from_micros(600_400)));
        assert!(rejected("a", 1, SECOND * 998 / 1_000).is_some());
        assert!(rejected("a", 1, SECOND).is_none());
        // A greater cost is rejected for longer; another key is not known at all.
        assert!(rejected("a", 2, SECOND).is_some());
        assert!(rejected("b", 2, SECOND).is_none());
    }

    #[test]
    fn a_refilled_key_is_removed() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let negative_cache = NegativeCache::new();
        let is_rejected = || rejected(&negative_cache, bucket, "a", 5, 0).is_some();
        let (_, all) = bucket.decide(None, observed().server, 5);
        negative_cache.note(tag("a"), all, observed());
        assert!(is_rejected());
        negative_cache.note(tag("a"), None, observed());
        assert!(!is_rejected());
    }

    #[test]
    fn answers_from_before_forgetting_are_not_stored() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let negative_cache = NegativeCache::new();
        let is_rejected = || rejected(&negative_cache, bucket, "a", 5, 0).is_some();
        let (_, all) = bucket.decide(None, observed().server, 5);
        let later = Observation { sent: at_nanos(1), ..observed() };
        negative_cache.note(tag("a"), all, observed());
        negative_cache.forget(tag("a"), observed().sent);
        assert!(!is_rejected());
        negative_cache.note(tag("a"), all, observed());
        assert!(!is_rejected(), "this call was sent before");
        negative_cache.note(tag("a"), all, later);
        assert!(is_rejected(), "and this one after");
        negative_cache.note(tag("a"), all, observed());
        assert!(is_rejected(), "the earlier answer leaves the entry of the later call");
    }

    #[test]
    fn one_request_verifies_a_stale_entry() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let negative_cache = NegativeCache::new();
        negative_cache.note(tag("a"), bucket.decide(None, observed().server, 1).1, observed());
        let mut asked = Vec::new();
        for now in (0..30).map(|tenth| tenth * SECOND / 10) {
            for _ in 0..10 {
                let rejection = negative_cache.rejection(tag("a"), at_nanos(now), |state, time| {
                    Some(bucket.decide(Some(state), time, 1).0).filter(|decision| !decision.is_allowed())
                });
                if rejection.is_none() {
                    asked.push(now * 10 / SECOND);
                }
            }
        }
        // It was observed at 0.1.
        assert_eq!(asked, [7, 13, 19, 25]);
    }

    #[test]
    fn entries_end_after_a_minute() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let negative_cache = NegativeCache::new();
        negative_cache.note(tag("a"), bucket.decide(None, observed().server, 1).1, observed());
        assert!(rejected(&negative_cache, bucket, "a", 1, 60 * SECOND).is_some());
        assert!(rejected(&negative_cache, bucket, "a", 1, 61 * SECOND).is_none());
    }

    #[test]
    fn a_flood_evicts_the_oldest_keys() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let negative_cache = NegativeCache::new();
        for number in 0..100_000_u64 {
            let observed = Observation { server: at_nanos(SECOND), sent: at_nanos(number), answered: at_nanos(number) };
            negative_cache.note(tag(&number.to_string()), bucket.decide(None, observed.server, 1).1, observed);
        }
        let known = |range: std::ops::Range<u64>| {
            range.filter(|number| rejected(&negative_cache, bucket, &number.to_string(), 1, 100_000).is_some()).count()
        };
        assert_eq!(known(0..50_000), 0);
        // A set that got five of these keys has lost one.
        assert!(known(99_000..100_000) > 980);
        assert_eq!(known(0..100_000), 8_192);
    }

    /// The figures that are documented for `RedisStore`, which keeps a quota with each state, and for `SharedQueue`.
    #[test]
    fn it_takes_the_documented_memory() {
        fn tenths<S: Copy>() -> usize {
            (10 * (KnownKeys::<KnownEntry<S>>::size_of(SETS) + size_of::<[AtomicU64; GROUPS]>())).div_ceil(1 << 20)
        }
        assert!((10..=11).contains(&tenths::<CachedState<GcraState>>()));
        assert!((10..=11).contains(&tenths::<CachedState<SlidingWindowState>>()));
        assert!((6..=7).contains(&tenths::<GcraState>()));
    }
}
