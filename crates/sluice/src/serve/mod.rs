//! `sluice serve`: decides on requests that proxies and programs in other languages ask about.

mod auth;
mod check;
mod domains;
mod front;
mod health;
mod limits;
mod notify;
mod reload;
mod rls;
mod sources;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use clap::{ArgGroup, Args};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower::service_fn;
use tower_sluice_redis::Redis;
use tower_sluice_serving::metrics::PrometheusHandle;
use tower_sluice_serving::snapshots::Saving;
use tower_sluice_serving::{admin, connections, metrics};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

pub(crate) use self::check::{check_domains, without_effect};
use self::domains::Store;
use self::front::Front;
use self::limits::Limits;

use self::sources::Sources;
use crate::failure::Failure;
use crate::rules::toml_file;
use crate::stores;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("files").args(["config", "envoy_config", "limitador_config"]).required(true).multiple(true)))]
pub(crate) struct ServeArguments {
    /// The configuration in TOML. All files are read again when they change, and on SIGHUP
    #[arg(long, value_name = "FILE", value_parser = toml_file)]
    config: Option<PathBuf>,
    /// A file of envoyproxy/ratelimit, or a folder of such files
    #[arg(long, value_name = "FILE")]
    envoy_config: Vec<PathBuf>,
    /// A file of limits of limitador
    #[arg(long, value_name = "FILE")]
    limitador_config: Vec<PathBuf>,
    /// How many keys each rule of these two keeps in memory
    #[arg(long, value_name = "KEYS", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..))]
    max_keys: u32,
    /// The address for proxies, for HTTP and gRPC. Port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081", value_parser = listen_address)]
    listen: SocketAddr,
    /// Keep the limits on this Redis, in place of the one in the file. An address with a password belongs into
    /// SLUICE_REDIS_URL, where other users of the machine do not see it
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// How long a decision may wait for this Redis, in milliseconds; after that, each service decides by itself
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    redis_timeout: u64,
    /// Serve the admin service on this address, such as 127.0.0.1:8082. It needs a token in SLUICE_ADMIN_TOKEN if
    /// others can reach it
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write ADDRESS:PORT, such as 127.0.0.1:8081 or [::1]:8081".to_owned())
}

/// Serves until a signal comes.
pub(crate) fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    // RUST_LOG=tower_sluice=debug logs each decision.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let admin = arguments.admin.as_deref().map(admin::Settings::read).transpose().map_err(Failure::Usage)?;
    let sources = Sources {
        config: arguments.config.clone(),
        envoy: arguments.envoy_config.clone(),
        limitador: arguments.limitador_config.clone(),
    };
    let texts = sources.read().map_err(Failure::Io)?;
    let redis = arguments.redis.clone().or_else(|| std::env::var("SLUICE_REDIS_URL").ok());
    let (reader, store) = match redis {
        None => (stores::reader(), Store::Memory { max_keys: arguments.max_keys as usize }),
        Some(url) => {
            // Another package in this build may have enabled TLS in the library, but then there are still no ciphers.
            if cfg!(not(feature = "redis-tls")) && url.starts_with("rediss://") {
                let problem = "the address of Redis: rediss:// needs the feature `redis-tls`, without which this program was \
                               built; build it with the feature, or connect to a TLS proxy on this machine, such as stunnel";
                return Err(Failure::Usage(problem.to_owned()));
            }
            // The error does not repeat the address, which may hold a password.
            let redis = Redis::single(url).timeout(Duration::from_millis(arguments.redis_timeout)).open();
            let redis = redis.map_err(|error| Failure::Usage(format!("the address of Redis: {error}")))?;
            (stores::reader().redis(tower_sluice_redis::file::limiters(&redis)), Store::Redis(redis))
        }
    };
    let limits = Arc::new(Limits::read(reader, &texts, store)?);
    // Before the first request.
    let saving = limits.with_config(|config| Saving::restore(config)).flatten();
    let runtime = tokio::runtime::Runtime::new();
    let runtime = runtime.map_err(|error| Failure::Io(format!("the runtime does not start: {error}")))?;
    let served = runtime.block_on(async {
        // From now on, SIGHUP does not end the process.
        let hangups = reload::hangups()?;
        tokio::spawn(reload::apply_edits(hangups, sources, texts, Arc::clone(&limits)));
        if let Some(saving) = saving.clone() {
            tokio::spawn(saving.run());
        }
        serve(arguments.listen, limits, admin).await
    });
    // After the last request.
    let served = served.and_then(|()| saving.map_or(Ok(()), |saving| saving.save()));
    // Connections that did not end in time must not keep the process alive.
    runtime.shutdown_background();
    served.map_err(Failure::Io)
}

/// An error is the message to print.
async fn serve(listen: SocketAddr, limits: Arc<Limits>, admin: Option<admin::Settings>) -> Result<(), String> {
    let (listener, address) = bind(listen, "--listen")?;
    let admin = match admin {
        None => None,
        Some(settings) => Some((bind(settings.address, "--admin")?, settings.router(limits.operated()))),
    };
    if !address.ip().is_loopback() {
        tracing::warn!("{address}: all that reach this address may use up the budgets of every client");
    }
    let (stopping, is_stopping) = watch::channel(false);
    let stop = stop_signal()?;
    tokio::spawn(async move {
        stop.await;
        let _ = stopping.send(true);
    });
    // Reject queued requests at once, instead of letting them wait until they depart.
    let close = {
        let limits = Arc::clone(&limits);
        move || limits.close()
    };
    let router = router(Arc::clone(&limits)).merge(health::router(is_stopping.clone()).await);
    let front = Front::new(limits, router);
    let calls = service_fn(move |call| front.clone().answer(call));
    println!("listening on {address}");
    // The kernel accepts connections from now on, and they are answered once the next lines run.
    notify::ready();
    let serving = connections::serve(listener, calls, until_stopped(is_stopping.clone()), close);
    match admin {
        None => serving.await,
        Some(((listener, address), router)) => {
            println!("admin on http://{address}");
            tokio::join!(serving, connections::serve(listener, router, until_stopped(is_stopping), || {}));
        }
    }
    Ok(())
}

fn router(limits: Arc<Limits>) -> Router {
    let metrics = metrics::install();
    reload::note_success(true);
    Router::new().route("/metrics", get(scrape).with_state((metrics, limits)))
}

async fn scrape(State((metrics, limits)): State<(PrometheusHandle, Arc<Limits>)>) -> impl IntoResponse {
    limits.observe();
    metrics::render(&metrics)
}

/// `option` is the option that sets the address.
fn bind(address: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr), String> {
    let bound = connections::listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) =
        bound.map_err(|error| format!("{address}: {error}; choose another address with {option}"))?;
    Ok((listener, address))
}

/// Returns a future that is ready on SIGTERM and SIGINT.
fn stop_signal() -> Result<impl Future<Output = ()>, String> {
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("the service cannot wait for SIGTERM: {error}"))?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    })
}

async fn until_stopped(mut is_stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, which ends the wait, too.
    let _ = is_stopping.wait_for(|is_stopping| *is_stopping).await;
}
