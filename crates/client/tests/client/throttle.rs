//! Services that do not speak HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{LeakyQueue, Policy, Quota, RateLimiter, TokenBucket};
use tower_sluice_client::{ThrottleError, ThrottleLayer};

#[tokio::test(start_paused = true)]
async fn a_client_paces_its_outgoing_calls() {
    let called = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&called);
    let backend = service_fn(move |number: u32| {
        counting.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, std::io::Error>(number * 2) }
    });
    let queue = LeakyQueue::new(Quota::per_second(5)).max_queue(3);
    let mut client = ServiceBuilder::new().layer(ThrottleLayer::new(Policy::on("pace", queue))).service(backend);

    let start = tokio::time::Instant::now();
    let mut calls = Vec::new();
    for number in 0..5 {
        calls.push(tokio::spawn(client.ready().await.unwrap().call(number)));
    }
    let mut answers = Vec::new();
    for call in calls {
        answers.push((call.await.unwrap(), start.elapsed().as_millis()));
    }
    let Err(ThrottleError::Rejected(rejected)) = answers.pop().unwrap().0 else { panic!("the fifth fits nowhere") };
    assert_eq!(rejected.retry_after(), Some(Duration::from_millis(200)));
    let answers: Vec<_> = answers.into_iter().map(|(answer, at)| (answer.unwrap(), at)).collect();
    assert_eq!(answers, [(0, 0), (2, 200), (4, 400), (6, 600)]);
    assert_eq!(called.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn any_request_has_keys_and_costs() {
    struct Job {
        tenant: &'static str,
        pages: u64,
    }
    let printer = service_fn(|job: Job| async move {
        if job.pages == 13 { Err(std::io::Error::other("jammed")) } else { Ok(job.pages) }
    });
    let store = MemoryStore::default().with_clock(ManualClock::new());
    let pages = Policy::on("pages", RateLimiter::new(TokenBucket::new(Quota::per_hour(20)), store));
    let pages = pages.key_by(|job: &Job| job.tenant).cost_fn(|job| job.pages);
    let service = ThrottleLayer::new(pages).layer(printer);
    let print = |tenant, pages| service.clone().oneshot(Job { tenant, pages });
    assert_eq!(print("a", 15).await.unwrap(), 15);
    let rejected = print("a", 15).await.unwrap_err();
    assert_eq!(rejected.to_string(), "rejected by `pages`; retry in 1800s");
    let too_large = print("a", 21).await.unwrap_err();
    assert!(matches!(&too_large, ThrottleError::Rejected(rejected) if rejected.retry_after().is_none()), "{too_large}");
    assert_eq!(print("b", 15).await.unwrap(), 15);
    let jammed = print("c", 13).await.unwrap_err();
    assert!(matches!(jammed, ThrottleError::Service(_)) && jammed.to_string() == "jammed");
}
