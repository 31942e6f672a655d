//! The scripts against a list of the times at which requests depart.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::{Value, from_redis_value};
use smallvec::SmallVec;
use tokio::time::Instant;
use tower_sluice::algorithm::GcraState;
use tower_sluice::internal::remote::paid_at;
use tower_sluice::internal::remote::testing::{QueueTerms, bucket_receipt};
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::{Reserved, Timeline};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use super::{BadReply, Grid, Key, MicrosSpan, QUEUE, QUEUE_REFUND, QueueScript};
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::variant::{Changes, all_are_noticed};
use crate::script::{ScriptCall, ScriptReply};
use crate::support::effort::rounds;
use crate::support::trace::Trace;

/// Factors for the units: one, and a prime so large that a request costs more units than 32 bits hold. No period is a
/// multiple of the prime.
const SCALES: [u64; 2] = [1, 100_000_000_003];

/// An interval, in 1/`limit` nanoseconds: a second is `limit` × 10⁹ of these units, and has `limit` intervals.
const INTERVAL: u128 = 1_000_000_000;

/// A queue's scripts, and a process's decisions on their answers.
struct Queue {
    script: QueueScript,
    terms: QueueTerms,
    grid: Grid,
}

impl Queue {
    fn new(quota: &Quota, max_queue: usize, max_wait: Duration) -> Self {
        let terms = QueueTerms::new(quota, max_queue, max_wait);
        let script = QueueScript::new(terms.for_server());
        script.check_fit().unwrap();
        Self { script, terms, grid: script.grid }
    }

    fn call(&self, key: Key, cost: u64, patience: Option<Duration>) -> ScriptCall {
        self.script.call(key, self.terms.arrival(cost, patience))
    }

    fn decide(
        &self,
        now: Timestamp,
        (end, timeline): (Option<u128>, Timeline),
        cost: u64,
        patience: Option<Duration>,
    ) -> (Decision, Option<GcraState>) {
        let reserved = Reserved { now, seen: Instant::now(), end, timeline };
        self.terms.decide(&reserved, cost, patience).expect("the server agrees")
    }

    /// Reads the answer to a call.
    fn admission(
        &self,
        answer: &ScriptReply,
        cost: u64,
        patience: Option<Duration>,
    ) -> Result<(Decision, Option<GcraState>), BadReply> {
        let reserved = self.script.reserved(answer, self.terms.arrival(cost, patience))?;
        Ok(self.decide(answer.now, reserved, cost, patience))
    }

    /// Decides on a request, and returns the timeline if it makes a reservation.
    fn arrive(
        &self,
        timeline: Option<&Timeline>,
        at: Timestamp,
        cost: u64,
        patience: Option<Duration>,
    ) -> (Decision, Option<Timeline>) {
        let kept = timeline.cloned().unwrap_or_default();
        let mut timeline = Timeline::as_of(at, &self.terms.for_server(), kept.end(), kept.most_ahead(), kept.holes());
        let end = timeline.reserve(self.grid.now(at), self.terms.arrival(cost, patience));
        let decision = self.decide(at, (end, timeline.clone()), cost, patience).0;
        (decision, end.map(|_| timeline))
    }

    fn refund(&self, key: Key, cost: u64, receipt: Receipt) -> Option<ScriptCall> {
        let (length, end) = self.terms.reservation(cost, receipt)?;
        Some(self.script.give_back(key, length, end))
    }

    fn read(&self, stored: &[u8], now: Timestamp) -> Option<Timeline> {
        self.script.read(stored, now)
    }
}

/// A naive model: a request takes the first stretch that is free and wide enough, and departs as soon as the stretch
/// ends at most `burst` intervals later, or if it is wider than that, when it begins. In 1/`limit` nanoseconds.
struct Naive {
    limit: u128,
    burst: u128,
    longest: u128,
    max_cost: u128,
    /// The stretches that are reserved, in order.
    taken: Vec<(u128, u128)>,
}

