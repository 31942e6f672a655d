//! The pace against simulated partners: many processes that always have a call to send, and a partner that counts and
//! reports truthfully. Time is a number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, SlidingWindow, SlidingWindowState};
use tower_sluice::testing::Random;
use tower_sluice::time::Timestamp;

use super::pace::{Budget, CallAnswer, CallReport, PacedDeparture, PacedTurn, PartnerPace, Rules};
use crate::cases::cases;

mod contest;
mod health;

const SECOND: u64 = 1_000_000;
const RULES: Rules = Rules { interval: 0, ahead: 0, longest: 3_600 * SECOND };

/// A naive partner. Its windows begin at a time that clients do not know.
#[derive(Clone, Copy, Debug)]
enum Partner {
    FixedWindow {
        limit: u64,
        period: u64,
        begins: u64,
        window: u64,
        used: u64,
    },
    TokenBucket {
        per_second: u64,
        burst: u64,
        paid_at: u64,
    },
    /// This crate's sliding window, with the counts in the previous window and in this one.
    SlidingWindow {
        limit: u64,
        period: u64,
        state: Option<SlidingWindowState>,
    },
}

impl Partner {
    const fn window(limit: u64, seconds: u64) -> Self {
        Self::FixedWindow { limit, period: seconds * SECOND, begins: 345_678, window: 0, used: 0 }
    }

    const fn bucket(per_second: u64, burst: u64) -> Self {
        Self::TokenBucket { per_second, burst, paid_at: 0 }
    }

    const fn sliding(limit: u64, seconds: u64) -> Self {
        Self::SlidingWindow { limit, period: seconds * SECOND, state: None }
    }

    /// Judges a call. Returns whether it is served, and the response fields as this crate's layer writes them.
    fn judge(&mut self, now: u64) -> (bool, CallReport) {
        let (is_served, left, wait, spacing) = match self {
            Self::FixedWindow { limit, period, begins, window, used } => {
                if (now + *begins) / *period != *window {
                    (*window, *used) = ((now + *begins) / *period, 0);
                }
                let is_served = *used < *limit;
                *used += u64::from(is_served);
                (is_served, *limit - *used, *period - (now + *begins) % *period, *period / *limit)
            }
            Self::TokenBucket { per_second, burst, paid_at } => {
                let token = SECOND / *per_second;
                let debt = paid_at.saturating_sub(now);
                let is_served = debt + token <= *burst * token;
                let debt = debt + if is_served { token } else { 0 };
                *paid_at = now + debt;
                let free = *burst * token - debt;
                let wait = if free >= token { free } else { token - free };
                (is_served, free / token, wait, token)
            }
            Self::SlidingWindow { limit, period, state } => {
                let quota = Quota::per(*limit, Duration::from_micros(*period));
                let at = Timestamp::from_nanos((now + 345_678) * 1_000);
                let (decision, next) = SlidingWindow::new(quota).decide(*state, at, 1);
                *state = next.or(*state);
                let left = decision.remaining();
                let wait = decision.retry_after().or(decision.next_after());
                let wait = wait.map_or(left * *period / *limit, |wait| u64::try_from(wait.as_micros()).unwrap() + 1);
                (decision.is_allowed(), left, wait, *period / *limit)
            }
        };
        let reset = wait.div_ceil(SECOND) * SECOND;
        let budget = Some(Budget { left, reset, spacing });
        (is_served, if is_served { taken(budget) } else { rejected(reset, budget) })
    }

    /// Returns how long to run it so that whole windows pass, and its quota for that time. A bucket's burst comes on
    /// top.
    const fn quota(&self, about: u64) -> (u64, u64) {
        match self {
            Self::FixedWindow { limit, period, begins, .. } => {
                (about / *period * *period - *begins, *limit * (about / *period))
            }
            Self::SlidingWindow { limit, period, .. } => (about, *limit * about / *period),
            Self::TokenBucket { per_second, .. } => (about, *per_second * about / SECOND),
        }
    }
}

fn taken(budget: Option<Budget>) -> CallReport {
    CallReport { answer: CallAnswer::Taken, wait: 0, budget }
}

fn rejected(wait: u64, budget: Option<Budget>) -> CallReport {
    CallReport { answer: CallAnswer::Rejected, wait, budget }
}

enum Event {
    /// A process looks whether it may send.
    Look {
        process: u64,
    },
    Arrive {
        number: u64,
        sent: u64,
    },
    Answer {
        number: u64,
        sent: u64,
        report: CallReport,
    },
}

struct Outcome {
    served: u64,
    rejected: u64,
    quota: u64,
}

