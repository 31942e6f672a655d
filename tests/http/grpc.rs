//! Rejections in gRPC over real sockets, beside HTTP clients on one port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::routing::{any, get};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, Version};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{HeaderKey, PeerIp, User};
use tower_sluice::layer::ResponseBody;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::{FailureMode, LeakyQueue, Limiter, LimiterError, Policy, Quota, RateLimitLayer, Verdict};

use crate::echo::{EchoReply, EchoRequest};

const CHECK: &str = "/grpc.health.v1.Health/Check";

fn per_client(quota: Quota) -> RateLimitLayer {
    RateLimitLayer::new(Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new()))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// tonic's own server, limited.
async fn tonic_server(layer: RateLimitLayer) -> SocketAddr {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let (listener, address) = listen().await;
    let server = tonic::transport::Server::builder().accept_http1(true).layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// axum serves a page and a gRPC service on one port.
async fn axum_server(layer: RateLimitLayer) -> SocketAddr {
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(crate::echo::PATH, any(crate::echo::echo))
        .layer(layer);
    let (listener, address) = listen().await;
    tokio::spawn(async { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await });
    address
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn check(address: SocketAddr) -> Result<(), Status> {
    let request = HealthCheckRequest { service: String::new() };
    HealthClient::new(connect(address).await).check(request).await.map(|_| ())
}

async fn call_echo(address: SocketAddr, message: &str) -> Result<String, Status> {
    let mut client = tonic::client::Grpc::new(connect(address).await);
    client.ready().await.unwrap();
    let request = tonic::Request::new(EchoRequest { message: message.to_owned() });
    let codec = ProstCodec::<EchoRequest, EchoReply>::default();
    let reply = client.unary(request, PathAndQuery::from_static(crate::echo::PATH), codec).await?;
    Ok(reply.into_inner().message)
}

/// Sends one request in HTTP/2, without a gRPC library in between.
async fn post<B>(address: SocketAddr, path: &str, content_type: &str, body: B) -> Response<hyper::body::Incoming>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("http://{address}{path}");
    let request = Request::post(uri).header("content-type", content_type).body(body).unwrap();
    sender.send_request(request).await.unwrap()
}

/// Checks the properties that every gRPC rejection over HTTP/2 has, on any server.
async fn is_trailers_only(response: Response<hyper::body::Incoming>) -> HeaderMap {
    assert_eq!(response.status(), 200);
    // END_STREAM came with the header block, so there was no DATA frame and no trailers.
    assert!(http_body::Body::is_end_stream(response.body()));
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    assert_eq!(body.trailers(), None);
    assert_eq!(body.to_bytes().len(), 0);
    for name in ["grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms", "content-type"] {
        assert_eq!(parts.headers.get_all(name).iter().count(), 1, "{name}");
    }
    assert_eq!(parts.headers.get("content-length"), None);
    parts.headers
}

#[tokio::test]
async fn a_tonic_client_gets_the_wait() {
    // tonic reports the peer's address, which is the key.
    let address = tonic_server(per_client(Quota::per_hour(2))).await;
    check(address).await.unwrap();
    check(address).await.unwrap();
    let status = check(address).await.unwrap_err();

    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().starts_with("The limit is used up; retry in 1"), "{}", status.message());
    let pushback: Vec<_> = status.metadata().get_all("grpc-retry-pushback-ms").iter().collect();
    let [pushback] = pushback[..] else { panic!("{pushback:?}") };
    let pushback: u128 = pushback.to_str().unwrap().parse().unwrap();
    assert!((1_700_000..=1_800_000).contains(&pushback), "{pushback}");

    let details = status.get_error_details();
    let wait = details.retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(pushback, wait.as_nanos().div_ceil(1_000_000));
    let violations = &details.quota_failure().unwrap().violations;
    assert_eq!((violations.len(), violations[0].subject.as_str()), (1, "per-client"));
    assert_eq!(violations[0].description, "0 of 2 left");
    // The status in the details equals the outer one.
    let inner = <tonic_types::Status as prost::Message>::decode(status.details()).unwrap();
    assert_eq!((inner.code, inner.message.as_str()), (8, status.message()));

    // The fields for HTTP clients are there as well.
    let exact = status.metadata().get("x-rate-limited-for").unwrap().to_str().unwrap();
    let (retry_after, exact): (f64, f64) =
        (status.metadata().get("retry-after").unwrap().to_str().unwrap().parse().unwrap(), exact.parse().unwrap());
    assert!(exact <= retry_after && retry_after < exact + 1.0, "{exact} {retry_after}");
    assert_eq!(status.metadata().get("cache-control").unwrap(), "no-store");
}

