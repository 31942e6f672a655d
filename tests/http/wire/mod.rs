//! The layer in hyper's servers, tested byte by byte and frame by frame.

mod expect;
mod http1_client;
mod http1_responses;
mod http2_client;
mod http2_responses;
mod resets;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceBuilder;
use tower::util::BoxCloneSyncService;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::layer::ResponseBody;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter};

/// Counts requests, by how far they came.
#[derive(Default)]
struct Seen {
    /// Requests that reached the layer.
    arrived: AtomicUsize,
    /// Requests that reached the inner service.
    called: AtomicUsize,
    /// Responses that the inner service has not finished.
    under_way: AtomicUsize,
    /// How often request bodies were polled.
    polled: AtomicUsize,
}

struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
}

type Limited = BoxCloneSyncService<Request<Incoming>, Response<ResponseBody<Full<Bytes>>>, Infallible>;
type Http2 = http2::Builder<TokioExecutor>;

impl Server {
    async fn http1(layer: RateLimitLayer) -> Self {
        Self::start(layer, |socket, service| {
            tokio::spawn(http1::Builder::new().serve_connection(socket, TowerToHyperService::new(service)));
        })
        .await
    }

    /// Uses hyper's own bounds on streams and resets, unless `change` sets others.
    async fn http2(layer: RateLimitLayer, change: impl FnOnce(&mut Http2)) -> Self {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        change(&mut builder);
        Self::start(layer, move |socket, service| {
            tokio::spawn(builder.serve_connection(socket, TowerToHyperService::new(service)));
        })
        .await
    }

    async fn start<F>(layer: RateLimitLayer, connect: F) -> Self
    where
        F: Fn(TokioIo<TcpStream>, Limited) + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (outside, inside) = (Arc::clone(&seen), Arc::clone(&seen));
        let service = ServiceBuilder::new()
            .map_request(move |request: Request<Incoming>| {
                outside.arrived.fetch_add(1, Ordering::SeqCst);
                request.map(|body| Watched { body, seen: Arc::clone(&outside) })
            })
            .layer(layer)
            .service_fn(move |request| answer(Arc::clone(&inside), request));
        let service = BoxCloneSyncService::new(service);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                // Without `TCP_NODELAY`, a response's last piece would wait until the client acknowledges the previous
                // one.
                socket.set_nodelay(true).unwrap();
                connect(TokioIo::new(socket), service.clone());
            }
        });
        Self { address, seen }
    }

    fn arrived(&self) -> usize {
        self.seen.arrived.load(Ordering::SeqCst)
    }

    fn called(&self) -> usize {
        self.seen.called.load(Ordering::SeqCst)
    }

    fn under_way(&self) -> usize {
        self.seen.under_way.load(Ordering::SeqCst)
    }

    fn polled(&self) -> usize {
        self.seen.polled.load(Ordering::SeqCst)
    }
}

/// The inner service.
async fn answer(seen: Arc<Seen>, request: Request<Watched>) -> Result<Response<Full<Bytes>>, Infallible> {
    seen.called.fetch_add(1, Ordering::SeqCst);
    seen.under_way.fetch_add(1, Ordering::SeqCst);
    let _under_way = UnderWay(Arc::clone(&seen));
    let path = request.uri().path().to_owned();
    let response = Response::builder();
    Ok(match path.as_str() {
        "/unchanged" => {
            response.status(304).header("etag", "\"v1\"").header("cache-control", "max-age=60").body(Full::default())
        }
        "/moved" => response.status(307).header("location", "/").body("over there".into()),
        "/upload" => {
            let content = request.into_body().collect().await.expect("the client sends all");
            response.body(content.to_bytes().len().to_string().into())
        }
        "/never" => std::future::pending().await,
        _ => response.header("cache-control", "max-age=60").body("hello".into()),
    }
    .unwrap())
}

struct UnderWay(Arc<Seen>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request body that counts its polls.
struct Watched {
    body: Incoming,
    seen: Arc<Seen>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.seen.polled.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

/// A limit that all clients share, on a clock that stands still.
fn only(limit: u64) -> Policy {
    let store = MemoryStore::with_capacity(16).with_clock(ManualClock::new());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(limit)), store);
    Policy::new("p", limiter).status(StatusCode::TOO_MANY_REQUESTS)
}

/// Waits for a future for at most 30 s, so that a mistake does not hang the test.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("timed out")
}

/// Yields to other tasks until the condition holds.
pub(crate) async fn until(holds: impl Fn() -> bool) {
    soon(async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
