//! The page at `/`: live charts of the requests that the routes admit and reject, and buttons that send them loads.
//!
//! The page is plain files that are built into the program; it polls the counts at `/live`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tower_sluice::Verdict;
use tower_sluice::config::Route;

use crate::downloads::{self, Downloads};
use crate::limits::Limits;

/// Allows nothing from other origins and no inline script: a name from the configuration cannot
/// become a script. The icon is in the page.
const SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                        img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Counts of the requests to one route since the start.
#[derive(Default)]
pub(crate) struct Tally {
    offered: AtomicU64,
    admitted: AtomicU64,
    /// Admitted requests that waited before.
    delayed: AtomicU64,
    rejected: AtomicU64,
    /// Requests whose clients disconnected before the response.
    left: AtomicU64,
    /// The response to the last request that was rejected.
    last_rejection: Mutex<Option<(StatusCode, HeaderMap)>>,
}

impl Tally {
    /// The status and the fields of the last rejection.
    fn last_rejection(&self) -> Option<Value> {
        let last = self.last_rejection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        last.map(|(status, headers)| {
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned().into();
            let fields: Map<_, _> = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            json!({ "status": status.as_u16(), "fields": fields })
        })
    }
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Counts the requests of a route. It runs outside the route's layer.
pub(crate) async fn count(State(tally): State<Arc<Tally>>, request: Request, next: Next) -> Response {
    add_one(&tally.offered);
    let unanswered = Unanswered(&tally);
    let response = next.run(request).await;
    // The response is here, so the request must not count as left. If the client disconnects before, this future is
    // dropped at the await, and `unanswered` with it.
    std::mem::forget(unanswered);
    let verdict = response.extensions().get::<Verdict>();
    // A route without policies has no layer, and so no verdict. An error of the handler is no rejection.
    if !verdict.is_none_or(Verdict::is_allowed) {
        let rejection = Some((response.status(), response.headers().clone()));
        *tally.last_rejection.lock().unwrap_or_else(PoisonError::into_inner) = rejection;
        add_one(&tally.rejected);
        return response;
    }
    add_one(&tally.admitted);
    let mut policies = verdict.iter().flat_map(|verdict| verdict.policies());
    if policies.any(|policy| !policy.is_shadow() && !policy.decision().delay().is_zero()) {
        add_one(&tally.delayed);
    }
    response
}

/// Counts a request as left when it is dropped.
struct Unanswered<'a>(&'a Tally);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        add_one(&self.0.left);
    }
}

struct Page {
    limits: Arc<RwLock<Limits>>,
    /// In the order of the routes.
    tallies: Vec<Arc<Tally>>,
    started: SystemTime,
    downloads: Arc<Downloads>,
}

/// Routes the paths of the page. `tallies` are those of the configuration's routes, in their order.
pub(crate) fn router(limits: Arc<RwLock<Limits>>, tallies: Vec<Arc<Tally>>, downloads: Arc<Downloads>) -> Router {
    let page = Page { limits, tallies, started: SystemTime::now(), downloads };
    Router::new()
        .route("/", get(file("text/html; charset=utf-8", include_str!("page.html"))))
        .route("/page.css", get(file("text/css; charset=utf-8", include_str!("page.css"))))
        .route("/page.js", get(file("text/javascript; charset=utf-8", include_str!("page.js"))))
        .route("/live", get(live).with_state(Arc::new(page)))
}

fn file(media_type: &'static str, text: &'static str) -> impl Fn() -> std::future::Ready<Response> + Clone {
    let fields = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, SECURITY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another build may have another page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    move || std::future::ready((fields.clone(), text).into_response())
}

/// Returns the numbers of the charts. By the start time, the page recognises another server at the same address.
async fn live(State(page): State<Arc<Page>>) -> impl IntoResponse {
    let started_at = page.started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_millis());
    let limits = page.limits.read().unwrap_or_else(PoisonError::into_inner);
    let routes = limits.routes().iter().zip(&page.tallies);
    let routes: Vec<_> = routes.map(|(route, tally)| describe(&page, &limits, route, tally)).collect();
    ([(header::CACHE_CONTROL, "no-store")], Json(json!({ "started_at": started_at, "routes": routes })))
}

fn describe(page: &Page, limits: &Limits, route: &Route, tally: &Tally) -> Value {
    let policies: Vec<_> =
        limits.policies(route).map(|policy| json!({ "name": policy.name(), "words": policy.words() })).collect();
    let limit = limits.policies(route).find(|policy| !policy.is_shadow());
    let backlogs = route
        .layer()
        .into_iter()
        .flat_map(|layer| limits.policies(route).filter_map(|policy| layer.backlog(policy.name())).collect::<Vec<_>>());
    let (mut waiting, mut next_release) = (None, None);
    for backlog in backlogs {
        waiting = Some(waiting.unwrap_or(0) + backlog.waiting());
        next_release = next_release.into_iter().chain(backlog.next_release()).min();
    }
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    json!({
        "paths": route.paths(),
        "policies": policies,
        // Null for routes without a policy that rejects; the period is null for a limit of what is in flight.
        "limit": limit.map(|policy| json!({ "limit": policy.limit(), "per_ms": policy.period_ms() })),
        // Null for routes whose responses end at once.
        "open": route.paths().iter().any(|path| path == downloads::PATH).then(|| page.downloads.open()),
        "offered": read(&tally.offered),
        "admitted": read(&tally.admitted),
        "delayed": read(&tally.delayed),
        "rejected": read(&tally.rejected),
        "left": read(&tally.left),
        // Null until there is one.
        "last_rejection": tally.last_rejection(),
        // Null for routes without a queue.
        "waiting": waiting,
        "next_release_ms": next_release.map(|wait: Duration| wait.as_micros().div_ceil(1_000)),
    })
}
