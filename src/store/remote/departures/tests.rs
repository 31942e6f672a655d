//! Checks the steps against a list of reservations, and the bytes in records.

use std::time::Duration;

use super::records::KeptTimeline;
use super::*;
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::server::deadline_of;
use crate::store::remote::{Record, Records};
use crate::testing::Random;
use crate::values::{PartitionKey, Quota};

/// An interval, in ticks for a quota per second.
const INTERVAL: u128 = 1_000_000_000;

/// In nanoseconds.
const START: u64 = 1_700_000_000_000_000_000;

/// A naive model: a request takes the first stretch that is free and long enough.
#[derive(Default)]
struct Naive(Vec<[u128; 2]>);

impl Naive {
    fn reserve(&mut self, now: u128, arrival: Arrival) -> Option<u128> {
        self.0.retain(|[_, end]| *end > now);
        let mut begin = now;
        for [taken, until] in &self.0 {
            if begin + arrival.length <= *taken {
                break;
            }
            begin = begin.max(*until);
        }
        let end = begin + arrival.length;
        if arrival.length == 0 || end > now + arrival.reach {
            return None;
        }
        self.0.push([begin, end]);
        self.0.sort_unstable();
        Some(end)
    }

    /// Returns the free stretches between `now` and the last reservation.
    fn holes(&self, now: u128) -> Vec<[u128; 2]> {
        let mut free_from = now;
        let mut holes = Vec::new();
        for [begin, end] in self.0.iter().filter(|[_, end]| *end > now) {
            if free_from < *begin {
                holes.push([free_from, *begin]);
            }
            free_from = *end;
        }
        holes
    }
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Each step begins with the bytes that the one before it has left. Some steps are made by a process with smaller
/// bounds than the other processes' reservations.
#[test]
fn steps_on_records_match_a_naive_list() {
    let mut random = Random::of_trial(1);
    let mut seen = [0; 4];
    for _ in 0..600 {
        let limit = random.pick(&[1, 3, 7, 1_000, 100_000_000_003]);
        let queues = [40, 40, 40, 4].map(|most| DepartureTerms::new(Quota::per_second(limit), most * INTERVAL));
        let mut naive = Naive::default();
        let mut record = None;
        let mut nanos = START;
        for _ in 0..200 {
            nanos += random.below(2 * 1_000_000_000 / limit.min(1_000));
            let terms = random.pick(&queues);
            let now = terms.ticks(at(nanos));
            let mut kept = terms.read(record.as_deref(), at(nanos)).unwrap();
            assert!(!kept.is_cut);
            let before = record.clone();
            let is_changed = if !naive.0.is_empty() && random.below(3) == 0 {
                let index = usize::try_from(random.below(naive.0.len() as u64)).unwrap();
                let [begin, end] = naive.0.remove(index);
                let is_left = kept.timeline.give_back(now, end - begin, end);
                assert_eq!(is_left, end > now);
                assert!(!kept.timeline.give_back(now, end - begin, end), "it is given back once");
                seen[0] += usize::from(is_left);
                is_left
            } else {
                let [length, reach] = [random.below(4), random.below(30)].map(|units| u128::from(units) * INTERVAL);
                let arrival = Arrival { length, reach: reach.min(terms.most_ahead()) };
                let tail = kept.timeline.end();
                let end = kept.timeline.reserve(now, arrival);
                assert_eq!(end, naive.reserve(now, arrival));
                seen[1] += usize::from(end.is_some());
                seen[2] += usize::from(end.is_some_and(|end| end <= tail));
                seen[3] += usize::from(end.is_none());
                end.is_some()
            };
            assert_eq!(kept.timeline.holes().collect::<Vec<_>>(), naive.holes(now));
            if is_changed {
                let (new, lifetime) = terms.write(&kept.timeline, kept.written, at(nanos));
                let ahead = u64::try_from((kept.timeline.end() - now).div_ceil(limit.into())).unwrap();
                assert_eq!((new.is_none(), lifetime), (ahead == 0, Duration::from_nanos(ahead)));
                assert!(new.is_none() || new != before, "no value comes back");
                record = new;
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

/// Beyond 64, the holes that pass first are lost.
#[test]
fn a_timeline_keeps_64_holes() {
    let terms = DepartureTerms::new(Quota::per_second(3), 999 * INTERVAL);
    let now = terms.ticks(at(START));
    let mut timeline = Timeline::as_of(at(START), &terms, 0, 0, []);
    let arrival = Arrival { length: INTERVAL, reach: 999 * INTERVAL };
    let ends: Vec<_> = (0..141).map(|_| timeline.reserve(now, arrival).unwrap()).collect();
    for end in ends.iter().step_by(2).take(70) {
        assert!(timeline.give_back(now, INTERVAL, *end));
    }
    let lost = (70 - Timeline::MOST_HOLES) * 2;
    let holes: Vec<_> = ends[lost..].iter().step_by(2).take(64).map(|end| [end - INTERVAL, *end]).collect();
    assert_eq!(timeline.holes().collect::<Vec<_>>(), holes);
    let (record, _) = terms.write(&timeline, 0, at(START));
    assert_eq!(record.as_ref().map(Vec::len), Some(records::MOST_BYTES));
    assert_eq!(terms.read(record.as_deref(), at(START)).unwrap().timeline, timeline);
}

/// This happens when the quota is changed: departure times stay as they are, to the nanosecond.
#[test]
fn another_quotas_record_keeps_its_times() {
    let [three, seven] = [3, 7].map(|limit| DepartureTerms::new(Quota::per_second(limit), 1_000 * INTERVAL));
    let now = three.ticks(at(START));
    let mut timeline = Timeline::as_of(at(START), &three, 0, 0, []);
    let arrival = Arrival { length: INTERVAL, reach: 1_000 * INTERVAL };
    let ends: Vec<_> = (0..5).map(|_| timeline.reserve(now, arrival).unwrap()).collect();
    assert!(timeline.give_back(now, INTERVAL, ends[1]));
    let (record, _) = three.write(&timeline, 0, at(START));
    let read = seven.read(record.as_deref(), at(START)).unwrap();
    assert!(!read.is_cut);
    let converted = |end: u128| (end * 7).div_ceil(3);
    assert_eq!(read.timeline.end(), converted(ends[4]));
    // The hole is not made wider than it was.
    assert_eq!(read.timeline.holes().collect::<Vec<_>>(), [[converted(ends[0]), ends[1] * 7 / 3]]);
}

/// Its end comes from a clock that was set back. It is cut to the greatest bounds among the processes that have changed
/// it.
#[test]
fn a_timeline_too_far_ahead_is_cut() {
    let [small, terms] = [1, 12].map(|most| DepartureTerms::new(Quota::per_second(3), most * INTERVAL));
    let arrival = Arrival { length: INTERVAL, reach: 10 * INTERVAL };
    let year = 365 * 86_400 * 1_000_000_000;
    let mut timeline = Timeline::as_of(at(START + year), &terms, 0, 0, []);
    let end = timeline.reserve(terms.ticks(at(START + year)), arrival);
    assert!(end.is_some());
    let (record, _) = terms.write(&timeline, 0, at(START + year));
    let read = small.read(record.as_deref(), at(START)).unwrap();
    assert!(read.is_cut);
    assert_eq!(read.timeline.end(), terms.ticks(at(START)) + terms.most_ahead());
    let (corrected, _) = small.write(&read.timeline, read.written, at(START));
    assert_ne!(corrected, record);
    for queue in [small, terms] {
        let read = queue.read(corrected.as_deref(), at(START)).unwrap();
        assert!(!read.is_cut);
        assert_eq!(read.timeline.most_ahead(), terms.most_ahead());
    }
}

#[test]
fn holes_in_the_past_are_dropped() {
    let terms = DepartureTerms::new(Quota::per_second(3), 10 * INTERVAL);
    let now = terms.ticks(at(START));
    let timeline = Timeline::as_of(at(START), &terms, now + 9, 0, [[now - 9, now], [now, now + 1]]);
    assert_eq!(timeline.holes().collect::<Vec<_>>(), [[now, now + 1]]);
}

/// Random bytes, and records with a wrong byte, are errors or timelines, and never panics.
#[test]
fn foreign_bytes_are_errors() {
    let terms = DepartureTerms::new(Quota::per_second(3), 10 * INTERVAL);
    let mut random = Random::of_trial(2);
    let timeline = Timeline::as_of(at(START), &terms, terms.ticks(at(START)) + INTERVAL, 0, []);
    let (record, _) = terms.write(&timeline, 7, at(START));
    let record = record.unwrap();
    let [more, most] = [16, 2_080].map(|bytes| [&record[..], &vec![0; bytes]].concat());
    let half = &more[..record.len() + 8];
    let another = [&[2], &record[1..]].concat();
    for foreign in [&b""[..], b"hello", &record[..record.len() - 1], half, &more, &most, &another] {
        assert!(terms.read(Some(foreign), at(START)).is_err());
    }
    for _ in 0..5_000 {
        let mut bytes = record.clone();
        bytes.resize(random.pick(&[25, 41, 73, 105, 2_089]), 0xff);
        for _ in 0..3 {
            let index = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[index] = u8::try_from(random.below(256)).unwrap();
        }
        if let Ok(KeptTimeline { mut timeline, written, .. }) = terms.read(Some(&bytes), at(START)) {
            let now = terms.ticks(at(START));
            assert!((now..=now.saturating_add(timeline.most_ahead())).contains(&timeline.end()));
            let _ = timeline.reserve(now, Arrival { length: INTERVAL, reach: 10 * INTERVAL });
            let _ = terms.write(&timeline, written, at(START));
        }
    }
}

/// A server that does not answer. Calls end with the deadline.
struct SilentRecords;

impl Records for SilentRecords {
    async fn read(&self, _: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        tokio::time::sleep_until(limits.deadline).await;
        Err(LimiterError::new("no server"))
    }

    async fn swap(
        &self,
        _: &str,
        _: Option<&[u8]>,
        _: Option<&[u8]>,
        _: Duration,
        _: CallLimits,
    ) -> Result<bool, LimiterError> {
        Err(LimiterError::new("no server"))
    }
}

impl Server for SilentRecords {
    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_same_as(&self, _: &Self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_leave() {
    let (server, keys) = (Arc::new(SilentRecords), LimiterKeys::new(b"", "test"));
    let terms = DepartureTerms::new(Quota::per_second(3), 10 * INTERVAL);
    let key = keys.key(keys.tag(&PartitionKey::from("a")));
    let arrival = Arrival { length: INTERVAL, reach: INTERVAL };
    let limits = || CallLimits::until(deadline_of(&*server));
    let later = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let give_back = server.give_back(&key, &terms, INTERVAL, INTERVAL, limits());
        let impatient = tokio::time::timeout(Duration::from_millis(1), give_back);
        tokio::join!(server.reserve(&key, &terms, arrival, limits()), impatient, async {
            tokio::task::yield_now().await;
            assert_eq!(key.line().waiting(), 2);
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(key.line().waiting(), 1);
        })
    };
    let (first, (later, given_back, ())) = tokio::join!(server.reserve(&key, &terms, arrival, limits()), later);
    assert!(first.is_err() && later.is_err() && given_back.is_err());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(key.line().waiting(), 0);
}
