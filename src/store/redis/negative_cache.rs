//! The negative cache: which keys were used up when this process last asked, and until when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::key::Tag;
use super::key_cache::KeyCache;
use crate::values::Decision;
use crate::values::time::Timestamp;

/// The states of keys from which nothing could be taken.
///
/// A key's debt grows by what others take and shrinks with time alone. So a known state implies for how long, at least,
/// the server would reject, and until then it need not be asked. A refund or a reset by another process makes that
/// untrue: so an entry that is older than [`VERIFY_EVERY`] is verified by one request, while the others are rejected by
/// it. Too much is rejected for that long, and never too little.
pub(crate) struct NegativeCache<S> {
    entries: KeyCache<Entry<S>>,
    /// For each group of keys, the least time after one was last forgotten: the result of a call that was sent earlier
    /// is not stored.
    forgotten: Box<[AtomicU64; GROUPS]>,
}

const GROUPS: usize = 256;

/// How often an entry is verified, and so the longest time for which a refund of another process goes unnoticed.
const VERIFY_EVERY: Duration = Duration::from_millis(500);

/// An entry beyond this age is ignored, in case the requests that should have verified it failed.
const MAX_AGE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Entry<S> {
    state: S,
    observed: Observation,
    /// When it was verified, or a request set out to verify it.
    verified: Timestamp,
}

/// A reading of the server's clock, made between two readings of ours.
#[derive(Clone, Copy)]
pub(crate) struct Observation {
    pub(crate) server: Timestamp,
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
}

impl Observation {
    /// Returns a time no later than the server's clock shows when ours shows `now`. Clocks are steered by up to half a
    /// thousandth each (as by `adjtimex`).
    fn earliest(self, now: Timestamp) -> Timestamp {
        let passed = now.saturating_since(self.answered);
        self.server.saturating_add(passed.saturating_sub(passed / 1_000))
    }

    /// Returns a time no earlier than the server's clock shows when ours shows `now`.
    fn latest(self, now: Timestamp) -> Timestamp {
        let passed = now.saturating_since(self.sent);
        self.server.saturating_add(passed.saturating_add(passed / 1_000))
    }
}

impl<S: Copy> NegativeCache<S> {
    pub(crate) fn new() -> Self {
        Self { entries: KeyCache::new(), forgotten: Box::new(std::array::from_fn(|_| AtomicU64::new(0))) }
    }

    /// Returns the rejection that the server would answer, if that is certain; `rejected` computes it for a state and a
    /// time, if the request is rejected then. Returns `None` as well for a request that is to verify the entry.
    ///
    /// A rejection is certain if even the latest time that the server's clock may show is too early. The advertised
    /// wait is counted from the earliest, so that a client that waits for it does not come too early.
    pub(crate) fn rejection(
        &self,
        tag: Tag,
        now: Timestamp,
        rejected: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        let verifies = |entry: &mut Entry<S>| {
            let is_due = now.saturating_since(entry.verified) > VERIFY_EVERY;
            if is_due {
                entry.verified = now;
            }
            (*entry, is_due)
        };
        let (entry, is_due) = self.entries.change(tag, verifies)?;
        if is_due { None } else { Self::rejection_by(entry, now, rejected) }
    }

    /// Returns the rejection for a caller that makes no call, and so verifies nothing.
    pub(crate) fn peek(
        &self,
        tag: Tag,
        now: Timestamp,
        rejected: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        Self::rejection_by(self.entries.get(tag)?, now, rejected)
    }

    fn rejection_by(
        Entry { state, observed, .. }: Entry<S>,
        now: Timestamp,
        rejected: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        if now.saturating_since(observed.answered) > MAX_AGE {
            return None;
        }
        rejected(state, observed.latest(now)).and_then(|_| rejected(state, observed.earliest(now)))
    }

    /// Stores the state of a key that is used up, and removes a key that is not.
    pub(crate) fn note(&self, tag: Tag, used_up: Option<S>, observed: Observation) {
        match used_up {
            // In a full set, the oldest entry is the likeliest to have ended.
            Some(state) if observed.sent.as_nanos() >= self.forgotten(tag).load(Ordering::SeqCst) => {
                let entry = Entry { state, observed, verified: observed.answered };
                self.entries.put(tag, entry, |entry| entry.observed.answered.as_nanos());
            }
            _ => {
                self.entries.remove(tag);
            }
        }
    }

    fn forgotten(&self, tag: Tag) -> &AtomicU64 {
        #[allow(clippy::cast_possible_truncation)]
        let group = tag.short() as usize % GROUPS;
        &self.forgotten[group]
    }

