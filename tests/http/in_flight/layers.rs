//! Requests in flight beside other limits: in a queue, in nested layers, with policies that reject or fail later, and
//! through live changes. A response is in flight until its body has been read.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::key::HeaderKey;
use tower_sluice::layer::ResponseBody;
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::policy::TakenPermits;
use tower_sluice::{
    Concurrency, Decision, FailureMode, Limiter, LimiterError, PartitionKey, Permits, Policy, RateLimitLayer,
    Settlement,
};

use super::{
    BOTH, ESTIMATE, Limits, Server, USUAL_BYTES, charged, fetch, in_flight, let_others_run, soon, until, window,
};

type Reply = Response<ResponseBody<String>>;

/// A service that answers at once. The response extensions hold its [`Settlement`] and the [`Permits`] that it took.
fn limited(layer: &RateLimitLayer, takes: bool) -> BoxCloneSyncService<Request<()>, Reply, Infallible> {
    BoxCloneSyncService::new(layer.layer(service_fn(move |request: Request<()>| async move {
        let mut response = Response::new("hello".to_owned());
        if let Some(settlement) = request.extensions().get::<Settlement>() {
            response.extensions_mut().insert(settlement.clone());
        }
        if takes {
            let taken = request.extensions().get::<Permits>().unwrap().take();
            response.extensions_mut().insert(Arc::new(taken));
        }
        Ok::<_, Infallible>(response)
    })))
}

async fn get(layer: &RateLimitLayer) -> Reply {
    limited(layer, false).oneshot(Request::new(())).await.unwrap()
}

fn waiting(limits: &Limits) -> usize {
    limits.in_flight.stats().backlog.unwrap().waiting()
}

#[tokio::test]
async fn a_disconnected_waiter_leaves_the_queue() {
    for protocol in BOTH {
        let mut server = Server::start(Concurrency::new(1).max_queue(2)).await;
        let download = server.download(protocol).await;
        let clients = [(); 2].map(|()| tokio::spawn(fetch(server.address, protocol, "GET", "/")));
        until(|| waiting(&server.limits) == 2).await;
        assert_eq!(server.get(protocol, "/").await.status(), 503, "the queue is full");
        for (left, client) in clients.iter().enumerate() {
            client.abort();
            until(|| waiting(&server.limits) == 1 - left).await;
        }
        assert_eq!(server.limits.in_flight(), 1);
        // Their estimates are given back, since no handler saw them. One more request waits and gets its turn.
        let next = tokio::spawn(fetch(server.address, protocol, "GET", "/"));
        until(|| waiting(&server.limits) == 1).await;
        drop(download);
        assert_eq!(soon(next).await.unwrap().unwrap().status(), 200);
        let charged = (ESTIMATE + 3, 5);
        server.limits.are_over(charged).await;
    }
}

/// The request's turn has come, but nothing has polled it since.
#[tokio::test]
async fn a_request_dropped_at_its_turn_releases() {
    let limits = Limits::new(Concurrency::new(1).max_queue(2));
    let layer = RateLimitLayer::new(limits.policies());
    let first = get(&layer).await;
    let mut waiters = [(); 2].map(|()| Box::pin(get(&layer)));
    for waiter in &mut waiters {
        assert!(waiter.now_or_never().is_none());
    }
    let [second, third] = waiters;
    drop(first);
    assert_eq!((limits.in_flight(), waiting(&limits)), (1, 1), "the second has the units");
    drop(second);
    assert_eq!((limits.in_flight(), waiting(&limits)), (1, 0), "the third has them");
    let third = third.now_or_never().expect("its turn has come");
    assert_eq!((third.status().as_u16(), limits.in_flight()), (200, 1));
    drop(third);
    assert_eq!(limits.in_flight(), 0);
}

