//! Many calls at once to a partner with a limit: a rejection that waiting cures never reaches the caller, and few calls
//! are rejected, in every dialect of rejections.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response};
use tokio::time::{Instant, sleep, timeout_at};
use tower::util::BoxCloneService;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice_client::{Pacer, PacerLayer};

const SECOND: Duration = Duration::from_secs(1);

type Client = Pacer<BoxCloneService<Request<()>, Response<()>, Infallible>, ()>;

/// A rejection: its status and its fields.
#[derive(Clone, Copy, Debug)]
struct Dialect(u16, &'static [(&'static str, &'static str)]);

/// The rejections of a partner whose next call passes within a second.
const DIALECTS: [Dialect; 10] = [
    Dialect(429, &[("retry-after", "1")]),
    Dialect(429, &[]),
    Dialect(429, &[("retry-after", "0")]),
    Dialect(429, &[("retry-after", "0.05")]),
    Dialect(429, &[("retry-after-ms", "50")]),
    Dialect(429, &[("date", "Mon, 21 Sep 2026 14:13:20 GMT"), ("retry-after", "Mon, 21 Sep 2026 14:13:21 GMT")]),
    Dialect(503, &[("retry-after", "1")]),
    Dialect(403, &[("retry-after", "1")]),
    Dialect(429, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")]),
    Dialect(200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "50")]),
];

/// A bucket that refills 20 per second and holds 20. A call takes 20 ms.
#[derive(Clone)]
struct Partner {
    dialect: Dialect,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    /// When each missing unit comes back.
    missing: VecDeque<Instant>,
    served: usize,
    rejected: usize,
}

impl Partner {
    fn new(dialect: Dialect) -> Self {
        Self { dialect, counts: Arc::default() }
    }

    fn judge(&self) -> Response<()> {
        let (mut counts, now) = (self.counts.lock().unwrap(), Instant::now());
        while counts.missing.front().is_some_and(|back| *back <= now) {
            counts.missing.pop_front();
        }
        if counts.missing.len() < 20 {
            let last = counts.missing.back().copied().unwrap_or(now);
            counts.missing.push_back(last + SECOND / 20);
            counts.served += 1;
            return Response::new(());
        }
        counts.rejected += 1;
        let Dialect(status, fields) = self.dialect;
        let response =
            fields.iter().fold(Response::builder().status(status), |r, (name, value)| r.header(*name, *value));
        response.body(()).unwrap()
    }

    fn client(&self, layer: &PacerLayer<()>) -> Client {
        let partner = self.clone();
        let service = service_fn(move |_: Request<()>| {
            let partner = partner.clone();
            async move {
                sleep(Duration::from_millis(10)).await;
                let response = partner.judge();
                sleep(Duration::from_millis(10)).await;
                Ok(response)
            }
        });
        layer.layer(BoxCloneService::new(service))
    }

    fn counts(&self) -> (usize, usize) {
        let counts = self.counts.lock().unwrap();
        (counts.served, counts.rejected)
    }
}

/// Makes one call, and returns whether it was served.
async fn call(client: Client) -> bool {
    let response = client.oneshot(Request::get("https://partner.example/").body(()).unwrap()).await.unwrap();
    response.status() == 200 && !response.headers().contains_key("grpc-status")
}

#[tokio::test(start_paused = true)]
async fn a_wave_of_calls_is_served_whole() {
    for dialect in DIALECTS {
        let partner = Partner::new(dialect);
        let (client, begun) = (partner.client(&PacerLayer::new()), Instant::now());
        let served = join_all((0..200).map(|_| call(client.clone()))).await;
        let (_, rejected) = partner.counts();
        println!("{dialect:?}: {rejected} rejected, {:?}", begun.elapsed());
        assert!(served.iter().all(|is_served| *is_served), "{dialect:?}");
        // The slow start is rejected once, and the pace is found in a few steps. Nine seconds are needed.
        assert!(rejected <= 40, "{dialect:?}: {rejected} rejected");
        assert!(begun.elapsed() < 20 * SECOND, "{dialect:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn workers_are_hardly_rejected() {
    for dialect in DIALECTS {
        let partner = Partner::new(dialect);
        let (client, end) = (partner.client(&PacerLayer::new()), Instant::now() + 30 * SECOND);
        let workers = (0..100).map(|_| {
            let client = client.clone();
            async move {
                while let Ok(is_served) = timeout_at(end, call(client.clone())).await {
                    assert!(is_served, "{dialect:?}");
                }
            }
        });
        join_all(workers).await;
        let (served, rejected) = partner.counts();
        println!("{dialect:?}: {served} served, {rejected} rejected");
        // 620 in all.
        assert!(served >= 500, "{dialect:?}: {served} served");
        assert!(rejected <= 60, "{dialect:?}: {rejected} rejected");
    }
}

/// A partner is closed for half a minute, but asks for a second's wait. The first in line is not given up after some
/// attempts.
#[tokio::test(start_paused = true)]
async fn waiting_cures_each_rejection() {
    for dialect in DIALECTS {
        let partner = Partner::new(dialect);
        let opens = Instant::now() + 30 * SECOND;
        partner.counts.lock().unwrap().missing.extend([opens; 20]);
        let client = partner.client(&PacerLayer::new());
        let served = join_all((0..50).map(|_| call(client.clone()))).await;
        assert!(served.iter().all(|is_served| *is_served), "{dialect:?}");
        let (_, rejected) = partner.counts();
        println!("{dialect:?}: {rejected} rejected");
        assert!(rejected <= 40, "{dialect:?}: {rejected} rejected");
    }
}

/// The bound on attempts counts only rejections that are new to the line.
#[tokio::test(start_paused = true)]
async fn a_wave_costs_one_attempt() {
    let partner = Partner::new(DIALECTS[0]);
    let client = partner.client(&PacerLayer::new().attempts(2));
    // Until now, the partner accepted eight calls at a time.
    for _ in 0..30 {
        let calls = (0..8).map(|_| call(client.clone()));
        assert!(join_all(calls).await.iter().all(|is_served| *is_served));
        sleep(SECOND / 2).await;
    }
    let again = Instant::now() + SECOND;
    partner.counts.lock().unwrap().missing.extend([again; 20]);
    let served = join_all((0..40).map(|_| call(client.clone()))).await;
    assert!(served.iter().all(|is_served| *is_served), "{served:?}");
    let (_, rejected) = partner.counts();
    assert!(rejected > 1, "{rejected} rejected");
    // With one attempt, no call is sent again.
    let partner = Partner::new(DIALECTS[0]);
    let client = partner.client(&PacerLayer::new().attempts(1));
    let served = join_all((0..50).map(|_| call(client.clone()))).await;
    let (accepted, rejected) = partner.counts();
    assert_eq!((accepted + rejected, served.iter().filter(|is_served| !**is_served).count()), (50, rejected));
}
