//! How a response ends: with its last frame, a failure, a panic, or a client that leaves.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::limiter::RequestEnd;
use tower_sluice::policy::SettleError;
use tower_sluice::{Concurrency, Permits, Policy, RateLimitLayer, Settlement};

use super::{
    BOTH, ESTIMATE, Ends, Failed, Limits, Protocol, Server, Step, USUAL_BYTES, fetch, let_others_run, next_piece, read,
    until, written,
};

async fn server() -> Server {
    Server::start(Concurrency::new(4)).await
}

#[tokio::test]
async fn a_body_that_is_read_wholly() {
    for protocol in BOTH {
        let mut server = server().await;
        let (mut response, handled) = server.download(protocol).await;
        handled.write("hello");
        assert_eq!(next_piece(&mut response).await, "hello");
        handled.settle(7);
        let_others_run().await;
        // The response head has come long ago. Its charges are estimates until the body has ended.
        assert_eq!((server.limits.in_flight(), server.limits.charged()), (1, (ESTIMATE, USUAL_BYTES)));
        handled.write(" world");
        // The last report counts.
        handled.settle(8);
        let (settlement, permits) = (handled.settlement.clone(), handled.permits.clone());
        drop(handled);
        assert_eq!(read(response).await.unwrap(), (" world".to_owned(), false));
        server.limits.are_over((8, 11)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::Served));
        assert_eq!(settlement.settle("units", 9), Err(SettleError::Ended));
        // Nothing is left to take.
        drop(permits.take());
        server.limits.are_over((8, 11)).await;
    }
}

#[tokio::test]
async fn a_body_that_ends_with_trailers() {
    let mut server = server().await;
    let (response, handled) = server.download(Protocol::Http2).await;
    handled.write("hello");
    handled.settle(2_000);
    handled.step(Step::Trailers);
    drop(handled);
    assert_eq!(read(response).await.unwrap(), ("hello".to_owned(), true));
    server.limits.are_over((2_000, 5)).await;
    assert_eq!(server.limits.end(), Some(RequestEnd::Served));
}

/// Without a report, the estimate stays.
#[tokio::test]
async fn a_body_without_a_frame() {
    for protocol in BOTH {
        let mut server = server().await;
        let (response, handled) = server.download(protocol).await;
        assert_eq!(server.limits.in_flight(), 1);
        drop(handled);
        assert_eq!(read(response).await.unwrap(), (String::new(), false));
        server.limits.are_over((ESTIMATE, 0)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::Served));
    }
}

#[tokio::test]
async fn a_body_of_one_frame() {
    for protocol in BOTH {
        let server = server().await;
        let response = server.get(protocol, "/").await;
        assert_eq!(read(response).await.unwrap().0, "hello");
        server.limits.are_over((3, 5)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::Served));
    }
}

/// The status decides, not the body, which is read to its end.
#[tokio::test]
async fn a_response_with_an_error() {
    for protocol in BOTH {
        for (path, end) in [("/400", RequestEnd::Served), ("/500", RequestEnd::Failed), ("/503", RequestEnd::Failed)] {
            let server = server().await;
            let response = server.get(protocol, path).await;
            let _ = read(response).await.unwrap();
            until(|| server.limits.in_flight() == 0).await;
            assert_eq!(server.limits.end(), Some(end), "{protocol:?} {path}");
        }
    }
}