/// Both layers are settled together, too.
#[tokio::test]
async fn nested_layers_are_released_together() {
    let [outer, inner] = [(); 2].map(|()| Limits::new(Concurrency::new(2)));
    let rename = |limits: &Limits, names: [&'static str; 2]| {
        RateLimitLayer::new([
            Policy::new(names[0], Arc::clone(&limits.in_flight)),
            Policy::new(names[1], Arc::clone(&limits.units)).cost(ESTIMATE).settle_by_handler(),
        ])
    };
    let (around, within) = (rename(&outer, ["all", "rows"]), rename(&inner, ["route", "tokens"]));
    for takes in [false, true] {
        let before = (charged(&*outer.units, &PartitionKey::SHARED), charged(&*inner.units, &PartitionKey::SHARED));
        let service = around.layer(limited(&within, takes));
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        let settlement = response.extensions().get::<Settlement>().unwrap();
        settlement.settle("rows", 3).unwrap();
        settlement.settle("tokens", 4).unwrap();
        assert_eq!((outer.in_flight(), inner.in_flight()), (1, 1));
        let (parts, body) = response.into_parts();
        drop(body);
        // The handler took permits from both layers.
        assert_eq!((outer.in_flight(), inner.in_flight()), if takes { (1, 1) } else { (0, 0) });
        // The response extensions hold the taken permits.
        assert_eq!(parts.extensions.get::<Arc<TakenPermits>>().is_some(), takes);
        drop(parts);
        assert_eq!((outer.in_flight(), inner.in_flight()), (0, 0));
        let after = (charged(&*outer.units, &PartitionKey::SHARED), charged(&*inner.units, &PartitionKey::SHARED));
        assert_eq!(after, (before.0 + 3, before.1 + 4));
    }
    // If the inner layer rejects a request, it is over in the outer layer as well.
    let service = around.layer(limited(&within, false));
    let held = [get(&within).await, get(&within).await];
    let rejected = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!((rejected.status().as_u16(), outer.in_flight(), inner.in_flight()), (503, 1, 2));
    drop(rejected);
    assert_eq!(outer.in_flight(), 0);
    drop(held);
    assert_eq!(inner.in_flight(), 0);
}

/// A limiter that admits peeks, and answers a charge with the function's value.
struct Later(fn() -> Answer);