impl Naive {
    /// Returns the wait, or the time until a retry is let in, in nanoseconds.
    fn arrive(&mut self, now: u128, cost: u128) -> Result<u128, Option<u128>> {
        if cost > self.max_cost {
            return Err(None);
        }
        if cost == 0 {
            return Ok(0);
        }
        self.taken.retain(|(_, end)| *end > now);
        let width = cost * INTERVAL;
        let mut first = now;
        for (begin, end) in &self.taken {
            if first + width <= *begin {
                break;
            }
            first = first.max(*end);
        }
        let wait = (first - now).saturating_sub(self.burst.saturating_sub(cost) * INTERVAL);
        if wait > self.longest {
            return Err(Some((wait - self.longest).div_ceil(self.limit)));
        }
        self.taken.push((first, first + width));
        self.taken.sort_unstable();
        Ok(wait.div_ceil(self.limit))
    }

    /// Returns the millisecond at which everything is paid for, if anything is owed at `now`.
    fn paid_at(&self, now: u128) -> Option<i64> {
        let (_, end) = self.taken.last().filter(|(_, end)| *end > now)?;
        Some(end.div_ceil(1_000_000 * self.limit) as i64)
    }
}

#[test]
fn reservations_match_a_naive_list() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let mut granted = 0;
    let mut rejected = 0;
    let mut returned = 0;
    let mut predicted_rejections = 0;
    let mut into_holes = 0;
    let mut trace = Trace::of(rounds(80, 200));
    while trace.goes_on([
        ("granted requests", granted > 1_000),
        ("rejected requests", rejected > 1_000),
        ("returned reservations", returned > 1_000),
        ("predicted rejections", predicted_rejections > 200),
        ("reservations in holes", into_holes > 100),
    ]) {
        let number = trace.step();
        // Three and seven per second do not take whole numbers of microseconds.
        let rate = random.pick(&[1, 2, 3, 5, 7, 8, 1_000]);
        let scale = random.pick(&SCALES);
        let limit = rate * scale;
        let burst = 1 + random.below(4) * scale;
        let quota = Quota::per_second(limit).burst(burst);
        let limit = u128::from(limit);
        let burst = u128::from(burst);
        // Two processes, whose bounds differ.
        let processes = [0; 2].map(|_| {
            let max_queue = random.below(8) * scale;
            let max_wait = random.below(5_000_000_000);
            let queue = Queue::new(&quota, usize::try_from(max_queue).unwrap(), Duration::from_nanos(max_wait));
            let max_wait_units = u128::from(max_wait) * limit;
            let max_cost = (max_wait_units + (burst - 1) * INTERVAL) / INTERVAL + 1;
            assert_eq!(u128::from(queue.terms.max_cost()), max_cost);
            (queue, max_wait, max_wait_units.min(u128::from(max_queue) * INTERVAL), max_cost)
        });
        let mut naive = Naive { limit, burst, longest: 0, max_cost: 0, taken: Vec::new() };
        let mut now = START;
        // When the server forgets the key.
        let mut expiry = None;
        let mut known = None;
        for _ in 0..200 {
            now += random.below(INTERVAL as u64 / 1_000 / rate);
            let now_units = u128::from(now) * 1_000 * limit;
            let (queue, max_wait, longest, max_cost) = &processes[usize::try_from(random.below(2)).unwrap()];
            naive.max_cost = *max_cost;
            if !naive.taken.is_empty() && random.below(3) == 0 {
                let index = usize::try_from(random.below(naive.taken.len() as u64)).unwrap();
                let (begin, end) = naive.taken.remove(index);
                let cost = u64::try_from((end - begin) / INTERVAL).unwrap();
                let receipt = bucket_receipt(end);
                let answer = server.run(now, &queue.refund(key(number), cost, receipt).unwrap());
                assert_eq!(answer.admitted, u32::from(end > now_units));
                if end > now_units {
                    expiry = naive.paid_at(now_units);
                }
                assert_eq!(server.expiry(&key(number)), expiry.unwrap_or(-2));
                returned += answer.admitted;
                // The known debt may be too much now.
                known = None;
                continue;
            }
            let cost = random.below(4) * scale;
            let patience =
                if random.below(3) == 0 { Some(Duration::from_nanos(random.below(*max_wait + 1))) } else { None };
            let answer = server.run(now, &queue.call(key(number), cost, patience));
            let predicted = known.map(|state| queue.terms.rejection(state, answer.now, cost, patience));
            naive.longest = patience.map_or(*longest, |patience| (*longest).min(patience.as_nanos() * limit));
            let tail = naive.taken.last().map_or(0, |(_, end)| *end);
            let before = naive.taken.clone();
            let expected = naive.arrive(now_units, cost.into());
            let (decision, state) = queue.admission(&answer, cost, patience).unwrap();
            // The known state predicts the server's rejection, for any cost and patience in the request that taught it.
            let rejection = Some(decision).filter(|decision| !decision.is_allowed());
            assert_eq!(predicted.unwrap_or(rejection), rejection);
            predicted_rejections += u32::from(predicted.flatten().is_some());
            known = state;
            if decision.is_allowed() {
                assert_eq!(Ok(decision.delay().as_nanos()), expected);
                if cost > 0 {
                    expiry = naive.paid_at(now_units);
                    let (_, end) = *naive.taken.iter().find(|it| !before.contains(it)).unwrap();
                    assert_eq!(paid_at(decision.receipt()), end);
                    into_holes += u32::from(end <= tail);
                }
                granted += 1;
            } else {
                assert_eq!(Err(decision.retry_after().map(|it| it.as_nanos())), expected);
                rejected += 1;
            }
            assert_eq!(server.expiry(&key(number)), expiry.unwrap_or(-2));
        }
    }
    println!(
        "{granted} granted ({into_holes} in holes), {rejected} rejected, {returned} returned, {predicted_rejections} predicted"
    );
}

