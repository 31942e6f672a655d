//! The page at `/`: it draws the requests that the routes admit, delay and reject, asks for loads and sets the limit.
//!
//! The page is plain files that are built into the program; it polls the counts and the requests at `/live`.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tower_sluice_config::Route;

use crate::downloads::{self, Downloads};
use crate::limits::Limits;
use crate::overload;
use crate::tally::Tally;

/// Allows nothing from other origins and no inline script, so that a name from the configuration cannot become a
/// script. The icon is in the page.
const SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                        img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The paths that the page's scripts call.
pub(crate) const LIVE: &str = "/live";
pub(crate) const LIMIT: &str = "/live/limit";
pub(crate) const TOML: &str = "/live/toml/{*path}";

/// The page's files.
pub(crate) const FILES: [(&str, &str, &str); 10] = [
    ("/", HTML, include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/page/axis.js", JAVASCRIPT, include_str!("page/axis.js")),
    ("/page/draw.js", JAVASCRIPT, include_str!("page/draw.js")),
    ("/page/overload", HTML, include_str!("page/overload.html")),
    ("/page/overload.js", JAVASCRIPT, include_str!("page/overload.js")),
    ("/page/limit.js", JAVASCRIPT, include_str!("page/limit.js")),
    ("/page/loads.js", JAVASCRIPT, include_str!("page/loads.js")),
    ("/page/ticket.js", JAVASCRIPT, include_str!("page/ticket.js")),
];
const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The limits that the page may set.
const LIMITS: std::ops::RangeInclusive<i64> = 1..=40;

struct Page {
    limits: Arc<RwLock<Limits>>,
    /// In route order.
    tallies: Vec<Arc<Tally>>,
    started: SystemTime,
    downloads: Arc<Downloads>,
}

/// Routes the page's paths. `tallies` has one for each route, in the configuration's order.
pub(crate) fn router(limits: Arc<RwLock<Limits>>, tallies: Vec<Arc<Tally>>, downloads: Arc<Downloads>) -> Router {
    let page = Page { limits, tallies, started: SystemTime::now(), downloads };
    let page = Arc::new(page);
    let files = FILES.into_iter().fold(Router::new(), |files, (path, media_type, text)| {
        files.route(path, get(file(media_type, text))) //
    });
    files.merge(
        Router::new()
            .route(LIVE, get(live))
            .route(LIMIT, post(change_limit))
            .route(TOML, get(toml_of_route))
            .with_state(page),
    )
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

/// Returns the routes' counts. With `?since=` and a time in milliseconds after the server's start, it adds the requests
/// since then. By the start time, the page recognises another server at its address.
async fn live(State(page): State<Arc<Page>>, uri: Uri) -> impl IntoResponse {
    let since = uri.query().and_then(|query| query.strip_prefix("since=")?.parse().ok());
    let now = page.tallies.first().map(|tally| tally.now_ms());
    let started_at = page.started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_millis());
    let limits = page.limits.read().unwrap_or_else(PoisonError::into_inner);
    let routes = limits.routes().iter().zip(&page.tallies).filter(|(route, _)| !overload::has_own_page(route));
    let routes: Vec<_> = routes.map(|(route, tally)| describe(&page, &limits, route, tally, since)).collect();
    let live = json!({
        "started_at": started_at,
        "now_ms": now,
        "can_change": limits.is_built_in(),
        "routes": routes,
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(live))
}

/// Sets the limit for all policies in the built-in configuration.
///
/// The body is JSON, such as `{"limit": 20}`, because a page on another origin cannot send that.
async fn change_limit(State(page): State<Arc<Page>>, Json(asked): Json<Value>) -> Response {
    let Some(limit) = asked["limit"].as_i64().filter(|limit| LIMITS.contains(limit)) else {
        return (StatusCode::BAD_REQUEST, "write {\"limit\": NUMBER}, from 1 to 40\n").into_response();
    };
    let mut limits = page.limits.write().unwrap_or_else(PoisonError::into_inner);
    if !limits.is_built_in() {
        let problem = "this server has a configuration file: edit the file instead, the server applies each edit\n";
        return (StatusCode::CONFLICT, problem).into_response();
    }
    match limits.change_limit(limit) {
        Ok(()) => Json(json!({ "limit": limit })).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Returns the TOML in force for the route with this path.
async fn toml_of_route(State(page): State<Arc<Page>>, Path(path): Path<String>) -> Response {
    let limits = page.limits.read().unwrap_or_else(PoisonError::into_inner);
    let toml = limits.toml_of_route(&format!("/{path}"));
    toml.map_or_else(|| StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response)
}

fn describe(page: &Page, limits: &Limits, route: &Route, tally: &Tally, since: Option<u64>) -> Value {
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
    let mut described = json!({
        "paths": route.paths(),
        "policies": policies,
        // Null for routes without a policy that rejects; the period is null for a limit on requests in flight.
        "limit": limit.map(|policy| json!({ "limit": policy.limit(), "per_ms": policy.period_ms() })),
        // Null for routes whose responses end at once.
        "open": route.paths().iter().any(|path| path == downloads::PATH).then(|| page.downloads.open()),
        // Null if they were not asked for.
        "requests": since.map(|since| tally.requests(since)),
        // Null until there is one.
        "last_rejection": tally.last_rejection(),
        // Null for routes without a queue.
        "waiting": waiting,
        "next_release_ms": next_release.map(|wait: Duration| wait.as_micros().div_ceil(1_000)),
    });
    for (name, count) in tally.counts() {
        described[name] = count.into();
    }
    described
}