impl Limiter for Later {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if ask.mode() == Mode::Peek { Decision::allow(9, 8).into() } else { (self.0)() }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

fn later(answer: Result<Decision, LimiterError>) -> Answer {
    Answer::Pending(Box::pin(async {
        tokio::task::yield_now().await;
        answer
    }))
}

#[tokio::test]
async fn later_rejections_are_not_in_flight() {
    // The precheck rejects; the charge rejects, at once or later; and failures.
    let answers: [(fn() -> Answer, u16); 5] = [
        (|| Decision::reject(1, 0, None).into(), 503),
        (|| later(Ok(Decision::reject(1, 0, None))), 503),
        (|| Answer::Ready(Err(LimiterError::new("out of reach"))), 503),
        (|| later(Err(LimiterError::new("out of reach"))), 503),
        (|| later(Ok(Decision::allow(9, 8))), 200),
    ];
    for (answer, status) in answers {
        let limits = Limits::new(Concurrency::new(1));
        let last = Policy::new("last", Arc::new(Later(answer))).on_failure(FailureMode::Reject);
        let layer = RateLimitLayer::new(Vec::from_iter(limits.policies().into_iter().chain([last])));
        for _ in 0..3 {
            let response = get(&layer).await;
            assert_eq!(response.status(), status);
            // A rejection holds nothing, even while its body is being read.
            assert_eq!(limits.in_flight(), u64::from(status == 200));
        }
        assert_eq!(limits.charged(), if status == 200 { (3 * ESTIMATE, 0) } else { (0, 0) });
    }

    let limits = Limits::new(Concurrency::new(1));
    let last = Policy::new("last", window(1));
    let layer = RateLimitLayer::new(Vec::from_iter(limits.policies().into_iter().chain([last])));
    drop(get(&layer).await);
    let rejected = get(&layer).await;
    assert_eq!((rejected.status().as_u16(), limits.in_flight()), (503, 0));
    assert!(rejected.headers().contains_key("retry-after"), "that of the window");
    assert_eq!(limits.charged(), (ESTIMATE, 0));
}

/// A server is being asked. The request is in flight, and is over once its client has gone.
#[tokio::test]
async fn a_client_leaving_during_a_call_releases() {
    let limits = Limits::new(Concurrency::new(1));
    let last = Policy::new("last", Arc::new(Later(|| Answer::Pending(Box::pin(pending())))));
    let layer = RateLimitLayer::new(Vec::from_iter(limits.policies().into_iter().chain([last])));
    for _ in 1..4 {
        let mut asking = Box::pin(get(&layer));
        assert!((&mut asking).now_or_never().is_none());
        assert_eq!(limits.in_flight(), 1);
        drop(asking);
        assert_eq!(limits.in_flight(), 0);
        // The estimates are given back, since no handler saw the request.
        assert_eq!(limits.charged(), (0, 0));
    }
}

/// A shadow holds the units that an admitted request would hold, and is over with it.
#[tokio::test]
async fn a_shadow_counts_requests_in_flight() {
    let limiter = Arc::new(Concurrency::new(2));
    let layer = RateLimitLayer::new(Policy::new("shadow", Arc::clone(&limiter)).shadow());
    let mut responses = Vec::new();
    for _ in 0..5 {
        responses.push(get(&layer).await);
    }
    assert!(responses.iter().all(|response| response.status() == 200));
    assert_eq!((in_flight(&*limiter), layer.shadow_rejected("shadow")), (2, Some(3)));
    // The first two hold the units.
    drop(responses.split_off(2));
    assert_eq!(in_flight(&*limiter), 2);
    drop(responses);
    assert_eq!(in_flight(&*limiter), 0);
}

#[tokio::test]
async fn a_live_change_keeps_requests_in_flight() {
    let limits = Limits::new(Concurrency::new(4));
    let layer = RateLimitLayer::new(limits.policies());
    let handle = layer.handle();
    let mut responses = vec![get(&layer).await, get(&layer).await, get(&layer).await];
    responses[2].extensions().get::<Settlement>().unwrap().settle("units", 1).unwrap();

    // A lower limit, and windows that inherit.
    let after = Limits::new(Concurrency::new(2));
    assert_eq!(handle.replace(after.policies()).unwrap().not_inherited(), ["ends"]);
    assert_eq!((limits.in_flight(), after.in_flight()), (3, 3), "they share the counts");
    assert_eq!(get(&layer).await.status(), 503);
    drop(responses.pop());
    // The request was settled in the window that later requests are charged to.
    assert_eq!(after.charged(), (2 * ESTIMATE + 1, 2 * USUAL_BYTES));
    assert_eq!((after.in_flight(), get(&layer).await.status().as_u16()), (2, 503));
    drop(responses.pop());
    let later = get(&layer).await;
    assert_eq!((later.status().as_u16(), after.in_flight()), (200, 2));

    // The policies are gone. Each response ends where it was admitted.
    handle.replace(Policy::new("other", window(100))).unwrap();
    assert_eq!(get(&layer).await.status(), 200);
    assert_eq!(after.in_flight(), 2);
    drop((responses, later));
    assert_eq!((limits.in_flight(), after.in_flight()), (0, 0));
}

/// The new limit decides on waiting requests, which then hold it.
#[tokio::test]
async fn a_live_change_lets_waiters_in() {
    let before = Limits::new(Concurrency::new(1).max_queue(3));
    let layer = RateLimitLayer::new(before.policies());
    let first = get(&layer).await;
    let mut waiters = [(); 3].map(|()| {
        tokio::spawn({
            let layer = layer.clone();
            async move { get(&layer).await }
        })
    });
    until(|| waiting(&before) == 3).await;
    let after = Limits::new(Concurrency::new(3).max_queue(3));
    layer.handle().replace(after.policies()).unwrap();
    let mut responses = vec![first];
    for waiter in &mut waiters[..2] {
        responses.push(soon(waiter).await.unwrap());
    }
    let_others_run().await;
    assert_eq!((after.in_flight(), waiting(&after)), (3, 1));
    drop(responses);
    let [_, _, last] = waiters;
    let last = soon(last).await.unwrap();
    assert_eq!((last.status().as_u16(), after.in_flight()), (200, 1));
    drop(last);
    assert_eq!((before.in_flight(), after.in_flight()), (0, 0));
}

/// Units are released when the head comes, and never later.
#[tokio::test]
async fn releasing_at_the_head_counts_handlers_only() {
    let limiter = Arc::new(Concurrency::new(1));
    let policy =
        Policy::new("handlers", Arc::clone(&limiter)).key(HeaderKey::from_static("x-api-key")).release_at_head();
    let layer = RateLimitLayer::new(policy);
    let request = || Request::builder().header("x-api-key", "a").body(()).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        let response = limited(&layer, false).oneshot(request()).await.unwrap();
        assert_eq!((response.status().as_u16(), in_flight(&*limiter)), (200, 0));
        held.push(response);
    }
    let mut never = layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<String>, Infallible>>()));
    let mut handled: Pin<Box<dyn Future<Output = _>>> = Box::pin(never.call(request()));
    assert!((&mut handled).now_or_never().is_none());
    assert_eq!(limited(&layer, false).oneshot(request()).await.unwrap().status(), 429);
    drop(handled);
    assert_eq!(in_flight(&*limiter), 0);
}
