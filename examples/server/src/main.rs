//! The example server, and the target for the load tests in `k6/`.
//!
//! ```sh
//! cargo run -p tower-sluice-server
//! curl -i http://127.0.0.1:3000/token-bucket
//! ```
//!
//! and open <http://127.0.0.1:3000/>. The page draws each request as a dot: loads that reach all routes at once, and
//! requests that you send. A slider changes the limit while they run.
//!
//! `--listen ADDR` (port 0 picks a free one), `--config FILE.toml` (watched: limits change when it is edited; default:
//! `server.toml`, built in), `--redis URL` (keeps the limits there, for all servers with this URL; needs the feature
//! `redis`). See `/whoami`, `/healthz` and `/metrics`, too.
//!
//! `--admin ADDR` serves the admin service on a second address: a page for operators, and its calls. Without a token,
//! this address must be a loopback one. If the environment has a token as `SLUICE_ADMIN_TOKEN`, a call needs it as a
//! bearer token, or as the password that a browser asks for.
//!
//! ```sh
//! cargo run -p tower-sluice-server --features redis -- --redis redis://127.0.0.1/
//! ```
//!
//! With `snapshot = { path = "limits.snapshot", every = "10s" }` at the top of the file, the budgets outlive a restart.
//!
//! On SIGTERM, the server rejects all waiters in its queues, completes the requests in flight within ten seconds,
//! writes a last snapshot, and exits with 0.
//!
//! `--workers N` sets how many worker threads the runtime has; one for each processor unless given.
//!
//! Responses from `/in-flight` take three seconds; `/in-flight/open` counts them.
//!
//! `/overload` and `/overload/bare` burn processor time, with and without protection from overload: see
//! <http://127.0.0.1:3000/page/overload>. `/overload/inline` and `/overload/inline/bare`, if the configuration has
//! them, compute on the runtime's workers: see `k6/inline.toml`.
//!
//! The port also serves gRPC: `sluice.example.v1.Echo/Echo` from `echo.proto`.

mod downloads;
mod echo;
mod limits;
mod load;
mod overload;
mod page;
mod tally;
mod watch;
mod work;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_sluice::RequestHead;
use tower_sluice::key::{User, peer_addr};
use tower_sluice_config::{Config, ConfigError, ConfigReader};
use tower_sluice_serving::snapshots::Saving;
use tower_sluice_serving::{admin, connections, metrics};

use self::limits::Limits;

