//! A client that obeys its partner: it sends at the rate that the partner's responses allow, and is hardly ever
//! rejected. Any number of these processes can share the partner's quota on Redis.
//!
//! ```sh
//! cargo run --release -p tower-sluice-server &
//! cargo run -p examples --features http-client,redis --bin obedient_client -- http://127.0.0.1:3000/fixed-window
//! cargo run -p examples --features http-client,redis --bin obedient_client -- http://127.0.0.1:3000/fixed-window --redis redis://127.0.0.1/ --seconds 60
//! ```
//!
//! Prints, one per line: `sent`, `served` and `rejected` with their counts, `order` with the number of calls that
//! overtook an earlier one, and `window N` with the number of calls served in the Nth window since 1970, where
//! `--window` is a window's length in seconds. `scripts/ci/partner` runs eight of these programs.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, timeout_at};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice_client::PacerLayer;
use tower_sluice_redis::Redis;

/// How many calls each process makes at a time.
const CONCURRENT: usize = 10;

#[derive(Default)]
struct Tally {
    sent: u64,
    rejected: u64,
    windows: BTreeMap<u64, u64>,
    /// Calls that were sent before; a call that was rejected is sent again.
    known: BTreeSet<u64>,
    overtaken: u64,
}

// One thread, so that calls reach the wire in the order in which they depart.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (mut url, mut redis, mut seconds, mut window) = (None, None, 10, 10);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--redis" => redis = Some(value()?),
            "--seconds" => seconds = value()?.parse()?,
            "--window" => window = value()?.parse()?,
            _ => url = Some(argument),
        }
    }
    let url = url.ok_or("usage: obedient_client URL [--redis URL] [--seconds N] [--window N]")?;

    let mut layer = PacerLayer::new();
    if let Some(redis) = redis {
        layer = layer.shared(&Redis::open(redis)?, "obedient-client");
    }
    let tally = Arc::new(Mutex::new(Tally::default()));
    let http = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    // Below the layer, this counts the calls that really reach the wire.
    let counted = {
        let tally = Arc::clone(&tally);
        service_fn(move |request: Request<Empty<Bytes>>| {
            let (tally, http) = (Arc::clone(&tally), http.clone());
            let number: u64 = request.headers()["x-number"].to_str().unwrap_or_default().parse().unwrap_or_default();
            let mut counts = tally.lock().unwrap();
            counts.sent += 1;
            let is_overtaken = counts.known.last().is_some_and(|last| number < *last);
            counts.overtaken += u64::from(counts.known.insert(number) && is_overtaken);
            drop(counts);
            async move {
                let response = http.request(request).await.map_err(io::Error::other)?;
                let (head, body) = response.into_parts();
                body.collect().await.map_err(io::Error::other)?;
                let mut counts = tally.lock().unwrap();
                if head.status == 429 {
                    counts.rejected += 1;
                } else {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                    *counts.windows.entry(now / window).or_default() += 1;
                }
                Ok::<_, io::Error>(http::Response::from_parts(head, ()))
            }
        })
    };
    let client = ServiceBuilder::new().layer(layer).service(counted);

    let end = Instant::now() + Duration::from_secs(seconds);
    let (next, mut workers) = (Arc::new(AtomicU64::new(0)), tokio::task::JoinSet::new());
    for _ in 0..CONCURRENT {
        let (mut client, url, next) = (client.clone(), url.clone(), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let client = client.ready().await?;
                // Nothing is awaited between the number and the call, so calls join the line in number order.
                let number = next.fetch_add(1, Ordering::Relaxed);
                let call = client.call(Request::get(&url).header("x-number", number).body(Empty::new())?);
                match timeout_at(end, call).await {
                    Ok(response) => drop(response?),
                    Err(_) => return Ok::<_, Box<dyn Error + Send + Sync>>(()),
                }
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    let tally = tally.lock().unwrap();
    let served: u64 = tally.windows.values().sum();
    println!("sent {}\nserved {served}\nrejected {}\norder {}", tally.sent, tally.rejected, tally.overtaken);
    tally.windows.iter().for_each(|(window, served)| println!("window {window} {served}"));
    Ok(())
}