/// Three per second do not take a whole number of microseconds, and reservations fit into holes to the last part.
#[test]
fn reservations_fit_into_holes() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let queue = Queue::new(&Quota::per_second(3), 200, Duration::from_secs(300));
    let take = |server: &mut ManualServer| match queue.admission(
        &server.run(START, &queue.call(key("a"), 1, None)),
        1,
        None,
    ) {
        Ok((decision, _)) if decision.is_allowed() => decision.receipt(),
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
    assert!(paid_at(take(&mut server)) > paid_at(receipts[149]));
    // The last reservation leaves no hole: the timeline ends earlier.
    let last = take(&mut server);
    assert_eq!(refund(&mut server, last), 1);
    // Every second one leaves more holes than are remembered; those that pass first are forgotten.
    for receipt in receipts.iter().step_by(2) {
        assert_eq!(refund(&mut server, *receipt), 1);
    }
    assert_eq!(take(&mut server), receipts[(75 - 64) * 2]);
}

#[test]
fn a_full_queue_advertises_exact_retries() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    // Three per second do not take a whole number of microseconds.
    let queue = Queue::new(&Quota::per_second(3), 2, Duration::from_secs(30));
    let mut arrive = |micros| {
        let answer = server.run(micros, &queue.call(key("a"), 1, None));
        queue.admission(&answer, 1, None).unwrap().0
    };
    let waits = [0, 333_333_334, 666_666_667];
    for wait in waits {
        let decision = arrive(START);
        assert!(decision.is_allowed(), "it was not full");
        assert_eq!((decision.delay(), decision.limit()), (Duration::from_nanos(wait), 3));
    }
    let decision = arrive(START);
    assert!(!decision.is_allowed(), "it was full");
    assert_eq!(decision.retry_after(), Some(Duration::from_nanos(333_333_334)));
    assert!(!arrive(START + 333_333).is_allowed());
    assert!(arrive(START + 333_334).is_allowed());
}

