//! Clients that were rejected together need not come back together: windows can begin at a different instant for each
//! key, and waits can be lengthened at random. A client that waits as advertised is never rejected for coming early.

use std::collections::BTreeMap;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow};
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::limiter::Ask;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::charge;

const CLIENTS: u64 = 10_000;
const LIMIT: u64 = 3;
const SECOND: u64 = 1_000_000_000;

fn ask(limiter: &impl Limiter, client: u64) -> Decision {
    charge(limiter, client, 1)
}

/// The results for a herd of clients.
#[derive(Debug)]
struct Herd {
    /// The greatest share among all clients that was readmitted within one second, in percent.
    peak: u64,
    /// Clients that were rejected although they had waited.
    early: u64,
}

/// Returns the greatest share, rounded up.
fn percent(clients: &BTreeMap<u64, u64>) -> u64 {
    (clients.values().max().unwrap() * 100).div_ceil(CLIENTS)
}

fn nanos(span: Duration) -> u64 {
    span.as_nanos().try_into().unwrap()
}

/// Every client uses its limit up within the first half minute, and is rejected; then it comes back after the
/// advertised wait.
fn herd<A: Algorithm>(algorithm: A) -> Herd {
    let start = 1_000 * 60 * SECOND;
    let clock = ManualClock::starting_at(Timestamp::from_nanos(start));
    let store = MemoryStore::with_capacity(20_000).with_clock(clock.clone());
    let limiter = RateLimiter::new(algorithm, store);
    let mut back: Vec<_> = (0..CLIENTS).map(|client| (start + client * 30 * SECOND / CLIENTS, client)).collect();
    for (at, client) in &mut back {
        clock.set(Timestamp::from_nanos(*at));
        // A window may begin in between, but not twice.
        let rejected = (0..=2 * LIMIT).find_map(|_| ask(&limiter, *client).retry_after()).unwrap();
        assert!(rejected <= Duration::from_secs(120), "{rejected:?}");
        *at += nanos(rejected);
    }
    back.sort_unstable();
    let (mut seconds, mut early) = (BTreeMap::<u64, u64>::new(), 0);
    for (at, client) in back {
        clock.set(Timestamp::from_nanos(at));
        *seconds.entry((at - start) / SECOND).or_default() += 1;
        early += u64::from(!ask(&limiter, client).is_allowed());
    }
    limiter.check_invariants();
    Herd { peak: percent(&seconds), early }
}

#[test]
fn aligned_windows_bring_clients_back_together() {
    for herd in [herd(FixedWindow::new(Quota::per_minute(LIMIT))), herd(SlidingWindow::new(Quota::per_minute(LIMIT)))] {
        assert!(herd.peak > 99 && herd.early == 0, "{herd:?}");
    }
}

#[test]
fn staggered_windows_bring_clients_back_apart() {
    for herd in [
        herd(FixedWindow::new(Quota::per_minute(LIMIT)).staggered()),
        herd(SlidingWindow::new(Quota::per_minute(LIMIT)).staggered()),
    ] {
        // A sixtieth, and some by chance.
        assert!(herd.peak <= 5 && herd.early == 0, "{herd:?}");
    }
}

/// Each key's window admits exactly the limit, wherever it begins.
#[test]
fn staggered_windows_admit_once_per_period() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000 * 60 * SECOND));
    let store = MemoryStore::with_capacity(100).with_clock(clock.clone());
    let limiter = RateLimiter::new(FixedWindow::new(Quota::per_minute(LIMIT)).staggered(), store);
    let mut admitted = [0; 20];
    for _ in 0..600 {
        limiter.check_invariants();
        for (client, admitted) in (0..).zip(&mut admitted) {
            let peeked = limiter.decide(&Ask::peek(&PartitionKey::from(client), 1)).at_once().unwrap();
            let decision = ask(&limiter, client);
            assert_eq!(peeked.is_allowed(), decision.is_allowed());
            *admitted += u64::from(decision.is_allowed());
        }
        clock.advance(Duration::from_secs(1));
    }
    // Ten minutes touch eleven windows at most.
    assert!(admitted.iter().all(|admitted| (30..=33).contains(admitted)), "{admitted:?}");
    assert!(admitted.iter().any(|admitted| *admitted > 30), "no window begins within a minute");
}