/// Responses that must not have content: hyper never polls it.
#[tokio::test]
async fn a_body_that_is_not_sent() {
    for protocol in BOTH {
        for (method, path) in [("HEAD", "/"), ("GET", "/204"), ("GET", "/304")] {
            let server = server().await;
            let response = fetch(server.address, protocol, method, path).await.unwrap();
            server.limits.are_over((3, 0)).await;
            assert_eq!(server.limits.end(), Some(RequestEnd::Served), "{method} {path}");
            assert_eq!(read(response).await.unwrap().0, "", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_body_that_fails() {
    for protocol in BOTH {
        let mut server = server().await;
        let (response, handled) = server.download(protocol).await;
        handled.write("hello");
        handled.settle(6);
        handled.step(Step::Error);
        read(response).await.unwrap_err();
        server.limits.are_over((6, 5)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::Failed));
    }
}

#[tokio::test]
async fn a_body_that_panics() {
    for protocol in BOTH {
        let mut server = server().await;
        let (response, handled) = server.download(protocol).await;
        handled.write("hello");
        handled.settle(6);
        handled.step(Step::Panic);
        read(response).await.unwrap_err();
        server.limits.are_over((6, 5)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::CutOff));
    }
}

/// A middleware around the layer has read the beginning of a response and then replaces it.
#[tokio::test]
async fn a_body_that_is_dropped_half_way() {
    let limits = Limits::new(Concurrency::new(1));
    let service = RateLimitLayer::new(limits.policies()).layer(service_fn(|request: Request<()>| async move {
        let settlement = request.extensions().get::<Settlement>().unwrap();
        settlement.settle("units", 1).unwrap();
        let (body, steps) = tokio::sync::mpsc::unbounded_channel();
        for data in ["one", "two", "three"] {
            body.send(Step::Data(data.into())).unwrap();
        }
        Ok::<_, Failed>(Response::new(written(steps, Arc::default())))
    }));
    for frames in 0..3 {
        let mut response = service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), 200);
        for _ in 0..frames {
            response.body_mut().frame().await.unwrap().unwrap();
        }
        assert_eq!(limits.in_flight(), 1);
        drop(response);
        assert_eq!(limits.in_flight(), 0);
        assert_eq!(limits.end(), Some(RequestEnd::CutOff));
    }
    assert_eq!(limits.charged(), (3, 3 + 6));
}

/// One body knows its length; the other one is dropped once it knows that no frames remain, as hyper drops it.
#[tokio::test]
async fn a_body_dropped_after_its_last_frame() {
    let limits = Limits::new(Concurrency::new(1));
    let service = RateLimitLayer::new(limits.policies());
    let service = service.layer(service_fn(async |_: Request<()>| Ok::<_, Failed>(Response::new(Full::from("hello")))));
    for (frames, end) in [(0, RequestEnd::CutOff), (1, RequestEnd::Served)] {
        let mut response = service.clone().oneshot(Request::new(())).await.unwrap();
        for _ in 0..frames {
            let _: Frame<Bytes> = response.body_mut().frame().await.unwrap().unwrap();
        }
        assert_eq!(limits.in_flight(), 1, "the server may still keep the frame");
        drop(response);
        assert_eq!((limits.in_flight(), limits.end()), (0, Some(end)));
    }
    // The server polls a body without a frame, and drops it.
    let service = RateLimitLayer::new(limits.policies());
    let service =
        service.layer(service_fn(async |_: Request<()>| Ok::<_, Failed>(Response::new(Full::<Bytes>::default()))));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert!(response.body().is_end_stream());
    drop(response);
    assert_eq!(limits.end(), Some(RequestEnd::Served));
}

/// Units that a handler has taken outlive the response, at any status.
#[tokio::test]
async fn units_released_early_or_by_the_handler() {
    let taken = Arc::new(Ends::default());
    let at_head = Arc::new(Ends::default());
    let policies =
        [Policy::new("taken", Arc::clone(&taken)), Policy::new("at-head", Arc::clone(&at_head)).release_at_head()];
    let service = RateLimitLayer::new(policies).layer(service_fn(async |request: Request<()>| {
        let held = request.extensions().get::<Permits>().expect("something is held").take();
        match request.uri().path() {
            "/fails" => return Err(Failed),
            "/never" => std::future::pending().await,
            _ => {}
        }
        let status: u16 = request.uri().path()[1..].parse().unwrap();
        Ok(Response::builder().status(status).extension(Arc::new(held)).body(Full::<Bytes>::from("hello")).unwrap())
    }));
    for (path, end) in [("/200", RequestEnd::Served), ("/500", RequestEnd::Failed)] {
        let response = service.clone().oneshot(Request::get(path).body(()).unwrap()).await.unwrap();
        assert_eq!((at_head.take(), taken.take()), (vec![Some(end)], vec![]));
        drop(response);
        assert_eq!((at_head.take(), taken.take()), (vec![], vec![Some(RequestEnd::Served)]));
    }
    let failed = service.clone().oneshot(Request::get("/fails").body(()).unwrap()).await;
    assert!(failed.is_err());
    assert_eq!((at_head.take(), taken.take()), (vec![Some(RequestEnd::Failed)], vec![Some(RequestEnd::Served)]));
    let cancelled = service.oneshot(Request::get("/never").body(()).unwrap()).now_or_never();
    assert!(cancelled.is_none());
    assert_eq!((at_head.take(), taken.take()), (vec![Some(RequestEnd::Abandoned)], vec![Some(RequestEnd::Served)]));
}