/// A timeline whose edges may all be next to edges that matter; some rests belong to finer parts. It may reach beyond
/// the bounds of `queue`, as others have reserved it. Returns the ends of its holes, and its own, too.
fn stored_timeline(random: &mut Xorshift, queue: &Queue, now: u64, scale: u64) -> (String, Vec<u128>) {
    let grid = &queue.grid;
    let grain = grid.units(MicrosSpan { micros: 0, rest: 1 });
    let rest = |random: &mut Xorshift| random.below(grid.parts() + 3);
    let mut micros = now - 1_000_000;
    let mut text = String::new();
    let mut ends = Vec::new();
    for _ in 0..random.below(4) {
        micros += 1 + random.below(700_000);
        // Keys expire at whole milliseconds.
        micros = if random.below(4) == 0 { micros.next_multiple_of(1_000) } else { micros };
        let first = MicrosSpan { micros, rest: rest(random) };
        let last = match random.below(3) {
            // As wide as one request or two, or a little less.
            0 => {
                let wide = grid.units(first) + grid.price(scale * (1 + random.below(2)));
                grid.span(wide - grain * u128::from(random.below(2)))
            }
            _ => MicrosSpan { micros: micros + random.below(900_000), rest: rest(random) },
        };
        text.push_str(&format!(" {}+{}:{}+{}", first.micros, first.rest, last.micros, last.rest));
        ends.extend([first, last].map(|end| grid.units(MicrosSpan { rest: end.rest.min(grid.parts() - 1), ..end })));
        micros = last.micros;
    }
    let due = match random.below(6) {
        // Behind the last hole.
        0 | 1 => MicrosSpan { micros: micros + random.below(2), rest: rest(random) },
        // At the edge of a debt in whole requests, or a little more.
        2 => {
            let now = grid.units(MicrosSpan { micros: now, rest: 0 });
            grid.span(now + grid.price(scale * random.below(8)) + grain * u128::from(random.below(2)))
        }
        // So that the next request ends a little behind a whole millisecond.
        3 => {
            let end = MicrosSpan { micros: now.next_multiple_of(1_000) + 1_000_000, rest: 1 };
            grid.span(grid.units(end) - grid.price(scale))
        }
        _ => MicrosSpan { micros: now + random.below(3_000_000) - 2, rest: rest(random) },
    };
    ends.push(grid.units(MicrosSpan { rest: due.rest.min(grid.parts() - 1), ..due }));
    let own = grid.span(queue.terms.for_server().most_ahead()).micros;
    let needed = (due.micros + 1).saturating_sub(now);
    let most = if needed < own { random.below(2 * own) } else { needed + random.below(2) * own };
    let due = if due.rest == 0 { format!("-{}", due.micros) } else { format!("-{}+{}", due.micros, due.rest) };
    (format!("{due}{text} {most}"), ends)
}

/// Returns the timeline after a reservation with `price` that is paid for at `paid` was returned, if there is such a
/// reservation.
fn returned(mut timeline: Timeline, now: u128, price: u128, paid: u128) -> Option<Timeline> {
    timeline.give_back(now, price, paid).then_some(timeline)
}

