//! Clients that read slowly, or not at all. A request is in flight until the server has taken the body's last frame,
//! and a server takes a frame only if it can send it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::Request;
use http_body_util::BodyExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedSender};
use tower_sluice::Concurrency;

use super::{ESTIMATE, Protocol, Server, fetch, let_others_run, soon, until};

/// An HTTP/2 client that grants each response a send window, at first of zero bytes.
struct Client {
    sender: SendRequest<Bytes>,
    window: UnboundedSender<u32>,
}

impl Client {
    async fn connect(server: &Server) -> Self {
        let socket = TcpStream::connect(server.address).await.unwrap();
        let (sender, mut connection) = Builder::new().initial_window_size(0).handshake(socket).await.unwrap();
        let (window, mut sizes) = mpsc::unbounded_channel();
        let mut wanted = None;
        tokio::spawn(poll_fn(move |cx| {
            if let Poll::Ready(end) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(end);
            }
            while let Poll::Ready(Some(size)) = sizes.poll_recv(cx) {
                wanted = Some(size);
            }
            // Fails until the server has acknowledged earlier settings.
            if wanted.is_some_and(|size| connection.set_initial_window_size(size).is_ok()) {
                wanted = None;
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }));
        Self { sender, window }
    }

    async fn get(&mut self, path: &str) -> h2::RecvStream {
        soon(poll_fn(|cx| self.sender.poll_ready(cx))).await.unwrap();
        let request = Request::get(format!("http://test{path}")).body(()).unwrap();
        let (response, _) = self.sender.send_request(request, true).unwrap();
        let response = soon(response).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body()
    }
}

#[tokio::test]
async fn a_zero_http2_window_holds_the_request() {
    let mut server = Server::start(Concurrency::new(4)).await;
    let mut client = Client::connect(&server).await;
    let mut body = client.get("/download").await;
    let handled = server.handled().await;
    for frame in ["one", "two", "three"] {
        handled.write(frame);
    }
    handled.settle(3);
    let taken = Arc::clone(&handled.taken);
    let taken = || taken.load(Ordering::SeqCst);
    drop(handled);
    // The body is complete. The server may take one frame before it can send it, but not a second one.
    let_others_run().await;
    assert!(taken() <= 1 && server.limits.in_flight() == 1, "{}", taken());
    // Room for one byte.
    client.window.send(1).unwrap();
    until(|| taken() >= 1).await;
    let_others_run().await;
    assert!(taken() <= 2 && server.limits.in_flight() == 1, "{}", taken());
    client.window.send(1_000).unwrap();
    let mut content = Vec::new();
    while let Some(data) = soon(body.data()).await {
        content.extend(data.unwrap());
    }
    assert_eq!(content, b"onetwothree");
    server.limits.are_over((3, 11)).await;
}

#[tokio::test]
async fn zero_windows_hold_the_limit_until_reset() {
    let mut server = Server::start(Concurrency::new(4)).await;
    let mut client = Client::connect(&server).await;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let body = client.get("/download").await;
        let handled = server.handled().await;
        handled.write("never sent");
        readers.push((body, handled));
    }
    let_others_run().await;
    assert_eq!(server.limits.in_flight(), 4);
    assert_eq!(server.get(Protocol::Http2, "/").await.status(), 503);
    drop(readers);
    until(|| server.limits.in_flight() == 0).await;
    assert_eq!(server.limits.charged().0, 4 * ESTIMATE);
    assert_eq!(server.get(Protocol::Http2, "/").await.status(), 200);
}

/// The server has the whole content, which is one frame, and keeps it until the window lets it send.
#[tokio::test]
async fn a_zero_window_holds_one_frame() {
    let server = Server::start(Concurrency::new(1)).await;
    for requests in 1..4 {
        let mut client = Client::connect(&server).await;
        let mut body = client.get("/").await;
        let_others_run().await;
        assert_eq!(server.limits.in_flight(), 1);
        assert_eq!(server.get(Protocol::Http2, "/").await.status(), 503);
        client.window.send(1_000).unwrap();
        assert_eq!(soon(body.data()).await.unwrap().unwrap(), "hello");
        server.limits.are_over((3 * requests, 5 * requests)).await;
    }
}

/// The guide says: a server takes a whole frame even if it has room for only one byte.
#[tokio::test]
async fn a_partly_sent_last_frame_is_over() {
    let server = Server::start(Concurrency::new(1)).await;
    let mut client = Client::connect(&server).await;
    let body = client.get("/").await;
    let_others_run().await;
    assert_eq!(server.limits.in_flight(), 1);
    client.window.send(1).unwrap();
    server.limits.are_over((3, 5)).await;
    drop(body);
}

/// More than the system's and the server's buffers hold.
const FRAMES: usize = 1_024;
const FRAME: Bytes = Bytes::from_static(&[b'x'; 65_536]);

#[tokio::test]
async fn an_unread_http1_response_holds_the_request() {
    let mut server = Server::start(Concurrency::new(1)).await;
    let (response, handled) = server.download(Protocol::Http1).await;
    for _ in 0..FRAMES {
        handled.write(FRAME);
    }
    // The buffers fill up.
    until(|| handled.taken() > 1).await;
    for _ in 0..100 {
        assert_eq!(server.get(Protocol::Http1, "/").await.status(), 503);
    }
    assert!(handled.taken() < FRAMES, "the server has taken all");
    assert_eq!(server.limits.in_flight(), 1);
    drop(handled);
    let content = soon(response.into_body().collect()).await.unwrap().to_bytes();
    assert_eq!(content.len(), FRAMES * FRAME.len());
    server.limits.are_over((ESTIMATE, content.len() as u64)).await;
    assert_eq!(fetch(server.address, Protocol::Http1, "GET", "/").await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_disconnected_http1_reader_is_over() {
    let mut server = Server::start(Concurrency::new(1)).await;
    let (response, handled) = server.download(Protocol::Http1).await;
    for _ in 0..FRAMES {
        handled.write(FRAME);
    }
    until(|| handled.taken() > 1).await;
    drop(response);
    until(|| server.limits.in_flight() == 0).await;
    // The bytes that the server took from the body, which are more than the client got.
    let taken = (handled.taken() * FRAME.len()) as u64;
    assert_eq!(server.limits.charged(), (ESTIMATE, taken));
    assert!(handled.taken() < FRAMES);
}
