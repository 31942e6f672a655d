//! Response fields: the settings that select them, their values, and the code that writes them into a response.
//!
//! | field | responses | value | configured by | written in |
//! |---|---|---|---|---|
//! | `Retry-After` (RFC 9110) | rejections | the wait in whole seconds, rounded up, from 1 to 2,147,483 (24.8 days) | always sent | `wait.rs` |
//! | `X-Rate-Limited-For` | rejections | the exact wait | [`WaitFields`] | `wait.rs` |
//! | `RateLimit-Policy`, `RateLimit` (Internet-Drafts) | if a policy applied and found its key | what is left | [`RateLimitFields`] | `draft11.rs`, `draft07.rs` |
//! | `X-RateLimit-*` (common practice) | likewise | what is left | [`RateLimitFields::x_ratelimit`] | `x_ratelimit.rs` |
//! | `Server-Timing` (W3C) | those of requests that waited in a queue | the time they waited | [`server_timing`](crate::layer::RateLimitLayerBuilder::server_timing) | `server_timing.rs` |
//!
//! The latest draft, draft-ietf-httpapi-ratelimit-headers-11, expired on 2026-11-24, and no successor was known on
//! 2026-11-26, so its syntax stays the default. A successor would be a further constructor for [`RateLimitFields`].

// From a decision to a field: `Writer` (writer.rs) selects the fields and the policies that they describe, `Measure`
// (measure.rs) converts a decision to the numbers, `ResponseFields` (response_fields.rs) keeps them until the response
// arrives, and each syntax's `write` puts them in, merged with the values that are set already (merge.rs). A
// rejection's fields are all ours, so they are copied instead (`PreparedFields`, prepared.rs).

pub(crate) mod decimal;
mod decision_fields;
mod draft07;
mod draft11;
mod fields;
mod interned;
mod jitter;
mod measure;
mod merge;
mod partition;
mod plans;
mod prepared;
mod response_fields;
mod server_timing;
#[cfg(test)]
mod tests;
pub(crate) mod wait;
mod writer;
mod x_ratelimit;

use http::{HeaderName, header};

pub use self::decision_fields::DecisionFields;
pub(crate) use self::draft11::QuotaUnit;
pub use self::fields::{Advertise, RateLimitFields, ResetForm};
pub(crate) use self::interned::leaked;
pub(crate) use self::jitter::Jitter;
pub(crate) use self::prepared::PreparedFields;
pub(crate) use self::response_fields::ResponseFields;
pub(crate) use self::server_timing::append_server_timing;
pub(crate) use self::wait::{LONGEST_ADVERTISED, merge_retry_after, retry_after_seconds};
pub use self::wait::{WaitFields, X_RATE_LIMITED_FOR};
pub(crate) use self::writer::{Described, PolicyReading, Writer};
pub use self::x_ratelimit::{
    LIMIT as X_RATELIMIT_LIMIT, REMAINING as X_RATELIMIT_REMAINING, RESET as X_RATELIMIT_RESET,
};

/// The field with each policy's remaining units.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The field with each policy's quota.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The fields to list in `Access-Control-Expose-Headers`, because scripts in a browser can read only listed fields. The
/// last four belong to gRPC-Web. If you use [your own name](WaitFields::exact_wait_named) for the exact wait, add it.
/// `Server-Timing` needs `Timing-Allow-Origin` instead.
///
/// Put the CORS layer *outside* the rate limit, so that rejections have its fields, too (without them, a script sees
/// only a network error), and so that it answers preflights before they are counted.
///
/// ```
/// use tower::ServiceBuilder;
/// use tower_http::cors::{Any, CorsLayer};
/// use tower_sluice::headers::EXPOSED_HEADERS;
/// # use tower_sluice::{Policy, Quota, RateLimitLayer, algorithm::TokenBucket};
///
/// # let rate_limit = RateLimitLayer::new(Policy::new("p", TokenBucket::new(Quota::per_second(1))));
/// let cors = CorsLayer::new().allow_origin(Any).expose_headers(EXPOSED_HEADERS);
/// let layers = ServiceBuilder::new().layer(cors).layer(rate_limit); // The first is the outermost.
/// ```
pub const EXPOSED_HEADERS: [HeaderName; 12] = [
    header::RETRY_AFTER,
    RATELIMIT,
    RATELIMIT_POLICY,
    x_ratelimit::LIMIT,
    x_ratelimit::REMAINING,
    x_ratelimit::RESET,
    X_RATE_LIMITED_FOR,
    wait::RETRY_AFTER_MS,
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    HeaderName::from_static("grpc-retry-pushback-ms"),
];