/// Lets processes send every call that the pacer allows, for about this time. Calls take between half and three halves
/// of the latency, so that they overtake each other.
fn run(mut partner: Partner, processes: u64, latency: u64, about: u64) -> Outcome {
    let (time, quota) = partner.quota(about);
    let mut pace = PartnerPace::new(0);
    let mut outcome = Outcome { served: 0, rejected: 0, quota };
    let mut random = Random::of_trial(0);
    let mut below = move |end: u64| random.below(end);
    let (mut queue, mut events, mut slots) = (BinaryHeap::new(), HashMap::new(), HashMap::<u64, PacedDeparture>::new());
    let add = |queue: &mut BinaryHeap<_>, events: &mut HashMap<_, _>, at: u64, event: Event| {
        let id = events.len() as u64;
        events.insert(id, event);
        queue.push(Reverse((at, id)));
    };
    for process in 0..processes {
        add(&mut queue, &mut events, process, Event::Look { process });
    }
    while let Some(Reverse((now, id))) = queue.pop().filter(|Reverse((now, _))| *now < time) {
        match events.insert(id, Event::Look { process: u64::MAX }).unwrap() {
            Event::Look { process } => {
                let again = match pace.turn(now, &RULES, slots.remove(&process)) {
                    PacedTurn::Depart(slot) if slot.at <= now => {
                        let arrive = Event::Arrive { number: slot.number, sent: now };
                        add(&mut queue, &mut events, now + latency / 4 + below(latency / 2), arrive);
                        now + 100
                    }
                    PacedTurn::Depart(slot) => {
                        slots.insert(process, slot);
                        // Timers are late, by up to a millisecond.
                        slot.at + below(1_000)
                    }
                    PacedTurn::Wait(until) => until.min(now + SECOND) + below(1_000),
                };
                add(&mut queue, &mut events, again, Event::Look { process });
            }
            Event::Arrive { number, sent } => {
                let (is_served, report) = partner.judge(now);
                (outcome.served, outcome.rejected) =
                    (outcome.served + u64::from(is_served), outcome.rejected + u64::from(!is_served));
                let answered = now + latency / 4 + below(latency / 2);
                add(&mut queue, &mut events, answered, Event::Answer { number, sent, report });
            }
            Event::Answer { number, sent, report } => {
                pace.learn(number, now, now - sent, &report, &RULES);
            }
        }
    }
    outcome
}

/// At most 0.5 % of the calls are rejected, and at least 97 % of the quota is used.
fn assert_obeys(partner: Partner, processes: u64, latency: u64, time: u64) {
    let Outcome { served, rejected, quota } = run(partner, processes, latency, time);
    println!("{partner:?}, {processes} processes, {latency} µs: {served} of {quota}, {rejected} rejected");
    assert!(rejected * 200 <= served, "{partner:?}: {rejected} rejected, {served} served");
    assert!(served * 100 >= quota * 97, "{partner:?}: {served} of {quota} served");
}

#[test]
fn fixed_windows_are_used_without_rejections() {
    for processes in [1, 8] {
        for latency in [2_000, 50_000] {
            assert_obeys(Partner::window(500, 10), processes, latency, 120 * SECOND);
            assert_obeys(Partner::window(100, 10), processes, latency, 120 * SECOND);
            assert_obeys(Partner::window(60, 60), processes, latency, 1_200 * SECOND);
            assert_obeys(Partner::window(5_000, 3_600), processes, latency, 7_200 * SECOND);
        }
    }
}

#[test]
fn buckets_are_used_without_rejections() {
    for processes in [1, 8] {
        for latency in [2_000, 50_000] {
            for (per_second, burst) in [(10, 20), (10, 15), (100, 100), (100, 50), (2, 10)] {
                assert_obeys(Partner::bucket(per_second, burst), processes, latency, 120 * SECOND);
            }
        }
    }
}

/// With units left, a sliding window's fields report for how long these have to last. With zero units left, they report
/// when there is one more. The first end may be a little too early for the second, and then a call is rejected, and
/// goes again.
#[test]
fn sliding_windows_reject_at_most_one_call() {
    for processes in [1, 8] {
        for latency in [2_000, 50_000] {
            for (limit, seconds) in [(500, 10), (100, 10), (60, 60), (5_000, 3_600)] {
                let partner = Partner::sliding(limit, seconds);
                let time = (120 * SECOND).max(3 * seconds * SECOND);
                let Outcome { served, rejected, quota } = run(partner, processes, latency, time);
                println!("{limit} in {seconds} s, {processes} processes: {served} of {quota}, {rejected} rejected");
                // The window is used up once, and from then on used at its rate.
                assert!(rejected <= 1, "{rejected} rejected");
                assert!(served * 10 >= quota * 9, "{served} of {quota} served");
            }
        }
    }
}