const DEFAULT_CONFIG: &str = include_str!("../server.toml");
const OWN_PATHS: [&str; 11] = [
    page::LIVE,
    page::LIMIT,
    page::TOML,
    load::PATH,
    "/whoami",
    "/healthz",
    "/metrics",
    downloads::TOWER,
    downloads::OPEN,
    overload::STATE,
    overload::LOAD,
];
const USAGE: &str =
    "usage: server [--listen ADDR:PORT] [--config FILE.toml] [--redis URL] [--admin ADDR:PORT] [--workers N]";

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let SetUp { listen, limits, file, admin, workers } = match set_up() {
        Ok(Some(set_up)) => set_up,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    // Before the first request.
    let saving = Saving::restore(&limits);
    let limits = Arc::new(RwLock::new(limits));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    workers.map(|workers| runtime.worker_threads(workers.get()));
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the runtime does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(async {
        if let Some((file, text)) = file {
            tokio::spawn(watch::apply_edits(file, text, Arc::clone(&limits)));
        }
        if let Some(saving) = saving.clone() {
            tokio::spawn(saving.run());
        }
        serve(listen, limits, admin).await
    });
    // After the last request.
    let served = served.and_then(|()| saving.map_or(Ok(()), |saving| saving.save()));
    // Connections that did not end in time, or a file read that hangs, must not keep the process alive.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

struct SetUp {
    listen: SocketAddr,
    limits: Limits,
    /// The file and its text, if there is one.
    file: Option<(String, String)>,
    admin: Option<admin::Settings>,
    workers: Option<NonZeroUsize>,
}

/// Parses the arguments and the configuration; `None` for `--help`. An error is the message to print.
fn set_up() -> Result<Option<SetUp>, String> {
    let mut listen = "127.0.0.1:3000".to_owned();
    let mut file = None;
    let mut redis = None;
    let mut admin = None;
    let mut workers = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"));
        match argument.as_str() {
            "--listen" => listen = value()?,
            "--config" => file = Some(value()?),
            "--help" | "-h" => return Ok(None),
            "--redis" => redis = Some(value()?),
            "--admin" => admin = Some(value()?),
            "--workers" => workers = Some(value()?),
            _ => return Err(format!("unknown argument {argument}\n{USAGE}")),
        }
    }
    let listen = listen.parse().map_err(|_| format!("--listen {listen}: write an address such as 127.0.0.1:3000"))?;
    let admin = admin.map(|address| admin::Settings::read(&address)).transpose()?;
    let workers = workers.map(|it| it.parse().map_err(|_| format!("--workers {it}: write a number above zero")));
    let workers = workers.transpose()?;
    let read = |file: String| match watch::read(&file) {
        Ok(text) => Ok((file, text)),
        Err(error) => Err(format!("--config {file}: {error}")),
    };
    let file = file.map(read).transpose()?;
    let (name, text) = file.as_ref().map_or(("server.toml", DEFAULT_CONFIG), |(file, text)| (file, text));
    let reader = Config::reader().layers(|layer| layer.verdict().server_timing());
    #[cfg(feature = "postgres")]
    let reader = reader.store("postgres", tower_sluice_postgres::file::open);
    #[cfg(feature = "redis")]
    let reader = reader.store("redis", tower_sluice_redis::file::open);
    let reader = match redis {
        None => reader,
        Some(url) => keep_on_redis(reader, &url).map_err(|problem| format!("--redis: {problem}"))?,
    };
    let limits = Limits::parse(reader, name, text).map_err(|error| error.to_string())?;
    let limits = if file.is_none() { limits.built_in() } else { limits };
    for route in limits.routes() {
        if let Some(path) = route.paths().iter().find(|path| is_own(path)) {
            let problem = format!("path `{path}` is the server's own; choose another");
            return Err(ConfigError::new(name, route.line(), problem).to_string());
        }
    }
    Ok(Some(SetUp { listen, limits, file, admin, workers }))
}

/// Returns whether the server itself answers at this path.
fn is_own(path: &str) -> bool {
    OWN_PATHS.contains(&path) || page::FILES.iter().any(|(file, ..)| *file == path)
}

/// An error does not repeat the address, which may contain a password.
#[cfg(feature = "redis")]
fn keep_on_redis(reader: ConfigReader, url: &str) -> Result<ConfigReader, String> {
    let redis = tower_sluice_redis::Redis::open(url).map_err(|error| error.to_string())?;
    Ok(reader.redis(tower_sluice_redis::file::limiters(&redis)))
}

#[cfg(not(feature = "redis"))]
fn keep_on_redis(_: ConfigReader, _: &str) -> Result<ConfigReader, String> {
    Err("this server was built without it; write `cargo run -p tower-sluice-server --features redis -- --redis URL`"
        .to_owned())
}

/// Serves until a signal comes. An error is the message to print.
async fn serve(listen: SocketAddr, limits: Arc<RwLock<Limits>>, admin: Option<admin::Settings>) -> Result<(), String> {
    let (listener, address) = bind(listen, "--listen")?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("the server cannot wait for SIGTERM: {error}"))?;
    // Dropped with the future below, once it is over.
    let (stopping, mut is_stopping) = tokio::sync::watch::channel(());
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        drop(stopping);
    };
    let admin = match admin {
        None => None,
        Some(settings) => {
            let router = settings.router(&**limits.read().unwrap_or_else(PoisonError::into_inner));
            Some((bind(settings.address, "--admin")?, router))
        }
    };
    // Rejects all waiters at once, instead of waiting for them.
    let close = {
        let limits = Arc::clone(&limits);
        move || limits.read().unwrap_or_else(PoisonError::into_inner).close()
    };
    println!("listening on http://{address}");
    let serving = connections::serve(listener, app(limits), stop, close);
    match admin {
        None => serving.await,
        Some(((listener, address), router)) => {
            println!("admin on http://{address}");
            let stop = async move { while is_stopping.changed().await.is_ok() {} };
            tokio::join!(serving, connections::serve(listener, router, stop, || {}));
        }
    }
    Ok(())
}

/// `option` is the command-line option for the address.
fn bind(address: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr), String> {
    let listener = connections::listen(address)
        .map_err(|error| format!("{address}: {error}; choose another address with {option}"))?;
    let bound = listener.local_addr().map_err(|error| format!("{address}: {error}"))?;
    Ok((listener, bound))
}

