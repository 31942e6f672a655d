//! Costs that the handler or the body settles, and shortfalls that are owed.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::support::timing::some_attempt_async;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::headers::{RateLimitFields, ResetForm};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, LeakyQueue, Limiter, Policy, Quota, RateLimitLayer, RateLimiter, Settlement};

const MINUTE: Duration = Duration::from_secs(60);

fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_nanos(1_000_000_020_000_000_000));
    clock
}

fn policy(algorithm: impl Algorithm, clock: &ManualClock) -> Policy {
    let store = MemoryStore::default().with_clock(clock.clone());
    Policy::new("units", Arc::new(RateLimiter::new(algorithm, store))).key(User::key())
}

/// Sends a request to a handler that reports these costs, one after the other, and answers with this number of bytes.
async fn send(layer: &RateLimitLayer, costs: &'static [u64], bytes: usize) -> (StatusCode, HeaderMap) {
    send_to(layer, "/", costs, bytes).await
}

async fn send_to(
    layer: &RateLimitLayer,
    path: &'static str,
    costs: &'static [u64],
    bytes: usize,
) -> (StatusCode, HeaderMap) {
    let handler = service_fn(move |request: Request<()>| async move {
        for cost in costs {
            request.extensions().get::<Settlement>().unwrap().settle("units", *cost).unwrap();
        }
        Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(vec![b'.'; bytes]))))
    });
    let mut request = Request::get(path).body(()).unwrap();
    request.extensions_mut().insert(User::new("alice"));
    let response = layer.clone().layer(handler).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    body.collect().await.unwrap();
    (parts.status, parts.headers)
}

async fn peek(layer: &RateLimitLayer) -> Decision {
    *layer.handle().peek("units", "alice").await.unwrap().decision()
}

#[tokio::test]
async fn the_last_reported_cost_is_charged() {
    for (costs, left) in [(&[][..], 95), (&[30], 70), (&[30, 2], 98), (&[0], 100), (&[500], 0)] {
        let layer =
            RateLimitLayer::new(policy(FixedWindow::new(Quota::per_minute(100)), &clock()).cost(5).settle_by_handler());
        let (status, headers) = send(&layer, costs, 9).await;
        assert_eq!(status, 200);
        assert_eq!(peek(&layer).await.remaining(), left, "{costs:?}");
        // The head reports the cost known by then.
        assert!(headers["ratelimit"].to_str().unwrap().starts_with(&format!("\"units\";r={left};")), "{headers:?}");
    }
}

