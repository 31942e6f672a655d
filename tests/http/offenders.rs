//! Who is limited: `offenders` reports the keys that a policy rejects most.

use std::convert::Infallible;
use std::future::ready;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{HeaderKey, PeerIp, User, key_fn};
use tower_sluice::policy::{Offenders, ShowKey};
use tower_sluice::{
    Concurrency, FailureMode, LimiterError, MissingKey, PartitionKey, Penalty, Policy, Quota, RateLimitLayer,
    grpc::GrpcStatus,
};

const DAY: Duration = Duration::from_secs(86_400);

/// One request a day for each user.
fn one_a_day(name: &'static str) -> Policy {
    Policy::new(name, TokenBucket::new(Quota::per_day(1))).key(User::key())
}

fn tracked(name: &'static str) -> Policy {
    one_a_day(name).track_offenders(ShowKey::whole())
}

/// Sends requests by a user; returns how many passed.
fn send(layer: &RateLimitLayer, user: &str, times: usize) -> usize {
    let passes = (0..times).filter(|_| {
        let mut request = Request::new(());
        request.extensions_mut().insert(User::new(user));
        let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
        service.oneshot(request).now_or_never().expect("memory answers at once").unwrap().status() == 200
    });
    passes.count()
}

fn look(layer: &RateLimitLayer, policy: &str, most: usize) -> Result<Offenders, LimiterError> {
    layer.handle().offenders(policy, most).now_or_never().expect("memory answers at once")
}

fn rows(layer: &RateLimitLayer, policy: &str) -> Vec<(String, u64)> {
    let offenders = look(layer, policy, 100).unwrap();
    offenders.list().iter().map(|offender| (offender.key().to_owned(), offender.count())).collect()
}

fn expected<const N: usize>(rows: [(&str, u64); N]) -> Vec<(String, u64)> {
    rows.map(|(key, count)| (key.to_owned(), count)).to_vec()
}

/// Each key is listed with the times of its rejections.
#[test]
fn most_rejected_keys_come_first() {
    let before = SystemTime::now();
    let layer = RateLimitLayer::new(tracked("api"));
    for (user, times) in [("alice", 4), ("bob", 10), ("carol", 1), ("dave", 2)] {
        assert_eq!(send(&layer, user, times), 1);
    }
    assert_eq!(rows(&layer, "api"), expected([("bob", 9), ("alice", 3), ("dave", 1)]), "and none that was admitted");
    let offenders = look(&layer, "api", 2).unwrap();
    assert_eq!(offenders.list().len(), 2);
    assert_eq!(
        (offenders.total(), offenders.max_error(), offenders.processes()),
        (13, 0, 1),
        "with those that are not listed"
    );
    assert!(offenders.missing().is_none() && !offenders.is_shadow());
    // A clock lags by a millisecond at most, unless it is set back.
    assert!(offenders.since() <= before && before < offenders.since() + 2 * Duration::from_secs(3_600));
    for offender in offenders.list() {
        assert_eq!((offender.at_least(), offender.error(), offender.banned_for()), (offender.count(), 0, None));
        assert!(
            before <= offender.first() && offender.first() < offender.last() && offender.last() <= SystemTime::now()
        );
    }
}

/// Tracking is off by default, since it keeps names.
#[test]
fn policies_without_tracking_say_so() {
    let layer = RateLimitLayer::new([one_a_day("api"), tracked("web")]);
    let error = look(&layer, "api", 10).unwrap_err();
    assert!(error.to_string().contains("`Policy::track_offenders`"), "{error}");
    assert!(look(&layer, "no such", 10).unwrap_err().is_unknown_policy());
    assert!(look(&layer, "web", 10).is_ok());
}

#[test]
fn keys_are_shown_as_the_policy_says() {
    for (show, shown) in [
        // printf %s alice | sha256sum | cut -c1-16
        (ShowKey::hash(), "2bd806c97f0e00af"),
        (ShowKey::prefix(2), "al…"),
        (ShowKey::whole(), "alice"),
        (ShowKey::by(|key| format!("user {}", key.len())), "user 5"),
    ] {
        let layer = RateLimitLayer::new(one_a_day("api").track_offenders(show));
        send(&layer, "alice", 2);
        assert_eq!(rows(&layer, "api"), expected([(shown, 1)]));
    }
}

/// An address in the extractor's form; a long token, kept only as a hash; and bytes that are not text.
#[test]
fn keys_are_written_as_their_extractor_does() {
    let shown = |policy: Policy, request: &dyn Fn() -> Request<()>| {
        let layer = RateLimitLayer::new(policy.track_offenders(ShowKey::whole()));
        let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
        for _ in 0..2 {
            let _ = service.clone().oneshot(request()).now_or_never().unwrap().unwrap();
        }
        rows(&layer, "api").remove(0).0
    };
    let limit = || Policy::new("api", TokenBucket::new(Quota::per_day(1)));
    let from_peer = || {
        let mut request = Request::new(());
        request.extensions_mut().insert("[2001:db8::1]:9".parse::<std::net::SocketAddr>().unwrap());
        request
    };
    assert_eq!(shown(limit().key(PeerIp::new()), &from_peer), "2001:db8::/64");
    let with_token = |token: &str| Request::builder().header("x-api-key", token).body(()).unwrap();
    let by_token = || limit().key(HeaderKey::from_static("x-api-key"));
    assert_eq!(shown(by_token(), &|| with_token("k-1")), "k-1");
    // printf 'a%.0s' $(seq 300) | sha256sum
    let hash = "(sha256:9835fa6bf4e20a9b9ea812506302e98982721a6cf8d2cae67af57129bf21ae90)";
    assert_eq!(shown(by_token(), &|| with_token(&"a".repeat(300))), hash);
    let bytes = limit().key(key_fn(|_| Some(PartitionKey::from([0xff, 0, 7]))));
    assert_eq!(shown(bytes, &|| Request::new(())), "(0xff0007)");
}

