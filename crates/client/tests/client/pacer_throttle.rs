//! A client whose partner keeps failing: calls that are not sent, the partner's recovery, calls that nobody awaits, and
//! which events are counted and logged. `crates/client/src/pacer/tests/health.rs` compares the decisions with a model.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response};
use tokio::time::{advance, timeout};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice_client::{AdaptiveThrottle, Pacer, PacerError, PacerLayer};

use crate::log::Log;

type Client = Pacer<BoxCloneService<Request<()>, Response<()>, &'static str>, ()>;

/// A partner that answers with a status, fails for 0, and never answers for 1.
#[derive(Clone, Default)]
struct Partner {
    status: Arc<AtomicU16>,
    seen: Arc<AtomicUsize>,
}

impl Partner {
    fn new(status: u16) -> Self {
        let partner = Self::default();
        partner.answer(status);
        partner
    }

    fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    fn client(&self, layer: &PacerLayer<()>) -> Client {
        let partner = self.clone();
        layer.layer(BoxCloneService::new(service_fn(move |_: Request<()>| {
            let partner = partner.clone();
            async move {
                partner.seen.fetch_add(1, Ordering::Relaxed);
                match partner.status.load(Ordering::Relaxed) {
                    0 => Err("connection refused"),
                    1 => pending().await,
                    status => Ok(Response::builder().status(status).body(()).unwrap()),
                }
            }
        })))
    }
}

fn layer() -> PacerLayer<()> {
    PacerLayer::new().throttle(AdaptiveThrottle::new())
}

async fn call(client: &Client) -> Result<u16, PacerError<&'static str>> {
    let request = Request::get("https://partner.example/orders").body(()).unwrap();
    Ok(client.clone().oneshot(request).await?.status().as_u16())
}

/// Makes calls until one is rejected here, and returns how many were sent.
async fn sent_until_throttled(client: &Client) -> usize {
    for sent in 0..10_000 {
        if matches!(call(client).await, Err(PacerError::Throttled { .. })) {
            return sent;
        }
    }
    panic!("no call was throttled");
}