#[test]
fn scripts_match_rusts_timelines() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let mut seen = [0; 4];
    let most_ahead = |stored: &str| stored.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let simple = |timeline: &Timeline| {
        let holes: Vec<_> = timeline.holes().collect();
        (timeline.end(), holes)
    };
    let mut trace = Trace::of(80);
    while trace.goes_on([
        ("timelines that stay as they are", seen[0] > 100),
        ("timelines that end", seen[1] > 100),
        ("timelines without holes", seen[2] > 100),
        ("timelines with holes", seen[3] > 100),
    ]) {
        let batch = trace.step();
        let scale = random.pick(&SCALES);
        let quota = Quota::per_second(scale * random.pick(&[1, 3, 7])).burst(1 + scale * random.below(3));
        let capacity = usize::try_from(scale * random.below(8)).unwrap();
        let queue = Queue::new(&quota, capacity, Duration::from_secs(random.pick(&[1, 8])));
        let grid = queue.grid;
        // Rounded up.
        let own = grid.span(queue.terms.for_server().most_ahead()).micros + 1;
        let mut asked = Vec::new();
        for number in 0..200 {
            let now = START + random.below(1 << 40);
            let name = key(format!("{batch} {number}"));
            let now_units = grid.now(at(now));
            let (text, ends) = stored_timeline(&mut random, &queue, now, scale);
            let cost = scale * (1 + random.below(3));
            server.add_set(&name, &text);
            let paid = (random.below(2) == 0).then(|| {
                // At the edge of a hole, or a price behind it, or a little off; or somewhere.
                let grain = grid.units(MicrosSpan { micros: 0, rest: 1 });
                let off = grain * u128::from(random.below(3));
                let paid = match random.below(4) {
                    0 => now_units + u128::from(random.below(4_000)) * grid.price(cost) / 1_000,
                    1 => random.pick(&ends) + grid.price(cost) + off - grain,
                    2 => random.pick(&ends) + off - grain,
                    _ => random.pick(&ends),
                };
                // A receipt is exact to the grain.
                grid.units(grid.span(paid))
            });
            let call = match paid {
                Some(paid) => queue.refund(name.clone(), cost, bucket_receipt(paid)).unwrap(),
                None => queue.call(name.clone(), cost, None),
            };
            server.add(now, &call);
            server.add_get(&name);
            server.add_expiry(&name);
            asked.push((now, now_units, text, cost, paid));
        }
        for (replies, (now, now_units, text, cost, paid)) in server.replies().chunks(3).zip(asked) {
            let answer = ScriptReply::read(replies[0].clone(), 1).unwrap();
            let (stored, expiry): (Option<String>, i64) = from_redis_value(Value::Array(replies[1..].into())).unwrap();
            let context = || format!("{stored:?} after {cost}, {paid:?} for {text} at {now_units}: {answer:?}");
            let before = queue.read(text.as_bytes(), at(now)).unwrap();
            assert_eq!(answer.old(0).unwrap(), Some(text.as_bytes()));
            let after = match paid {
                None => queue.arrive(Some(&before), at(now), cost, None).1,
                Some(paid) => returned(before, now_units, grid.price(cost), paid),
            };
            assert_eq!(answer.admitted, u32::from(after.is_some()), "{}", context());
            let kind = |after: &Timeline| {
                if after.end() <= now_units { 1 } else { 2 + usize::from(after.holes().next().is_some()) }
            };
            seen[after.as_ref().map_or(0, kind)] += 1;
            match after {
                None => assert_eq!((stored.as_ref(), expiry), (Some(&text), -1), "{}", context()),
                Some(after) if after.end() <= now_units => assert_eq!(stored, None, "{}", context()),
                Some(after) => {
                    let stored = stored.as_ref().unwrap();
                    let found = queue.read(stored.as_bytes(), at(now)).unwrap();
                    assert_eq!(simple(&found), simple(&after), "{}", context());
                    // Only holes that count are kept.
                    assert_eq!(stored.matches(' ').count(), 1 + simple(&after).1.len(), "{}", context());
                    assert_eq!(most_ahead(stored), most_ahead(&text).max(own), "{}", context());
                    let paid = after.end().div_ceil(1_000_000 * u128::from(quota.limit()));
                    assert_eq!(u128::try_from(expiry), Ok(paid), "{}", context());
                }
            }
        }
    }
    println!("{seen:?}");
}

/// A request with little patience finds a queue in which others wait for longer: their debt is kept.
#[test]
fn impatient_requests_keep_patient_debts() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let queue = Queue::new(&Quota::per_second(1), 10, Duration::from_secs(30));
    let mut arrive = |patience| {
        let answer = server.run(START, &queue.call(key("a"), 1, patience));
        queue.admission(&answer, 1, patience).unwrap().0
    };
    for seconds in 0..8 {
        let decision = arrive(None);
        assert!(decision.is_allowed(), "it is full");
        assert_eq!(decision.delay(), Duration::from_secs(seconds));
    }
    assert!(!arrive(Some(Duration::ZERO)).is_allowed());
    let decision = arrive(None);
    assert!(decision.is_allowed(), "it is full");
    assert_eq!(decision.delay(), Duration::from_secs(8));
}

/// Such a debt comes from a clock that was set back: no request would be admitted for years.
#[test]
fn a_debt_is_cut_to_the_greatest() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let queue = Queue::new(&Quota::per_second(3), 2, Duration::from_secs(30));
    let years = format!("-{} 60000000", START + (1 << 48));
    // As far as any process has let it end.
    let minute = queue.grid.units(MicrosSpan { micros: 60_000_000, rest: 0 });
    let read = queue.read(years.as_bytes(), at(START)).unwrap();
    assert_eq!(read.end(), queue.grid.now(at(START)) + minute);
    server.set(&key("a"), &years);
    let mut retry_after = |micros| {
        let answer = server.run(micros, &queue.call(key("a"), 1, None));
        let decision = queue.admission(&answer, 1, None).unwrap().0;
        assert!(!decision.is_allowed(), "it is full");
        decision.retry_after().unwrap().as_millis()
    };
    let wait = retry_after(START);
    assert!((59_000..60_000).contains(&wait), "{wait} ms");
    // The correction was stored.
    assert_eq!(retry_after(START + 30_000_000), wait - 30_000);
}

