//! The layers in axum, hyper, tonic and custom clients.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{HeaderKey, PathKey, PeerIp};
use tower_sluice::layer::RateLimit;
use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer, Verdict};

fn two_per_hour() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(2))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn fetch(address: SocketAddr, path: &str) -> Response<hyper::body::Incoming> {
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    client.get(format!("http://{address}{path}").parse().unwrap()).await.unwrap()
}

async fn statuses(address: SocketAddr, paths: &[&str]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for path in paths {
        statuses.push(fetch(address, path).await.status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn an_axum_app_is_limited_by_peer() {
    let layer = RateLimitLayer::new(Policy::new("per-client", two_per_hour()).key(PeerIp::new()));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let (listener, address) = listen().await;
    tokio::spawn(async { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await });
    assert_eq!(statuses(address, &["/", "/", "/"]).await, [200, 200, 429]);
    assert_eq!(fetch(address, "/").await.headers()["retry-after"], "1800");
}

/// The response does not disclose the cure.
#[tokio::test]
async fn axum_without_peer_addresses_answers_500() {
    let layer = RateLimitLayer::new(Policy::new("per-client", two_per_hour()).key(PeerIp::new()));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(response.status(), 500);
    let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
    let detail = "The server is misconfigured.";
    assert!(String::from_utf8_lossy(&body).contains(detail), "{body:?}");
}

/// axum's `MockConnectInfo` stands in for `ConnectInfo`. A test that used it was answered 500.
#[tokio::test]
async fn a_mocked_peer_yields_to_real_ones() {
    let mocked = |layer: &RateLimitLayer, address: [u8; 4]| {
        let app = Router::new().route("/", get(|| async { "hello" })).layer(layer.clone());
        app.layer(MockConnectInfo(SocketAddr::from((address, 4_711))))
    };
    let layer = RateLimitLayer::new(Policy::new("per-client", two_per_hour()).key(PeerIp::new()));
    let mut answered = Vec::new();
    for address in [[192, 0, 2, 1], [192, 0, 2, 1], [192, 0, 2, 1], [192, 0, 2, 2]] {
        let response = mocked(&layer, address).oneshot(Request::new(Body::empty())).await.unwrap();
        answered.push(response.status().as_u16());
    }
    assert_eq!(answered, [200, 200, 429, 200]);

    // Left in by mistake: the connection's address counts, and it has not sent anything yet.
    let app = mocked(&layer, [192, 0, 2, 1]);
    let (listener, address) = listen().await;
    tokio::spawn(async { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await });
    assert_eq!(statuses(address, &["/", "/", "/"]).await, [200, 200, 429]);
}

#[tokio::test]
async fn spellings_of_a_route_are_one_key() {
    let layer = RateLimitLayer::new(Policy::new("per-route", two_per_hour()).key(PathKey::matched()));
    let app = Router::new()
        .route("/users/{id}", get(|| async { "a user" }))
        .route("/about", get(|| async { "about" }))
        .layer(layer);
    let mut answered = Vec::new();
    for path in ["/users/1", "/users/2?x=y", "/users/%33", "/about", "/nothing", "/nowhere", "/no-place"] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        answered.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    // All clients share a route's budget, hence 503.
    assert_eq!(answered, [200, 200, 503, 200, 404, 404, 503]);
}

#[tokio::test]
async fn layers_go_on_routes_and_builders() {
    let strict = RateLimitLayer::builder(Policy::new("strict", TokenBucket::new(Quota::per_hour(1)))).verdict().build();
    let loose = RateLimitLayer::builder(Policy::new("loose", TokenBucket::new(Quota::per_hour(100)))).verdict().build();
    let app = Router::new()
        .route("/strict", get(|| async { "once" }).layer(strict))
        .route("/loose", get(|| async { "often" }))
        .layer(ServiceBuilder::new().layer(loose));
    let ask = |path: &'static str| app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
    assert_eq!(ask("/strict").await.unwrap().status(), 200);
    let rejected = ask("/strict").await.unwrap();
    assert_eq!(rejected.status(), 503);
    let verdict = rejected.extensions().get::<Verdict>().unwrap();
    assert_eq!(verdict.policies().iter().map(|policy| policy.name()).collect::<Vec<_>>(), ["loose", "strict"]);
    assert_eq!(ask("/loose").await.unwrap().status(), 200);
}

/// The type can be written down, and a limiter chosen at run time.
#[tokio::test]
async fn a_struct_can_hold_the_layer() {
    struct Limited {
        service: RateLimit<tower::util::BoxCloneSyncService<Request<()>, Response<String>, Infallible>>,
    }
    let inner = service_fn(|_: Request<()>| async { Ok(Response::new("hello".to_owned())) });
    let layer = RateLimitLayer::new(Policy::new("p", two_per_hour()));
    let limited = Limited { service: layer.layer(tower::util::BoxCloneSyncService::new(inner)) };
    assert_eq!(limited.service.oneshot(Request::new(())).await.unwrap().status(), 200);
}

#[tokio::test]
async fn plain_hyper_uses_the_extensions_socket_address() {
    let layer = RateLimitLayer::new(Policy::new("per-client", two_per_hour()).key(PeerIp::new()));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        loop {
            let (socket, peer) = listener.accept().await.unwrap();
            let hello = service_fn(|_: Request<hyper::body::Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
            });
            let limited = layer.layer(hello);
            let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(peer);
                limited.clone().oneshot(request)
            });
            tokio::spawn(async move {
                let service = TowerToHyperService::new(service);
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await
            });
        }
    });
    assert_eq!(statuses(address, &["/", "/", "/"]).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_tonic_server_is_limited() {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let layer = RateLimitLayer::new([
        Policy::new("per-key", two_per_hour()).key(HeaderKey::from_static("x-api-key")),
        Policy::new("queue", LeakyQueue::new(Quota::per_second(1_000))),
    ]);
    let (listener, address) = listen().await;
    tokio::spawn(
        tonic::transport::Server::builder()
            .layer(layer)
            .add_service(health)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut check = async |key: &'static str| {
        let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
        client.check(request).await
    };
    assert!(check("a").await.is_ok());
    assert!(check("a").await.is_ok());
    // `grpc.rs` tests the status in detail.
    assert_eq!(check("a").await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert!(check("b").await.is_ok());
}

/// Data other than `Bytes`, and `BoxBody`, which requires `Sync`.
#[tokio::test]
async fn response_data_and_sync_follow_the_service() {
    use http_body_util::BodyExt;
    use http_body_util::combinators::BoxBody;

    let layer = RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(1))))
        .rejection_response(
            // axum's body is not `Sync`.
            |_, _| Response::builder().status(429).body(Body::from("slow down")).unwrap(),
        )
        .build();
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<std::collections::VecDeque<u8>>::default().map_frame(|frame| {
            frame.map_data(|data| data.into_iter().collect::<Vec<u8>>()).map_data(std::io::Cursor::new).map_data(Data)
        })))
    }));
    for expected in ["", "slow down"] {
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        let body: BoxBody<Data, Infallible> = response.into_body().boxed();
        assert_eq!(body.collect().await.unwrap().to_bytes(), expected);
    }
}

/// A custom data type.
struct Data(std::io::Cursor<Vec<u8>>);

impl bytes::Buf for Data {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.0.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self(std::io::Cursor::new(bytes.to_vec()))
    }
}
