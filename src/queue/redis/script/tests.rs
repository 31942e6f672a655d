//! The scripts against a list of the times at which requests depart.

use std::time::Duration;

use super::{Admission, QUEUE, QUEUE_REFUND, QueueScript};
use crate::algorithm::gcra::Tat;
use crate::store::redis::manual_server::{ManualServer, START, key};
use crate::store::redis::random::Random;
use crate::values::{Quota, Receipt};

/// A naive model: a request takes the first stretch that is free and wide enough, and departs when the `burst − 1`
/// intervals before its beginning have come. In nanoseconds, with intervals that are whole.
struct Naive {
    interval: u64,
    burst: u64,
    longest: u64,
    max_cost: u64,
    /// The stretches that are reserved, in order.
    taken: Vec<(u64, u64)>,
}

impl Naive {
    /// Returns the wait, or the time until a retry is let in.
    fn arrive(&mut self, now: u64, cost: u64) -> Result<u64, Option<u64>> {
        if cost > self.max_cost {
            return Err(None);
        }
        if cost == 0 {
            return Ok(0);
        }
        self.taken.retain(|(_, end)| *end > now);
        let width = cost * self.interval;
        let mut first = now;
        for (begin, end) in &self.taken {
            if first + width <= *begin {
                break;
            }
            first = first.max(*end);
        }
        let wait = (first - now).saturating_sub((self.burst - 1) * self.interval);
        if wait > self.longest {
            return Err(Some(wait - self.longest));
        }
        self.taken.push((first, first + width));
        self.taken.sort_unstable();
        Ok(wait)
    }
}

#[test]
fn reservations_are_those_of_a_naive_list() {
    let (mut random, mut server) = (Random::seeded(), ManualServer::new(&[&QUEUE, &QUEUE_REFUND]));
    let (mut granted, mut rejected, mut returned, mut predicted_rejections, mut into_holes) = (0, 0, 0, 0, 0);
    for number in 0..200 {
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
        let mut naive = Naive { interval, burst, longest, max_cost, taken: Vec::new() };
        let mut now = START;
        let mut known = None;
        for _ in 0..200 {
            now += random.below(interval / 1_000);
            if !naive.taken.is_empty() && random.below(3) == 0 {
                let index = usize::try_from(random.below(naive.taken.len() as u64)).unwrap();
                let (begin, end) = naive.taken.remove(index);
                let cost = u32::try_from((end - begin) / interval).unwrap();
                let receipt = Receipt::of(Tat(u128::from(end) * u128::from(limit)));
                let answer = server.run(now, &queue.refund(key(number), cost, receipt).unwrap());
                assert_eq!(answer.admitted, u32::from(end > now * 1_000));
                returned += answer.admitted;
                // The known debt may be too much now.
                known = None;
                continue;
            }
            let cost = u32::try_from(random.below(4)).unwrap();
            let patience =
                if random.below(3) == 0 { Some(Duration::from_nanos(random.below(max_wait + 1))) } else { None };
            let answer = server.run(now, &queue.call(key(number), cost, patience));
            let predicted = known.map(|state| queue.rejection(state, answer.now, cost, patience));
            naive.longest = patience.map_or(longest, |patience| longest.min(patience.as_nanos() as u64));
            let tail = naive.taken.last().map_or(0, |(_, end)| *end);
            let before = naive.taken.clone();
            let expected = naive.arrive(now * 1_000, cost.into());
            let (admission, state) = queue.admission(&answer, cost, patience).unwrap();
            // The known state predicts the rejection as the server decides it, whatever cost and patience it was learnt
            // with.
            let rejection = if let Admission::Rejected(decision) = admission { Some(decision) } else { None };
            assert_eq!(predicted.unwrap_or(rejection), rejection);
            predicted_rejections += u32::from(predicted.flatten().is_some());
            known = state;
            match admission {
                Admission::Granted(decision) => {
                    assert_eq!(Ok(decision.delay().as_nanos() as u64), expected);
                    if cost > 0 {
                        let (_, end) = *naive.taken.iter().find(|it| !before.contains(it)).unwrap();
                        assert_eq!(Tat::read(decision.receipt()), u128::from(end) * u128::from(limit));
                        into_holes += u32::from(end <= tail);
                    }
                    granted += 1;
                }
                Admission::Rejected(decision) => {
                    assert_eq!(Err(decision.retry_after().map(|it| it.as_nanos() as u64)), expected);
                    rejected += 1;
                }
            }
        }
    }
    println!(
        "{granted} granted ({into_holes} in holes), {rejected} rejected, {returned} returned, {predicted_rejections} predicted"
    );
    assert!(granted > 1_000 && rejected > 1_000 && returned > 1_000 && predicted_rejections > 200 && into_holes > 100);
}

/// Three per second is no whole number of microseconds: reservations fit into holes to the last part.
#[test]
fn reservations_fit_into_holes() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let queue = QueueScript::new(&Quota::per_second(3), 200, Duration::from_secs(300)).unwrap();
    let take = |server: &mut ManualServer| match queue.admission(
        &server.run(START, &queue.call(key("a"), 1, None)),
        1,
        None,
    ) {
        Ok((Admission::Granted(decision), _)) => decision.receipt(),
        other => panic!("{other:?}"),
    };
    let receipts: Vec<_> = (0..150).map(|_| take(&mut server)).collect();
    let refund = |server: &mut ManualServer, receipt| {
        let call = queue.refund(key("a"), 1, receipt).unwrap();
        server.run(START, &call).admitted
    };
    let middle: Vec<_> = receipts[10..40].to_vec();
    for receipt in middle.iter().step_by(2).chain(middle.iter().skip(1).step_by(2)) {
        assert_eq!(refund(&mut server, *receipt), 1);
        assert_eq!(refund(&mut server, *receipt), 0, "only once");
    }
    assert_eq!((0..30).map(|_| take(&mut server)).collect::<Vec<_>>(), middle);
    assert!(Tat::read(take(&mut server)) > Tat::read(receipts[149]));
    // As when a queue is closed, the first first: nothing is left of the timeline.
    let last = take(&mut server);
    assert_eq!(refund(&mut server, last), 1);
    // Every second one leaves more holes than are remembered; those that pass first are forgotten.
    for receipt in receipts.iter().step_by(2) {
        assert_eq!(refund(&mut server, *receipt), 1);
    }
    assert_eq!(take(&mut server), receipts[(75 - 64) * 2]);
}

#[test]
fn a_rejection_of_a_full_queue_says_exactly_when_to_retry() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    // Three per second is no whole number of microseconds.
    let queue = QueueScript::new(&Quota::per_second(3), 2, Duration::from_secs(30)).unwrap();
    let mut arrive = |micros| {
        let answer = server.run(micros, &queue.call(key("a"), 1, None));
        queue.admission(&answer, 1, None).unwrap().0
    };
    let waits = [0, 333_333_334, 666_666_667];
    for wait in waits {
        let Admission::Granted(decision) = arrive(START) else { panic!("it was not full") };
        assert_eq!((decision.delay(), decision.limit()), (Duration::from_nanos(wait), 3));
    }
    let Admission::Rejected(decision) = arrive(START) else { panic!("it was full") };
    assert_eq!(decision.retry_after(), Some(Duration::from_nanos(333_333_334)));
    assert!(matches!(arrive(START + 333_333), Admission::Rejected(_)));
    assert!(matches!(arrive(START + 333_334), Admission::Granted(_)));
}