#[test]
fn an_empty_refund_needs_no_call() {
    let queue = Queue::new(&Quota::per_second(3), 2, Duration::from_secs(30));
    let receipt = bucket_receipt(queue.grid.now(at(START)));
    assert!(queue.refund(key("a"), 1, receipt).is_some());
    assert!(queue.refund(key("a"), 0, receipt).is_none());
    assert!(queue.refund(key("a"), 1, Receipt::default()).is_none());
}

#[test]
fn a_foreign_string_is_an_error() {
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let queue = Queue::new(&Quota::per_second(3), 10, Duration::from_secs(30));
    let receipt = bucket_receipt(queue.grid.now(at(START + 1_000_000)));
    for text in [
        "hello",
        "-1x",
        "-1",
        " 1+0:2+0 5",
        "-1+ 1+0:2+0 5",
        "-1 1+0:2+0 5,",
        "-1 1+0:2+0 x 5",
        "-1 x",
        "-1~5 5",
        "-1 2251799813685248",
    ] {
        for call in [queue.call(key("a"), 1, None), queue.refund(key("a"), 1, receipt).unwrap()] {
            server.set(&key("a"), text);
            server.add(START, &call);
            let error = server.error();
            assert!(error.to_string().contains("\"SLUICE\""), "{text:?}: {error}");
            assert_eq!(server.get(&key("a")).as_deref(), Some(text));
        }
    }
}

/// Arrivals with the same cost and patience in one run, some of them at the same key, against Rust over a plain map. A
/// key with foreign content, or with another type, has to be asked for alone.
#[test]
fn arrivals_in_one_run_are_independent() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&[&QUEUE, &QUEUE_REFUND]);
    let mut let_in = 0;
    let mut rejected = 0;
    let mut trace = Trace::of(40);
    while trace.goes_on([("requests let in", let_in > 300), ("rejected requests", rejected > 300)]) {
        let batch = trace.step();
        let scale = random.pick(&SCALES);
        let quota = Quota::per_second(scale * random.pick(&[1, 3, 7])).burst(1 + scale * random.below(3));
        let queue = Queue::new(&quota, usize::try_from(scale * random.below(4)).unwrap(), Duration::from_secs(8));
        let mut timelines = HashMap::new();
        let mut now = START + random.below(1 << 40);
        for id in 0..4_u64 {
            let (text, _) = stored_timeline(&mut random, &queue, now, scale);
            server.add_set(&key(format!("{batch} {id}")), &text);
            timelines.insert(id, queue.read(text.as_bytes(), at(now)).unwrap());
        }
        let foreign = ["foreign", "holes", "hash"].map(|name| key(format!("{batch} {name}")));
        server.set_field(&foreign[2], "a", "b");
        server.add_set(&foreign[0], "hello");
        server.add_set(&foreign[1], "-1 1+0:2+0,-1 5");
        let mut expected = Vec::new();
        for _ in 0..10 {
            now += random.below(1_000_000);
            let cost = scale * (1 + random.below(3));
            let patience = None;
            let ids: Vec<_> = (0..2 + random.below(12)).map(|_| random.below(8)).collect();
            let mut keys: SmallVec<_> = ids.iter().map(|id| key(format!("{batch} {id}"))).collect();
            keys.insert_many(1, foreign.iter().cloned());
            server.add(now, &ScriptCall { keys, ..queue.call(key(""), cost, patience) });
            for id in ids {
                let (decision, next) = queue.arrive(timelines.get(&id), at(now), cost, patience);
                next.map(|next| timelines.insert(id, next));
                expected.push((cost, decision));
            }
        }
        let mut expected = expected.into_iter();
        for reply in server.replies() {
            let Value::BulkString(text) = &reply else { panic!("{reply:?}") };
            let arrivals = text.split(|byte| *byte == b',').count() / 2 - 1;
            let replies = ScriptReply::read_each(&reply, arrivals, 1).unwrap();
            for (index, answer) in replies.into_iter().enumerate() {
                assert_eq!(answer.is_none(), [1, 2, 3].contains(&index));
                let Some(answer) = answer else { continue };
                let (cost, decision) = expected.next().unwrap();
                assert_eq!(queue.admission(&answer, cost, None).unwrap().0, decision, "{answer:?}");
                (let_in, rejected) =
                    if decision.is_allowed() { (let_in + 1, rejected) } else { (let_in, rejected + 1) };
            }
        }
        assert_eq!(server.get(&foreign[0]).as_deref(), Some("hello"));
        assert_eq!(server.get(&foreign[1]).as_deref(), Some("-1 1+0:2+0,-1 5"));
    }
    println!("{let_in} let in, {rejected} not");
}

