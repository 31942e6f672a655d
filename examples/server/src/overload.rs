//! `/overload` and `/overload/bare`, whose requests need a worker (`work.rs`), and the calls that their page makes.
//!
//! The page sets a load. The server then sends it to one of the two routes, while a page asks for [`STATE`]. As in
//! `load.rs`, requests take the path from the authentication on. They do not come over connections, which would cost
//! more than the rejections that the page shows.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;
use tower_sluice::Verdict;
use tower_sluice::limiter::Priority;
use tower_sluice::store::Stats;
use tower_sluice_config::Route;

use crate::limits::Limits;
use crate::work::{CAPACITY, WORK, Worker};

/// The route with the policy that protects the worker, and the one without a policy.
pub(crate) const PROTECTED: &str = "/overload";
pub(crate) const BARE: &str = "/overload/bare";

/// These routes do the work on a runtime worker.
pub(crate) const INLINE: &str = "/overload/inline";
pub(crate) const INLINE_BARE: &str = "/overload/inline/bare";

/// The paths that the page calls.
pub(crate) const STATE: &str = "/overload/state";
pub(crate) const LOAD: &str = "/overload/load";

/// The loads that the page may ask for, in tenths of [`CAPACITY`]: from half the capacity to ten times more.
const TENTHS: std::ops::RangeInclusive<u64> = 5..=100;

/// A response that comes later is of no use to its client.
const PROMPT: Duration = Duration::from_millis(100);

/// The client then gives up.
const PATIENCE: Duration = Duration::from_secs(1);

/// A load ends when no page has asked for this time.
const UNWATCHED: Duration = Duration::from_secs(5);

/// If requests are later than this, the machine is too slow for the load: they are not sent, and not counted.
const LATEST: Duration = Duration::from_millis(200);

/// The time that is counted together, and how many such slices are kept: half a minute.
const SLICE: Duration = Duration::from_millis(500);
const SLICES: usize = 60;

/// The client that sends the loads.
const NOBODY: ([u8; 4], u16) = ([192, 0, 2, 1], 1);

/// The largest response that is read.
const LARGEST: usize = 1 << 20;

/// Returns whether a route has its own page, and gets its own loads.
pub(crate) fn has_own_page(route: &Route) -> bool {
    route.paths().iter().any(|path| [PROTECTED, BARE, INLINE, INLINE_BARE].contains(&path.as_str()))
}

/// Routes [`STATE`] and [`LOAD`]. `routes` are the configured routes.
pub(crate) fn router(limits: Arc<RwLock<Limits>>, worker: Arc<Worker>, routes: Router) -> Router {
    let now = Instant::now();
    let load = Load { tenths: 0, is_protected: true, watched: now, is_running: false };
    let shown = Shown { limits, worker, routes, started: now, load: Mutex::new(load), slices: Mutex::default() };
    Router::new().route(STATE, get(state)).route(LOAD, post(change_load)).with_state(Arc::new(shown))
}

struct Shown {
    limits: Arc<RwLock<Limits>>,
    worker: Arc<Worker>,
    routes: Router,
    started: Instant,
    load: Mutex<Load>,
    /// The newest last.
    slices: Mutex<VecDeque<Slice>>,
}

/// The load that was asked for.
#[derive(Clone, Copy)]
struct Load {
    tenths: u64,
    is_protected: bool,
    /// When a page has asked last.
    watched: Instant,
    /// Whether a task sends it.
    is_running: bool,
}

/// The events in a time slice.
struct Slice {
    /// Slices since the start.
    number: u64,
    is_protected: bool,
    high: Results,
    other: Results,
}

/// Requests in a class.
#[derive(Default)]
struct Results {
    sent: u64,
    prompt: u64,
    late: u64,
    shed: u64,
    /// Requests whose clients gave up.
    left: u64,
}

impl Shown {
    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_routed(&self, path: &str) -> bool {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.routes().iter().any(|route| route.paths().iter().any(|other| other == path))
    }

    /// Returns the report from [`PROTECTED`]'s limiter, if that limiter finds its limit by itself.
    fn stats(&self) -> Option<Stats> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let route = limits.routes().iter().find(|route| route.paths().iter().any(|path| path == PROTECTED))?;
        let policies = route.layer()?.handle().policies();
        policies.iter().map(|policy| policy.stats().clone()).find(|stats| stats.overload.is_some())
    }

    /// Counts a request in the present slice.
    fn count(&self, request: &Sent, add: impl FnOnce(&mut Results)) {
        let number = u64::try_from(self.started.elapsed().as_millis() / SLICE.as_millis()).unwrap_or(u64::MAX);
        let mut slices = self.slices.lock().unwrap_or_else(PoisonError::into_inner);
        if slices.back().is_none_or(|last| last.number < number) {
            let (high, other) = Default::default();
            slices.push_back(Slice { number, is_protected: request.is_protected, high, other });
            if slices.len() > SLICES {
                slices.pop_front();
            }
        }
        if let Some(last) = slices.back_mut() {
            add(if request.is_high { &mut last.high } else { &mut last.other });
        }
    }
}