#[tokio::test]
async fn a_rejection_is_one_header_block() {
    let quota = Quota::per_hour(1);
    for (address, path) in
        [(tonic_server(per_client(quota)).await, CHECK), (axum_server(per_client(quota)).await, crate::echo::PATH)]
    {
        let _admitted = post(address, path, "application/grpc", Empty::new()).await;
        let rejected = post(address, path, "application/grpc+proto", Empty::new()).await;
        let fields = is_trailers_only(rejected).await;
        assert_eq!(fields["grpc-status"], "8");
        assert_eq!(fields["content-type"], "application/grpc");
    }
}

#[tokio::test]
async fn grpc_web_rejections_keep_their_content_type() {
    let address = axum_server(per_client(Quota::per_hour(1))).await;
    let ask = async |content_type: &str| {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(crate::echo::PATH).header("host", "test").header("content-type", content_type);
        sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap()
    };
    let admitted = ask("application/grpc-web").await;
    assert_eq!(admitted.headers()["content-type"], "application/grpc-web+proto");
    for (asked, expected) in [
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc-web-text+proto;charset=utf-8", "application/grpc-web-text+proto"),
    ] {
        let rejected = ask(asked).await;
        assert_eq!(rejected.status(), 200);
        assert_eq!(rejected.headers()["content-type"], expected);
        assert_eq!(rejected.headers()["grpc-status"], "8");
        assert_eq!(rejected.headers().get_all("grpc-retry-pushback-ms").iter().count(), 1);
        // HTTP/1 needs the response length.
        assert_eq!(rejected.headers()["content-length"], "0");
        assert_eq!(rejected.into_body().collect().await.unwrap().to_bytes().len(), 0);
    }
    assert_eq!(ask("application/grpcfoo").await.status(), 429);
}

/// They share a budget, too, but each gets rejections in its own form.
#[tokio::test]
async fn http_and_grpc_share_a_port() {
    let address = axum_server(per_client(Quota::per_hour(3))).await;
    let page = async || post(address, "/", "text/plain", Empty::new()).await;
    assert_eq!(page().await.status(), 405);
    assert_eq!(call_echo(address, "hello").await.unwrap(), "hello");
    assert_eq!(call_echo(address, "").await.unwrap(), "");
    assert_eq!(call_echo(address, "hello").await.unwrap_err().code(), Code::ResourceExhausted);
    let rejected = page().await;
    assert_eq!((rejected.status().as_u16(), rejected.headers().get("grpc-status")), (429, None));
    assert_eq!(rejected.headers()["content-type"], "application/problem+json");
}

/// The request body never ends, and its first byte is never polled.
#[tokio::test]
async fn a_stream_is_rejected_before_polling() {
    struct Unread;
    impl Body for Unread {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            panic!("polled before the decision");
        }
    }
    let layer = RateLimitLayer::builder(Policy::new("shared", TokenBucket::new(Quota::per_hour(1)))).verdict().build();
    let service = layer
        .layer(service_fn(|_: Request<Unread>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }));
    let ask = || service.clone().oneshot(call(Unread));
    assert_eq!(ask().await.unwrap().headers().get("grpc-status"), None);
    let rejected = ask().await.unwrap();
    assert!(!rejected.extensions().get::<Verdict>().unwrap().is_allowed());
    // All clients share this limit, which would be 503 in HTTP. In gRPC it is RESOURCE_EXHAUSTED.
    assert_eq!(rejected.headers()["grpc-status"], "8");

    /// A request stream that stays open and silent.
    struct Silent;
    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }
    let address = tonic_server(per_client(Quota::per_hour(1))).await;
    check(address).await.unwrap();
    is_trailers_only(post(address, CHECK, "application/grpc", Silent).await).await;
}

/// A limiter whose store is unreachable.
struct Broken;

impl Limiter for Broken {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Answer::Ready(Err(LimiterError::new("out of reach")))
    }
}

/// A gRPC request in the form that a server passes to the layer.
fn call<B>(body: B) -> Request<B> {
    let head = Request::post("/a.B/C").version(Version::HTTP_2).header("content-type", "application/grpc");
    head.body(body).unwrap()
}

/// Sends a gRPC request and returns the headers with which the layer responds.
async fn answer(layer: &RateLimitLayer, fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let service = layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    let mut request = call(());
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    let response: Response<ResponseBody<String>> = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_parts().0.headers
}