#[tokio::test]
async fn the_bodys_bytes_are_charged() {
    let policy = policy(FixedWindow::new(Quota::per_minute(1_000)), &clock()).cost(100).settle_by_content_bytes();
    let layer = RateLimitLayer::new(policy);
    let (_, headers) = send(&layer, &[], 40).await;
    assert_eq!(headers["ratelimit-policy"], r#""units";q=1000;qu="content-bytes";w=60"#);
    assert_eq!(peek(&layer).await.remaining(), 960);
    send(&layer, &[], 900).await;
    assert_eq!(peek(&layer).await.remaining(), 60);
    assert_eq!(send(&layer, &[], 0).await.0, 429, "the estimate does not fit");
}

/// The window had ten of 25 units. The other fifteen are owed, which takes 90 s to pay; the next request takes six
/// seconds more.
#[tokio::test]
async fn an_owed_shortfall_delays_the_next_requests() {
    let clock = clock();
    let layer = RateLimitLayer::new(
        policy(FixedWindow::new(Quota::per_minute(10)), &clock).settle_by_handler().owe_shortfalls(),
    );
    assert_eq!(send(&layer, &[25], 0).await.0, 200);
    let state = peek(&layer).await;
    assert_eq!((state.remaining(), state.reset_after()), (0, Duration::from_secs(150)));
    for (wait, pass) in [("96", 95), ("1", 1)] {
        let (status, headers) = send(&layer, &[1], 0).await;
        assert_eq!((status.as_u16(), headers["retry-after"].to_str().unwrap()), (429, wait));
        clock.advance(Duration::from_secs(pass));
    }
    let (status, headers) = send(&layer, &[1], 0).await;
    assert_eq!((status.as_u16(), headers["ratelimit"].to_str().unwrap()), (200, "\"units\";r=0;t=60"));
    let (status, headers) = send(&layer, &[1], 0).await;
    assert_eq!((status.as_u16(), headers["retry-after"].to_str().unwrap()), (429, "6"));
    clock.advance(MINUTE);
    assert_eq!(peek(&layer).await.remaining(), 10, "all is paid");
}

/// Each request reserves a hundred units of 1,000 and uses twenty. The client was told to wait for the window, 14
/// hours, although requests in flight give most of it back within a second.
#[tokio::test]
async fn requests_in_flight_shorten_a_rejections_wait() {
    for owes in [false, true] {
        // The wait ignores requests that take much longer than a second.
        some_attempt_async("the wait for requests in flight", async || {
            let clock = clock();
            let policy = policy(FixedWindow::new(Quota::per_day(1_000)), &clock).cost(100).settle_by_handler();
            let layer = RateLimitLayer::new(if owes { policy.owe_shortfalls() } else { policy });
            let (open, gate) = tokio::sync::watch::channel(false);
            let requests = (0..10).map(|_| send_through(&layer, gate.clone()));
            let mut held = Box::pin(futures_util::future::join_all(requests));
            assert!(futures_util::FutureExt::now_or_never(&mut held).is_none());
            let wait = async || {
                let (status, headers) = send(&layer, &[20], 0).await;
                assert_eq!(status, 429);
                headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap()
            };
            let told = wait().await;
            open.send(true).unwrap();
            held.await;
            assert_eq!(peek(&layer).await.remaining(), 800);
            // Without requests in flight, only the window's end helps.
            for _ in 0..36 {
                assert_eq!(send(&layer, &[20], 0).await.0, 200);
            }
            assert!(wait().await > 3_600);
            if told == 1 { Ok(()) } else { Err(format!("{told} s")) }
        })
        .await;
    }
}

/// Sends a request whose handler waits for the gate, and then settles twenty units.
async fn send_through(layer: &RateLimitLayer, gate: tokio::sync::watch::Receiver<bool>) {
    let handler = service_fn(move |request: Request<()>| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|is_open| *is_open).await.unwrap();
            request.extensions().get::<Settlement>().unwrap().settle("units", 20).unwrap();
            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::new())))
        }
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    let response = layer.clone().layer(handler).oneshot(request).await.unwrap();
    response.into_body().collect().await.unwrap();
}

/// While a debt lasted, each next request paid a part of it, up to the room beside its own cost, and time paid nothing.
/// At 100 per hour, requests that cost 10,000 each got 10,010 in each hour, and a client that owed 5,900 got one per
/// hour after a year of silence.
#[tokio::test]
async fn time_pays_debts_at_the_quotas_rate() {
    let hour = MINUTE * 60;
    let quota = Quota::per_hour(100);
    let limits = |clock: &ManualClock| {
        [
            policy(TokenBucket::new(quota), clock),
            policy(FixedWindow::new(quota), clock),
            policy(SlidingWindow::new(quota), clock),
        ]
    };
    for kind in 0..3 {
        let clock = clock();
        let limit = limits(&clock).into_iter().nth(kind).unwrap();
        let layer = RateLimitLayer::new(limit.settle_by_handler().owe_shortfalls());
        let mut spent = 0;
        for hours in 0..1_000_u64 {
            while send(&layer, &[10_000], 0).await.0 == 200 {
                spent += 10_000;
            }
            assert!(spent <= 10_000 + 100 + 100 * hours, "{spent} units in {hours} hours");
            clock.advance(hour);
        }
        assert!(spent >= 90_000, "{spent}");
        clock.advance(hour * 200);
        assert_eq!(peek(&layer).await.remaining(), 100, "silence has paid all");
    }
}

/// Each is admitted for one unit while the others are in flight. The real costs are owed once all are known, and no
/// request is admitted beside another one's payment.
#[tokio::test]
async fn concurrent_requests_pay_debts_no_faster() {
    let clock = clock();
    let bucket = TokenBucket::new(Quota::per_hour(100));
    let layer = RateLimitLayer::new(policy(bucket, &clock).settle_by_handler().owe_shortfalls());
    assert_eq!(send(&layer, &[1_000], 0).await.0, 200);
    clock.advance(MINUTE * 60 * 9 + MINUTE * 6);
    // Ten units are left.
    let sent = (0..200).map(|_| send(&layer, &[1], 0));
    let admitted = futures_util::future::join_all(sent).await.into_iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(admitted, 10);
}