    /// Removes a key whose debt has shrunk faster than by time, at this time of our clock.
    pub(crate) fn forget(&self, tag: Tag, now: Timestamp) {
        // Before the entry is removed: in the other order, the answer of an earlier call could be stored between the
        // two. An answer that has passed the check in `note` already may still be stored after the removal; one request
        // verifies it within `VERIFY_EVERY`.
        self.forgotten(tag).fetch_max(now.as_nanos().saturating_add(1), Ordering::SeqCst);
        self.entries.remove(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, GcraState, TokenBucket};
    use crate::store::redis::key::Names;
    use crate::values::{PartitionKey, Quota};

    const SECOND: u64 = 1_000_000_000;

    fn tag(key: &str) -> Tag {
        Names::new("", "", b"").tag(&PartitionKey::from(key))
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// Our clock shows seconds since it was asked, the server's a thousand more.
    fn observed() -> Observation {
        Observation { server: at(1_000 * SECOND), sent: at(0), answered: at(SECOND / 10) }
    }

    fn rejected(
        negative_cache: &NegativeCache<GcraState>,
        bucket: TokenBucket,
        key: &str,
        cost: u32,
        now: u64,
    ) -> Option<Decision> {
        negative_cache.peek(tag(key), at(now), |state, time| {
            Some(bucket.decide(Some(state), time, cost).0).filter(|decision| !decision.is_allowed())
        })
    }

    #[test]
    fn rejects_for_as_long_as_the_server_certainly_would_and_advertises_no_wait_that_is_too_short() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let negative_cache = NegativeCache::new();
        let (_, state) = bucket.decide(None, observed().server, 5);
        negative_cache.note(tag("a"), state, observed());

        // One token is there when the server's clock shows 1,001: at our second 1 at the latest, and at 1.1 by the
        // advertised wait, since the answer may have been under way for as long.
        let rejected = |key, cost, now| rejected(&negative_cache, bucket, key, cost, now);
        assert_eq!(rejected("a", 1, SECOND / 2).unwrap().retry_after(), Some(Duration::from_micros(600_400)));
        assert!(rejected("a", 1, SECOND * 998 / 1_000).is_some());
        assert!(rejected("a", 1, SECOND).is_none());
        // A greater cost is rejected for longer; another key is not known at all.
        assert!(rejected("a", 2, SECOND).is_some());
        assert!(rejected("b", 2, SECOND).is_none());
    }

    #[test]
    fn a_key_that_is_no_longer_used_up_is_removed() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let negative_cache = NegativeCache::new();
        let is_refused = || rejected(&negative_cache, bucket, "a", 5, 0).is_some();
        let (_, all) = bucket.decide(None, observed().server, 5);
        negative_cache.note(tag("a"), all, observed());
        assert!(is_refused());
        negative_cache.note(tag("a"), None, observed());
        assert!(!is_refused());
        negative_cache.note(tag("a"), all, observed());
        negative_cache.forget(tag("a"), at(0));
        assert!(!is_refused());
        // The answer to a call that was sent before is ignored.
        negative_cache.note(tag("a"), all, observed());
        assert!(!is_refused());
        negative_cache.note(tag("a"), all, Observation { sent: at(1), ..observed() });
        assert!(is_refused());
    }

    #[test]
    fn one_request_verifies_a_stale_entry_and_the_others_are_rejected() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let negative_cache = NegativeCache::new();
        negative_cache.note(tag("a"), bucket.decide(None, observed().server, 1).1, observed());
        let mut asked = Vec::new();
        for now in (0..30).map(|tenth| tenth * SECOND / 10) {
            for _ in 0..10 {
                let decide = |state, time| Some(bucket.decide(Some(state), time, 1).0).filter(|it| !it.is_allowed());
                if negative_cache.rejection(tag("a"), at(now), decide).is_none() {
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
    fn a_flood_of_keys_pushes_out_the_oldest() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let negative_cache = NegativeCache::new();
        for number in 0..100_000_u64 {
            let observed = Observation { server: at(SECOND), sent: at(number), answered: at(number) };
            negative_cache.note(tag(&number.to_string()), bucket.decide(None, observed.server, 1).1, observed);
        }
        let known = |range: std::ops::Range<u64>| {
            range.filter(|number| rejected(&negative_cache, bucket, &number.to_string(), 1, 100_000).is_some()).count()
        };
        assert_eq!(known(0..50_000), 0);
        assert!(known(99_000..100_000) > 980);
        assert_eq!(known(0..100_000), KeyCache::<()>::CAPACITY);
    }
}
