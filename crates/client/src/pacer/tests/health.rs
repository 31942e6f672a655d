//! A partner's health against a naive model, and the promises that the throttle makes.

use std::time::Duration;

use proptest::prelude::*;

use super::SECOND;
use crate::cases::cases;
use crate::pacer::health::{Admission, PROBE, PartnerHealth, ThrottleChange, WindowSums};
use crate::pacer::throttle::AdaptiveThrottle;

/// Every call ever made, each looked at again for each decision.
#[derive(Default)]
struct Naive {
    /// The twelfth of a window in which it was sent, and whether it was accepted, once it was answered.
    sent: Vec<(u64, Option<bool>)>,
    throttled: Vec<u64>,
    /// When each call after the last failure was accepted.
    streak: Vec<u64>,
    admitted: u64,
}

impl Naive {
    fn sums(&self, twelfth: u64) -> WindowSums {
        let is_in = |at: u64| at <= twelfth && twelfth - at < 12;
        let is_counted = |at: u64, answer: Option<bool>| is_in(at) && (answer.is_some() || twelfth - at >= 2);
        let sent = self.sent.iter().filter(|(at, answer)| is_counted(*at, *answer)).count() as u64;
        let accepted = self.sent.iter().filter(|(at, answer)| is_in(*at) && *answer == Some(true)).count() as u64;
        let throttled = self.throttled.iter().filter(|at| is_in(**at)).count() as u64;
        WindowSums { wanted: sent + throttled, sent, accepted }
    }

