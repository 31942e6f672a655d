//! Bought units that expire before a wait is over.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::FixedWindow;
use tower_sluice::key::User;
use tower_sluice::layer::IntoPolicies;
use tower_sluice::limiter::Credit;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Balance, Policy, Quota, RateLimitLayer};

use super::stack::timed;

const MINUTE: Duration = Duration::from_secs(60);

/// At the beginning of a minute.
fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_000_000_020_000_000_000))
}

/// Returns the status, and `Retry-After`.
fn send(layer: &RateLimitLayer) -> (u16, Option<u64>) {
    let handler = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    let response = layer.layer(handler).oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
    (response.status().as_u16(), wait)
}

fn bought(clock: &ManualClock) -> Policy {
    Policy::new("bought", Balance::new().with_clock(clock.clone())).key(User::key())
}

fn rate(name: &str, per: Duration, clock: &ManualClock) -> Policy {
    Policy::new(name, timed(FixedWindow::new(Quota::per(1, per)), clock)).key(User::key())
}

fn layer(policies: impl IntoPolicies, lots: &[(u64, Option<Duration>)]) -> RateLimitLayer {
    let layer = RateLimitLayer::new(policies);
    for (units, expires_in) in lots {
        let credit = Credit::units(*units);
        let credit = expires_in.map_or(credit.clone(), |span| credit.expires_in(span));
        let _ = layer.handle().credit("bought", "alice", credit).now_or_never().unwrap().unwrap();
    }
    layer
}

/// One request per minute, which takes the bought unit that expires first.
#[test]
fn waits_beyond_expiry_are_not_advertised() {
    let (second, hour) = (Duration::from_secs(1), MINUTE * 60);
    for (lots, is_told) in [
        (&[(5, None)][..], true),
        (&[(5, Some(hour))], true),
        (&[(5, Some(second))], false),
        (&[(1, Some(second)), (1, Some(hour))], true),
        (&[(2, Some(second)), (1, Some(hour))], true),
        (&[(1, Some(second)), (1, Some(MINUTE / 2))], false),
    ] {
        for order in 0..2 {
            let clock = clock();
            let (rate, bought) = (rate("rate", MINUTE, &clock), bought(&clock));
            let layer = layer(if order == 0 { [rate, bought] } else { [bought, rate] }, lots);
            assert_eq!(send(&layer).0, 200);
            let (status, told) = send(&layer);
            assert_eq!((status, told.is_some()), (429, is_told), "{lots:?}, order {order}");
            clock.advance(told.map_or(MINUTE, Duration::from_secs));
            assert_eq!(send(&layer).0 == 200, is_told, "{lots:?}, order {order}");
        }
    }
}

/// The bought units expire before the window ends, and an alternative lasts, so the alternative's wait is advertised.
#[test]
fn an_alternative_covers_units_that_expire() {
    let clock = clock();
    let policies = rate("rate", MINUTE, &clock).and(bought(&clock).or_else(rate("included", 7 * MINUTE, &clock)));
    let layer = layer(policies, &[(1, Some(MINUTE / 60)), (1, Some(MINUTE / 30))]);
    assert_eq!(send(&layer).0, 200);
    let (status, told) = send(&layer);
    assert_eq!(status, 429);
    // The second unit has expired by then, and the included one is there.
    clock.advance(Duration::from_secs(told.expect("an alternative has room then")));
    assert_eq!(send(&layer).0, 200);
    let (_, told) = send(&layer);
    clock.advance(Duration::from_secs(told.expect("the alternative's window ends")));
    assert_eq!(send(&layer).0, 200);
}

/// A member that was passed over for bought units rejects again if they will have expired.
#[test]
fn a_member_yields_to_units_that_last() {
    let clock = clock();
    let members = rate("included", 7 * MINUTE, &clock).or_else(bought(&clock));
    let layer = layer(rate("rate", MINUTE, &clock).and(members), &[(1, Some(MINUTE / 60))]);
    assert_eq!(send(&layer).0, 200);
    let (status, told) = send(&layer);
    assert_eq!(status, 429);
    let told = Duration::from_secs(told.expect("the included unit comes back"));
    assert!(told > MINUTE, "{told:?}");
    clock.advance(told);
    assert_eq!(send(&layer).0, 200);
}

/// A window's units come back at its end, unlike bought ones.
#[test]
fn window_units_do_not_expire() {
    let clock = clock();
    let many = Policy::new("many", timed(FixedWindow::new(Quota::per(9, MINUTE)), &clock)).key(User::key());
    let layer = layer([rate("rate", MINUTE * 60, &clock), many, bought(&clock)], &[(5, None)]);
    assert_eq!(send(&layer).0, 200);
    let (status, told) = send(&layer);
    assert_eq!(status, 429);
    assert!(told.is_some_and(|told| told > 60), "{told:?}");
}

/// Clients get whole seconds. The units must not expire before these have passed.
#[test]
fn waits_are_rounded_before_units_expire() {
    let second = Duration::from_secs(1);
    for (into_the_minute, expires_in, told) in [
        (second / 2, MINUTE - second * 3 / 10, None),
        (second / 2, MINUTE + second / 10, Some(60)),
        (Duration::ZERO, MINUTE + second / 2, Some(60)),
    ] {
        let clock = clock();
        clock.advance(into_the_minute);
        let layer = layer([rate("rate", MINUTE, &clock), bought(&clock)], &[(5, Some(expires_in))]);
        assert_eq!(send(&layer).0, 200);
        assert_eq!(send(&layer), (429, told), "{into_the_minute:?}");
    }
}
