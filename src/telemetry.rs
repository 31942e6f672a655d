//! What is logged: mistakes in the set-up, once each, and transitions. Never a key, and nothing per
//! refusal: an attacker would write the log.

#[cfg(feature = "tracing")]
mod with_tracing {
    use crate::decision::LimiterError;

    pub(crate) fn misconfigured(policy: &str, problem: &str) {
        tracing::error!(policy, problem, "rate limiter misconfigured: its requests are answered 500");
    }

    pub(crate) fn limiter_failed(policy: &str, error: &LimiterError, requests: &str) {
        tracing::warn!(policy, %error, requests, "limiter failed");
    }

    pub(crate) fn limiter_recovered(policy: &str) {
        tracing::warn!(policy, "limiter recovered");
    }
}

#[cfg(not(feature = "tracing"))]
mod without_tracing {
    use crate::decision::LimiterError;

    pub(crate) fn misconfigured(_policy: &str, _problem: &str) {}
    pub(crate) fn limiter_failed(_policy: &str, _error: &LimiterError, _requests: &str) {}
    pub(crate) fn limiter_recovered(_policy: &str) {}
}

#[cfg(feature = "tracing")]
pub(crate) use self::with_tracing::{limiter_failed, limiter_recovered, misconfigured};
#[cfg(not(feature = "tracing"))]
pub(crate) use self::without_tracing::{limiter_failed, limiter_recovered, misconfigured};
