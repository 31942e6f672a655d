//! HTTP/2 attacks: bursts of streams, and streams that are reset as soon as they are opened (Rapid Reset,
//! CVE-2023-44487). Admitted requests stay charged, and nothing is leaked.
//!
//! hyper has its own bounds: 200 concurrent streams, and, in h2 0.4, 20 resets of streams that it has not accepted yet.
//! These clients stay within them where the layer itself is tested.

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};

use super::http2_client::{Connection, ENHANCE_YOUR_CALM, GOAWAY, REFUSED_STREAM, RST_STREAM};
use super::{Server, only, until};

const LIMIT: usize = 100;

async fn limited() -> Server {
    Server::http2(RateLimitLayer::new(only(100)), |_| ()).await
}

/// Whether one more request on a new connection is served.
async fn serves_one_more(server: &Server) -> bool {
    let mut connection = Connection::open(server.address, "/").await;
    let streams = connection.ask(1).await;
    let frames = connection.answers(&streams).await.remove(&streams[0]).unwrap();
    assert!(frames.last().unwrap().ends_stream(), "{frames:?}");
    frames[0].is_ok()
}

#[tokio::test]
async fn resets_get_no_more_than_the_limit() {
    // Once with immediate responses, and once with responses that never come.
    for path in ["/", "/never"] {
        let server = limited().await;
        let mut connection = Connection::open(server.address, path).await;
        for _ in 0..1_000 {
            connection.ask_and_reset(10).await.unwrap();
            let frames = connection.settle().await;
            assert!(!frames.iter().any(|frame| frame.kind == GOAWAY), "too fast for hyper: {frames:?}");
        }
        until(|| server.arrived() == 10_000 && server.under_way() == 0).await;
        assert_eq!(server.called(), LIMIT, "{path}");
        assert!(!serves_one_more(&server).await);
        assert_eq!(server.called(), LIMIT, "{path}");
    }
}

/// All resets come in one write.
#[tokio::test]
async fn resets_in_one_flight_are_limited() {
    let layer = || RateLimitLayer::new(only(100));
    let patient = Server::http2(layer(), |builder| {
        builder.max_pending_accept_reset_streams(10_000);
    })
    .await;
    let mut connection = Connection::open(patient.address, "/never").await;
    connection.ask_and_reset(10_000).await.unwrap();
    connection.settle().await;
    until(|| patient.arrived() == 10_000 && patient.under_way() == 0).await;
    assert_eq!(patient.called(), LIMIT);
    assert!(!serves_one_more(&patient).await);

    // With its default bounds, hyper closes such a connection before any request reaches the layer.
    let server = limited().await;
    let mut connection = Connection::open(server.address, "/never").await;
    // The connection may be closed during the write.
    let _ = connection.ask_and_reset(10_000).await;
    let mut goodbye = None;
    while let Some(frame) = connection.frame().await {
        goodbye = goodbye.or(frame.code().filter(|_| frame.kind == GOAWAY));
    }
    assert!(goodbye.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{goodbye:?}");
    until(|| server.under_way() == 0).await;
    assert_eq!(server.called(), server.arrived().min(LIMIT));
}

/// Exactly the burst is served, and no rejection makes clients retry automatically.
#[tokio::test]
async fn streams_in_one_flight_get_the_burst() {
    let server = Server::http2(RateLimitLayer::new(only(100)), |builder| {
        builder.max_concurrent_streams(500);
    })
    .await;
    let mut connection = Connection::open(server.address, "/").await;
    let streams = connection.ask(500).await;
    let answers = connection.answers(&streams).await;
    assert_eq!(answers.values().filter(|frames| frames[0].is_ok()).count(), LIMIT);
    assert_eq!((server.arrived(), server.called()), (500, LIMIT));
    for frames in answers.values() {
        assert!(frames.last().unwrap().ends_stream(), "{frames:?}");
    }

    // Three clients at once, each with the most streams that hyper allows by default.
    let server = limited().await;
    let mut connections = Vec::new();
    for count in [200, 200, 100] {
        let mut connection = Connection::open(server.address, "/").await;
        let streams = connection.ask(count).await;
        connections.push((connection, streams));
    }
    let mut served = 0;
    for (mut connection, streams) in connections {
        let answers = connection.answers(&streams).await;
        let frames = || answers.values().flatten();
        assert!(!frames().any(|frame| frame.kind == RST_STREAM && frame.code() == Some(REFUSED_STREAM)));
        served += answers.values().filter(|frames| frames[0].is_ok()).count();
    }
    assert_eq!((served, server.arrived(), server.called()), (LIMIT, 500, LIMIT));
}

#[tokio::test]
async fn reset_streams_leave_the_queue() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_hour(1)).max_queue(50).max_wait(Duration::MAX));
    let server = Server::http2(RateLimitLayer::new(Policy::new("queue", Arc::clone(&queue))), |_| ()).await;
    let mut connection = Connection::open(server.address, "/").await;
    let streams = connection.ask(200).await;
    until(|| server.arrived() == 200).await;
    assert_eq!((queue.waiting(), server.called()), (50, 1));
    connection.reset_all(&streams).await;
    until(|| queue.waiting() == 0).await;

    for _ in 0..100 {
        connection.ask_and_reset(10).await.unwrap();
        connection.settle().await;
    }
    until(|| server.arrived() == 1_200 && queue.waiting() == 0).await;
    assert_eq!(server.called(), 1);
    // The queue has room again.
    let streams = connection.ask(51).await;
    until(|| server.arrived() == 1_251).await;
    assert_eq!(queue.waiting(), 50);
    drop((connection, streams));
    until(|| queue.waiting() == 0).await;
}
