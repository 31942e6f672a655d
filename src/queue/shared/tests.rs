//! Compares a queue's terms with a plain list of reservations.

use std::time::Duration;

use tokio::time::Instant;

use super::terms::QueueTerms;
use crate::algorithm::gcra::Tat;
use crate::store::remote::{Reserved, Timeline};
use crate::testing::Random;
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

/// In nanoseconds.
const START: u64 = 1_700_000_000_000_000_000;

/// An interval, in ticks, for a quota per second.
const INTERVAL: u128 = 1_000_000_000;

/// A naive model: a request takes the first stretch that is free and long enough, and departs as soon as the stretch
/// ends at most `burst` intervals later, or if it is longer than that, when it begins. In ticks.
#[derive(Clone)]
struct Naive {
    burst: u128,
    longest: u128,
    max_cost: u128,
    taken: Vec<[u128; 2]>,
}

impl Naive {
    /// Returns the reservation and the wait, or the time until a retry is let in.
    fn arrive(&mut self, now: u128, cost: u128, patience: u128) -> Result<([u128; 2], u128), Option<u128>> {
        self.taken.retain(|[_, end]| *end > now);
        if cost > self.max_cost {
            return Err(None);
        }
        let length = cost * INTERVAL;
        let mut begin = now;
        for [taken, until] in &self.taken {
            if begin + length <= *taken {
                break;
            }
            begin = begin.max(*until);
        }
        let wait = (begin - now).saturating_sub(self.burst.saturating_sub(cost) * INTERVAL);
        let longest = self.longest.min(patience);
        if wait > longest {
            return Err(Some(wait - longest));
        }
        let reserved = [begin, begin + length];
        self.taken.push(reserved);
        self.taken.sort_unstable();
        Ok((reserved, wait))
    }

    /// How many requests of cost one fit into holes.
    fn places(&self, now: u128) -> u64 {
        let mut end = now;
        let holes = self.taken.iter().map(|[begin, until]| begin.saturating_sub(std::mem::replace(&mut end, *until)));
        holes.map(|hole| u64::try_from(hole / INTERVAL).unwrap()).sum()
    }

    /// How many requests of cost one would be let in at once.
    fn left(&self, now: u128) -> u64 {
        let end = self.taken.last().map_or(now, |[_, end]| *end);
        let mut full = Self { taken: vec![[now, end]], ..self.clone() };
        let mut count = self.places(now);
        while full.arrive(now, 1, u128::MAX).is_ok() {
            count += 1;
        }
        count
    }
}

