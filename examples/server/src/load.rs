//! Loads: when the page asks for it, the server sends equal requests to all its routes at equal times.
//!
//! A browser could not do this: it opens six connections to a server, and requests that wait in a queue hold all of
//! them. Here, requests take the server's path behind the connection, with the asking client's headers and address.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{RateLimitLayer, Verdict};
use tower_sluice_config::Route;

use crate::limits::Limits;
use crate::{echo, overload};

pub(crate) const PATH: &str = "/load";

/// A load begins this long after the edge of a window.
const AFTER_EDGE: u64 = 100;

/// The longest time to wait for an edge.
const WAIT: Duration = Duration::from_secs(2);

/// An address that no client has (RFC 5737).
const NOBODY: ([u8; 4], u16) = ([192, 0, 2, 1], 1);

/// The largest response that is read.
const LARGEST: usize = 1 << 20;

/// Returns when a load's requests are sent, in milliseconds after its beginning. The page explains each load.
fn schedule(load: &str) -> Option<Vec<u64>> {
    let every = |step: usize| (0..6_000).step_by(step);
    let at_once = |count: usize, at: u64| std::iter::repeat_n(at, count);
    Some(match load {
        "half" => every(200).collect(),
        "twice" => every(50).collect(),
        "burst" => at_once(50, 0).collect(),
        "groups" => every(1_000).flat_map(|at| at_once(10, at)).collect(),
        // The next edge is a second after the one before the beginning.
        "edge" => at_once(20, 700 - AFTER_EDGE).chain(at_once(20, 1_100 - AFTER_EDGE)).collect(),
        // So dense that a request in between is rejected. It ends before its window does.
        "full" => at_once(30, 0).chain((0..700).step_by(20)).collect(),
        _ => return None,
    })
}

pub(crate) struct Loads {
    limits: Arc<RwLock<Limits>>,
    /// The configured routes.
    app: Router,
    /// The running load holds this, because two at a time would show nothing.
    turn: Mutex<()>,
}

impl Loads {
    pub(crate) fn new(limits: Arc<RwLock<Limits>>, app: Router) -> Self {
        Self { limits, app, turn: Mutex::new(()) }
    }

    /// Returns a path for each route, and a layer with a fixed window, if there is one.
    fn routes(&self) -> (Vec<String>, Option<RateLimitLayer>) {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let has_edge = |route: &&Route| limits.policies(route).any(|policy| policy.algorithm() == "fixed-window");
        let windows = limits.routes().iter().find(has_edge).and_then(|route| route.layer().cloned());
        let paths = limits.routes().iter().filter(|route| !overload::has_own_page(route));
        (paths.map(|route| route.paths()[0].clone()).collect(), windows)
    }
}

/// Runs a load. When the last request is completed, responds with each route's results, and with how late the latest
/// request was sent: on a busy machine, a load differs from its plan. If the client disconnects before, the load ends,
/// and its requests with it.
///
/// The body is JSON, such as `{"load": "burst"}`, because a page on another origin cannot send that. With a `path`,
/// only this route gets the load.
pub(crate) async fn run(
    State(loads): State<Arc<Loads>>,
    peer: ConnectInfo<SocketAddr>,
    mut headers: HeaderMap,
    Json(asked): Json<Value>,
) -> Response {
    let Some(schedule) = asked["load"].as_str().and_then(schedule) else {
        let problem = "write {\"load\": NAME}, with half, twice, burst, groups, edge or full for NAME\n";
        return (StatusCode::BAD_REQUEST, problem).into_response();
    };
    // The load's requests have no body.
    for of_body in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        headers.remove(of_body);
    }
    let _turn = loads.turn.lock().await;
    let (mut paths, windows) = loads.routes();
    if let Some(path) = asked["path"].as_str() {
        paths.retain(|other| other == path);
    }
    let mut begin = Instant::now();
    if let Some(windows) = windows {
        begin += until_edge(&windows).await.filter(|wait| *wait <= WAIT).unwrap_or_default();
        begin += Duration::from_millis(AFTER_EDGE);
    }
    let (mut running, mut late) = (JoinSet::new(), Duration::ZERO);
    for at in schedule {
        let due = begin + Duration::from_millis(at);
        sleep_until(due).await;
        for (index, path) in paths.iter().enumerate() {
            let request = request_to(path, &headers, peer);
            let app = loads.app.clone();
            running.spawn(async move { (index, answer(app, request, due).await) });
        }
    }
    let mut results: Vec<_> = paths.iter().map(|_| Results::default()).collect();
    while let Some(done) = running.join_next().await {
        if let Ok((index, answer)) = done {
            late = late.max(answer.late);
            results[index].add(&answer);
        }
    }
    let routes: Vec<_> = paths.iter().zip(&results).map(|(path, results)| results.json(path)).collect();
    Json(json!({ "late_ms": late.as_micros().div_ceil(1_000), "routes": routes })).into_response()
}

