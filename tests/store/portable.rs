//! States as bytes: [`Portable`].

use std::time::Duration;

use tower_sluice::algorithm::{
    Algorithm, CalendarWindow, FixedWindow, Portable, SlidingWindow, TokenBucket, UnknownState,
};
use tower_sluice::limiter::Receipt;
use tower_sluice::testing::{Random, check_algorithm, seed};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use crate::support::trace::Trace;

/// An algorithm whose states are kept as bytes.
struct AsBytes<A>(A);

#[derive(Clone, Copy)]
struct Bytes {
    kept: [u8; 34],
    length: usize,
    /// A store keeps this time, to forget the key then.
    expires: Timestamp,
}

impl<A: Portable> AsBytes<A> {
    fn write(&self, state: &A::State) -> Bytes {
        let bytes = self.0.to_bytes(state);
        let mut kept = [0; 34];
        kept[..bytes.len()].copy_from_slice(&bytes);
        Bytes { kept, length: bytes.len(), expires: self.0.expires_at(state) }
    }

    fn read(&self, bytes: &Bytes, now: Timestamp) -> A::State {
        self.0.from_bytes(&bytes.kept[..bytes.length], now).expect("it was written by this algorithm")
    }
}

impl<A: Portable> Algorithm for AsBytes<A> {
    type State = Bytes;

    fn quota(&self) -> Quota {
        self.0.quota()
    }

    fn decide(&self, state: Option<Bytes>, now: Timestamp, cost: u64) -> (Decision, Option<Bytes>) {
        let (decision, next) = self.0.decide(state.map(|bytes| self.read(&bytes, now)), now, cost);
        (decision, next.map(|state| self.write(&state)))
    }

    fn expires_at(&self, bytes: &Bytes) -> Timestamp {
        bytes.expires
    }

    fn refund(&self, bytes: Bytes, now: Timestamp, cost: u64, receipt: Receipt) -> Bytes {
        self.write(&self.0.refund(self.read(&bytes, now), now, cost, receipt))
    }

    fn max_cost(&self) -> u64 {
        self.0.max_cost()
    }

    fn worst_burst(&self) -> u64 {
        self.0.worst_burst()
    }
}

fn quota() -> Quota {
    Quota::per(7, Duration::from_secs(60))
}

#[test]
fn states_as_bytes_pass_the_suite() {
    check_algorithm(&AsBytes(TokenBucket::new(quota().burst(3))), seed());
    check_algorithm(&AsBytes(TokenBucket::new(quota())), seed());
    check_algorithm(&AsBytes(FixedWindow::new(quota())), seed());
    check_algorithm(&AsBytes(SlidingWindow::new(quota())), seed());
}

#[test]
fn another_calendar_reads_a_calendar_window() {
    let (utc, berlin) = (CalendarWindow::daily(10), CalendarWindow::daily(20).zone("Europe/Berlin").expect("a zone"));
    // Noon on 1 January 2024.
    let now = Timestamp::from_nanos(1_704_110_400_000_000_000);
    let bytes = utc.to_bytes(&utc.decide(None, now, 4).1.unwrap());
    let left = |window: &CalendarWindow| {
        let decision = window.decide(Some(window.from_bytes(&bytes, now).unwrap()), now, 0).0;
        (decision.remaining(), decision.reset_after())
    };
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    assert_eq!((bytes.len(), left(&utc)), (30, (6, hours(12))));
    assert_eq!(left(&berlin), (16, hours(11)), "until midnight there");
    check_algorithm(&AsBytes(CalendarWindow::monthly(9)), seed());
}

#[test]
fn use_survives_another_quota() {
    let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
    let other = Quota::per_hour(100);
    let left = |used: u64| 100 - used;
    let (small, large) = (TokenBucket::new(quota()), TokenBucket::new(other));
    let state = large.from_bytes(&small.to_bytes(&small.decide(None, now, 5).1.unwrap()), now).unwrap();
    assert_eq!(large.decide(Some(state), now, 0).0.remaining(), left(5));
    let (small, large) = (FixedWindow::new(quota()), FixedWindow::new(other));
    let state = large.from_bytes(&small.to_bytes(&small.decide(None, now, 6).1.unwrap()), now).unwrap();
    assert_eq!(large.decide(Some(state), now, 0).0.remaining(), left(6));
    let (small, large) = (SlidingWindow::new(quota()), SlidingWindow::new(other));
    let state = large.from_bytes(&small.to_bytes(&small.decide(None, now, 7).1.unwrap()), now).unwrap();
    assert_eq!(large.decide(Some(state), now, 0).0.remaining(), left(7));
}

/// They are an error, or a state that can be decided.
#[test]
fn other_bytes_are_handled() {
    let mut random = Random::of_trial(7);
    let (bucket, window) = (TokenBucket::new(quota()), SlidingWindow::new(quota()));
    let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
    let good = bucket.to_bytes(&bucket.decide(None, now, 1).1.unwrap());
    assert!(matches!(bucket.from_bytes(&[], now), Err(UnknownState::Version { version: None, .. })));
    assert!(matches!(bucket.from_bytes(&[3, b'b'], now), Err(UnknownState::Version { version: Some(3), .. })));
    assert_eq!(window.from_bytes(&good, now), Err(UnknownState::Content));
    for length in 1..good.len() {
        assert_eq!(bucket.from_bytes(&good[..length], now), Err(UnknownState::Content), "{length} bytes");
    }
    assert_eq!(bucket.from_bytes(&[&good[..], &[0]].concat(), now), Err(UnknownState::Content));
    let mut states = 0;
    let mut trace = Trace::of(20_000);
    while trace.goes_on([("states", states > 1_000)]) {
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            let index = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[index] = random.next().to_le_bytes()[0];
        }
        if let Ok(state) = bucket.from_bytes(&bytes, now) {
            let _ = bucket.decide(Some(state), now, 1);
            states += 1;
        }
        bytes[1] = b's';
        if let Ok(state) = window.from_bytes(&bytes, now) {
            let _ = window.decide(Some(state), now, 1);
        }
    }
}