#[tokio::test]
async fn other_reasons_have_other_codes() {
    let bucket = || TokenBucket::new(Quota::per_hour(5));
    let rejection = async |policy: Policy, fields: &[(&'static str, &'static str)]| {
        let headers = answer(&RateLimitLayer::new(policy), fields).await;
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        let status = Status::from_header_map(&headers).unwrap();
        assert!(status.get_details_quota_failure().is_none());
        let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
        (status.code(), text("grpc-retry-pushback-ms"), wait)
    };
    let by_key = || Policy::new("by-key", bucket()).key(HeaderKey::from_static("x-api-key"));
    let twice = [("x-api-key", "a"), ("x-api-key", "b")];
    assert_eq!(rejection(by_key(), &[]).await, (Code::InvalidArgument, "-1".into(), None));
    assert_eq!(rejection(by_key(), &twice).await, (Code::InvalidArgument, "-1".into(), None));
    let by_peer = Policy::new("by-peer", bucket()).key(PeerIp::new());
    assert_eq!(rejection(by_peer, &[]).await, (Code::Internal, "-1".into(), None));
    let broken = Policy::new("broken", std::sync::Arc::new(Broken)).on_failure(FailureMode::Reject);
    assert_eq!(rejection(broken, &[]).await, (Code::Unavailable, "1000".into(), Some(Duration::from_secs(1))));
}

#[tokio::test]
async fn a_cost_that_never_fits_forbids_retries() {
    let dear = Policy::new("dear", TokenBucket::new(Quota::per_hour(5))).cost_fn(|_| 6);
    let headers = answer(&RateLimitLayer::new(dear), &[]).await;
    assert_eq!(headers["grpc-status"], "8");
    assert_eq!(headers["grpc-retry-pushback-ms"], "-1");
    let status = Status::from_header_map(&headers).unwrap();
    assert!(status.get_details_retry_info().is_none());
    assert_eq!(status.get_details_quota_failure().unwrap().violations[0].subject, "dear");
}

#[tokio::test]
async fn a_custom_response_is_for_http_only() {
    let policy = Policy::new("per-client", TokenBucket::new(Quota::per_hour(1))).key(PeerIp::new());
    let layer = RateLimitLayer::builder(policy)
        .rejection_response(|_, _| Response::builder().status(418).body("no coffee").unwrap())
        .build();
    let address = axum_server(layer).await;
    assert_eq!(call_echo(address, "first").await.unwrap(), "first");
    assert_eq!(call_echo(address, "second").await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(post(address, "/", "text/plain", Empty::new()).await.status(), 418);
}

#[tokio::test(start_paused = true)]
async fn deadlines_that_pass_in_queue_reject_immediately() {
    let queue = || Policy::new("queue", LeakyQueue::new(Quota::per_second(1)));
    let wide = Policy::new("wide", TokenBucket::new(Quota::per_hour(1_000)));
    let [layer, several] = [RateLimitLayer::new(queue()), RateLimitLayer::new([wide, queue()])];
    let start = tokio::time::Instant::now();
    for layer in [&layer, &several] {
        assert!(!answer(layer, &[]).await.contains_key("grpc-status"));
        let headers = answer(layer, &[("grpc-timeout", "600m")]).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(headers["grpc-status"], "8");
        assert_eq!(headers["grpc-retry-pushback-ms"], "401");
    }
    tokio::time::advance(Duration::from_millis(401)).await;
    assert!(!answer(&layer, &[("grpc-timeout", "600m")]).await.contains_key("grpc-status"));
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    // A request without a deadline waits.
    assert!(!answer(&layer, &[]).await.contains_key("grpc-status"));
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

/// This order is the reverse of axum's `Router::layer`: a limit before the layer that inserts the user finds no user.
#[tokio::test]
async fn tonics_first_layer_is_the_outermost() {
    let authenticate = InterceptorLayer::new(|mut request: tonic::Request<()>| {
        request.extensions_mut().insert(User::new("ada"));
        Ok::<_, Status>(request)
    });
    let limit = || RateLimitLayer::new(Policy::new("per-user", TokenBucket::new(Quota::per_hour(1))).key(User::key()));
    let health = || async {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
        health
    };
    let (listener, right) = listen().await;
    let mut server = tonic::transport::Server::builder().layer(authenticate).layer(limit());
    tokio::spawn(server.add_service(health().await).serve_with_incoming(TcpListenerStream::new(listener)));
    let (listener, wrong) = listen().await;
    let mut server = tonic::transport::Server::builder().layer(limit()).layer(authenticate);
    tokio::spawn(server.add_service(health().await).serve_with_incoming(TcpListenerStream::new(listener)));

    check(right).await.unwrap();
    assert_eq!(check(right).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(check(wrong).await.unwrap_err().code(), Code::InvalidArgument);
}
