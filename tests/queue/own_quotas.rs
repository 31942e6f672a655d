//! Queues whose keys have their own quotas, on paused time. `schedules` makes random ones.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::store::WhenFull;
use tower_sluice::{LeakyQueue, Limiter, Policy, Quota, RateLimitLayer, SlowDown};

use super::leaky_queue::{key, pending, ready};

const SLOW: Quota = Quota::per_second(1);
const FAST: Quota = Quota::per_second(10);

fn queue() -> LeakyQueue {
    LeakyQueue::new(SLOW).max_queue(5).max_wait(Duration::from_secs(10))
}

/// A request's plan, by its client's name.
fn plan(request: &tower_sluice::RequestHead<'_>) -> Option<Quota> {
    match request.headers()["x-client"].to_str() {
        Ok("fast") => Some(FAST),
        Ok("burst") => Some(FAST.burst(3)),
        Ok("steady") => Some(Quota::per_minute(12)),
        Ok("paused") => Some(Quota::suspended()),
        _ => None,
    }
}

/// Sends four requests by a client at once. Returns the milliseconds until each response, or its status if it is not a
/// success; and the policy that the last response advertises.
async fn send_four(layer: &RateLimitLayer, client: &'static str) -> (Vec<u128>, String) {
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))) });
    let service = layer.layer(hello);
    let start = Instant::now();
    let sent: Vec<_> = (0..4)
        .map(|_| {
            let request = Request::builder().header("x-client", client).body(()).unwrap();
            let call = service.clone().oneshot(request);
            tokio::spawn(async move { (call.await.unwrap(), start.elapsed().as_millis()) })
        })
        .collect();
    let mut times = Vec::new();
    let mut advertised = String::new();
    for call in sent {
        let (response, at) = call.await.unwrap();
        let status = response.status().as_u16();
        times.push(if status == 200 { at } else { status.into() });
        advertised = response.headers().get("ratelimit-policy").map_or("", |it| it.to_str().unwrap()).to_owned();
    }
    (times, advertised)
}

/// The clients see these rates in the response fields.
#[tokio::test(start_paused = true)]
async fn clients_depart_at_their_plans_rates() {
    let policy = Policy::new("line", queue()).key(HeaderKey::from_static("x-client")).quota_fn(plan);
    let layer = RateLimitLayer::new(policy);
    let sent = |times: [u128; 4], advertised: &str| (times.to_vec(), advertised.to_owned());
    // One may depart at once, and five wait.
    assert_eq!(send_four(&layer, "slow").await, sent([0, 1_000, 2_000, 3_000], "\"line\";q=6;w=6"));
    assert_eq!(send_four(&layer, "fast").await, sent([0, 100, 200, 300], "\"line\";q=10;w=1"));
    assert_eq!(send_four(&layer, "burst").await, sent([0, 0, 0, 100], "\"line\";q=10;w=1"));
    // Two have a turn within the longest wait.
    assert_eq!(send_four(&layer, "steady").await, sent([0, 5_000, 10_000, 429], "\"line\";q=3;w=15"));
    assert_eq!(send_four(&layer, "paused").await.0, [403; 4]);
}

/// The advertised burst is the limit that decisions report.
#[tokio::test(start_paused = true)]
async fn decisions_report_the_own_quotas_limit() {
    for (quota, limit) in [(SLOW, 6), (FAST.burst(3), 8), (Quota::per_minute(12), 3), (Quota::per_hour(1), 1)] {
        let queue = queue();
        let fresh = ready(queue.decide(&Ask::peek(&key("a"), 0).under(Some(quota))));
        assert_eq!((fresh.limit(), fresh.remaining()), (limit, limit), "{quota:?}");
        // The peek has left nothing behind.
        let own = ready(queue.decide(&Ask::peek(&key("a"), 0)));
        assert_eq!((own.limit(), queue.stats().table.unwrap().live_keys), (6, 0));
        queue.check_invariants();
    }
}

/// Its waiters keep their order, and other keys' waiters stay where they are.
#[tokio::test(start_paused = true)]
async fn a_faster_plan_moves_its_waiters_up() {
    let queue = queue();
    let start = Instant::now();
    for client in ["a", "b"] {
        assert!(ready(queue.decide(&Ask::charge(&key(client), 1))).is_allowed());
    }
    let waits: Vec<_> =
        ["a", "a", "b"].map(|client| tokio::spawn(pending(queue.decide(&Ask::charge(&key(client), 1))))).into();
    sleep(Duration::from_millis(500)).await;
    // Half a unit is owed, which takes 50 ms at the new rate.
    let last = tokio::spawn(pending(queue.decide(&Ask::charge(&key("a"), 1).under(Some(FAST)))));
    let mut times = Vec::new();
    for wait in waits.into_iter().chain([last]) {
        assert!(wait.await.unwrap().unwrap().is_allowed());
        times.push(start.elapsed().as_millis());
    }
    // Client b's waiter departs after b's own second.
    assert_eq!((times[0], times[1], times[2]), (550, 650, 1_000));
    assert_eq!(queue.waiting(), 0);
    queue.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_slower_plan_rejects_late_turns() {
    let queue = LeakyQueue::new(FAST).max_queue(5).max_wait(Duration::from_secs(1));
    assert!(ready(queue.decide(&Ask::charge(&key("a"), 1))).is_allowed());
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(pending(queue.decide(&Ask::charge(&key("a"), 1))))).collect();
    sleep(Duration::from_millis(50)).await;
    // A peek is a question, too.
    let seen = ready(queue.decide(&Ask::peek(&key("a"), 1).under(Some(SLOW))));
    assert_eq!(seen.retry_after(), Some(Duration::from_millis(500)));
    let mut outcomes = Vec::new();
    for wait in waits {
        let decision = wait.await.unwrap().unwrap();
        outcomes.push((decision.is_allowed(), decision.limit()));
    }
    // One may wait for a second.
    assert_eq!(outcomes, [(true, 2), (false, 2), (false, 2)]);
}

