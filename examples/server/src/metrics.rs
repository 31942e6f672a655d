//! `/metrics`: exports the metrics to Prometheus.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::interval;

use crate::limits::Limits;

/// Buckets for waits, in seconds: from the resolution of a timer to the longest wait by default.
const WAITS: [f64; 11] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Buckets for calls to Redis, in seconds: from a server nearby to one that does not answer.
const CALLS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];

/// Installs the recorder. Call it before the first request.
pub(crate) fn install() -> PrometheusHandle {
    let waits = Matcher::Suffix("time_in_queue".to_owned());
    let calls = Matcher::Suffix("call.duration".to_owned());
    let handle = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(waits, &WAITS)
        .and_then(|builder| builder.set_buckets_for_metric(calls, &CALLS))
        .expect("there are buckets")
        .install_recorder()
        .expect("this is the only recorder");
    let kept = handle.clone();
    tokio::spawn(async move {
        // Without it, samples would pile up until the next scrape.
        let mut ticks = interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            kept.run_upkeep();
        }
    });
    handle
}

pub(crate) async fn scrape(
    State((metrics, limits)): State<(PrometheusHandle, Arc<RwLock<Limits>>)>,
) -> impl IntoResponse {
    let limits = limits.read().unwrap_or_else(PoisonError::into_inner);
    limits.observe();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
