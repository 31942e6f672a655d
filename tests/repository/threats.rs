//! Tests attacks in `docs/threats.md` that no other file tests.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::{HeaderKey, PeerIp};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::Random;
use tower_sluice::time::ManualClock;
use tower_sluice::{Limiter, MissingKey, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};

use crate::trace::Trace;

fn decide(limiter: &impl Limiter, key: &PartitionKey, cost: u64) -> tower_sluice::Decision {
    match limiter.decide(&Ask::charge(key, cost)) {
        Answer::Ready(Ok(decision)) => decision,
        other => unreachable!("memory answers at once: {other:?}"),
    }
}

/// Returns two-word keys that all have one FxHash: the attack on a table with an unkeyed hash.
fn fx_collisions() -> impl Iterator<Item = PartitionKey> {
    const K: u64 = 0x517c_c1b7_2722_0a95;
    (0..100_000_u64).map(|first| {
        let second = first.wrapping_mul(K).rotate_left(5) ^ 4_711;
        PartitionKey::from([first.to_le_bytes(), second.to_le_bytes()].concat())
    })
}

/// The keys collide under an unkeyed hash.
#[test]
fn colliding_keys_push_no_key_out() {
    let window = RateLimiter::new(
        SlidingWindow::new(Quota::per_hour(1)),
        MemoryStore::with_capacity(100_000).with_clock(ManualClock::new()),
    );
    let bucket = RateLimiter::new(
        TokenBucket::new(Quota::per_hour(1)),
        MemoryStore::with_capacity(100_000).with_clock(ManualClock::new()),
    );
    let limiters: [&dyn Fn(&PartitionKey) -> bool; 2] =
        [&|key| decide(&window, key, 1).is_allowed(), &|key| decide(&bucket, key, 1).is_allowed()];
    for admits in limiters {
        let first = fx_collisions().filter(|key| admits(key)).count();
        // Two keys share a slot with a probability of 3 in 10^8.
        assert!(first >= 99_990, "{first} of 100,000 new keys");
        assert_eq!(fx_collisions().filter(|key| admits(key)).count(), 0, "each is remembered");
    }
    assert_eq!((window.evicted_live(), bucket.evicted_live()), (0, 0));
}

/// 64 bits hold at most 213,504 days in nanoseconds, so a product that wraps would make the cost look small.
#[test]
fn costs_that_wrap_64_bits_are_rejected() {
    let quota = Quota::per_day(1);
    let bucket = RateLimiter::in_memory(TokenBucket::new(quota.burst(10)));
    let fixed = RateLimiter::in_memory(FixedWindow::new(quota));
    let sliding = RateLimiter::in_memory(SlidingWindow::new(quota));
    let key = PartitionKey::from("key");
    for cost in
        [11, 213_503, 213_504, 213_505, 427_010, u64::from(u32::MAX) / 2, u64::from(u32::MAX) - 1, u64::from(u32::MAX)]
    {
        for decision in [decide(&bucket, &key, cost), decide(&fixed, &key, cost), decide(&sliding, &key, cost)] {
            assert!(!decision.is_allowed() && decision.retry_after().is_none(), "cost {cost}: {decision:?}");
        }
    }
    assert!(decide(&bucket, &key, 10).is_allowed(), "nothing was charged");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn keyed(key: &[u8], address: u32) -> Request<()> {
    let mut request = Request::builder().header("x-api-key", key).body(()).unwrap();
    let address = IpAddr::V4(Ipv4Addr::from_bits(address));
    request.extensions_mut().insert(SocketAddr::new(address, 4_711));
    request
}

/// Sends a thousand API keys and addresses. None may be in a response, in the log up to `info`, or in the metrics, and
/// the metrics must not gain series from the first to the last.
#[test]
fn no_output_shows_a_key() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let log = Log::default();
    let subscriber = {
        let log = log.clone();
        tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(move || log.clone()).finish()
    };
    let layer = RateLimitLayer::builder([
        Policy::new("per-key", TokenBucket::new(Quota::per_day(1))).key(HeaderKey::from_static("x-api-key")),
        Policy::new("per-address", FixedWindow::new(Quota::per_day(2))).key(PeerIp::new()),
    ])
    .fields(RateLimitFields::draft11())
    .build();
    let service = layer.layer(service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("hello"))))
    }));

    let (mut output, mut secrets, mut series) = (Vec::new(), Vec::new(), 0);
    let mut random = Random::of_trial(7);
    metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..200 {
                let key = format!("sk-{:016x}", random.next());
                // Outside the ranges for documentation, which texts might mention.
                let address = 0x5d00_0000 + u32::try_from(random.below(1 << 20)).unwrap();
                for _ in 0..3 {
                    let response =
                        service.clone().oneshot(keyed(key.as_bytes(), address)).now_or_never().unwrap().unwrap();
                    let (parts, body) = response.into_parts();
                    output.push(format!("{:?}", parts.headers).into_bytes());
                    output.push(body.collect().now_or_never().unwrap().unwrap().to_bytes().to_vec());
                }
                secrets.extend([key, Ipv4Addr::from_bits(address).to_string()]);
                layer.observe();
                let now = metrics.render().lines().count();
                if number == 0 {
                    series = now;
                }
                assert_eq!(now, series, "another key, another series");
            }
        });
    });
    assert!(series > 5);
    output.extend([metrics.render().into_bytes(), log.0.lock().unwrap().clone()]);
    let output = output.concat();
    let output = String::from_utf8_lossy(&output);
    let found: Vec<_> = secrets.iter().filter(|secret| output.contains(secret.as_str())).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The guide's recipe: an outer budget by address, which also counts requests without a valid key, and an inner one by