#[test]
fn rejections_count_by_the_rejecting_policies() {
    let wide =
        Policy::new("wide", TokenBucket::new(Quota::per_day(3))).key(User::key()).track_offenders(ShowKey::whole());
    let layer = RateLimitLayer::new([tracked("api"), wide]);
    assert_eq!(send(&layer, "alice", 5), 1);
    assert_eq!(rows(&layer, "api"), expected([("alice", 4)]));
    assert_eq!(rows(&layer, "wide"), []);
}

#[test]
fn a_banned_key_lists_its_remaining_ban() {
    let layer = RateLimitLayer::new(tracked("api").penalty(Penalty::new(Quota::per_day(1), 7 * DAY)));
    send(&layer, "alice", 9);
    send(&layer, "bob", 2);
    let offenders = look(&layer, "api", 10).unwrap();
    let [alice, bob] = offenders.list() else { panic!("{offenders:?}") };
    assert_eq!(
        (alice.key(), alice.count(), bob.key(), bob.count()),
        ("alice", 8, "bob", 1),
        "a ban's rejections count"
    );
    let left = alice.banned_for().unwrap();
    assert!(left > 6 * DAY && left <= 7 * DAY, "{left:?}");
    assert_eq!(bob.banned_for(), None);
    let limits = layer.handle();
    let by_hand = limits.ban("api", "bob", 30 * DAY, "tries passwords").now_or_never().unwrap().unwrap();
    assert!(by_hand.ban().is_some());
    assert!(look(&layer, "api", 10).unwrap().list()[1].banned_for().unwrap() > 29 * DAY);
    let _ = limits.reset("api", "alice").now_or_never().unwrap().unwrap();
    assert_eq!(look(&layer, "api", 10).unwrap().list()[0].banned_for(), None, "and its rejections stay");
}

/// An operator wants to see which requests a shadow would reject before it is enforced. They are not mixed with
/// rejections.
#[test]
fn a_shadow_tracks_would_be_rejections() {
    let layer = RateLimitLayer::new(tracked("api").shadow());
    assert_eq!(send(&layer, "alice", 3), 3);
    let offenders = look(&layer, "api", 10).unwrap();
    assert_eq!((offenders.is_shadow(), offenders.total()), (true, 2));
    layer.handle().replace(tracked("api")).unwrap();
    let offenders = look(&layer, "api", 10).unwrap();
    assert_eq!((offenders.is_shadow(), offenders.total()), (false, 0), "its budget is inherited, and its count is not");
    assert_eq!(send(&layer, "alice", 1), 0);
    assert_eq!(rows(&layer, "api"), expected([("alice", 1)]));
}

/// It may show keys in another form.
#[test]
fn a_live_change_keeps_the_counts() {
    let layer = RateLimitLayer::new(tracked("api"));
    send(&layer, "alice", 3);
    let looser = Policy::new("api", TokenBucket::new(Quota::per_day(2))).key(User::key());
    layer.handle().replace(looser.track_offenders(ShowKey::prefix(1))).unwrap();
    send(&layer, "alice", 2);
    assert_eq!(rows(&layer, "api"), expected([("a…", 3)]), "one of two more was admitted");
    layer.handle().replace(one_a_day("api")).unwrap();
    assert!(look(&layer, "api", 1).is_err());
    layer.handle().replace(tracked("api")).unwrap();
    assert_eq!(rows(&layer, "api"), [], "without the option, no names are kept");
}

/// Each way to reject a request: the plain path, a transaction, units in flight, and a gRPC response.
#[test]
fn every_kind_of_rejection_counts() {
    let in_flight = Policy::new("api", Concurrency::new(1)).key(User::key()).cost(1).track_offenders(ShowKey::whole());
    let layer = RateLimitLayer::new(in_flight);
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    // Its response stays open while `held` lives.
    let held = service.oneshot(request).now_or_never().unwrap().unwrap();
    assert_eq!(send(&layer, "alice", 2), 0);
    drop(held);
    assert_eq!(rows(&layer, "api"), expected([("alice", 2)]));
    let settled =
        RateLimitLayer::builder(tracked("api").settle_by_handler()).grpc_status(GrpcStatus::default()).build();
    send(&settled, "alice", 4);
    assert_eq!(rows(&settled, "api"), expected([("alice", 3)]));
}

/// A request without a key counts for no key, unless the policy shares one key among such requests.
#[test]
fn requests_without_a_key_share_an_entry() {
    let layer = RateLimitLayer::new(tracked("api").on_missing_key(MissingKey::Share).on_failure(FailureMode::Reject));
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    for _ in 0..3 {
        let _ = service.clone().oneshot(Request::new(())).now_or_never().unwrap().unwrap();
    }
    assert_eq!(rows(&layer, "api"), expected([("(shared)", 2)]));
}

/// The list finds the client with the most rejections, even in a flood of clients.
#[test]
fn one_client_in_a_flood_is_found() {
    let layer = RateLimitLayer::new(tracked("api"));
    for number in 0..2_000 {
        send(&layer, &format!("bot-{number}"), 2);
        if number % 20 == 0 {
            send(&layer, "mallory", 2);
        }
    }
    let offenders = look(&layer, "api", 1).unwrap();
    let [mallory] = offenders.list() else { panic!("{offenders:?}") };
    assert_eq!((mallory.key(), offenders.total()), ("mallory", 2_199));
    assert!(mallory.count() >= 199 && mallory.at_least() <= 199, "{mallory:?}");
    assert!(offenders.max_error() <= 2_199 / 128, "{}", offenders.max_error());
}
