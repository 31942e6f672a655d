//! Requests in flight in real servers and clients. However a response ends, nothing is in flight afterwards, the charge
//! is the handler's reported cost plus the bytes that the server took, and limiters learn how it ended.

mod ends;
mod layers;
mod leaving;
mod schedules;
mod silent_readers;
mod slow_readers;
mod streams;

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_sluice::algorithm::{Algorithm, FixedWindow};
use tower_sluice::limiter::{Answer, Ask, Description, IntoLimiter, Mode, Receipt, RequestEnd};
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Concurrency, Decision, Limiter, LimiterError, PartitionKey, Permits, Policy, Quota, RateLimitLayer, RateLimiter,
    Settlement,
};

use crate::wire::{soon, until};

type BoxBody = UnsyncBoxBody<Bytes, Failed>;
type Window = Arc<RateLimiter<FixedWindow, MemoryTable<<FixedWindow as Algorithm>::State, ManualClock>>>;

/// The policies `units` and `bytes` charge each request these costs on arrival.
const ESTIMATE: u64 = 10;
const USUAL_BYTES: u64 = 100;

/// A window that does not end during a test.
fn window(limit: u64) -> Window {
    let store = MemoryStore::with_capacity(16).with_clock(ManualClock::new());
    Arc::new(RateLimiter::new(FixedWindow::new(Quota::per_day(limit)), store))
}

/// A limiter's units in flight.
fn in_flight(limiter: &impl Limiter) -> u64 {
    limiter.stats().in_flight.expect("it counts them")
}

/// The units that a key was charged.
fn charged(limiter: &impl Limiter, key: &PartitionKey) -> u64 {
    let decision = limiter.decide(&Ask::peek(key, 0)).at_once().expect("in memory");
    decision.limit() - decision.remaining()
}

/// Admits all requests, and records how each ends: `None` if the layer took the request back.
#[derive(Default)]
struct Ends(Mutex<Vec<Option<RequestEnd>>>);

impl Limiter for Ends {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge | Mode::Peek => Decision::allow(1, 1).with_receipt(Receipt::new(17)).into(),
            mode => LimiterError::unsupported(mode).into(),
        }
    }

    fn refund(&self, _: &Ask<'_>, receipt: Receipt, units: u64) {
        assert_eq!((receipt, units), (Receipt::new(17), 1));
        self.0.lock().unwrap().push(None);
    }

    fn release(&self, _: &Ask<'_>, receipt: Receipt, units: u64, end: RequestEnd) {
        assert_eq!((receipt, units), (Receipt::new(17), 1));
        self.0.lock().unwrap().push(Some(end));
    }

    fn describe(&self) -> Description {
        Description::new().holding().answering(Mode::Peek)
    }
}

impl Ends {
    /// Takes the ends since the last call.
    fn take(&self) -> Vec<Option<RequestEnd>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Limits that all clients share: requests in flight, the units that handlers report, and body bytes.
struct Limits {
    /// Released before `in_flight`.
    ends: Arc<Ends>,
    in_flight: Arc<Concurrency>,
    units: Window,
    bytes: Window,
}

impl Limits {
    fn new(in_flight: Concurrency) -> Self {
        let (units, bytes) = (window(1_000_000), window(1_000_000_000));
        Self { ends: Arc::default(), in_flight: Arc::new(in_flight), units, bytes }
    }

    fn policies(&self) -> [Policy; 4] {
        [
            Policy::new("ends", Arc::clone(&self.ends)),
            Policy::new("in-flight", Arc::clone(&self.in_flight).into_limiter()),
            Policy::new("units", Arc::clone(&self.units)).cost(ESTIMATE).settle_by_handler(),
            Policy::new("bytes", Arc::clone(&self.bytes)).cost(USUAL_BYTES).settle_by_content_bytes(),
        ]
    }

    fn in_flight(&self) -> u64 {
        in_flight(&*self.in_flight)
    }

    /// The charged units and bytes.
    fn charged(&self) -> (u64, u64) {
        (charged(&*self.units, &PartitionKey::SHARED), charged(&*self.bytes, &PartitionKey::SHARED))
    }

    /// How the requests have ended since the last call, if they all ended alike.
    fn end(&self) -> Option<RequestEnd> {
        let ends = self.ends.take();
        assert!(!ends.is_empty() && ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        ends[0]
    }

    /// Waits until nothing is in flight. By then, all requests together were charged these units and bytes.
    async fn are_over(&self, charged: (u64, u64)) {
        until(|| self.in_flight() == 0).await;
        assert_eq!(self.charged(), charged);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A hyper server for HTTP/1 and HTTP/2, and its limits.
struct Server {
    address: SocketAddr,
    limits: Limits,
    handled: UnboundedReceiver<Handled>,
}

/// A request that the service handles. The test writes its response body.
struct Handled {
    settlement: Settlement,
    permits: Permits,
    body: UnboundedSender<Step>,
    /// How many frames the server has taken so far.
    taken: Arc<AtomicUsize>,
}

/// A service or body fails with this error.
#[derive(Debug)]
struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as planned")
    }
}

impl Error for Failed {}

/// A body's next frame, or an event in its place.
enum Step {
    Data(Bytes),
    Trailers,
    Error,
    Panic,
}

impl Server {
    async fn start(in_flight: Concurrency) -> Self {
        Self::start_with(in_flight, false).await
    }