#[test]
fn staggered_charges_are_refunded() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000 * 60 * SECOND));
    let store = MemoryStore::with_capacity(100).with_clock(clock.clone());
    let limiter = RateLimiter::new(FixedWindow::new(Quota::per_day(LIMIT)).staggered(), store);
    for client in 0..50 {
        let charged = ask(&limiter, client);
        assert_eq!(charged.remaining(), 2);
        limiter.refund(&Ask::charge(&PartitionKey::from(client), 1), charged.receipt(), 1);
        assert_eq!(ask(&limiter, client).remaining(), 2);
        assert!(limiter.decide(&Ask::reset(&PartitionKey::from(client))).at_once().is_some());
        assert_eq!(ask(&limiter, client).remaining(), 2);
    }
    assert_eq!(limiter.stats().table.unwrap().live_keys, 50);
    limiter.check_invariants();
}

/// A limiter whose windows begin at other instants cannot inherit.
#[test]
fn staggered_windows_inherit_limit_changes_only() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000 * 60 * SECOND));
    let limiter =
        |window: FixedWindow| RateLimiter::new(window, MemoryStore::with_capacity(100).with_clock(clock.clone()));
    let per_hour = |limit| FixedWindow::new(Quota::per_hour(limit));
    for (next, inherits) in [
        (per_hour(9).staggered(), true),
        (per_hour(9), false),
        (FixedWindow::new(Quota::per_day(9)).staggered(), false),
    ] {
        let (old, new) = (limiter(per_hour(LIMIT).staggered()), limiter(next));
        let _ = ask(&old, 1);
        assert_eq!(new.inherit(&old).is_some(), inherits, "{next:?}");
        assert_eq!(ask(&new, 1).remaining(), if inherits { 7 } else { 8 });
    }
    let (old, new) = (limiter(per_hour(LIMIT)), limiter(per_hour(9).staggered()));
    let _ = ask(&old, 1);
    assert!(new.inherit(&old).is_none());
}