/// Returns the state that the page shows. A page that asks watches the load.
async fn state(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let load = {
        let mut load = shown.load();
        load.watched = Instant::now();
        *load
    };
    let slices: Vec<_> = {
        let slices = shown.slices.lock().unwrap_or_else(PoisonError::into_inner);
        slices.iter().map(Slice::json).collect()
    };
    let stats = shown.stats();
    let of_classes = |counts: [u64; Priority::ALL.len()]| -> Map<_, _> {
        Priority::ALL.into_iter().zip(counts).map(|(class, count)| (class.name().to_owned(), count.into())).collect()
    };
    let overload = stats.as_ref().and_then(|stats| stats.overload.as_ref()).map(|overload| {
        let shed = std::array::from_fn(|class| overload.shed[class] + overload.shed_over_share[class]);
        json!({
            "limit": overload.limit,
            "is_overloaded": overload.is_overloaded,
            "in_flight": stats.as_ref().and_then(|stats| stats.in_flight),
            "waiting": of_classes(overload.waiting),
            "shed": of_classes(shed),
        })
    });
    let (done, busy_us) = shown.worker.counts();
    let state = json!({
        "now_ms": shown.started.elapsed().as_millis(),
        "slice_ms": SLICE.as_millis(),
        "capacity": CAPACITY,
        "work_ms": WORK.as_millis(),
        "worker": { "done": done, "busy_us": busy_us },
        "prompt_ms": PROMPT.as_millis(),
        "can_protect": shown.is_routed(PROTECTED),
        "can_bare": shown.is_routed(BARE),
        "tenths": load.tenths,
        "is_protected": load.is_protected,
        // Null without a policy that finds its limit.
        "overload": overload,
        "slices": slices,
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(state))
}

impl Slice {
    /// The number, whether it is protected, and for the high class and the others: sent, prompt, late, shed, left.
    fn json(&self) -> Value {
        let counts = |Results { sent, prompt, late, shed, left }: &Results| json!([sent, prompt, late, shed, left]);
        json!([self.number, self.is_protected, counts(&self.high), counts(&self.other)])
    }
}

/// Sets the load, such as `{"tenths": 20, "is_protected": true}` for twice the capacity; 0 ends it.
///
/// The body is JSON, because a page on another origin cannot send that.
async fn change_load(State(shown): State<Arc<Shown>>, Json(asked): Json<Value>) -> Response {
    let tenths = asked["tenths"].as_u64().filter(|tenths| *tenths == 0 || TENTHS.contains(tenths));
    let (Some(tenths), Some(is_protected)) = (tenths, asked["is_protected"].as_bool()) else {
        let problem = "write {\"tenths\": NUMBER, \"is_protected\": true or false}, with 0 or 5 to 100 for NUMBER\n";
        return (StatusCode::BAD_REQUEST, problem).into_response();
    };
    let path = path_of(is_protected);
    if !shown.is_routed(path) {
        return (StatusCode::CONFLICT, format!("this server's configuration has no route {path}\n")).into_response();
    }
    let mut load = shown.load();
    let begins = tenths > 0 && !load.is_running;
    *load = Load { tenths, is_protected, watched: Instant::now(), is_running: load.is_running || begins };
    drop(load);
    if begins {
        tokio::spawn(send_load(shown));
    }
    Json(json!({ "tenths": tenths, "is_protected": is_protected })).into_response()
}

fn path_of(is_protected: bool) -> &'static str {
    if is_protected { PROTECTED } else { BARE }
}

/// Sends requests at the rate in force, one after another in equal intervals, until the load ends, or no page watches.
async fn send_load(shown: Arc<Shown>) {
    let mut due = Instant::now();
    for number in 0_u64.. {
        let (tenths, is_protected) = {
            let mut load = shown.load();
            if load.watched.elapsed() > UNWATCHED {
                load.tenths = 0;
            }
            // Under one lock, so that a load that is asked for now starts over.
            load.is_running = load.tenths > 0;
            if !load.is_running {
                return;
            }
            (load.tenths, load.is_protected)
        };
        due = due.max(Instant::now().checked_sub(LATEST).unwrap_or(due));
        due += Duration::from_nanos(10_000_000_000 / (CAPACITY * tenths));
        sleep_until(due).await;
        let request = Sent::numbered(number, is_protected);
        shown.count(&request, |results| results.sent += 1);
        let shown = Arc::clone(&shown);
        tokio::spawn(async move { request.send(&shown).await });
    }
}

/// A request in the load.
struct Sent {
    is_protected: bool,
    is_high: bool,
    tenant: &'static str,
}

impl Sent {
    /// A fifth of the requests are in the high class. One of two tenants sends three in five requests in each class.
    fn numbered(number: u64, is_protected: bool) -> Self {
        let is_high = number % 5 == 0;
        let in_class = if is_high { number / 5 } else { number - number.div_ceil(5) };
        let tenant = if matches!(in_class % 5, 1 | 3) { "modest" } else { "greedy" };
        Self { is_protected, is_high, tenant }
    }

    async fn send(self, shown: &Shown) {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path_of(self.is_protected).parse().unwrap_or_default();
        request.headers_mut().insert("x-tenant", HeaderValue::from_static(self.tenant));
        if self.is_high {
            request.headers_mut().insert("x-class", HeaderValue::from_static("high"));
        }
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(NOBODY)));
        let begun = Instant::now();
        let answer = async {
            let response = shown.routes.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
            let is_shed = !response.extensions().get::<Verdict>().is_none_or(Verdict::is_allowed);
            // The request is in flight until this is done.
            let _ = to_bytes(response.into_body(), LARGEST).await;
            is_shed
        };
        // A client that gives up disconnects, which drops the request.
        let answer = timeout(PATIENCE, answer).await;
        let is_prompt = begun.elapsed() <= PROMPT;
        shown.count(&self, |results| {
            *match answer {
                Ok(true) => &mut results.shed,
                Ok(false) if is_prompt => &mut results.prompt,
                Ok(false) => &mut results.late,
                Err(_) => &mut results.left,
            } += 1;
        });
    }
}
