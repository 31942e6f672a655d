//! Responses in HTTP/2.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower_sluice::headers::{RateLimitFields, ResetForm, WaitFields};
use tower_sluice::key::{HeaderKey, PeerIp};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::rejection::{RejectionBody, RejectionFormat};
use tower_sluice::{FailureMode, Limiter, LimiterError, Policy, RateLimitLayer};

use super::http2_client::{DATA, END_STREAM, Frame, HEADERS, NO_ERROR, RST_STREAM};
use super::{Server, only, soon};

/// A socket that keeps a copy of the bytes that it reads.
struct Tap {
    socket: TcpStream,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Tap {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        self.heard.lock().unwrap().extend(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

struct Client {
    requests: SendRequest<Bytes>,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Client {
    async fn of(server: &Server) -> Self {
        let socket = TcpStream::connect(server.address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let heard = Arc::default();
        let (requests, connection) =
            soon(h2::client::handshake(Tap { socket, heard: Arc::clone(&heard) })).await.unwrap();
        tokio::spawn(connection);
        Self { requests, heard }
    }

    /// Sends a request's head. Returns the response, and the stream for the body.
    async fn begin(&self, request: Request<()>, is_all: bool) -> (Response<RecvStream>, SendStream<Bytes>) {
        let mut requests = soon(self.requests.clone().ready()).await.unwrap();
        let (response, sender) = requests.send_request(request, is_all).unwrap();
        (soon(response).await.unwrap(), sender)
    }

    /// Sends a request without a body. Returns the whole response. (h2 treats content in a response to HEAD as a
    /// protocol error.)
    async fn ask(&self, request: Request<()>) -> Response<String> {
        let (response, _) = self.begin(request, true).await;
        whole(response).await
    }

    /// The frames on a stream so far.
    fn heard_of(&self, stream: u32) -> Vec<Frame> {
        let heard = self.heard.lock().unwrap();
        let mut rest = heard.as_slice();
        let frames = std::iter::from_fn(|| {
            let (frame, after) = Frame::first_of(rest)?;
            rest = after;
            Some(frame)
        });
        frames.filter(|frame| frame.stream == stream).collect()
    }
}

async fn whole(response: Response<RecvStream>) -> Response<String> {
    let (parts, mut content) = response.into_parts();
    let mut text = String::new();
    while let Some(piece) = soon(content.data()).await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    assert!(content.is_end_stream());
    Response::from_parts(parts, text)
}

fn request(method: &str, fields: &[(&str, &str)]) -> Request<()> {
    let request = Request::builder().method(method).uri("http://test/upload");
    fields.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
}

/// The whole response comes first, and then a reset with NO_ERROR, since the rest of the body is not needed.
/// REFUSED_STREAM would make clients retry automatically.
#[tokio::test]
async fn an_upload_in_progress_is_rejected() {
    for (media_type, frames) in
        [("text/plain", [HEADERS, DATA, RST_STREAM].as_slice()), ("application/grpc", &[HEADERS, RST_STREAM])]
    {
        let server = Server::http2(RateLimitLayer::new(only(1)), |_| ()).await;
        let client = Client::of(&server).await;
        let upload = || request("POST", &[("content-type", media_type), ("content-length", "1000000")]);

        // A served upload, for comparison.
        let mut requests = soon(client.requests.clone().ready()).await.unwrap();
        let whole_upload = request("POST", &[("content-type", media_type), ("content-length", "4")]);
        let (served, mut sender) = requests.send_request(whole_upload, false).unwrap();
        sender.send_data("body".into(), true).unwrap();
        assert_eq!(whole(soon(served).await.unwrap()).await.body(), "4");
        let polled = server.polled();
        assert!(polled > 0);

        let mut requests = soon(client.requests.clone().ready()).await.unwrap();
        let (response, mut sender) = requests.send_request(upload(), false).unwrap();
        sender.send_data("the first of many pieces".into(), false).unwrap();
        let stream = sender.stream_id().as_u32();
        let rejected = whole(soon(response).await.unwrap()).await;
        let is_grpc = media_type == "application/grpc";
        assert_eq!(rejected.status(), if is_grpc { 200 } else { 429 });
        assert_eq!(rejected.headers()["retry-after"], "60");
        assert_eq!(rejected.body().is_empty(), is_grpc);
        assert_eq!(soon(poll_fn(|cx| sender.poll_reset(cx))).await.unwrap(), Reason::NO_ERROR);

        let heard = client.heard_of(stream);
        assert_eq!(heard.iter().map(|frame| frame.kind).collect::<Vec<_>>(), frames, "{heard:?}");
        let [.., last, reset] = heard.as_slice() else { unreachable!() };
        assert_eq!((last.flags & END_STREAM, reset.code()), (END_STREAM, Some(NO_ERROR)));
        assert_eq!((server.polled(), server.called()), (polled, 1));
        // The connection is still usable.
        assert_eq!(client.ask(request("GET", &[])).await.status(), 429);
    }
}

/// Otherwise it equals a rejected GET.
#[tokio::test]
async fn a_rejected_head_omits_the_content() {
    let custom = |length: Option<usize>| {
        RateLimitLayer::builder(only(1))
            .rejection_response(move |rejection, _| {
                let body = match length {
                    Some(length) => "x".repeat(length).into(),
                    None => RejectionBody::new(http_body_util::Full::<Bytes>::from("streamed")),
                };
                Response::builder().status(rejection.status()).body(body).unwrap()
            })
            .build()
    };
    let by = |format| RateLimitLayer::builder(only(1)).rejection_format(&format).build();
    for layer in [
        by(RejectionFormat::Problem),
        by(RejectionFormat::Text),
        by(RejectionFormat::Empty),
        custom(Some(100)),
        custom(Some(0)),
        custom(None),
    ] {
        let client = Client::of(&Server::http2(layer, |_| ()).await).await;
        assert_eq!(client.ask(request("GET", &[])).await.status(), 200);
        let rejected = client.ask(request("GET", &[])).await;
        let (head, sender) = client.begin(request("HEAD", &[]), true).await;
        let fields = |response: &Response<String>| {
            let mut fields = response.headers().clone();
            fields.remove("date");
            fields
        };
        let head = whole(head).await;
        assert_eq!((head.status(), fields(&head)), (rejected.status(), fields(&rejected)));
        assert_eq!(head.body(), "");
        let heard = client.heard_of(sender.stream_id().as_u32());
        assert!(matches!(heard.as_slice(), [frame] if frame.kind == HEADERS && frame.ends_stream()), "{heard:?}");
    }
}

struct Broken;

impl Limiter for Broken {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Answer::Ready(Err(LimiterError::new("out of order")))
    }
}

/// Names in lower case, values in ASCII, and no connection-specific fields (RFC 9113, section 8.2), in every response
/// from the layer.
#[tokio::test]
async fn all_responses_are_well_formed() {
    let key = || HeaderKey::from_static("x-key");
    let (missing, exhausted) = (request("GET", &[]), request("GET", &[("x-key", "a")]));
    let grpc = |media_type| request("POST", &[("x-key", "a"), ("content-type", media_type)]);
    let builder = || RateLimitLayer::builder(only(1).key(key()));
    let limited = || builder().build();
    let everything = RateLimitFields::draft11().x_ratelimit(ResetForm::EpochSeconds).partition_key();
    let mut seen = Vec::new();
    for (layer, requests) in [
        (limited(), vec![missing, exhausted.clone(), exhausted.clone(), grpc("application/grpc")]),
        (limited(), vec![grpc("application/grpc-web"), grpc("application/grpc-web-text")]),
        (builder().fields(RateLimitFields::draft07()).build(), vec![exhausted.clone(); 2]),
        (
            builder().fields(RateLimitFields::none().x_ratelimit(ResetForm::DeltaSeconds)).build(),
            vec![exhausted.clone(); 2],
        ),
        (
            builder().fields(everything).wait_fields(WaitFields::new().retry_after_ms()).build(),
            vec![exhausted.clone(); 2],
        ),
        (RateLimitLayer::new(only(1).key(PeerIp::new())), vec![exhausted.clone()]),
        (
            RateLimitLayer::new(Policy::new("p", std::sync::Arc::new(Broken)).on_failure(FailureMode::Reject)),
            vec![exhausted.clone()],
        ),
    ] {
        let client = Client::of(&Server::http2(layer, |_| ()).await).await;
        for request in requests {
            // h2 itself rejects upper-case letters in names as malformed.
            let answer = client.ask(request).await;
            for (name, value) in answer.headers() {
                assert!(value.as_bytes().iter().all(|byte| (b' '..=b'~').contains(byte)), "{name}: {value:?}");
            }
            for of_the_connection in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
                assert!(!answer.headers().contains_key(of_the_connection), "{of_the_connection}");
            }
            let retries = answer.headers().contains_key("retry-after");
            seen.push((answer.status().as_u16(), retries));
        }
    }
    let (served, rejected) = ((200, false), (429, true));
    let expected = [
        vec![(400, false), served, rejected, (200, true)],
        vec![served, (200, true)],
        vec![served, rejected],
        vec![served, rejected],
        vec![served, rejected],
        vec![(500, false)],
        vec![(503, true)],
    ];
    assert_eq!(seen, expected.concat());
}