/// key.
#[test]
fn a_keyless_flood_spares_keys_owners() {
    let clock = ManualClock::new();
    let timed =
        |quota| Arc::new(RateLimiter::new(TokenBucket::new(quota), MemoryStore::default().with_clock(clock.clone())));
    let attempts = RateLimitLayer::new(Policy::new("attempts", timed(Quota::per_second(50))).key(PeerIp::new()));
    let own = RateLimitLayer::new(
        Policy::new("per-key", timed(Quota::per_second(10)))
            .key(HeaderKey::from_static("x-api-key"))
            .on_missing_key(MissingKey::Reject),
    );
    let handler =
        service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("hello")))));
    // A stand-in for authentication, which knows only the victim's key.
    let authenticated = service_fn(move |request: Request<()>| {
        let is_known = request.headers().get("x-api-key").is_some_and(|key| key == "victim");
        let own = own.clone().layer(handler);
        async move {
            if is_known {
                return Ok::<_, Infallible>(own.oneshot(request).await?.status().as_u16());
            }
            Ok(401)
        }
    });
    let service = attempts.layer(service_fn(move |request| {
        let answer = authenticated.clone().oneshot(request);
        async move {
            let status = answer.await?;
            Ok::<_, Infallible>(Response::builder().status(status).body(Full::<bytes::Bytes>::default()).unwrap())
        }
    }));
    let send = |key: &[u8], address| {
        service.clone().oneshot(keyed(key, address)).now_or_never().unwrap().unwrap().status().as_u16()
    };
    let (mut served, mut guesses) = (0, 0);
    for number in 0..10_000_u64 {
        // A thousand guesses per second from one address, and five requests by the victim from another.
        guesses += u64::from(send(format!("guess-{number}").as_bytes(), 1) == 401);
        if number.is_multiple_of(200) {
            served += u64::from(send(b"victim", 2) == 200);
        }
        clock.advance(std::time::Duration::from_millis(1));
    }
    assert_eq!(served, 50, "all of the victim's");
    assert!(guesses <= 50 + 500, "{guesses} guesses in ten seconds");
}

/// With refunds, a client has a burst at one instant if its charges end in the order in which they began, or in
/// reverse. In other orders, it may have more: in 60 million random schedules, of up to 390 steps, the most was 12 with
/// a burst of 5.
#[test]
fn refunds_of_held_charges_are_bounded() {
    const BURST: u64 = 5;
    let mut most = 0;
    let mut trace = Trace::of(20_000);
    while trace.goes_on([("schedules that exceed the burst", most > BURST)]) {
        let seed = trace.seed();
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        let bucket = RateLimiter::new(
            TokenBucket::new(Quota::per_minute(5)),
            MemoryStore::with_capacity(1).with_clock(clock.clone()),
        );
        let key = PartitionKey::from("address");
        let mut open = Vec::new();
        for _ in 0..random.below(60) {
            match random.below(4) {
                0 | 1 => open.extend(Some(decide(&bucket, &key, 1)).filter(tower_sluice::Decision::is_allowed)),
                2 if !open.is_empty() => {
                    let index = usize::try_from(random.below(open.len() as u64)).unwrap();
                    bucket.refund(&Ask::charge(&key, 1), open.swap_remove(index).receipt(), 1);
                }
                _ => clock.advance(std::time::Duration::from_secs(random.below(25))),
            }
        }
        let mut guesses = 0;
        loop {
            if decide(&bucket, &key, 1).is_allowed() {
                guesses += 1;
            } else if open.is_empty() {
                break;
            } else {
                let index = usize::try_from(random.below(open.len() as u64)).unwrap();
                bucket.refund(&Ask::charge(&key, 1), open.swap_remove(index).receipt(), 1);
            }
        }
        most = most.max(guesses);
        assert!(guesses < 3 * BURST, "seed {seed}: {guesses} at one instant");
    }
}