#[tokio::test(start_paused = true)]
async fn failing_partners_are_spared_until_recovery() {
    for status in [0, 500, 503] {
        let partner = Partner::new(status);
        let client = partner.client(&layer());
        let sent = sent_until_throttled(&client).await;
        // Ten are free. From there on, the dice decide: the chance of a hundred is below 10^-50.
        assert!((11..100).contains(&sent), "{sent} with {status}");
        let before = partner.seen();
        for _ in 0..10_000 {
            let _ = call(&client).await;
        }
        // Time stands still, so no probe is due. By the formula, it is a harmonic sum.
        assert!(partner.seen() - before < 200, "{} of 10,000 with {status}", partner.seen() - before);
        let error = loop {
            if let Err(error @ PacerError::Throttled { .. }) = call(&client).await {
                break error;
            }
        };
        let text = error.to_string();
        assert!(text.contains("accepted 0 of the last") && text.contains("not sent"), "{text}");
        // A call per second goes in any case.
        for _ in 0..5 {
            advance(Duration::from_secs(1)).await;
            let before = partner.seen();
            let _ = call(&client).await;
            assert_eq!(partner.seen(), before + 1, "{status}");
        }
        // The partner is back: the probes come closer, until all calls are sent.
        partner.answer(200);
        for _ in 0..25 {
            advance(Duration::from_secs(1)).await;
            assert_eq!(call(&client).await.unwrap(), 200);
        }
        let calls = join_all((0..1_000).map(|_| call(&client))).await;
        assert!(calls.iter().all(|call| matches!(call, Ok(200))), "with {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_throttle_all_calls_are_sent() {
    let partner = Partner::new(500);
    let client = partner.client(&PacerLayer::new());
    for _ in 0..1_000 {
        assert_eq!(call(&client).await.unwrap(), 500);
    }
    assert_eq!(partner.seen(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn mistakes_of_the_caller_throttle_nothing() {
    for status in [200, 302, 400, 401, 404, 408, 422] {
        let partner = Partner::new(status);
        let client = partner.client(&layer());
        for _ in 0..1_000 {
            assert_eq!(call(&client).await.unwrap(), status);
        }
    }
}

/// The call was counted before it was sent. If it were counted with its answer, a partner that never answers would get
/// calls for ever.
#[tokio::test(start_paused = true)]
async fn outer_timeouts_are_failures() {
    let partner = Partner::new(1);
    let client = partner.client(&layer());
    let mut timeouts = 0;
    while timeout(Duration::from_millis(10), call(&client)).await.is_err() {
        timeouts += 1;
        assert!(timeouts < 100, "no call was throttled");
    }
    assert!(timeouts > 10);
}

#[tokio::test(start_paused = true)]
async fn leaving_the_line_is_no_failure() {
    let partner = Partner::new(200);
    let mut client = partner.client(&layer());
    assert_eq!(call(&client).await.unwrap(), 200);
    for _ in 0..1_000 {
        drop(client.ready().await.unwrap().call(Request::get("https://partner.example/").body(()).unwrap()));
    }
    for _ in 0..100 {
        assert_eq!(call(&client).await.unwrap(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn partners_are_judged_separately() {
    let is_down = Arc::new(AtomicBool::new(true));
    let answers = Arc::clone(&is_down);
    let service = service_fn(move |request: Request<()>| {
        let fails = answers.load(Ordering::Relaxed) && request.uri().host() == Some("down.example");
        let status = if fails { 500 } else { 200 };
        async move { Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap()) }
    });
    let client = layer().layer(service);
    let call = |host: &str| client.clone().oneshot(Request::get(format!("http://{host}/")).body(()).unwrap());
    let mut throttled = 0;
    for _ in 0..1_000 {
        throttled += usize::from(call("down.example").await.is_err());
        assert_eq!(call("up.example").await.unwrap().status(), 200);
    }
    assert!(throttled > 800, "{throttled}");
}

/// A retry is a call, too, so it must not reach a throttled partner, and the caller gets the partner's answer.
#[tokio::test(start_paused = true)]
async fn retries_respect_the_throttle() {
    let (fails, seen) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (answers, calls) = (Arc::clone(&fails), Arc::clone(&seen));
    let service = service_fn(move |_: Request<()>| {
        calls.fetch_add(1, Ordering::Relaxed);
        let response = match answers.load(Ordering::Relaxed) {
            true => Response::builder().status(500),
            false => Response::builder().header("grpc-status", "8").header("grpc-retry-pushback-ms", "1"),
        };
        async move { Ok::<_, Infallible>(response.body(()).unwrap()) }
    });
    let client = layer().layer(service);
    let call = || client.clone().oneshot(Request::get("http://partner.example/").body(()).unwrap());
    for _ in 0..10_000 {
        let _ = call().await;
    }
    fails.store(false, Ordering::Relaxed);
    for round in 0.. {
        // From here on, a call that goes again within a second is sent only if the dice say so, which is rare.
        assert!(round < 1_000, "each call was sent again");
        advance(Duration::from_secs(5)).await;
        let before = seen.load(Ordering::Relaxed);
        let response = call().await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "8");
        if seen.load(Ordering::Relaxed) == before + 1 {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn transitions_are_logged_once_with_hosts() {
    let (log, _guard) = Log::start();
    let partner = Partner::new(500);
    let client = partner.client(&layer().name("orders"));
    sent_until_throttled(&client).await;
    for _ in 0..1_000 {
        let _ = call(&client).await;
    }
    partner.answer(200);
    for _ in 0..600 {
        advance(Duration::from_secs(1)).await;
        assert_eq!(call(&client).await.unwrap(), 200);
    }
    let lines = log.lines();
    let of = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(of("a partner keeps failing"), 1, "{lines:?}");
    assert_eq!(of("a partner accepts calls again"), 1, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("partner=partner.example") && line.contains("orders")), "{lines:?}");
    // Only the first pause within a minute is logged.
    partner.answer(429);
    assert_eq!(call(&client).await.unwrap(), 429);
    let lines = log.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("its line pauses")).count(), 1, "{lines:?}");
}

/// A key may be a customer's token, and a stranger may have typed the host.
#[tokio::test(start_paused = true)]
async fn keys_and_control_characters_stay_unlogged() {
    let (log, _guard) = Log::start();
    let partner = Partner::new(500);
    let client = partner.client(&layer().key(|_| "secret-token"));
    sent_until_throttled(&client).await;
    let client = partner.client(&layer());
    loop {
        let request = Request::get("/").header("host", &b"a\xffb\tc"[..]).body(()).unwrap();
        if client.clone().oneshot(request).await.is_err() {
            break;
        }
    }
    let text = log.lines().join("\n");
    assert!(text.contains("a partner keeps failing") && !text.contains("secret"), "{text}");
    assert!(text.contains(r"a\xffb\tc"), "{text}");
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn each_attempt_is_counted_once() {
    let metrics = crate::metrics::Metrics::record();
    let partner = Partner::new(200);
    let layer = layer().name("orders").max_waiters(1).attempts(1).max_wait(Duration::from_secs(5));
    let mut client = partner.client(&layer);
    let count = |result: &str| {
        metrics.of(&format!("outgoing_calls_total{{pacer=\"orders\",result=\"{result}\"}}")).parse::<u64>().unwrap()
    };
    assert_eq!(call(&client).await.unwrap(), 200);
    partner.answer(0);
    assert!(call(&client).await.is_err());
    partner.answer(500);
    assert_eq!(call(&client).await.unwrap(), 500);
    partner.answer(429);
    assert_eq!(call(&client).await.unwrap(), 429);
    // The line pauses for a second: one call waits and one finds no place. The first one leaves.
    let mut calls = Vec::new();
    for _ in 0..2 {
        calls.push(client.ready().await.unwrap().call(Request::get("https://partner.example/").body(()).unwrap()));
    }
    assert_eq!(metrics.of("waiting_calls{pacer=\"orders\"}"), "1");
    assert!(matches!(calls.pop().unwrap().await, Err(PacerError::LineFull { .. })));
    drop(calls);
    assert_eq!(metrics.of("waiting_calls{pacer=\"orders\"}"), "0");
    // Rejections double the pause: after the fourth one, it is too long.
    for _ in 0..3 {
        assert_eq!(call(&client).await.unwrap(), 429);
    }
    assert!(matches!(call(&client).await, Err(PacerError::WaitTooLong { .. })));
    let counts = ["accepted", "rejected", "failed", "throttled", "wait-too-long", "line-full", "cancelled"].map(count);
    assert_eq!(counts, [1, 4, 2, 0, 1, 1, 1]);
    advance(Duration::from_secs(10)).await;
    partner.answer(500);
    let sent = sent_until_throttled(&client).await;
    assert_eq!([count("failed"), count("throttled")], [2 + sent as u64, 1]);
    assert_eq!(metrics.of("throttled_partners{pacer=\"orders\"}"), "1");
    drop((client, layer));
    assert_eq!(metrics.of("throttled_partners{pacer=\"orders\"}"), "0");
}
