//! What this process remembers of keys that were used up when it last asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::key::Tag;
use super::key_cache::KeyCache;
use crate::values::Decision;
use crate::values::time::Timestamp;

/// The states of keys from which nothing could be taken.
///
/// A key's debt grows by what others take and shrinks with time single, so a state that was observed tells for how long,
/// at least, the server would refuse. Until then it need not be asked. What another process gives back, or resets, makes
/// that untrue: so an entry that is older than [`VERIFY_EVERY`] is verified by one request, while the others are rejected by it.
/// Too much is rejected for that long, and never too little.
pub(crate) struct NegativeCache<S> {
    entries: KeyCache<Entry<S>>,
    /// The least time after a key was last forgotten, for some keys together: what a call saw that was sent earlier is
    /// not believed.
    forgotten: Box<[AtomicU64; GROUPS]>,
}

const GROUPS: usize = 256;

/// How often an entry is verified: what another process gives back is rejected here for no longer.
const VERIFY_EVERY: Duration = Duration::from_millis(500);

/// Beyond this age an entry is not believed, whatever became of those who should have verified it.
const MAX_AGE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Entry<S> {
    state: S,
    observed: Observation,
    /// When it was, or began to be, verified.
    verified: Timestamp,
}

/// What the server's clock showed at some moment between the two that ours showed.
#[derive(Clone, Copy)]
pub(crate) struct Observation {
    pub(crate) server: Timestamp,
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
}

impl Observation {
    /// No later than what the server's clock shows when ours shows `now`. Clocks are steered by up to half a thousandth
    /// each (as by `adjtimex`).
    fn earliest(self, now: Timestamp) -> Timestamp {
        let passed = now.saturating_since(self.answered);
        self.server.saturating_add(passed.saturating_sub(passed / 1_000))
    }

    /// No earlier.
    fn latest(self, now: Timestamp) -> Timestamp {
        let passed = now.saturating_since(self.sent);
        self.server.saturating_add(passed.saturating_add(passed / 1_000))
    }
}

impl<S: Copy> NegativeCache<S> {
    pub(crate) fn new() -> Self {
        Self { entries: KeyCache::new(), forgotten: Box::new(std::array::from_fn(|_| AtomicU64::new(0))) }
    }

    /// The rejection that the server would answer, if that is certain. `rejected` tells it for a state and a time, if the
    /// request is rejected then. None as well for a request that is to find out whether it still holds.
    ///
    /// It is certain if even the latest that the server's clock may show is too early. The wait that is told is counted
    /// from the earliest, so that whoever keeps to it does not come too early.
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

    /// The same for those who do not ask the server themselves, and so verify nothing.
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

    /// Remembers the state of a key that is used up, and drops a key that is not.
    pub(crate) fn note(&self, tag: Tag, used_up: Option<S>, observed: Observation) {
        match used_up {
            // Where there is no room, the oldest is the likeliest to be over.
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

    /// To be told, at this time of ours, that a key's debt has shrunk faster than by time.
    pub(crate) fn forget(&self, tag: Tag, now: Timestamp) {
        // Before the entry goes, or a call that was sent earlier could put it there once more.
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
    fn refuses_for_as_long_as_the_server_certainly_would_and_tells_no_wait_that_is_too_short() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let negative_cache = NegativeCache::new();
        let (_, state) = bucket.decide(None, observed().server, 5);
        negative_cache.note(tag("a"), state, observed());

        // One token is there when the server's clock shows 1,001: at our second 1 at the latest, and at 1.1 by what is
        // told, since the answer may have been under way for as long.
        let rejected = |key, cost, now| rejected(&negative_cache, bucket, key, cost, now);
        assert_eq!(rejected("a", 1, SECOND / 2).unwrap().retry_after(), Some(Duration::from_micros(600_400)));
        assert!(rejected("a", 1, SECOND * 998 / 1_000).is_some());
        assert!(rejected("a", 1, SECOND).is_none());
        // A greater cost is rejected for longer; another key is not known at all.
        assert!(rejected("a", 2, SECOND).is_some());
        assert!(rejected("b", 2, SECOND).is_none());
    }

    #[test]
    fn what_is_no_longer_used_up_is_forgotten() {
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
        // The answer to a call that was sent before that tells nothing any more.
        negative_cache.note(tag("a"), all, observed());
        assert!(!is_refused());
        negative_cache.note(tag("a"), all, Observation { sent: at(1), ..observed() });
        assert!(is_refused());
    }

    #[test]
    fn one_request_verifies_what_is_not_fresh_and_the_others_are_refused() {
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
    fn nothing_is_believed_for_longer_than_a_minute() {
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
