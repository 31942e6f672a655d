//! placeholder docs
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
#[cfg(feature = "http")]
mod body;
#[cfg(feature = "config")]
pub mod config;
mod decision;
#[cfg(feature = "http")]
mod future;
#[cfg(feature = "http")]
mod head;
#[cfg(feature = "http")]
pub mod headers;
#[cfg(feature = "http")]
mod judge;
#[cfg(feature = "http")]
pub mod key;
#[cfg(feature = "http")]
mod layer;
mod limiter;
mod partition;
#[cfg(feature = "http")]
mod policy;
#[cfg(feature = "queue")]
mod queue;
mod quota;
#[cfg(feature = "http")]
mod rejection;
#[cfg(feature = "http")]
mod service;
pub mod store;
#[cfg(feature = "http")]
mod telemetry;
#[cfg(feature = "test-util")]
pub mod testing;
mod throttle;
pub mod time;
#[cfg(feature = "http")]
mod verdict;

#[cfg(feature = "queue")]
pub use self::queue::LeakyQueue;
#[cfg(feature = "http")]
pub use self::{
    body::ResponseBody,
    future::ResponseFuture,
    head::RequestHead,
    layer::{IntoPolicies, RateLimitLayer},
    policy::{FailureMode, MissingKey, Policy, PolicyError},
    rejection::{Reason, Rejection},
    service::RateLimit,
    verdict::{PolicyVerdict, Verdict},
};
pub use self::{
    decision::{Check, Decision, LimiterError, Outcome, Pending, Receipt},
    limiter::{IntoLimiter, Limiter, RateLimiter},
    partition::PartitionKey,
    quota::{Quota, QuotaError},
    throttle::{Throttle, ThrottleError, ThrottleFuture, ThrottleLayer},
};