#[test]
fn decisions_match_a_naive_list() {
    let mut random = Random::of_trial(3);
    // Let in, rejected, predicted, without a chance, returned, and let in beside a hole.
    let mut seen = [0; 6];
    for _ in 0..400 {
        let limit = random.pick(&[1, 2, 3, 7, 1_000]);
        let burst = 1 + random.below(4);
        let quota = Quota::per_second(limit).burst(burst);
        let [ticks, burst] = [limit, burst].map(u128::from);
        let (max_queue, max_wait) = (random.below(8), random.below(5_000_000_000));
        let terms = QueueTerms::new(&quota, usize::try_from(max_queue).unwrap(), Duration::from_nanos(max_wait));
        let wait = u128::from(max_wait) * ticks;
        let max_cost = wait / INTERVAL + burst;
        assert_eq!(u128::from(terms.max_cost()), max_cost);
        let longest = wait.min(u128::from(max_queue) * INTERVAL);
        let mut naive = Naive { burst, longest, max_cost, taken: Vec::new() };
        assert_eq!(terms.limit(), naive.left(0));
        let server = terms.for_server();
        let nanos_ceil = |span: u128| Duration::from_nanos(u64::try_from(span.div_ceil(ticks)).unwrap());
        let (mut timeline, mut known, mut nanos) = (Timeline::default(), None, START);
        for _ in 0..100 {
            nanos += random.below(1_500_000_000 / limit);
            let at = Timestamp::from_nanos(nanos);
            let now = server.ticks(at);
            timeline = Timeline::as_of(
                at,
                &server,
                timeline.end(),
                timeline.most_ahead(),
                timeline.holes().collect::<Vec<_>>(),
            );
            if !naive.taken.is_empty() && random.below(3) == 0 {
                let index = usize::try_from(random.below(naive.taken.len() as u64)).unwrap();
                let [begin, end] = naive.taken.remove(index);
                let cost = u64::try_from((end - begin) / INTERVAL).unwrap();
                let receipt = Receipt::from_proof(Tat(end));
                assert_eq!(terms.reservation(0, receipt), None);
                assert_eq!(terms.reservation(cost, Receipt::default()), None);
                assert_eq!(terms.reservation(cost, receipt), Some((end - begin, end)));
                seen[4] += usize::from(timeline.give_back(now, end - begin, end));
                known = None;
                continue;
            }
            let cost = if random.below(9) == 0 { terms.max_cost() + random.below(2) } else { 1 + random.below(4) };
            let patience = (random.below(3) == 0).then(|| random.below(max_wait + 1));
            let impatience = patience.map(Duration::from_nanos);
            let predicted = known.map(|state| terms.rejection(state, at, cost, impatience));
            let end = timeline.reserve(now, terms.arrival(cost, impatience));
            let answer = Reserved { now: at, seen: Instant::now(), end, timeline: timeline.clone() };
            let (decision, state) = terms.decide(&answer, cost, impatience).expect("the server agrees");
            let expected = naive.arrive(now, cost.into(), patience.map_or(u128::MAX, |it| u128::from(it) * ticks));
            let rejection = Some(decision).filter(|decision| !decision.is_allowed());
            if let Some(predicted) = predicted {
                assert_eq!(predicted, rejection);
                seen[2] += usize::from(rejection.is_some());
            }
            match expected {
                Ok(([begin, end], wait)) => {
                    assert!(decision.is_allowed());
                    assert_eq!(decision.delay(), nanos_ceil(wait));
                    assert_eq!(terms.reservation(cost, decision.receipt()), Some((end - begin, end)));
                    seen[if naive.places(now) > 0 { 5 } else { 0 }] += 1;
                }
                Err(wait) => {
                    assert!(!decision.is_allowed() && decision.receipt().is_none());
                    assert_eq!(decision.retry_after(), wait.map(nanos_ceil));
                    seen[if wait.is_some() { 1 } else { 3 }] += 1;
                }
            }
            let last = naive.taken.last().map_or(now, |[_, end]| *end);
            assert_eq!(decision.reset_after(), nanos_ceil(last - now));
            let left = if decision.retry_after().is_some() { 0 } else { naive.left(now).min(terms.limit()) };
            assert_eq!(decision.remaining(), left);
            assert_eq!(state.is_some(), naive.places(now) == 0, "a request may fit into a hole");
            if let Some(state) = state {
                // A request with cost one, which cannot wait.
                let waits = naive.clone().arrive(now, 1, 0).is_err();
                assert_eq!(terms.has_backlog(state, at), waits);
            }
            known = state;
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

/// An answer is wrong if the server has made a forbidden reservation, or has not made a required one.
#[test]
fn wrong_answers_are_none() {
    let terms = QueueTerms::new(&Quota::per_second(1), 2, Duration::from_secs(30));
    let at = Timestamp::from_nanos(START);
    let now = terms.for_server().ticks(at);
    let decide = |taken: u128, end: Option<u128>, cost| {
        let end = end.map(|end| now + end * INTERVAL);
        let timeline = Timeline::as_of(at, &terms.for_server(), now + taken * INTERVAL, 0, []);
        let answer = Reserved { now: at, seen: Instant::now(), end, timeline };
        terms.decide(&answer, cost, None).map(|(decision, _)| decision.is_allowed())
    };
    assert_eq!(decide(3, Some(3), 1), Some(true));
    assert_eq!(decide(4, Some(4), 1), None, "it is too late");
    assert_eq!(decide(1, Some(1), 2), None, "it has begun before the request came");
    assert_eq!(decide(1, Some(1), 0), None, "nothing was asked for");
    assert_eq!(decide(1, None, 0), Some(true));
    assert_eq!(decide(3, None, 1), Some(false));
    assert_eq!(decide(2, None, 1), None, "there was room");
    assert_eq!(decide(0, None, 99), Some(false));
    assert_eq!(decide(1, Some(1), 99), None, "it is too much");
}