#[test]
fn what_is_left_is_spread() {
    let mut pace = PartnerPace::new(0);
    let mut departures = Vec::new();
    let PacedTurn::Depart(probe) = pace.turn(0, &RULES, None) else { panic!("nothing is known") };
    let report = taken(Some(Budget { left: 4, reset: 10 * SECOND, spacing: 0 }));
    pace.learn(probe.number, 0, 0, &report, &RULES);
    let mut now = 0;
    while departures.len() < 5 {
        match pace.turn(now, &RULES, None) {
            PacedTurn::Depart(slot) => {
                departures.push(slot.at / SECOND);
                now = slot.at;
            }
            PacedTurn::Wait(until) => now = until,
        }
    }
    // The last one goes when the window is over.
    assert_eq!(departures, [2, 4, 6, 8, 10]);
}

#[test]
fn what_others_take_is_noticed() {
    let mut pace = PartnerPace::new(0);
    let mut number = 0;
    let mut ask = |pace: &mut PartnerPace, now| match pace.turn(now, &RULES, None) {
        PacedTurn::Depart(slot) => {
            number = slot.number;
            Ok(slot)
        }
        PacedTurn::Wait(until) => Err(until),
    };
    let report = |left, reset| taken(Some(Budget { left, reset: reset * SECOND, spacing: 0 }));
    let first = ask(&mut pace, 0).unwrap();
    pace.learn(first.number, 0, 0, &report(99, 10), &RULES);
    let second = ask(&mut pace, 0).unwrap();
    // A slot that was reserved is void once nothing is left.
    pace.learn(first.number, SECOND, 0, &report(0, 9), &RULES);
    assert_eq!(pace.turn(2 * SECOND, &RULES, Some(second)), PacedTurn::Wait(10 * SECOND));
    // A slot is void after a pause has begun, too.
    let mut pace = PartnerPace::new(0);
    let first = ask(&mut pace, 0).unwrap();
    pace.learn(first.number, 0, 0, &report(99, 10), &RULES);
    let second = ask(&mut pace, 0).unwrap();
    pace.learn(first.number, 0, 0, &rejected(5 * SECOND, None), &RULES);
    assert_eq!(pace.turn(SECOND, &RULES, Some(second)), PacedTurn::Wait(5 * SECOND));
}

/// Lets all calls depart that may at an instant.
fn depart_all(pace: &mut PartnerPace, now: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let PacedTurn::Depart(slot) = pace.turn(now, &RULES, None) {
        assert!(numbers.len() < 2_000, "they have no end");
        numbers.push(slot.number);
    }
    numbers
}

/// Without fields, only the answers show how many calls a partner accepts at a time.
#[test]
fn calls_start_slowly_at_unknown_partners() {
    let (mut pace, mut now, mut waves) = (PartnerPace::new(0), 0, Vec::new());
    while !pace.is_unlimited(&RULES) {
        let numbers = depart_all(&mut pace, now);
        waves.push(numbers.len());
        now += 50_000;
        for number in numbers {
            pace.learn(number, now, 50_000, &taken(None), &RULES);
        }
    }
    assert_eq!(waves[..4], [1, 2, 4, 8], "{waves:?}");
    assert!(waves.windows(2).all(|pair| pair[1] <= 2 * pair[0]), "{waves:?}");
    assert!(waves.len() <= 13, "{waves:?}");
}

/// A call that takes a minute says nothing for a minute.
#[test]
fn slow_answers_widen_the_window_by_time() {
    let mut pace = PartnerPace::new(0);
    let first = depart_all(&mut pace, 0);
    pace.learn(first[0], 50_000, 50_000, &taken(None), &RULES);
    let sizes: Vec<_> = (0..9).map(|second| depart_all(&mut pace, 50_000 + second * SECOND).len()).collect();
    assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 128, 256, 512]);
    assert!(matches!(pace.turn(10 * SECOND, &RULES, None), PacedTurn::Depart(_)));
    assert!(pace.is_unlimited(&RULES));
}

/// A client with one call at a time has not shown that its partner accepts a thousand.
#[test]
fn unused_windows_stay_small() {
    let (mut pace, mut now) = (PartnerPace::new(0), 0);
    for _ in 0..10_000 {
        let PacedTurn::Depart(slot) = pace.turn(now, &RULES, None) else { panic!("nothing limits it") };
        now += 10_000;
        pace.learn(slot.number, now, 10_000, &taken(None), &RULES);
    }
    assert!(pace.window <= 9, "{}", pace.window);
}

