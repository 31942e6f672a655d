//! Clients that leave before a stream ends pay for exactly the units that were sent to them.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Router, response::IntoResponse};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpSocket;
use tower_sluice::{Concurrency, Settlement};

use super::streams::{Source, serve};
use super::{BOTH, Limits, fetch, listen, next_piece, read};
use crate::wire::until;

/// Streams words, and reports each one before it is sent.
async fn chat(State(words): State<Source<&'static str>>, settlement: Settlement) -> Body {
    let units = settlement.meter("units").expect("the request was charged");
    Body::from_stream(words.stream().map(move |word| {
        units.add(1);
        Ok::<_, Infallible>(Bytes::from(word))
    }))
}

/// Over HTTP/1.1 the client closes the connection, over HTTP/2 it resets the stream.
#[tokio::test]
async fn a_leaving_client_pays_for_sent_units() {
    let limits = Limits::new(Concurrency::new(1));
    let source = Source::new();
    let address = serve(&limits, Router::new().route("/chat", get(chat)).with_state(source.clone())).await;
    let mut charged = (0, 0);
    for protocol in BOTH {
        // Before the first word, after the first byte, half way, and two words before the end.
        for count in [0, 1, 50, 98] {
            let words = source.fill();
            let mut response = fetch(address, protocol, "GET", "/chat").await.unwrap();
            for _ in 0..count {
                words.send("word").unwrap();
                assert_eq!(next_piece(&mut response).await, "word");
            }
            drop(response);
            charged = (charged.0 + count, charged.1 + 4 * count);
            limits.are_over(charged).await;
            assert!(words.is_closed());
        }
        // To the end.
        let words = source.fill();
        (0..100).for_each(|_| words.send("word").unwrap());
        drop(words);
        let response = fetch(address, protocol, "GET", "/chat").await.unwrap();
        assert_eq!(read(response).await.unwrap().0, "word".repeat(100));
        charged = (charged.0 + 100, charged.1 + 400);
        limits.are_over(charged).await;
    }
}

/// The handler from the guide's page `real_costs`: counts an upstream server's events as they pass.
async fn relay(
    State((model, address)): State<(Client<HttpConnector, Body>, SocketAddr)>,
    settlement: Settlement,
) -> Result<impl IntoResponse, StatusCode> {
    let tokens = settlement.meter("units").ok();
    let uri = format!("http://{address}/events").parse().unwrap();
    let answer = model.get(uri).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let mut line = Vec::new();
    let events = answer.into_body().into_data_stream().inspect_ok(move |chunk| {
        for byte in chunk {
            match byte {
                b'\n' if line.starts_with(b"data:") => {
                    tokens.iter().for_each(|tokens| tokens.add(1));
                    line.clear();
                }
                b'\n' => line.clear(),
                byte if line.len() < 5 => line.push(*byte),
                _ => {}
            }
        }
    });
    Ok(Body::from_stream(events))
}

/// A chunk that the upstream server sends next; `None` is a failure.
type Chunk = Option<&'static str>;

async fn server_behind(source: Source<Chunk>) -> SocketAddr {
    let events = async move |State(source): State<Source<Chunk>>| {
        Body::from_stream(source.stream().map(|chunk| chunk.ok_or(std::io::Error::other("as planned"))))
    };
    let (listener, address) = listen().await;
    let app = Router::new().route("/events", get(events)).with_state(source);
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn upstream_events_are_charged_as_they_pass() {
    let limits = Limits::new(Concurrency::new(1));
    let source = Source::new();
    let behind = server_behind(source.clone()).await;
    let model = Client::builder(TokioExecutor::new()).build_http();
    let app = |behind| Router::new().route("/chat", get(relay)).with_state((model.clone(), behind));
    let address = serve(&limits, app(behind)).await;
    let mut charged = (0, 0);
    for protocol in BOTH {
        for leaves in [true, false] {
            let events = source.fill();
            let mut response = fetch(address, protocol, "GET", "/chat").await.unwrap();
            // Two events, one of them in two chunks.
            for chunk in ["data: one\n\nda", "ta: two\n\nevent: x"] {
                events.send(Some(chunk)).unwrap();
                assert_eq!(next_piece(&mut response).await, chunk);
                charged.1 += chunk.len() as u64;
            }
            charged.0 += 2;
            if leaves {
                drop(response);
                limits.are_over(charged).await;
                until(|| events.is_closed()).await;
            } else {
                events.send(None).unwrap();
                read(response).await.unwrap_err();
                limits.are_over(charged).await;
            }
        }
    }

    // No process listens there, and the bound port keeps others from doing so.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nowhere = socket.local_addr().unwrap();
    let limits = Limits::new(Concurrency::new(1));
    let address = serve(&limits, app(nowhere)).await;
    assert_eq!(fetch(address, BOTH[0], "GET", "/chat").await.unwrap().status(), 502);
    limits.are_over((0, 0)).await;
}
