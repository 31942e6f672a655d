//! What this process remembers of keys that were used up when it last asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::key::Tag;
use super::lines::Lines;
use crate::values::Decision;
use crate::values::time::Timestamp;

/// The states of keys from which nothing could be taken.
///
/// A key's debt grows by what others take and shrinks with time alone, so a state that was seen tells for how long,
/// at least, the server would refuse. Until then it need not be asked. What another process gives back, or resets, makes
/// that untrue: so an image that is older than [`FRESH`] is verified by one request, while the others are refused by it.
/// Too much is refused for that long, and never too little.
pub(super) struct Mirror<S> {
    images: Lines<Image<S>>,
    /// The least time after a key was last forgotten, for some keys together: what a call saw that was sent earlier is
    /// not believed.
    forgotten: Box<[AtomicU64; GROUPS]>,
}

const GROUPS: usize = 256;

/// How often an image is verified: what another process gives back is refused here for no longer.
const FRESH: Duration = Duration::from_millis(500);

/// Beyond this age an image is not believed, whatever became of those who should have verified it.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Image<S> {
    state: S,
    seen: Seen,
    /// When it was, or began to be, verified.
    verified: Timestamp,
}

/// What the server's clock showed at some moment between the two that ours showed.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) server: Timestamp,
    pub(super) sent: Timestamp,
    pub(super) answered: Timestamp,
}

impl Seen {
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

impl<S: Copy> Mirror<S> {
    pub(super) fn new() -> Self {
        Self { images: Lines::new(), forgotten: Box::new(std::array::from_fn(|_| AtomicU64::new(0))) }
    }

    /// The refusal that the server would answer, if that is certain. `refused` tells it for a state and a time, if the
    /// request is refused then. None as well for a request that is to find out whether it still holds.
    ///
    /// It is certain if even the latest that the server's clock may show is too early. The wait that is told is counted
    /// from the earliest, so that whoever keeps to it does not come too early.
    pub(super) fn refusal(
        &self,
        tag: Tag,
        now: Timestamp,
        refused: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        let verifies = |image: &mut Image<S>| {
            let is_due = now.saturating_since(image.verified) > FRESH;
            if is_due {
                image.verified = now;
            }
            (*image, is_due)
        };
        let (image, is_due) = self.images.change(tag, verifies)?;
        if is_due { None } else { Self::refusal_by(image, now, refused) }
    }

    /// The same for those who do not ask the server themselves, and so verify nothing.
    pub(super) fn known_refusal(
        &self,
        tag: Tag,
        now: Timestamp,
        refused: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        Self::refusal_by(self.images.get(tag)?, now, refused)
    }

    fn refusal_by(
        Image { state, seen, .. }: Image<S>,
        now: Timestamp,
        refused: impl Fn(S, Timestamp) -> Option<Decision>,
    ) -> Option<Decision> {
        if now.saturating_since(seen.answered) > KEPT {
            return None;
        }
        refused(state, seen.latest(now)).and_then(|_| refused(state, seen.earliest(now)))
    }

    /// Remembers the state of a key that is used up, and drops a key that is not.
    pub(super) fn note(&self, tag: Tag, used_up: Option<S>, seen: Seen) {
        match used_up {
            // Where there is no room, the oldest is the likeliest to be over.
            Some(state) if seen.sent.as_nanos() >= self.forgotten(tag).load(Ordering::SeqCst) => {
                let image = Image { state, seen, verified: seen.answered };
                self.images.put(tag, image, |image| image.seen.answered.as_nanos());
            }
            _ => {
                self.images.remove(tag);
            }
        }
    }

    fn forgotten(&self, tag: Tag) -> &AtomicU64 {
        #[allow(clippy::cast_possible_truncation)]
        let group = tag.short() as usize % GROUPS;
        &self.forgotten[group]
    }