fn app(shared: Arc<RwLock<Limits>>) -> Router {
    let limits = shared.read().unwrap_or_else(PoisonError::into_inner);
    let started = Instant::now();
    let metrics = metrics::install();
    let mut tallies = Vec::new();
    let downloads = Arc::new(downloads::Downloads::default());
    let worker = Arc::new(work::Worker::default());
    let mut app = Router::new();
    for route in limits.routes() {
        let name: Arc<str> = route.paths()[0].as_str().into();
        let served = Arc::new(AtomicU64::new(0));
        let tally = Arc::new(tally::Tally::new(started));
        tallies.push(Arc::clone(&tally));
        let answer = {
            let name = Arc::clone(&name);
            move || {
                let served = 1 + served.fetch_add(1, Ordering::Relaxed);
                let at_ms = started.elapsed().as_millis();
                json!({ "route": &*name, "served": served, "at_ms": at_ms })
            }
        };
        for path in route.paths() {
            let answer = answer.clone();
            let mut endpoint = match path.as_str() {
                echo::PATH => any(echo::echo),
                downloads::PATH => {
                    let downloads = Arc::clone(&downloads);
                    any(move || std::future::ready(downloads.download(&answer())))
                }
                overload::PROTECTED | overload::BARE => {
                    let worker = Arc::clone(&worker);
                    any(move || async move {
                        worker.work().await;
                        Json(answer())
                    })
                }
                overload::INLINE | overload::INLINE_BARE => {
                    let worker = Arc::clone(&worker);
                    any(move || async move {
                        worker.work_inline();
                        Json(answer())
                    })
                }
                _ => any(move || std::future::ready(Json(answer()))),
            };
            if let Some(layer) = route.layer() {
                endpoint = endpoint.layer(layer.clone());
            }
            let counting = middleware::from_fn_with_state(Arc::clone(&tally), tally::count);
            app = app.route(path, endpoint.layer(counting));
        }
    }
    let has_echo = limits.routes().iter().any(|route| route.paths().iter().any(|path| path == echo::PATH));
    drop(limits);
    if !has_echo {
        app = app.route(echo::PATH, any(echo::echo));
    }
    let routes = app.clone().layer(middleware::from_fn(authenticate));
    let overload = overload::router(Arc::clone(&shared), worker, routes.clone());
    let loads = Arc::new(load::Loads::new(Arc::clone(&shared), routes));
    app.merge(page::router(Arc::clone(&shared), tallies, Arc::clone(&downloads)))
        .route(load::PATH, post(load::run).with_state(loads))
        .merge(downloads::router(downloads))
        .merge(overload)
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/whoami", get(whoami).with_state(Arc::clone(&shared)))
        .route("/metrics", get(scrape).with_state((metrics, shared)))
        .layer(middleware::from_fn(authenticate))
}

async fn scrape(
    State((metrics, limits)): State<(metrics::PrometheusHandle, Arc<RwLock<Limits>>)>,
) -> impl IntoResponse {
    limits.read().unwrap_or_else(PoisonError::into_inner).observe();
    metrics::render(&metrics)
}

/// Takes any bearer token for a user's name. A real service verifies the token here.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some(name) = bearer.and_then(|value| value.trim().strip_prefix("Bearer ")) {
        // White space is not part of the token, and one user with many names would have many budgets.
        let user = User::new(name.trim());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// Returns the client's address, and its key for each route's policies.
async fn whoami(State(limits): State<Arc<RwLock<Limits>>>, request: Request) -> Response {
    let limits = limits.read().unwrap_or_else(PoisonError::into_inner);
    let head = RequestHead::from(&request);
    let client = limits.client_ip();
    let routes: BTreeMap<_, BTreeMap<_, _>> = limits
        .routes()
        .iter()
        .map(|route| {
            let path = route.paths()[0].as_str();
            let policies = limits.policies(route);
            (path, policies.map(|policy| (policy.name(), policy.key_of(&head, client, path))).collect())
        })
        .collect();
    let address = client.address(&head).map_or_else(|error| error.to_string(), |address| address.to_string());
    Json(json!({
        "client": address,
        "peer": peer_addr(&head).map(|peer| peer.ip().to_canonical().to_string()),
        "keys": routes,
    }))
    .into_response()
}