#[tokio::test]
async fn free_requests_report_the_rest_after_shortfalls() {
    let clock = clock();
    let policy = policy(TokenBucket::new(Quota::per_minute(10).burst(20)), &clock).settle_by_handler().owe_shortfalls();
    // The handlers report their request's cost: 6 in place of 1, and 0 in place of 0.
    let (answers, usage) = (&[6][..], &[][..]);
    let layer = RateLimitLayer::new(policy.cost_fn(move |request| u64::from(request.uri().path() != "/usage")));
    assert_eq!(send_to(&layer, "/", answers, 0).await.0, 200);
    for _ in 0..2 {
        let (_, headers) = send_to(&layer, "/usage", usage, 0).await;
        // Six are charged, and each is restored in six seconds.
        assert_eq!(headers["ratelimit"], "\"units\";r=14;t=84");
        let state = peek(&layer).await;
        assert_eq!((state.remaining(), state.reset_after()), (14, Duration::from_secs(36)));
    }
}

#[tokio::test]
async fn resets_and_refunds_leave_no_debt() {
    let clock = clock();
    let bucket = TokenBucket::new(Quota::per_minute(10));
    let layer = RateLimitLayer::new(policy(bucket, &clock).cost(2).settle_by_handler().owe_shortfalls());
    send(&layer, &[7], 0).await;
    let _ = layer.handle().reset("units", "alice").await.unwrap();
    assert_eq!(peek(&layer).await.remaining(), 10);
    // The request is charged two units, and one is refunded. Nothing is refunded for the units that the reset forgave.
    send(&layer, &[1], 0).await;
    assert_eq!(peek(&layer).await.remaining(), 9);
}

#[tokio::test]
async fn a_refund_leaves_a_debts_rest() {
    let clock = clock();
    let bucket = TokenBucket::new(Quota::per_minute(10));
    let layer = RateLimitLayer::new(policy(bucket, &clock).cost(4).settle_by_handler().owe_shortfalls());
    // The key owes four.
    send(&layer, &[14], 0).await;
    clock.advance(MINUTE);
    assert_eq!(peek(&layer).await.remaining(), 6);
    // Three of the request's own units are refunded.
    send(&layer, &[1], 0).await;
    assert_eq!(peek(&layer).await.remaining(), 5);
}

/// The bucket would admit the request because it has units again, but the key owes more.
#[tokio::test]
async fn a_shadow_counts_keys_in_debt() {
    let clock = clock();
    let bucket = policy(TokenBucket::new(Quota::per_minute(10)), &clock).settle_by_handler().owe_shortfalls();
    let layer = RateLimitLayer::new(bucket.shadow());
    send(&layer, &[15], 0).await;
    clock.advance(MINUTE / 3);
    assert_eq!(send(&layer, &[], 0).await.0, 200);
    assert_eq!(layer.shadow_rejected("units"), Some(1));
}

/// Admits a peek and rejects the charge, as if another request came in between.
struct Fickle;

