//! The outgoing side of [`tower-sluice`](tower_sluice): a client that keeps to the limits of its partners, and limits
//! around services that do not speak HTTP.
//!
//! - [`PacerLayer`] reads a partner's limits from its responses, and sends calls at the pace that they allow.
//! - [`ThrottleLayer`] puts policies of `tower-sluice` around a Tower service of any request type: jobs, messages,
//!   calls to a database.
//!
//! The guide of `tower-sluice` has a page on [calling
//! partners](https://docs.rs/tower-sluice/latest/tower_sluice/guide/partners/).
//!
//! # Crate features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `metrics` | no | outgoing calls by layer and result, for a recorder of the `metrics` crate 0.24 |
//! | `redis` | no | `PacerLayer::shared`: a pace that processes share |
//! | `reqwest` | no | `PacerLayer::reqwest`: a middleware of `reqwest-middleware` 0.5, and a Tower layer around the client of reqwest 0.13 |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod pacer;
mod throttle;

#[cfg(test)]
#[path = "../../../tests/support/log.rs"]
mod captured_log;
#[cfg(test)]
#[path = "../../../tests/support/cases.rs"]
mod cases;
#[cfg(test)]
#[path = "../../../tests/support/effort.rs"]
#[allow(unreachable_pub, reason = "shared with other tests")]
mod effort;
#[cfg(all(test, feature = "redis"))]
#[path = "../../redis/tests/support/manual_redis.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod manual_redis;
#[cfg(all(test, feature = "redis"))]
#[path = "../../redis/tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod servers;
#[cfg(all(test, feature = "redis"))]
#[path = "../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod timing;
#[cfg(all(test, feature = "redis"))]
#[path = "../../../tests/support/trace.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod trace;

pub use self::pacer::{AdaptiveThrottle, Pacer, PacerError, PacerFuture, PacerLayer, WaitStatuses};
pub use self::throttle::{Throttle, ThrottleError, ThrottleFuture, ThrottleLayer};
