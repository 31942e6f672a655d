//! Metrics: records them, and exports them to Prometheus.

use std::time::Duration;

use axum::http::header;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::time::interval;

pub use metrics_exporter_prometheus::PrometheusHandle;

/// Buckets for waits, in seconds: from a timer's resolution to the longest default wait.
const WAITS: [f64; 11] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Buckets for calls to Redis, in seconds: from a server nearby to a server that does not answer.
const CALLS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];

/// Installs the recorder. Call it before the first request, in a runtime.
///
/// # Panics
///
/// If the process has a recorder already.
#[must_use]
pub fn install() -> PrometheusHandle {
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

/// Answers a scrape. Observe the limits before.
pub fn render(metrics: &PrometheusHandle) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
