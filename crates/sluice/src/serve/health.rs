//! Health: `/healthz`, `/healthcheck` as in envoyproxy/ratelimit, and `grpc.health.v1` for Envoy and orchestrators. All
//! fail from the moment at which the service is asked to stop, while it still completes the requests in flight.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use super::until_stopped;

/// The names under which clients ask: the whole process, and the one service.
const NAMES: [&str; 2] = ["", "envoy.service.ratelimit.v3.RateLimitService"];

/// Makes the routes. `is_stopping` turns true when the service is told to stop.
pub(crate) async fn router(is_stopping: watch::Receiver<bool>) -> Router {
    let (reporter, grpc) = health_reporter();
    set(&reporter, ServingStatus::Serving).await;
    tokio::spawn(report_stop(reporter, is_stopping.clone()));
    let router = Router::new().route("/healthz", get(healthz)).route("/healthcheck", get(healthz));
    let router = router.with_state(is_stopping);
    router.route_service("/grpc.health.v1.Health/{method}", grpc)
}

async fn report_stop(reporter: HealthReporter, is_stopping: watch::Receiver<bool>) {
    until_stopped(is_stopping).await;
    set(&reporter, ServingStatus::NotServing).await;
}

async fn set(reporter: &HealthReporter, status: ServingStatus) {
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}

async fn healthz(State(is_stopping): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    if *is_stopping.borrow() { (StatusCode::SERVICE_UNAVAILABLE, "stopping\n") } else { (StatusCode::OK, "ok\n") }
}
