//! A client that keeps to a partner's limit: calls from all tasks together leave every 200 ms, in order; at most ten
//! wait, and the others get the time after which to retry. For a partner that reports its limit over HTTP, see
//! `obedient_client`.
//!
//! ```sh
//! cargo run -p examples --bin outgoing_pacing
//! ```

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::{LeakyQueue, Policy, Quota};
use tower_sluice_client::{ThrottleError, ThrottleLayer};

#[tokio::main]
async fn main() {
    let start = Instant::now();
    // Stands for a reqwest client, a tonic channel, a database: any `tower::Service`.
    let partner = service_fn(move |order: u32| async move { Ok::<_, Infallible>((order, start.elapsed())) });

    let pace = LeakyQueue::new(Quota::per_second(5)).max_queue(10).max_wait(Duration::from_secs(5));
    let layer = ThrottleLayer::new(Policy::on("partner", pace));
    let mut partner = ServiceBuilder::new().layer(layer).service(partner);

    let mut calls = tokio::task::JoinSet::new();
    for order in 0..13 {
        calls.spawn(partner.ready().await.expect("always ready").call(order));
    }
    while let Some(call) = calls.join_next().await {
        match call.expect("no call panics") {
            Ok((order, at)) => println!("order {order:2} left after {:4} ms", at.as_millis()),
            Err(ThrottleError::Rejected(rejected)) => println!("full; retry in {:?}", rejected.retry_after()),
            Err(error) => println!("{error}"),
        }
    }
}