/// Returns how long a fixed window still lasts, or `None` if its decisions do not say. The question charges no client.
async fn until_edge(windows: &RateLimitLayer) -> Option<Duration> {
    let answer = service_fn(|_: Request| std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty()))));
    let mut question = Request::new(Body::empty());
    question.extensions_mut().insert(ConnectInfo(SocketAddr::from(NOBODY)));
    let answer = windows.layer(answer).oneshot(question).await.unwrap_or_else(|never| match never {});
    let verdict = answer.extensions().get::<Verdict>()?;
    verdict.policies().iter().map(|policy| policy.decision().reset_after()).min()
}

/// Returns a request as the client would send it to this path.
fn request_to(path: &str, headers: &HeaderMap, peer: ConnectInfo<SocketAddr>) -> Request {
    let mut request = Request::new(Body::empty());
    // A path with a parameter is sent as it is written in the configuration.
    *request.uri_mut() = path.parse().unwrap_or_default();
    *request.headers_mut() = headers.clone();
    if path == echo::PATH {
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc-web+proto"));
        // An empty message: its flags and its length.
        *request.body_mut() = Body::from(&[0; 5][..]);
    }
    request.extensions_mut().insert(peer);
    request
}

/// The response to a request.
struct Answer {
    /// How much later than planned it was sent.
    late: Duration,
    is_admitted: bool,
    waited: Duration,
}

/// Sends a request, and reads the whole response.
async fn answer(app: Router, request: Request, due: Instant) -> Answer {
    let late = due.elapsed();
    let response = app.oneshot(request).await.unwrap_or_else(|never| match never {});
    let verdict = response.extensions().get::<Verdict>();
    let is_admitted = verdict.is_none_or(Verdict::is_allowed);
    let waits = verdict.into_iter().flat_map(Verdict::policies).map(|policy| policy.decision().delay());
    let waited = waits.max().unwrap_or_default();
    // The request is in flight until this is done.
    let _ = to_bytes(response.into_body(), LARGEST).await;
    Answer { late, is_admitted, waited }
}

/// The responses to one route's requests.
#[derive(Default)]
struct Results {
    admitted: u64,
    delayed: u64,
    rejected: u64,
    longest_wait: Duration,
}

impl Results {
    fn add(&mut self, answer: &Answer) {
        if !answer.is_admitted {
            self.rejected += 1;
            return;
        }
        self.admitted += 1;
        self.delayed += u64::from(!answer.waited.is_zero());
        self.longest_wait = self.longest_wait.max(answer.waited);
    }

    fn json(&self, path: &str) -> Value {
        json!({
            "path": path,
            "admitted": self.admitted,
            "delayed": self.delayed,
            "rejected": self.rejected,
            "longest_wait_ms": self.longest_wait.as_micros().div_ceil(1_000),
        })
    }
}