#[cfg(feature = "http")]
mod responses {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response, Version};
    use http_body_util::BodyExt;
    use tower::{Layer, ServiceExt, service_fn};
    use tower_sluice::key::HeaderKey;
    use tower_sluice::rejection::RejectionFormat;
    use tower_sluice::{Policy, RateLimitLayer};

    use super::*;

    async fn send(layer: &RateLimitLayer, client: u64, media_type: &str) -> Response<Bytes> {
        let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let request =
            Request::post("/").version(Version::HTTP_2).header("x-client", client).header("content-type", media_type);
        let response = layer.layer(hello).oneshot(request.body(()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
    }

    fn layer<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimitLayerBuilder {
        let store = MemoryStore::with_capacity(20_000).with_clock(clock.clone());
        let policy = Policy::new("p", RateLimiter::new(algorithm, store));
        RateLimitLayer::builder(policy.key(HeaderKey::from_static("x-client")))
    }

    /// Returns `Retry-After`, in whole seconds, and the exact wait.
    fn waits(response: &Response<Bytes>) -> (u64, Duration) {
        let field = |name: &str| response.headers()[name].to_str().unwrap();
        (field("retry-after").parse().unwrap(), Duration::from_secs_f64(field("x-rate-limited-for").parse().unwrap()))
    }

    #[tokio::test]
    async fn jitter_lengthens_waits_and_shortens_none() {
        let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000 * 60 * SECOND));
        let jitter = Duration::from_secs(10);
        let window = FixedWindow::new(Quota::per_minute(LIMIT));
        let layer = layer(window, &clock).retry_jitter(jitter).build();
        let (mut exact_at, mut whole_at) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
        let mut back = Vec::new();
        for client in 0..CLIENTS {
            clock.set(Timestamp::from_nanos(1_000 * 60 * SECOND + client * 30 * SECOND / CLIENTS));
            let until_next = Duration::from_nanos(60 * SECOND - client * 30 * SECOND / CLIENTS);
            let media_type = ["text/plain", "application/grpc"][usize::from(client % 100 == 0)];
            for _ in 0..LIMIT {
                assert_eq!(send(&layer, client, "text/plain").await.status(), 200);
            }
            let rejected = send(&layer, client, media_type).await;
            let (whole, exact) = waits(&rejected);
            // To the microsecond, rounded up.
            let micro = Duration::from_micros(1);
            assert!(exact + micro > until_next && exact <= until_next + jitter + micro, "{exact:?} for {until_next:?}");
            assert_eq!(Duration::from_secs(whole), Duration::from_secs(nanos(exact).div_ceil(SECOND)));
            if media_type == "text/plain" {
                let body = std::str::from_utf8(rejected.body()).unwrap();
                assert!(body.contains(&format!("retry in {whole} second")), "{body}");
            } else {
                let pushback: u64 = rejected.headers()["grpc-retry-pushback-ms"].to_str().unwrap().parse().unwrap();
                assert!(Duration::from_millis(pushback) >= exact, "{pushback} ms, {exact:?}");
            }
            let at = Timestamp::ZERO.saturating_add(until_next).as_nanos();
            let second = |wait: Duration| (nanos(wait) + 60 * SECOND - at) / SECOND;
            *exact_at.entry(second(exact)).or_default() += 1;
            *whole_at.entry(second(Duration::from_secs(whole))).or_default() += 1;
            back.push((1_000 * 60 * SECOND + 60 * SECOND - at + nanos(exact), client));
        }
        for at in [exact_at, whole_at] {
            assert!(percent(&at) <= 20, "{at:?}");
        }
        back.sort_unstable();
        for (at, client) in back {
            clock.set(Timestamp::from_nanos(at));
            assert_eq!(
                send(&layer, client, "text/plain").await.status(),
                200,
                "{client} waited as advertised, and was rejected"
            );
        }
    }

    #[tokio::test]
    async fn custom_responses_get_the_same_wait() {
        let clock = ManualClock::starting_at(Timestamp::from_nanos(SECOND));
        let limiter = std::sync::Arc::new(RateLimiter::new(
            // With the jitter, this stays below the hour from which on the text has other units.
            FixedWindow::new(Quota::per(1, Duration::from_secs(1_800))),
            MemoryStore::with_capacity(100).with_clock(clock.clone()),
        ));
        let layer = || {
            let policy = Policy::new("p", std::sync::Arc::clone(&limiter)).key(HeaderKey::from_static("x-client"));
            RateLimitLayer::builder(policy).retry_jitter(Duration::from_secs(600))
        };
        let custom = layer()
            .rejection_response(|rejection, _| {
                Response::new(format!("{}", rejection.retry_after().unwrap().as_micros()))
            })
            .build();
        let text = layer().rejection_format(&RejectionFormat::Text).build();
        let layer = layer().build();
        for client in 0..50 {
            assert_eq!(send(&layer, client, "text/plain").await.status(), 200);
            let rejected = send(&custom, client, "text/plain").await;
            let wait: u64 = std::str::from_utf8(rejected.body()).unwrap().parse().unwrap();
            let (_, exact) = waits(&rejected);
            assert!(exact.as_micros().abs_diff(wait.into()) <= 1, "{exact:?}, {wait} µs");
            let rejected = send(&text, client, "text/plain").await;
            let (whole, _) = waits(&rejected);
            assert!(std::str::from_utf8(rejected.body()).unwrap().contains(&format!("retry in {whole} seconds")));
        }
    }
}