/// The first rejection in a wave is new to the line. The others were sent before the line knew. The call that goes
/// alone afterwards is new again.
#[test]
fn a_wave_is_one_rejection() {
    for wait in [0, 3 * SECOND] {
        let (mut pace, mut wave) = (PartnerPace::new(0), Vec::new());
        for step in 0..4 {
            wave = depart_all(&mut pace, step * 20_000);
            for number in wave.iter().filter(|_| step < 3) {
                pace.learn(*number, step * 20_000 + 10_000, 10_000, &taken(None), &RULES);
            }
        }
        assert_eq!(wave.len(), 8);
        let report = rejected(wait, None);
        let news: Vec<_> = wave.iter().map(|number| pace.learn(*number, 80_000, 20_000, &report, &RULES)).collect();
        assert_eq!(news.iter().filter(|is_news| **is_news).count(), 1, "{news:?}");
        let pause = wait.max(SECOND);
        assert_eq!(pace.turn(90_000, &RULES, None), PacedTurn::Wait(80_000 + pause));
        // One call goes alone.
        let now = 80_000 + pause;
        let alone = depart_all(&mut pace, now);
        assert_eq!(alone.len(), 1);
        assert!(pace.learn(alone[0], now + 10_000, 10_000, &report, &RULES));
        // If it is accepted, the next ones follow at a pace, and not together.
        let later = now + 10_000 + wait.max(2 * SECOND);
        let alone = depart_all(&mut pace, later);
        assert_eq!(alone.len(), 1);
        pace.learn(alone[0], later + 10_000, 10_000, &taken(None), &RULES);
        assert!(pace.gap > 0);
        let PacedTurn::Depart(next) = pace.turn(later + 10_000, &RULES, None) else { panic!("it is open") };
        let PacedTurn::Depart(second) = pace.turn(next.at, &RULES, None) else { panic!("it is open") };
        assert_eq!(second.at - next.at, pace.gap);
    }
}

/// A wait that was too short is not believed for ever.
#[test]
fn untrue_waits_are_doubled() {
    let (mut pace, mut now, mut pauses) = (PartnerPace::new(0), 0, Vec::new());
    for _ in 0..6 {
        let alone = depart_all(&mut pace, now);
        assert_eq!(alone.len(), 1);
        pace.learn(alone[0], now, 0, &rejected(SECOND, None), &RULES);
        pauses.push((pace.paused - now) / SECOND);
        now = pace.paused;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 16]);
}

/// The partner reports one budget, and rejects by another one.
#[test]
fn rejections_with_units_left_teach_a_pace() {
    let mut pace = PartnerPace::new(0);
    let budget = |left| Some(Budget { left, reset: 1_000 * SECOND, spacing: 0 });
    let mut now = 0;
    for left in (4_000..4_010).rev() {
        let PacedTurn::Depart(slot) = pace.turn(now, &RULES, None) else { panic!("units are left") };
        now = now.max(slot.at) + 10_000;
        pace.learn(slot.number, now, 10_000, &taken(budget(left)), &RULES);
    }
    let PacedTurn::Depart(slot) = pace.turn(now, &RULES, None) else { panic!("units are left") };
    assert!(pace.learn(slot.number, now, 0, &rejected(0, budget(4_000)), &RULES));
    assert_eq!(pace.turn(now, &RULES, None), PacedTurn::Wait(now + SECOND));
    assert!(pace.gap > 0);
    // One call goes alone, although units are left.
    assert_eq!(depart_all(&mut pace, now + SECOND).len(), 1);
}

proptest! {
    #![proptest_config(cases(256))]

    /// For any reports from a partner, and any order of its answers, no sum overflows, and the next departure is never
    /// further from the last one, or from now, than the longest pause.
    #[test]
    fn pauses_are_never_longer_than_allowed(
        longest in 1..10_u64,
        steps in prop::collection::vec(
            (0..5 * SECOND, 0..4_u64, 0..3_u8, 0..3_000_u64, 0..5_u64, 0..3_000_000_u64, any::<bool>()), 1..80),
    ) {
        let rules = Rules { longest: longest * SECOND, ..RULES };
        let (mut pace, mut now) = (PartnerPace::new(7), 7);
        for (time, back, answer, wait, left, reset, has_budget) in steps {
            now += time;
            let last = pace.last;
            let next = match pace.turn(now, &rules, None) {
                PacedTurn::Depart(slot) => slot.at,
                PacedTurn::Wait(until) => {
                    prop_assert!(until > now);
                    until
                }
            };
            prop_assert!(next <= now.max(last) + rules.longest.max(super::pace::PATIENCE));
            let budget = has_budget.then_some(Budget { left, reset: (1 + reset) * SECOND, spacing: 0 });
            let wait = wait * SECOND * u64::from(wait > 2_500);
            let report = match answer {
                0 => CallReport::default(),
                1 => taken(budget),
                _ => rejected(wait, budget),
            };
            pace.learn(pace.number.saturating_sub(back), now, time, &report, &rules);
        }
    }
}