    /// `catches` says whether a middleware around the layer catches panics, instead of the connection's task.
    async fn start_with(in_flight: Concurrency, catches: bool) -> Self {
        let limits = Limits::new(in_flight);
        let (handle, handled) = mpsc::unbounded_channel();
        let service = ServiceBuilder::new()
            .map_response(boxed)
            .layer(RateLimitLayer::new(limits.policies()))
            .service_fn(move |request| answer(handle.clone(), request));
        let mut service = BoxCloneSyncService::new(service);
        if catches {
            let catching = ServiceBuilder::new().map_response(boxed).layer(CatchPanicLayer::new()).service(service);
            service = BoxCloneSyncService::new(catching);
        }
        Self { address: serve(service).await, limits, handled }
    }

    async fn get(&self, protocol: Protocol, path: &str) -> Response<Incoming> {
        fetch(self.address, protocol, "GET", path).await.expect("the server answers")
    }

    /// Sends a request whose response body the test writes.
    async fn download(&mut self, protocol: Protocol) -> (Response<Incoming>, Handled) {
        let response = self.get(protocol, "/download").await;
        assert_eq!(response.status(), 200);
        (response, self.handled().await)
    }

    /// The next request that reaches the service.
    async fn handled(&mut self) -> Handled {
        soon(self.handled.recv()).await.expect("the server runs")
    }
}

impl Handled {
    /// Writes a piece of the body.
    fn write(&self, data: impl Into<Bytes>) {
        self.step(Step::Data(data.into()));
    }

    /// If the body was dropped, sending fails, which is fine.
    fn step(&self, step: Step) {
        let _ = self.body.send(step);
    }

    fn settle(&self, units: u64) {
        self.settlement.settle("units", units).expect("the response is not over");
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

/// The inner service.
async fn answer(handle: UnboundedSender<Handled>, request: Request<Incoming>) -> Result<Response<BoxBody>, Failed> {
    let settlement = request.extensions().get::<Settlement>().expect("`units` awaits a report").clone();
    let permits = request.extensions().get::<Permits>().expect("something is held").clone();
    let (body, steps) = mpsc::unbounded_channel();
    let taken = Arc::new(AtomicUsize::new(0));
    let handled = Handled { settlement, permits, body, taken: Arc::clone(&taken) };
    let response = Response::builder();
    Ok(match request.uri().path() {
        "/fails" => {
            handled.settle(4);
            return Err(Failed);
        }
        "/panics" => {
            handled.settle(5);
            panic!("a handler panics, as it should in this test")
        }
        "/never" => {
            let _ = handle.send(handled);
            std::future::pending().await
        }
        "/download" => {
            let _ = handle.send(handled);
            response.body(written(steps, taken))
        }
        path => {
            handled.settle(3);
            let status = path[1..].parse().unwrap_or(StatusCode::OK);
            // hyper drops content that must not be sent in HTTP/1, and sends it in HTTP/2.
            let is_content = request.version() != Version::HTTP_2 || (status == 200 && request.method() != "HEAD");
            let content = if is_content { Full::from("hello").boxed_unsync() } else { Empty::new().boxed_unsync() };
            response.status(status).body(content.map_err(|never| match never {}).boxed_unsync())
        }
    }
    .expect("a response"))
}

fn boxed<B>(response: Response<B>) -> Response<BoxBody>
where
    B: Body<Data = Bytes> + Send + 'static,
{
    response.map(|body| body.map_err(|_| Failed).boxed_unsync())
}

/// A body whose frames the test writes.
fn written(steps: UnboundedReceiver<Step>, taken: Arc<AtomicUsize>) -> BoxBody {
    let frames = UnboundedReceiverStream::new(steps).map(move |step| {
        taken.fetch_add(1, Ordering::SeqCst);
        match step {
            Step::Data(data) => Ok(Frame::data(data)),
            Step::Trailers => Ok(Frame::trailers(HeaderMap::from_iter([(
                http::HeaderName::from_static("x-rows"),
                http::HeaderValue::from_static("17"),
            )]))),
            Step::Error => Err(Failed),
            Step::Panic => panic!("a body panics, as it should in this test"),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Serves HTTP/1 and HTTP/2 on a port of its own. A panic ends the connection.
async fn serve<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Future: Send> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    address
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Sends a request on its own connection, which closes when the response is dropped, or was read.
async fn fetch(
    address: SocketAddr,
    protocol: Protocol,
    method: &str,
    path: &str,
) -> Result<Response<Incoming>, hyper::Error> {
    let socket = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
    let request = request.header("host", "test").body(Empty::<Bytes>::new()).unwrap();
    soon(async {
        match protocol {
            Protocol::Http1 => {
                let (mut sender, connection) = http1::handshake(socket).await?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
            Protocol::Http2 => {
                let (mut sender, connection) = http2::handshake(TokioExecutor::new(), socket).await?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
        }
    })
    .await
}

/// The content, and whether trailers came after it.
async fn read(response: Response<Incoming>) -> Result<(String, bool), hyper::Error> {
    let body = soon(response.into_body().collect()).await?;
    let has_trailers = body.trailers().is_some();
    Ok((String::from_utf8(body.to_bytes().into()).unwrap(), has_trailers))
}

/// Reads the next piece of a body.
async fn next_piece(response: &mut Response<Incoming>) -> Bytes {
    let frame = soon(response.body_mut().frame()).await.expect("the body goes on").unwrap();
    frame.into_data().expect("not the trailers")
}

/// Lets other tasks run for a while, so that a wrong event would have time to occur.
async fn let_others_run() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}
