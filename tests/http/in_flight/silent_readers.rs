//! Clients that read nothing do not shut out the others: in real servers, an [`Overload`] takes back the units that
//! stalled bodies hold.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::Builder;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{ServiceBuilder, service_fn};
use tower_sluice::key::HeaderKey;
use tower_sluice::{Limiter, Overload, Policy, Quota, RateLimitLayer};

use super::{in_flight, serve};
use crate::wire::{soon, until};

const STREAMS: usize = 60;
const OTHERS: usize = 1_000;

/// A server whose response body is one frame.
async fn answering(layer: RateLimitLayer) -> SocketAddr {
    let answer = async |_| Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))));
    serve(ServiceBuilder::new().layer(layer).service(service_fn(answer))).await
}

/// Opens streams on one connection, whose window of zero keeps the server from sending a body. Returns how many 200s
/// came, and a guard that keeps the streams open.
async fn open_streams(address: SocketAddr) -> (usize, impl Sized) {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = Builder::new().initial_window_size(0).handshake::<_, Bytes>(socket).await.unwrap();
    tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..STREAMS {
        soon(poll_fn(|cx| sender.poll_ready(cx))).await.unwrap();
        let request = Request::get("http://test/").header("x-tenant", "silent").body(()).unwrap();
        responses.push(sender.send_request(request, true).unwrap().0);
    }
    let mut open = Vec::new();
    for response in responses {
        let response = soon(response).await.unwrap();
        if response.status() == 200 {
            open.push(response.into_body());
        }
    }
    (open.len(), (sender, open))
}

/// Sends requests on one connection, one after the other. Returns how many 200s came.
async fn get_all(address: SocketAddr) -> usize {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let mut served = 0;
    for _ in 0..OTHERS {
        let request = Request::get("/").header("host", "test").header("x-tenant", "other");
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        soon(sender.ready()).await.unwrap();
        let response = soon(sender.send_request(request)).await.unwrap();
        served += usize::from(response.status() == 200);
        soon(response.into_body().collect()).await.unwrap();
    }
    served
}

/// The default without a setting; with a key; and beside a rate limit, so that a request has two policies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_streams_do_not_shut_out_others() {
    for policies in [
        |overload: Policy| vec![overload],
        |overload: Policy| vec![overload.key(HeaderKey::from_static("x-tenant"))],
        |overload: Policy| vec![overload, Policy::new("quota", Quota::per_second(1_000_000))],
    ] {
        let limiter = Arc::new(Overload::new());
        let layer = RateLimitLayer::new(policies(Policy::new("overload", Arc::clone(&limiter))));
        let address = answering(layer).await;
        let streams = tokio::spawn(open_streams(address));
        until(|| in_flight(&*limiter) == 20).await;
        let served = get_all(address).await;
        let (open, streams) = streams.await.unwrap();
        assert!(served >= OTHERS * 99 / 100, "{served} of {OTHERS}");
        assert!((20..=STREAMS).contains(&open), "{open}");
        drop(streams);
        until(|| in_flight(&*limiter) == 0).await;
        assert_eq!(limiter.stats().backlog.unwrap().waiting(), 0);
    }
}