    /// To be told, at this time of ours, that a key's debt has shrunk faster than by time.
    pub(super) fn forget(&self, tag: Tag, now: Timestamp) {
        // Before the image goes, or a call that was sent earlier could put it there once more.
        self.forgotten(tag).fetch_max(now.as_nanos().saturating_add(1), Ordering::SeqCst);
        self.images.remove(tag);
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
    fn seen() -> Seen {
        Seen { server: at(1_000 * SECOND), sent: at(0), answered: at(SECOND / 10) }
    }

    fn refused(mirror: &Mirror<GcraState>, bucket: TokenBucket, key: &str, cost: u32, now: u64) -> Option<Decision> {
        mirror.known_refusal(tag(key), at(now), |state, time| {
            Some(bucket.decide(Some(state), time, cost).0).filter(|decision| !decision.is_allowed())
        })
    }

    #[test]
    fn refuses_for_as_long_as_the_server_certainly_would_and_tells_no_wait_that_is_too_short() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let mirror = Mirror::new();
        let (_, state) = bucket.decide(None, seen().server, 5);
        mirror.note(tag("a"), state, seen());

        // One token is there when the server's clock shows 1,001: at our second 1 at the latest, and at 1.1 by what is
        // told, since the answer may have been under way for as long.
        let refused = |key, cost, now| refused(&mirror, bucket, key, cost, now);
        assert_eq!(refused("a", 1, SECOND / 2).unwrap().retry_after(), Some(Duration::from_micros(600_400)));
        assert!(refused("a", 1, SECOND * 998 / 1_000).is_some());
        assert!(refused("a", 1, SECOND).is_none());
        // A greater cost is refused for longer; another key is not known at all.
        assert!(refused("a", 2, SECOND).is_some());
        assert!(refused("b", 2, SECOND).is_none());
    }

    #[test]
    fn what_is_no_longer_used_up_is_forgotten() {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
        let mirror = Mirror::new();
        let is_refused = || refused(&mirror, bucket, "a", 5, 0).is_some();
        let (_, all) = bucket.decide(None, seen().server, 5);
        mirror.note(tag("a"), all, seen());
        assert!(is_refused());
        mirror.note(tag("a"), None, seen());
        assert!(!is_refused());
        mirror.note(tag("a"), all, seen());
        mirror.forget(tag("a"), at(0));
        assert!(!is_refused());
        // The answer to a call that was sent before that tells nothing any more.
        mirror.note(tag("a"), all, seen());
        assert!(!is_refused());
        mirror.note(tag("a"), all, Seen { sent: at(1), ..seen() });
        assert!(is_refused());
    }

    #[test]
    fn one_request_verifies_what_is_not_fresh_and_the_others_are_refused() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let mirror = Mirror::new();
        mirror.note(tag("a"), bucket.decide(None, seen().server, 1).1, seen());
        let mut asked = Vec::new();
        for now in (0..30).map(|tenth| tenth * SECOND / 10) {
            for _ in 0..10 {
                let decide = |state, time| Some(bucket.decide(Some(state), time, 1).0).filter(|it| !it.is_allowed());
                if mirror.refusal(tag("a"), at(now), decide).is_none() {
                    asked.push(now * 10 / SECOND);
                }
            }
        }
        // It was seen at 0.1.
        assert_eq!(asked, [7, 13, 19, 25]);
    }

    #[test]
    fn nothing_is_believed_for_longer_than_a_minute() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let mirror = Mirror::new();
        mirror.note(tag("a"), bucket.decide(None, seen().server, 1).1, seen());
        assert!(refused(&mirror, bucket, "a", 1, 60 * SECOND).is_some());
        assert!(refused(&mirror, bucket, "a", 1, 61 * SECOND).is_none());
    }

    #[test]
    fn a_flood_of_keys_pushes_out_the_oldest() {
        let bucket = TokenBucket::new(Quota::per_day(1));
        let mirror = Mirror::new();
        for number in 0..100_000_u64 {
            let seen = Seen { server: at(SECOND), sent: at(number), answered: at(number) };
            mirror.note(tag(&number.to_string()), bucket.decide(None, seen.server, 1).1, seen);
        }
        let known = |range: std::ops::Range<u64>| {
            range.filter(|number| refused(&mirror, bucket, &number.to_string(), 1, 100_000).is_some()).count()
        };
        assert_eq!(known(0..50_000), 0);
        assert!(known(99_000..100_000) > 980);
        assert_eq!(known(0..100_000), Lines::<()>::CAPACITY);
    }
}
