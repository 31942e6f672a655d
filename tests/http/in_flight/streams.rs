//! Long framework responses: server-sent events, a gRPC stream, a WebSocket.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::sse::{Event, Sse};
use axum::routing::{any, get};
use axum::{Extension, Router};
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tower_sluice::limiter::RequestEnd;
use tower_sluice::policy::SettleError;
use tower_sluice::{Concurrency, Permits, RateLimitLayer, Settlement};

use super::{BOTH, Limits, Protocol, fetch, let_others_run, listen, next_piece, read, soon};
use crate::echo::{EchoReply, EchoRequest};

/// A stream's items: the test writes any number. One stream at a time.
pub(super) struct Source<T>(Arc<Mutex<Option<UnboundedReceiver<T>>>>);

impl<T> Clone for Source<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Source<T> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Prepares the next stream.
    pub(super) fn fill(&self) -> UnboundedSender<T> {
        let (items, stream) = mpsc::unbounded_channel();
        *self.0.lock().unwrap() = Some(stream);
        items
    }

    pub(super) fn stream(&self) -> UnboundedReceiverStream<T> {
        self.0.lock().unwrap().take().expect("prepared").into()
    }
}

/// Serves an axum app behind the limits.
pub(super) async fn serve(limits: &Limits, app: Router) -> SocketAddr {
    let app = app.layer(RateLimitLayer::new(limits.policies()));
    let (listener, address) = listen().await;
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn server_sent_events() {
    let limits = Limits::new(Concurrency::new(1));
    let source = Source::new();
    let events = source.clone();
    // The handler reports each event's cost as it is sent.
    let handler = async move |settlement: Settlement| {
        let mut units = 0;
        Sse::new(tokio_stream::StreamExt::map(events.stream(), move |text: &str| {
            units += 20;
            settlement.settle("units", units).expect("the stream is not over");
            Ok::<_, std::convert::Infallible>(Event::default().data(text))
        }))
    };
    let address = serve(&limits, Router::new().route("/events", get(handler))).await;
    let mut charged = (0, 0);
    for protocol in BOTH {
        // The server ends the stream.
        let events = source.fill();
        let mut response = fetch(address, protocol, "GET", "/events").await.unwrap();
        for _ in 0..3 {
            events.send("tick").unwrap();
            assert_eq!(next_piece(&mut response).await, "data: tick\n\n");
            let_others_run().await;
            assert_eq!(limits.in_flight(), 1);
        }
        assert_eq!(fetch(address, protocol, "GET", "/events").await.unwrap().status(), 503);
        drop(events);
        assert_eq!(read(response).await.unwrap().0, "");
        charged = (charged.0 + 60, charged.1 + 3 * 12);
        limits.are_over(charged).await;

        // The client ends it, between two events.
        let events = source.fill();
        let mut response = fetch(address, protocol, "GET", "/events").await.unwrap();
        events.send("tick").unwrap();
        next_piece(&mut response).await;
        drop(response);
        charged = (charged.0 + 20, charged.1 + 12);
        limits.are_over(charged).await;
        assert!(events.is_closed());
    }
}

const COUNT: &str = "/sluice.example.v1.Echo/Count";

type Replies = Source<Result<EchoReply, Status>>;

/// Handles a call whose server streams, and reports a cost of 25.
async fn stream_replies(
    replies: Replies,
    request: http::Request<axum::body::Body>,
) -> http::Response<tonic::body::Body> {
    let service = service_fn(move |request: tonic::Request<EchoRequest>| {
        let settlement = request.extensions().get::<Settlement>().cloned();
        let replies = replies.clone();
        async move {
            if request.get_ref().message == "fail" {
                return Err(Status::unavailable("as planned"));
            }
            let replies = replies.stream();
            settlement.expect("tonic passes it on").settle("units", 25).unwrap();
            Ok::<_, Status>(tonic::Response::new(replies))
        }
    });
    let mut server = tonic::server::Grpc::new(ProstCodec::<EchoReply, EchoRequest>::default());
    server.server_streaming(service, request).await
}

/// A gRPC stream ends with its trailers, which have its status.
#[tokio::test]
async fn a_grpc_stream_of_the_server() {
    let limits = Limits::new(Concurrency::new(1));
    let replies = Replies::new();
    let handler = {
        let replies = replies.clone();
        move |request| stream_replies(replies.clone(), request)
    };
    let address = serve(&limits, Router::new().route(COUNT, any(handler))).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let call_with = async |message: &str| {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let request = tonic::Request::new(EchoRequest { message: message.to_owned() });
        let codec = ProstCodec::<EchoRequest, EchoReply>::default();
        soon(client.server_streaming(request, PathAndQuery::from_static(COUNT), codec)).await
    };
    let call = || call_with("");
    let reply = || EchoReply { message: "ten bytes!".to_owned() };
    // gRPC's frame takes five bytes, and the field two.
    let length = 17;

    for (end, known_end) in [
        (None, RequestEnd::Served),
        (Some(Status::aborted("half way")), RequestEnd::Served),
        (Some(Status::resource_exhausted("half way")), RequestEnd::Served),
        (Some(Status::internal("half way")), RequestEnd::Failed),
    ] {
        let limits_before = limits.charged();
        let items = replies.fill();
        let mut stream = call().await.unwrap().into_inner();
        for _ in 0..3 {
            items.send(Ok(reply())).unwrap();
            assert_eq!(soon(stream.message()).await.unwrap(), Some(reply()));
            let_others_run().await;
            assert_eq!(limits.in_flight(), 1);
        }
        assert_eq!(call().await.unwrap_err().code(), Code::ResourceExhausted);
        let failure = end.as_ref().map(Status::code);
        if let Some(status) = end {
            items.send(Err(status)).unwrap();
        }
        drop(items);
        match soon(stream.message()).await {
            Ok(message) => assert!(message.is_none() && failure.is_none()),
            Err(status) => assert_eq!(Some(status.code()), failure),
        }
        limits.are_over((limits_before.0 + 25, limits_before.1 + 3 * length)).await;
        // The last end belongs to the rejected call, which never began.
        assert_eq!(limits.ends.take().last(), Some(&Some(known_end)), "{failure:?}");
    }

    // The client goes.
    let (units, bytes) = limits.charged();
    let items = replies.fill();
    let mut stream = call().await.unwrap().into_inner();
    items.send(Ok(reply())).unwrap();
    soon(stream.message()).await.unwrap();
    drop(stream);
    limits.are_over((units + 25, bytes + length)).await;
    assert_eq!(limits.end(), Some(RequestEnd::CutOff));

    // The server fails before it streams, so its status is in the head.
    assert_eq!(call_with("fail").await.unwrap_err().code(), Code::Unavailable);
    super::until(|| limits.in_flight() == 0).await;
    assert_eq!(limits.end(), Some(RequestEnd::Failed));
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message @ Message::Text(_))) = socket.recv().await {
        if socket.send(message).await.is_err() {
            break;
        }
    }
}