/// One mistake at a time: the properties above notice every one.
#[test]
fn mistakes_in_the_scripts_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: include_str!("lua/open.lua"),
            properties: &[
                scripts_match_rusts_timelines,
                reservations_match_a_naive_list,
                arrivals_in_one_run_are_independent,
                a_foreign_string_is_an_error,
            ],
            changes: &[
                ("if problem then break end", ""),
                ("'^(%-[%d+]+)([ %d+:]*) (%d+)$'", "'^(%-[%d+]+)([ %d+:]*) (%d+)'"),
                ("'^(%-[%d+]+)([ %d+:]*) (%d+)$'", "'^(%-[%d+]+)(.*) (%d+)$'"),
                ("'^(%-[%d+]+)([ %d+:]*) (%d+)$'", "'^(%-[^ ]+)([ %d+:]*) (%d+)$'"),
                ("most + 0 < 2251799813685248", "true"),
                ("- 1 + beyond", "- 1"),
                ("or most + 0 < own then", "then"),
                ("not most or most + 0 < own", "true"),
                ("beyond, tag = beyond + most - own,", "tag ="),
                ("format(' %d', most)", "format(' %d', own)"),
            ],
        },
        Changes {
            block: include_str!("lua/take.lua"),
            properties: &[scripts_match_rusts_timelines, reservations_fit_into_holes, reservations_match_a_naive_list],
            changes: &[
                ("if not parts then first_rest, last_rest = 0, 0 end", ""),
                ("first_rest >= parts then first_rest = parts - 1", "first_rest > parts then first_rest = parts - 1"),
                ("last_rest >= parts then last_rest = parts - 1", "last_rest > parts then last_rest = parts - 1"),
                ("if first < now then first, first_rest = now, 0 end", ""),
                ("first, first_rest = now, 0 end", "first = now end"),
                ("if last < due or last == due and last_rest <= rest then", "if true then"),
                ("if count == '1' and admitted == 0 then\n      local", "if admitted == 0 then\n      local"),
                ("if count == '1' and admitted == 0 then\n      local", "if count == '1' then\n      local"),
                (
                    "first + price, first_rest + price_rest\n      if parts and next_rest >= parts",
                    "first + price, first_rest + price_rest\n      if parts and next_rest > parts",
                ),
                ("local fits = next < last or", "local fits = next <= last or"),
                ("or next == last and next_rest <= last_rest", ""),
                ("next == last and next_rest <= last_rest", "next == last and next_rest < last_rest"),
                ("if fits and (next < full or next == full and next_rest <= full_rest) then", "if fits then"),
                ("first, first_rest, admitted = next, next_rest, 1", "admitted = 1"),
                ("if first < last or first == last and first_rest < last_rest then", "if true then"),
                ("or first == last and first_rest < last_rest then", "then"),
                ("left = left .. format", "left = format"),
                ("first, first_rest, last, last_rest)\n    end", "first, first_rest, last, first_rest)\n    end"),
                ("if count == '1' and admitted == 0 then\n  local", "if count == '1' then\n  local"),
                ("due + price, rest + price_rest", "due + price, rest"),
                ("if next < full or next == full and next_rest <= full_rest then due", "if next < full then due"),
                ("if next < full or next == full and next_rest <= full_rest then due", "if next <= full then due"),
                ("format(form, due), due\n", "format(form, due), now\n"),
                ("rest), due + 1 end", "rest), due end"),
                ("  state = state .. left\n", ""),
            ],
        },
        Changes {
            block: include_str!("lua/refund.lua"),
            properties: &[scripts_match_rusts_timelines, reservations_fit_into_holes, reservations_match_a_naive_list],
            changes: &[
                ("ARGV[8] + 0, ARGV[9] + 0", "ARGV[8] + 0, 0"),
                ("last - price, last_rest - price_rest", "last - price, last_rest"),
                ("first - 1, first_rest + (parts or 1)", "first, first_rest + (parts or 1)"),
                ("if first < now then first, first_rest = now, 0 end\n  local", "local"),
                ("(first < last or first == last and first_rest < last_rest)", "true"),
                ("and (last < due or last == due and last_rest <= rest)\n  local", "\n  local"),
                ("if not parts then a_rest, b_rest = 0, 0 end", ""),
                ("if parts and a_rest >= parts then a_rest = parts - 1 end", ""),
                ("if parts and b_rest >= parts then b_rest = parts - 1 end", ""),
                ("if a < now then a, a_rest = now, 0 end", ""),
                (
                    "if (a < b or a == b and a_rest < b_rest) and (b < due or b == due and b_rest <= rest) then",
                    "if true then",
                ),
                ("if b == first and b_rest == first_rest then", "if false then"),
                ("if b == first and b_rest == first_rest then", "if b == first then"),
                ("elseif a == last and a_rest == last_rest then", "elseif false then"),
                ("elseif a == last and a_rest == last_rest then", "elseif a == last then"),
                ("b < first or b == first and b_rest < first_rest", "b < first"),
                ("a > last or a == last and a_rest > last_rest", "a > last"),
                (
                    "if not is_in then list[#list + 1], is_in = {first, first_rest, last, last_rest}, true end\n        ",
                    "",
                ),
                ("        -- It was returned already.\n        is_sound = false\n", ""),
                ("if is_sound then\n", "if true then\n"),
                ("if not is_in then list[#list + 1] = {first", "if true then list[#list + 1] = {first"),
                ("if final[3] == due and final[4] == rest then", "if final[3] == due then"),
                ("if final[3] == due and final[4] == rest then", "if false then"),
                ("due, rest = final[1], final[2]", "due = final[1]"),
                ("      list[#list] = nil\n", ""),
                ("if #list > 64 then", "if #list > 65 then"),
                ("if #list > 64 then", "if #list >= 64 then"),
                ("table.remove(list, 1)", "table.remove(list)"),
                ("if due > now or due == now and rest > 0 then", "if due >= now then"),
                ("format(form, due), due\n", "format(form, due), now\n"),
                ("rest), due + 1 end", "rest), due end"),
                ("hole[1], hole[2], hole[3], hole[4]", "hole[1], hole[2], hole[3], hole[2]"),
            ],
        },
        Changes {
            block: include_str!("lua/close.lua"),
            properties: &[scripts_match_rusts_timelines],
            changes: &[
                ("if state then state = state .. tag end", ""),
                ("old, tag = text, ''", "tag = ''"),
                ("old, tag = text, ''", "old = text"),
            ],
        },
        Changes {
            block: include_str!("../../script/lua/each_key.lua"),
            properties: &[arrivals_in_one_run_are_independent, impatient_requests_keep_patient_debts],
            changes: &[("ARGV[7] or 0", "0"), ("get = redis.pcall", "get = call"), ("KEYS[index]", "KEYS[1]")],
        },
        Changes {
            block: include_str!("../../script/lua/close.lua"),
            properties: &[scripts_match_rusts_timelines, a_foreign_string_is_an_error],
            changes: &[
                ("if problem and keys == 1 then return redis.error_reply(problem) end", ""),
                ("(expires + 999) / 1000", "expires / 1000"),
                ("elseif admitted > 0 then\n    call('DEL', key)", ""),
                ("elseif admitted > 0 then", "else"),
                ("admitted == 1 and '1' or admitted", "'1'"),
            ],
        },
    ]);
}
