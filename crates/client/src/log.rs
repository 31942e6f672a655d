//! The log lines of a limiter around a service, one function each.

use tower_sluice::LimiterError;

pub(crate) fn throttle_failed(error: &LimiterError, requests: &str) {
    tracing::warn!(target: "tower_sluice", error = %format_args!("{error:#}"), requests, "ThrottleLayer: limiter failed");
}

pub(crate) fn throttle_recovered() {
    tracing::warn!(target: "tower_sluice", "ThrottleLayer: limiter recovered");
}