/// A WebSocket in the bytes that RFC 6455 defines.
struct Socket(TcpStream);

impl Socket {
    async fn open(address: SocketAddr, path: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let head = "host: test\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        socket.write_all(format!("GET {path} HTTP/1.1\r\n{head}\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(soon(socket.read_u8()).await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        Self(socket)
    }

    /// Sends a text, masked with zeros, and awaits its echo.
    async fn talk(&mut self) {
        self.0.write_all(b"\x81\x85\0\0\0\0hello").await.unwrap();
        let mut echo = [0; 7];
        soon(self.0.read_exact(&mut echo)).await.unwrap();
        assert_eq!(&echo, b"\x81\x05hello");
    }

    /// Sends a close frame.
    async fn say_goodbye(&mut self) {
        self.0.write_all(b"\x88\x80\0\0\0\0").await.unwrap();
    }
}

/// Its handler has taken the permits, so it is in flight until it closes.
#[tokio::test]
async fn a_websocket_with_permits_is_in_flight() {
    let limits = Limits::new(Concurrency::new(2));
    let taking = |Extension(permits): Extension<Permits>, upgrade: WebSocketUpgrade| async move {
        let taken = permits.take();
        upgrade.on_upgrade(async move |socket| {
            echo(socket).await;
            drop(taken);
        })
    };
    let address = serve(&limits, Router::new().route("/socket", any(taking))).await;
    for closes in [true, false] {
        let mut sockets = [Socket::open(address, "/socket").await, Socket::open(address, "/socket").await];
        for socket in &mut sockets {
            socket.talk().await;
        }
        assert_eq!(limits.in_flight(), 2);
        assert_eq!(fetch(address, Protocol::Http1, "GET", "/socket").await.unwrap().status(), 503);
        if closes {
            for socket in &mut sockets {
                socket.say_goodbye().await;
            }
        } else {
            drop(sockets);
        }
        super::until(|| limits.in_flight() == 0).await;
    }
}

/// The response that begins an upgrade ends at once, and its cost is final.
#[tokio::test]
async fn a_websocket_without_permits_ends_on_opening() {
    let limits = Limits::new(Concurrency::new(1));
    let (report, reported) = mpsc::unbounded_channel();
    let leaving = move |settlement: Settlement, upgrade: WebSocketUpgrade| async move {
        settlement.settle("units", 2).unwrap();
        upgrade.on_upgrade(async move |socket| {
            echo(socket).await;
            report.send(settlement.settle("units", 1_000)).unwrap();
        })
    };
    let address = serve(&limits, Router::new().route("/socket", any(leaving))).await;
    let mut sockets = Vec::new();
    for sockets_before in 0..3 {
        let mut socket = Socket::open(address, "/socket").await;
        socket.talk().await;
        limits.are_over((2 * (sockets_before + 1), 0)).await;
        sockets.push(socket);
    }
    drop(sockets);
    let mut reported = reported;
    for _ in 0..3 {
        assert_eq!(soon(reported.recv()).await, Some(Err(SettleError::Ended)));
    }
    limits.are_over((6, 0)).await;
}
