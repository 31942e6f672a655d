//! What ends a response: its last frame, a failure, a panic, or the client.

use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::policy::SettleError;
use tower_sluice::{Concurrency, RateLimitLayer, Settlement};

use super::{
    BOTH, ESTIMATE, Failed, Limits, Protocol, Server, Step, USUAL_BYTES, fetch, let_others_run, next_piece, read,
    until, written,
};

async fn server() -> Server {
    Server::start(Concurrency::new(4)).await
}

#[tokio::test]
async fn a_body_that_is_read_to_its_end() {
    for protocol in BOTH {
        let mut server = server().await;
        let (mut response, handled) = server.download(protocol).await;
        handled.write("hello");
        assert_eq!(next_piece(&mut response).await, "hello");
        handled.settle(7);
        let_others_run().await;
        // The head of the response has come long ago. Its charges are estimates until the body has ended.
        assert_eq!((server.limits.in_flight(), server.limits.charged()), (1, (ESTIMATE, USUAL_BYTES)));
        handled.write(" world");
        // The last report counts.
        handled.settle(8);
        let (settlement, permits) = (handled.settlement.clone(), handled.permits.clone());
        drop(handled);
        assert_eq!(read(response).await.unwrap(), (" world".to_owned(), false));
        server.limits.are_over((8, 11)).await;
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
    }
}

#[tokio::test]
async fn a_body_of_one_frame() {
    for protocol in BOTH {
        let server = server().await;
        let response = server.get(protocol, "/").await;
        assert_eq!(read(response).await.unwrap().0, "hello");
        server.limits.are_over((3, 5)).await;
    }
}

/// Responses that must not have a content: hyper never asks for it.
#[tokio::test]
async fn a_body_that_is_not_sent() {
    for protocol in BOTH {
        for (method, path) in [("HEAD", "/"), ("GET", "/204"), ("GET", "/304")] {
            let server = server().await;
            let response = fetch(server.address, protocol, method, path).await.unwrap();
            server.limits.are_over((3, 0)).await;
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
    }
}

/// A middleware around the layer replaces a response of which it has read the beginning.
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
    }
    assert_eq!(limits.charged(), (3, 3 + 6));
}

#[tokio::test]
async fn a_service_that_fails() {
    for protocol in BOTH {
        let server = server().await;
        fetch(server.address, protocol, "GET", "/fails").await.unwrap_err();
        // There was no response, so what was charged for its bytes stays.
        server.limits.are_over((4, USUAL_BYTES)).await;
    }
}

#[tokio::test]
async fn a_service_that_panics() {
    for protocol in BOTH {
        // The task of the connection, or of the stream, panics.
        let server = server().await;
        fetch(server.address, protocol, "GET", "/panics").await.unwrap_err();
        server.limits.are_over((5, USUAL_BYTES)).await;
        assert_eq!(server.get(protocol, "/").await.status(), 200);

        // The panic is caught around the layer.
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
            // Reported before the response would have come.
            handled.settle(2);
            client.abort();
            server.limits.are_over((2 * requests, USUAL_BYTES * requests)).await;
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
        }
    }
}

/// Four requests hold the limit, whatever their protocol, and a fifth is rejected without a time to wait for.
#[tokio::test]
async fn a_client_that_disconnects_makes_room_for_the_next() {
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
