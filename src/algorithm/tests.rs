//! Algorithms by themselves: the defaults of the trait, and single steps that a store takes seldom or in its own form.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * SECOND)
}

/// The least that a user writes.
struct Own;

impl Algorithm for Own {
    type State = Timestamp;

    fn quota(&self) -> Quota {
        Quota::per_minute(5).burst(7)
    }

    fn decide(&self, _: Option<Timestamp>, now: Timestamp, _: u64) -> (Decision, Option<Timestamp>) {
        (Decision::allow(5, 4), Some(now))
    }

    fn expires_at(&self, state: &Timestamp) -> Timestamp {
        *state
    }
}

#[test]
fn custom_algorithms_have_the_documented_defaults() {
    assert_eq!([4, 10, 11].map(|now| Own.owed(&at(10), at(now))), [6 * SECOND, 0, 0]);
    assert_eq!((Own.max_cost(), Own.worst_burst()), (7, 7));
    assert!(!Own.can_inherit(&Own.quota()));
    assert_eq!(Own.inherit(at(3), &Own.quota(), at(4)), at(3));
    assert_eq!(Own.refund(at(3), at(2), 1, Receipt::from_proof(ChargedIn(0))), at(3));
    assert_eq!(Own.schedule(), 60 * SECOND);
    assert!(Own.under(Own.quota()).is_none());
    assert_eq!((Own.kind(), Own.phase(u64::MAX)), (Kind::Other, Duration::ZERO));
    assert_eq!(Own.terms(), Terms::sliding_window(Own.quota()));
}

/// A key owes nothing for a window that has ended, and its count for a window that has not.
#[test]
fn windows_owe_the_used_units() {
    fn check<A: Algorithm>(window: &A, lengths: u64) {
        let (_, state) = window.decide(None, at(0), 5);
        let (state, ends) = (state.unwrap(), lengths * 86_400);
        assert_eq!(window.expires_at(&state), at(ends));
        assert_eq!(
            [0, ends - 1, ends, ends + 1].map(|now| window.owed(&state, at(now)) > 0),
            [true, true, false, false]
        );
        let (_, more) = window.decide(Some(state), at(1), 2);
        assert_eq!([state, more.unwrap()].map(|state| window.owed(&state, at(2))), [5, 7]);
        assert_eq!(window.owed(&state, at(ends)), 0);
    }
    check(&FixedWindow::new(Quota::per_day(9)), 1);
    check(&SlidingWindow::new(Quota::per_day(9)), 2);
    #[cfg(feature = "calendar")]
    check(&CalendarWindow::daily(9), 1);
}

#[test]
fn refunds_go_to_the_charged_window() {
    let window = SlidingWindow::new(Quota::per_minute(9));
    let state = SlidingWindowState { window: 7, previous: 4, current: 3 };
    let refund = |charged: u64, cost| {
        let SlidingWindowState { window: 7, previous, current } =
            window.refund(state, at(7 * 60), cost, Receipt::from_proof(ChargedIn(charged)))
        else {
            panic!("another window")
        };
        (previous, current)
    };
    assert_eq!([5, 6, 7, 8].map(|charged| refund(charged, 1)), [(4, 3), (3, 3), (4, 2), (4, 3)]);
    assert_eq!([6, 7].map(|charged| refund(charged, 9)), [(0, 3), (4, 0)]);
}

#[test]
fn states_carry_their_quota() {
    let quota = Quota::per(7, Duration::from_secs(60));
    let now = at(120);
    fn bytes<A: Portable>(algorithm: &A, now: Timestamp) -> Vec<u8> {
        algorithm.to_bytes(&algorithm.decide(None, now, 2).1.unwrap())
    }
    let states = [
        (bytes(&TokenBucket::new(quota.burst(9)), now), quota.burst(9)),
        (bytes(&FixedWindow::new(quota), now), quota),
        (bytes(&SlidingWindow::new(quota), now), quota),
    ];
    for (mut state, quota) in states {
        assert_eq!(written_under(&state), Some(quota));
        state[1] = b'x';
        assert_eq!(written_under(&state), None);
    }
    assert_eq!(written_under(&[1]), None);
}

/// Two per minute are used at the beginning of a minute: half of them still weigh in the middle of the next.
#[test]
fn the_last_admission_announces_the_next() {
    let window = SlidingWindow::new(Quota::per_minute(2));
    let (first, state) = window.decide(None, at(7 * 60), 1);
    let (second, state) = window.decide(state, at(7 * 60), 1);
    assert_eq!((first.remaining(), first.next_after()), (1, None));
    assert_eq!((second.remaining(), second.next_after()), (0, Some(Duration::from_secs(90))));
    assert!(window.decide(state, at(8 * 60 + 30), 1).0.is_allowed());
}

#[cfg(feature = "calendar")]
#[test]
fn calendar_rates_follow_the_shortest_window() {
    let days = [CalendarWindow::daily(9), CalendarWindow::weekly(9), CalendarWindow::monthly(9)]
        .map(|window| window.quota().period().as_secs() / 86_400);
    assert_eq!(days, [1, 7, 28]);
}

#[cfg(feature = "calendar")]
#[test]
fn anchors_fit_only_their_periods() {
    let panics = |change: fn(CalendarWindow) -> CalendarWindow, window: CalendarWindow| {
        std::panic::catch_unwind(move || drop(change(window))).is_err()
    };
    let windows = || [CalendarWindow::daily(9), CalendarWindow::weekly(9), CalendarWindow::monthly(9)];
    assert_eq!(windows().map(|window| panics(|it| it.anchor(5), window)), [true, true, false]);
    assert_eq!(windows().map(|window| panics(|it| it.week_start(Weekday::Sunday), window)), [true, false, true]);
}