/// A second change of plan loses the refund.
#[tokio::test(start_paused = true)]
async fn charges_are_refunded_after_one_plan_change() {
    let queue = LeakyQueue::new(SLOW.burst(4)).max_queue(0);
    let reset = |quota| ready(queue.decide(&Ask::peek(&key("a"), 0).under(quota))).reset_after();
    let spent = ready(queue.decide(&Ask::charge(&key("a"), 3)));
    assert_eq!(reset(Some(FAST)), Duration::from_millis(300));
    queue.refund(&Ask::charge(&key("a"), 1), spent.receipt(), 1);
    assert_eq!(reset(Some(FAST)), Duration::from_millis(200));
    assert_eq!(reset(None), Duration::from_secs(2));
    queue.refund(&Ask::charge(&key("a"), 2), spent.receipt(), 2);
    assert_eq!(reset(None), Duration::from_secs(2));
}

/// It is rejected in every mode, and keeps its debt.
#[tokio::test(start_paused = true)]
async fn a_suspended_key_is_always_rejected() {
    let queue = queue();
    assert!(ready(queue.decide(&Ask::charge(&key("a"), 1).under(Some(FAST)))).is_allowed());
    for mode in [Mode::Charge, Mode::Peek, Mode::Shadow, Mode::UpTo] {
        for cost in [0, 1] {
            let key = key("a");
            let ask = Ask::charge(&key, cost).to(mode).under(Some(Quota::suspended()));
            assert!(ready(queue.decide(&ask)).is_suspended(), "{mode:?}");
        }
    }
    assert_eq!(
        ready(queue.decide(&Ask::peek(&key("a"), 0).under(Some(FAST)))).reset_after(),
        Duration::from_millis(100)
    );
}

/// The keys' own quotas stay, and the queue's bounds hold for them.
#[tokio::test(start_paused = true)]
async fn a_live_change_keeps_own_rates() {
    let before = queue();
    let client = key("a");
    let ask = Ask::charge(&client, 1).under(Some(FAST));
    assert!(ready(before.decide(&ask)).is_allowed());
    let start = Instant::now();
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(pending(before.decide(&ask)))).collect();
    let after = LeakyQueue::new(Quota::per_hour(1)).max_queue(2).max_wait(Duration::from_secs(5));
    assert!(after.inherit(&before).is_some());
    let mut outcomes = Vec::new();
    for wait in waits {
        let decision = wait.await.unwrap().unwrap();
        outcomes.push((decision.is_allowed(), start.elapsed().as_millis()));
    }
    assert_eq!(outcomes, [(true, 100), (true, 200), (false, 200)]);
    assert_eq!(ready(after.decide(&Ask::peek(&key("a"), 0).under(Some(FAST)))).limit(), 3);
}

/// Keys that found no room share lines, which belong to no single key.
#[tokio::test(start_paused = true)]
async fn shared_lines_depart_at_the_queues_rate() {
    let queue = queue().max_keys(1).when_full(WhenFull::Overflow);
    for client in ["a", "b"] {
        assert!(ready(queue.decide(&Ask::charge(&key(client), 1).under(Some(FAST)))).is_allowed());
    }
    let delay = |client| ready(queue.decide(&Ask::peek(&key(client), 1).under(Some(FAST)))).delay();
    assert_eq!([delay("a"), delay("b")], [Duration::from_millis(100), Duration::from_secs(1)]);
    queue.check_invariants();
    // Without shared lines, the rejection has the numbers of the key's own quota.
    let full = LeakyQueue::new(SLOW).max_queue(5).max_keys(1);
    assert!(ready(full.decide(&Ask::charge(&key("a"), 1))).is_allowed());
    let rejected = ready(full.decide(&Ask::charge(&key("b"), 1).under(Some(FAST.burst(3)))));
    assert_eq!((rejected.limit(), rejected.retry_after()), (8, Some(Duration::from_secs(1))));
}

/// A turn that is taken after its key was forgotten still has the numbers of the key's own quota.
#[tokio::test(start_paused = true)]
async fn a_late_poll_finds_its_quotas_numbers() {
    let queue = queue();
    let client = key("a");
    let ask = Ask::charge(&client, 1).under(Some(FAST.burst(3)));
    for _ in 0..3 {
        assert!(ready(queue.decide(&ask)).is_allowed());
    }
    let waits = pending(queue.decide(&ask));
    sleep(Duration::from_secs(5)).await;
    assert!(ready(queue.decide(&Ask::charge(&key("b"), 1))).is_allowed());
    let decision = waits.await.unwrap();
    assert_eq!((decision.is_allowed(), decision.limit(), decision.remaining()), (true, 8, 8));
}

#[tokio::test(start_paused = true)]
async fn a_slow_down_ignores_quotas() {
    let slow = SlowDown::new(SLOW.burst(2)).free(2);
    assert!(!slow.describe().takes_quotas() && queue().describe().takes_quotas());
    for quota in [FAST, Quota::suspended()] {
        assert_eq!(ready(slow.decide(&Ask::peek(&key("a"), 1).under(Some(quota)))).limit(), 2);
    }
}