impl Limiter for Fickle {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let is_peek = ask.mode() == Mode::Peek;
        let decision = if is_peek { Decision::allow(1, 0) } else { Decision::reject(1, 0, Some(MINUTE)) };
        decision.into()
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

/// The bucket had ten of 15 units, and a minute later five are left. A charge that is rolled back takes none of them.
#[tokio::test]
async fn a_rejected_request_adds_no_debt() {
    let clock = clock();
    let bucket = policy(TokenBucket::new(Quota::per_minute(10)), &clock).settle_by_handler().owe_shortfalls();
    let fickle = Policy::new("fickle", Arc::new(Fickle)).when(|request| request.uri().path() == "/fickle");
    let layer = RateLimitLayer::new([bucket, fickle]);
    assert_eq!(send(&layer, &[15], 0).await.0, 200);
    clock.advance(MINUTE);
    for _ in 0..3 {
        assert_eq!(peek(&layer).await.remaining(), 5);
        assert_eq!(send_to(&layer, "/fickle", &[], 0).await.0, 503);
    }
    assert_eq!(send(&layer, &[5], 0).await.0, 200);
    assert_eq!(peek(&layer).await.remaining(), 0);
}

/// A request costs nothing when it comes, and is settled at all that is left. Its fields described a key without a
/// charge: `t=1` and a reset of 0, although the next unit is a day away.
#[tokio::test]
async fn fields_settled_from_zero_promise_nothing_early() {
    let day = Duration::from_secs(86_400);
    let cases = [(0, "t"), (0, "reset"), (3, "t"), (3, "reset")];
    for ((used_before, name), is_sliding) in cases.into_iter().flat_map(|case| [(case, true), (case, false)]) {
        let clock = ManualClock::new();
        // Six hours into a day.
        clock.set(Timestamp::from_nanos((20_000 * 86_400 + 21_600) * 1_000_000_000));
        let policy = if is_sliding {
            policy(SlidingWindow::new(Quota::per_day(5)), &clock)
        } else {
            policy(FixedWindow::new(Quota::per_day(5)), &clock)
        };
        let policy = policy.cost_fn(|request| u64::from(request.uri().path() != "/free")).settle_by_handler();
        let fields = RateLimitFields::draft11().x_ratelimit(ResetForm::DeltaSeconds);
        let layer = RateLimitLayer::builder(policy).fields(fields).build();
        for _ in 0..used_before {
            assert_eq!(send_to(&layer, "/", &[], 0).await.0, 200);
        }
        if used_before > 0 {
            // It counts in a sliding window only, and only until that ends.
            clock.advance(day);
        }
        let (_, headers) = send_to(&layer, "/free", &[5], 0).await;
        let field = |name| headers[name].to_str().unwrap();
        let seconds = match name {
            "t" => field("ratelimit").strip_prefix("\"units\";r=0;t=").unwrap().parse().unwrap(),
            _ => field("x-ratelimit-reset").parse().unwrap(),
        };
        assert!(seconds <= 2 * 86_400, "{name}: {headers:?}");
        clock.advance(Duration::from_secs(seconds));
        let (left, expected) = (peek(&layer).await.remaining(), if name == "t" { 1 } else { 5 });
        assert!(left >= expected, "{name}, sliding {is_sliding}: {left} left after {seconds} s: {headers:?}");
    }
}

/// Its estimate was charged although no handler ever saw it.
#[tokio::test(start_paused = true)]
async fn requests_cancelled_in_queue_cost_nothing() {
    for by_bytes in [false, true] {
        let units = policy(FixedWindow::new(Quota::per_day(1_000)), &clock()).cost(300);
        let units = if by_bytes { units.settle_by_content_bytes() } else { units.settle_by_handler() };
        let line = Policy::new("line", LeakyQueue::new(Quota::per_minute(1)).max_wait(MINUTE * 5)).key(User::key());
        let layer = RateLimitLayer::new([units, line]);
        assert_eq!(send(&layer, if by_bytes { &[] } else { &[7] }, 7).await.0, 200);
        assert_eq!(peek(&layer).await.remaining(), 993);
        let cancelled = tokio::time::timeout(MINUTE / 2, send(&layer, &[], 7)).await;
        assert!(cancelled.is_err(), "it waits");
        assert_eq!(peek(&layer).await.remaining(), 993, "by bytes: {by_bytes}");
    }
}

/// gRPC answers 200 and reports the call's status in its trailers, which no condition saw.
#[tokio::test]
async fn trailers_show_a_grpc_calls_status() {
    // In the head, in the trailers, in the trailers after a message, and cut off before the trailers.
    for (in_head, message, ends, code, left) in [
        (true, 0, true, "16", 9),
        (true, 0, true, "0", 10),
        (false, 0, true, "16", 9),
        (false, 5, true, "16", 9),
        (false, 5, true, "0", 10),
        (false, 5, true, "nonsense", 10),
        (false, 5, false, "0", 9),
    ] {
        let conditions: [fn(Policy) -> Policy; 2] = [
            |policy| policy.charge_when(|response| response.grpc_status() == Some(16)),
            |policy| {
                policy.cost_after(|response| {
                    // The head's fields are there as well.
                    u64::from(response.grpc_status() == Some(16) && response.headers().contains_key("x-model"))
                })
            },
        ];
        for condition in conditions {
            let layer = RateLimitLayer::new(condition(policy(FixedWindow::new(Quota::per_minute(10)), &clock())));
            let status = HeaderValue::from_static(code);
            let handler = service_fn(move |_: Request<()>| {
                let mut response = http::Response::builder().header("content-type", "application/grpc");
                response = response.header("x-model", "small");
                if in_head {
                    response = response.header("grpc-status", status.clone());
                }
                let mut frames = vec![Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'.'; message])))];
                if ends && !in_head {
                    frames.push(Ok(Frame::trailers(
                        [("grpc-status".parse().unwrap(), status.clone())].into_iter().collect(),
                    )));
                }
                ready(Ok::<_, Infallible>(response.body(StreamBody::new(futures_util::stream::iter(frames))).unwrap()))
            });
            let mut request = Request::new(());
            request.extensions_mut().insert(User::new("alice"));
            let response = layer.clone().layer(handler).oneshot(request).await.unwrap();
            response.into_body().collect().await.unwrap();
            assert_eq!(peek(&layer).await.remaining(), left, "{in_head} {message} {ends} {code}");
        }
    }
}