/// Another policy rejects the request, or the client leaves another policy's queue, so the request never began.
#[tokio::test]
async fn a_request_that_another_policy_stops() {
    let ends = Arc::new(Ends::default());
    // The layer does not peek at `ends`, so it is charged before it rejects.
    let policies = [Policy::new("ends", Arc::clone(&ends)), Policy::new("full", Concurrency::new(1).max_queue(1))];
    let service = RateLimitLayer::new(policies)
        .layer(service_fn(async |_: Request<()>| Ok::<_, Failed>(Response::new(Full::<Bytes>::from("hello")))));
    let first = service.clone().oneshot(Request::new(())).await.unwrap();
    let mut second = Box::pin(service.clone().oneshot(Request::new(())));
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(ends.take(), []);
    drop(second);
    assert_eq!(ends.take(), [None]);
    drop(first);
    assert_eq!(ends.take(), [Some(RequestEnd::CutOff)]);
}

#[tokio::test]
async fn a_service_that_fails() {
    for protocol in BOTH {
        let server = server().await;
        fetch(server.address, protocol, "GET", "/fails").await.unwrap_err();
        // Without a response, the charge for its bytes stays.
        server.limits.are_over((4, USUAL_BYTES)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::Failed));
    }
}

#[tokio::test]
async fn a_service_that_panics() {
    for protocol in BOTH {
        // The task that serves the connection, or the stream, panics.
        let server = server().await;
        fetch(server.address, protocol, "GET", "/panics").await.unwrap_err();
        server.limits.are_over((5, USUAL_BYTES)).await;
        assert_eq!(server.limits.end(), Some(RequestEnd::Abandoned));
        assert_eq!(server.get(protocol, "/").await.status(), 200);

        // A middleware around the layer catches the panic.
        let server = Server::start_with(Concurrency::new(1), true).await;
        for panics in 1..4 {
            assert_eq!(server.get(protocol, "/panics").await.status(), 500);
            server.limits.are_over((5 * panics, USUAL_BYTES * panics)).await;
        }
        assert_eq!(server.get(protocol, "/").await.status(), 200);
    }
}

/// The client closes the connection in HTTP/1, and resets the stream in HTTP/2.
#[tokio::test]
async fn a_client_that_disconnects_before_the_response() {
    for protocol in BOTH {
        let mut server = server().await;
        for requests in 1..4 {
            let address = server.address;
            let client = tokio::spawn(fetch(address, protocol, "GET", "/never"));
            let handled = server.handled().await;
            assert_eq!(server.limits.in_flight(), 1);
            // The handler reports before the response would have come.
            handled.settle(2);
            client.abort();
            server.limits.are_over((2 * requests, USUAL_BYTES * requests)).await;
            assert_eq!(server.limits.end(), Some(RequestEnd::Abandoned));
            assert_eq!(handled.settlement.settle("units", 3), Err(SettleError::Ended));
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_within_the_body() {
    for protocol in BOTH {
        let mut server = server().await;
        for requests in 1..4 {
            let (mut response, handled) = server.download(protocol).await;
            handled.write("hello");
            assert_eq!(next_piece(&mut response).await, "hello");
            handled.settle(7);
            let_others_run().await;
            assert_eq!(server.limits.in_flight(), 1);
            drop(response);
            server.limits.are_over((7 * requests, 5 * requests)).await;
            assert_eq!(server.limits.end(), Some(RequestEnd::CutOff));
        }
    }
}

/// Four requests in either protocol use up the limit, and a fifth is rejected without a time to wait for.
#[tokio::test]
async fn a_disconnected_client_makes_room() {
    let mut server = server().await;
    let mut downloads = Vec::new();
    for protocol in [BOTH, BOTH].concat() {
        downloads.push(server.download(protocol).await);
    }
    for protocol in BOTH {
        let rejected = server.get(protocol, "/").await;
        assert_eq!((rejected.status().as_u16(), rejected.headers().get("retry-after")), (503, None));
    }
    let mut later = Vec::new();
    for (response, _handled) in downloads {
        drop(response);
        until(|| server.limits.in_flight() == 3).await;
        later.push(server.download(Protocol::Http1).await);
        assert_eq!(server.limits.in_flight(), 4);
    }
    drop(later);
    until(|| server.limits.in_flight() == 0).await;
}
