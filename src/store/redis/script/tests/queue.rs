//! The shared line, against a list of the times at which requests leave.

use std::time::Duration;

use super::*;
use crate::decision::Receipt;
use crate::quota::Quota;
use crate::store::redis::script::{Place, QueueScript};

/// A request leaves as soon as it may, after those before it: for a burst of *b* tokens, when the one paid for has
/// been earned. In nanoseconds, with intervals that are whole.
struct Naive {
    interval: u64,
    burst: u64,
    longest: u64,
    max_cost: u64,
    paid: u64,
}

impl Naive {
    /// The wait, or the time until a retry is let in.
    fn arrive(&mut self, now: u64, cost: u64) -> Result<u64, Option<u64>> {
        let debt = self.paid.saturating_sub(now);
        let wait = debt.saturating_sub((self.burst - 1) * self.interval);
        if cost > self.max_cost {
            return Err(None);
        }
        if cost > 0 && wait > self.longest {
            return Err(Some(wait - self.longest));
        }
        self.paid = self.paid.max(now) + cost * self.interval;
        Ok(if cost == 0 { 0 } else { wait })
    }
}

#[test]
fn places_are_those_of_a_naive_line() {
    let (mut random, mut told) = (Random::seeded(), Told::new());
    let (mut given, mut refused, mut returned, mut foretold_refusals) = (0, 0, 0, 0);
    for line in 0..100 {
        let limit = random.pick(&[1, 2, 5, 8, 1_000]);
        let (burst, capacity) = (1 + random.below(4), random.below(8));
        let max_wait = random.below(5_000_000_000);
        let quota = Quota::per_second(limit).burst(u32::try_from(burst).unwrap());
        let queue =
            QueueScript::new(&quota, usize::try_from(capacity).unwrap(), Duration::from_nanos(max_wait)).unwrap();
        let interval = 1_000_000_000 / u64::from(limit);
        let max_cost = (max_wait + (burst - 1) * interval) / interval + 1;
        assert_eq!(u64::from(queue.max_cost()), max_cost);
        let longest = max_wait.min(capacity * interval);
        let mut naive = Naive { interval, burst, longest, max_cost, paid: 0 };
        let mut now = START;
        let mut last: Option<(u32, Receipt, bool)> = None;
        let mut known = None;
        for _ in 0..200 {
            now += random.below(2 * interval / 1_000);
            if let Some((cost, receipt, is_last)) = last.filter(|_| random.below(4) == 0) {
                let answer = told.run(now, &queue.give_back(key(line), cost, receipt).unwrap());
                let owed = naive.paid.saturating_sub(now * 1_000).min(u64::from(cost) * interval);
                let expected = is_last && owed > 0;
                assert_eq!(answer.admitted, u32::from(expected));
                if expected {
                    naive.paid -= owed;
                    returned += 1;
                }
                (last, known) = (None, None);
                continue;
            }
            let cost = u32::try_from(random.below(4)).unwrap();
            let patience =
                if random.below(3) == 0 { Some(Duration::from_nanos(random.below(max_wait + 1))) } else { None };
            let answer = told.run(now, &queue.call(key(line), cost, patience));
            let foretold = known.map(|state| queue.refused(state, answer.now, cost, patience));
            naive.longest = patience.map_or(longest, |it| longest.min(it.as_nanos() as u64));
            let expected = naive.arrive(now * 1_000, cost.into());
            let (place, state) = queue.place(&answer, cost, patience).unwrap();
            // Whatever was asked then and is asked now, the state tells of the refusal what the server does.
            let refusal = if let Place::Refused(decision) = place { Some(decision) } else { None };
            assert_eq!(foretold.unwrap_or(refusal), refusal);
            foretold_refusals += u32::from(foretold.flatten().is_some());
            let at_once = state.map(|state| queue.refused(state, answer.now, 1, Some(Duration::ZERO)).is_none());
            assert_eq!(at_once, state.map(|state| !queue.has_line(state, answer.now)));
            known = state;
            match place {
                Place::Given(decision) => {
                    assert_eq!(Ok(decision.delay().as_nanos() as u64), expected);
                    if cost > 0 {
                        assert_eq!(decision.receipt().value(), u128::from(naive.paid) * u128::from(limit));
                        // Give back this one, or one that is not the last any more.
                        last = if random.below(3) == 0 { last.map(|it| (it.0, it.1, false)) } else { None }.or(Some((
                            cost,
                            decision.receipt(),
                            true,
                        )));
                    }
                    given += 1;
                }
                Place::Refused(decision) => {
                    assert_eq!(Err(decision.retry_after().map(|it| it.as_nanos() as u64)), expected);
                    refused += 1;
                }
            }
        }
    }
    println!("{given} places, {refused} refusals, {returned} returned, {foretold_refusals} refusals foretold");
    assert!(given > 1_000 && refused > 1_000 && returned > 100 && foretold_refusals > 500);
}

#[test]
fn a_full_line_says_exactly_when_to_come_again() {
    let mut told = Told::new();
    // Three per second is no whole number of microseconds.
    let queue = QueueScript::new(&Quota::per_second(3), 2, Duration::from_secs(30)).unwrap();
    let mut arrive = |micros| {
        let answer = told.run(micros, &queue.call(key("line"), 1, None));
        queue.place(&answer, 1, None).unwrap().0
    };
    let waits = [0, 333_333_334, 666_666_667];
    for wait in waits {
        let Place::Given(decision) = arrive(START) else { panic!("there was a place") };
        assert_eq!((decision.delay(), decision.limit()), (Duration::from_nanos(wait), 3));
    }
    let Place::Refused(decision) = arrive(START) else { panic!("the line was full") };
    assert_eq!(decision.retry_after(), Some(Duration::from_nanos(333_333_334)));
    assert!(matches!(arrive(START + 333_333), Place::Refused(_)));
    assert!(matches!(arrive(START + 333_334), Place::Given(_)));
}
