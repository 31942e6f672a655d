//! Response fields: pure functions from decisions to header values.
//!
//! | field | responses | value | configured by |
//! |---|---|---|---|
//! | `Retry-After` (RFC 9110) | rejections | the wait in whole seconds, rounded up, never zero | always sent |
//! | `X-Rate-Limited-For` | rejections | the exact wait | [`WaitFields`] |
//! | `RateLimit-Policy`, `RateLimit` (Internet-Drafts) | all | what is left | [`RateLimitFields`] |
//! | `Server-Timing` (W3C) | those of requests that waited in a queue | the time they waited | [`server_timing`](crate::RateLimitLayerBuilder::server_timing) |
//! | `X-RateLimit-*` (common practice) | all | what is left | [`RateLimitFields::x_rate_limit`] |

mod append;
mod constant;
mod decimal;
mod draft07;
mod draft11;
mod fields;
mod jitter;
mod legacy;
mod measure;
mod partition;
mod retry;
#[cfg(test)]
mod tests;
mod timing;
mod writer;

use http::{HeaderName, header};

pub use self::fields::{Advertise, RateLimitFields, ResetForm};
pub(crate) use self::jitter::Jitter;
pub(crate) use self::retry::retry_after_seconds;
pub use self::retry::{WaitFields, X_RATE_LIMITED_FOR};
pub(crate) use self::timing::append_server_timing;
pub(crate) use self::writer::{Reading, ResponseFields, Writer};

/// The field with what is left of each policy.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The field with the quota of each policy.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The fields to list in `Access-Control-Expose-Headers`, since scripts in a browser can read only listed fields.
/// The last four are those of gRPC-Web.
///
/// The CORS layer goes *outside* of the rate limit, so that rejections have its fields, too (without them, a script
/// sees only a network error), and so that it answers preflights before they are counted.
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
pub const EXPOSED_HEADERS: [HeaderName; 11] = [
    header::RETRY_AFTER,
    RATELIMIT,
    RATELIMIT_POLICY,
    legacy::LIMIT,
    legacy::REMAINING,
    legacy::RESET,
    X_RATE_LIMITED_FOR,
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    HeaderName::from_static("grpc-retry-pushback-ms"),
];