    /// The formula, in exact fractions: whether `draw / 2^64` is below the probability.
    fn is_sent(&mut self, now: u64, percent: u64, most: u64, width: u64, draw: u64) -> bool {
        let WindowSums { wanted, accepted, .. } = self.sums(now / width);
        let excess = (i128::from(wanted * percent) - i128::from(100 * accepted + 10 * percent)).max(0);
        let whole = i128::from((wanted + 1) * percent);
        let drawn = i128::from(draw) * whole;
        let is_hit = drawn >> 64 < excess && drawn >> 64 < whole * i128::from(most) / 100;
        self.admitted = self.admitted.min(now);
        let seconds = self.streak.first().map_or(0, |first| (now - first) / PROBE);
        let is_sent = !is_hit || now - self.admitted >= PROBE >> seconds.min(self.streak.len() as u64).min(63);
        if is_sent {
            self.admitted = now
        } else {
            self.throttled.push(now / width)
        }
        is_sent
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn health_equals_the_naive_model(
        percent in 1..=100_u32,
        most in 1..=100_u32,
        window in 1..20_u64,
        steps in prop::collection::vec((0..4_u8, 0..SECOND, any::<u64>(), 0..4_usize), 1..300),
    ) {
        let throttle = AdaptiveThrottle::new().success_percent(percent).max_percent(most);
        let throttle = throttle.window(Duration::from_secs(window));
        let (mut health, mut naive, mut now) = (PartnerHealth::default(), Naive::default(), 0);
        let mut open = Vec::new();
        for (step, time, draw, which) in steps {
            now += time;
            if step < 3 {
                let sums = naive.sums(now / throttle.width);
                let expected = naive.is_sent(now, percent.into(), most.into(), throttle.width, draw);
                let Admission { is_sent, sums: ours, .. } = health.admit(now, &throttle, || draw);
                prop_assert_eq!((is_sent, ours), (expected, sums));
                if is_sent {
                    open.push((health.send(now, &throttle), naive.sent.len()));
                    naive.sent.push((now / throttle.width, None));
                }
            } else if !open.is_empty() {
                let (mark, index) = open.swap_remove(which % open.len());
                let is_accepted = draw % 3 == 0;
                health.end(mark, now, is_accepted);
                naive.sent[index].1 = Some(is_accepted);
                if is_accepted { naive.streak.push(now) } else { naive.streak.clear() }
            }
        }
    }

    /// For any clock, nothing panics, and a second after a call was let go, the next one is.
    #[test]
    fn a_hostile_clock_stops_no_probe(clock in prop::collection::vec(prop_oneof![0..3 * SECOND, 0..u64::MAX / 2], 1..100)) {
        let throttle = AdaptiveThrottle::new();
        let mut health = PartnerHealth::default();
        for now in clock {
            for _ in 0..30 {
                if health.admit(now, &throttle, || 0).is_sent {
                    let mark = health.send(now, &throttle);
                    health.end(mark, now, false);
                }
            }
            prop_assert!(health.admit(now + PROBE, &throttle, || 0).is_sent);
        }
    }
}

/// Sends calls at a steady rate, as far as the throttle lets them go, and has the partner judge them at once. Returns
/// how many calls were sent, and how many were accepted.
fn run(
    health: &mut PartnerHealth,
    throttle: &AdaptiveThrottle,
    seconds: std::ops::Range<u64>,
    per_second: u64,
    mut partner: impl FnMut(u64) -> bool,
) -> (u64, u64) {
    let (mut sent, mut accepted, mut draw) = (0, 0, 0_u64);
    for call in seconds.start * per_second..seconds.end * per_second {
        let now = call * SECOND / per_second;
        // Multiples of the golden ratio are spread evenly, so the counts do not depend on luck.
        draw = draw.wrapping_add(0x9e37_79b9_7f4a_7c15);
        if health.admit(now, throttle, || draw).is_sent {
            let mark = health.send(now, throttle);
            let is_accepted = partner(now);
            health.end(mark, now, is_accepted);
            (sent, accepted) = (sent + 1, accepted + u64::from(is_accepted));
        }
    }
    (sent, accepted)
}

#[test]
fn partners_that_accept_half_get_everything() {
    for per_second in [1, 100] {
        let mut calls = 0;
        let every_second = |_| {
            calls += 1;
            calls % 2 == 0
        };
        let (sent, _) = run(&mut PartnerHealth::default(), &AdaptiveThrottle::new(), 0..600, per_second, every_second);
        assert_eq!(sent, 600 * per_second);
    }
}

/// The next probe notices a recovery.
#[test]
fn dead_partners_are_probed_each_second() {
    let (mut health, throttle) = (PartnerHealth::default(), AdaptiveThrottle::new());
    run(&mut health, &throttle, 0..60, 100, |_| true);
    run(&mut health, &throttle, 60..300, 100, |_| false);
    let (sent, _) = run(&mut health, &throttle, 300..600, 100, |_| false);
    // One call per second is sent out of 30,000, and one in a thousand by the formula.
    assert!((300..340).contains(&sent), "{sent} probes");
    let mut first = None;
    let (sent, _) = run(&mut health, &throttle, 600..610, 100, |now| {
        first.get_or_insert(now);
        true
    });
    assert!(first.unwrap() <= 601 * SECOND, "{first:?}");
    // 1, 2, 4, … 64 in a second, and then all.
    assert!((350..600).contains(&sent), "{sent} of 1,000 within ten seconds of the recovery");
    let (sent, _) = run(&mut health, &throttle, 610..620, 100, |_| true);
    assert_eq!(sent, 1_000);
}

/// The partner can take 20 of 200 calls per second. It takes them at the beginning of each second, and a run of
/// successes must not open the throttle.
#[test]
fn overloaded_partners_get_few_more_calls() {
    for (throttle, most) in [(AdaptiveThrottle::new(), 220), (AdaptiveThrottle::new().success_percent(90), 130)] {
        let (mut health, mut second, mut taken) = (PartnerHealth::default(), 0, 0);
        let mut partner = |now| {
            if now / SECOND != second {
                (second, taken) = (now / SECOND, 0);
            }
            taken += 1;
            taken <= 20
        };
        run(&mut health, &throttle, 0..300, 200, &mut partner);
        let (sent, accepted) = run(&mut health, &throttle, 300..900, 200, &mut partner);
        println!("{throttle:?}: {sent} sent, {accepted} accepted, of {} offered", 600 * 200);
        assert!(sent * 100 <= accepted * most, "{sent} sent, {accepted} accepted");
        assert!(accepted >= 600 * 20 * 9 / 10, "{accepted} accepted");
    }
}

/// A call is counted before it is sent, so a partner that never answers is throttled before its calls end.
#[test]
fn silent_partners_are_throttled_before_timeouts() {
    let (mut health, throttle) = (PartnerHealth::default(), AdaptiveThrottle::new());
    // A thousand calls go to an unknown partner at once, without a rejection.
    for _ in 0..1_000 {
        assert!(health.admit(0, &throttle, || 0).is_sent);
        health.send(0, &throttle);
    }
    assert!(health.admit(2 * throttle.width - 1, &throttle, || 0).is_sent);
    assert!(!health.admit(2 * throttle.width, &throttle, || 0).is_sent);
}

#[test]
fn few_calls_are_never_throttled() {
    let (mut health, throttle) = (PartnerHealth::default(), AdaptiveThrottle::new());
    for call in 0..11 {
        assert!(health.admit(call, &throttle, || 0).is_sent);
        let mark = health.send(call, &throttle);
        health.end(mark, call, false);
    }
    assert!(!health.admit(11, &throttle, || 0).is_sent);
}

#[test]
fn at_most_the_maximum_is_rejected() {
    let (mut health, throttle) = (PartnerHealth::default(), AdaptiveThrottle::new().max_percent(80));
    run(&mut health, &throttle, 0..300, 100, |_| false);
    let (sent, _) = run(&mut health, &throttle, 300..600, 100, |_| false);
    assert!((5_500..6_500).contains(&sent), "{sent} of 30,000");
}

/// An answer that comes after its call has left the window changes no other call.
#[test]
fn a_late_answer_is_counted_nowhere() {
    let (mut health, throttle) = (PartnerHealth::default(), AdaptiveThrottle::new());
    let late = health.send(0, &throttle);
    let now = 12 * throttle.width;
    let mark = health.send(now, &throttle);
    health.end(late, now, true);
    assert_eq!(health.sums(now, &throttle), WindowSums::default());
    health.end(mark, now, true);
    assert_eq!(health.sums(now, &throttle), WindowSums { wanted: 1, sent: 1, accepted: 1 });
}

#[test]
fn throttling_begins_and_ends_once() {
    let (mut health, throttle) = (PartnerHealth::default(), AdaptiveThrottle::new());
    let mut changes = Vec::new();
    for call in 0..60_000_u64 {
        // A call per 10 ms: two minutes fail, and eight succeed.
        let now = call * SECOND / 100;
        let Admission { is_sent, change, .. } = health.admit(now, &throttle, || 0);
        changes.extend(change);
        if is_sent {
            let mark = health.send(now, &throttle);
            health.end(mark, now, call >= 12_000);
        }
    }
    assert_eq!(changes, [ThrottleChange::Began, ThrottleChange::Ended]);
}
