//! Header fields, as pure functions from decisions to values.
//!
//! | field | who gets it | chosen by |
//! |---|---|---|
//! | `Retry-After` (RFC 9110) | the refused; whole seconds, rounded up, never zero | always sent |
//! | `X-Rate-Limited-For` | the refused; the exact wait | [`WaitFields`] |
//! | `RateLimit-Policy`, `RateLimit` (Internet-Drafts) | everybody; what is left | [`RateLimitFields`] |
//! | `Server-Timing` (W3C) | those who waited in a queue; how long | [`server_timing`](crate::RateLimitLayerBuilder::server_timing) |
//! | `X-RateLimit-*` (habit) | everybody; what is left | [`RateLimitFields::x_rate_limit`] |

mod constant;
mod decimal;
mod draft07;
mod draft11;
mod fields;
mod jitter;
mod legacy;
mod measure;
mod merge;
mod partition;
mod retry;
#[cfg(test)]
mod tests;
mod timing;
mod writer;

use http::{HeaderName, header};

pub use self::fields::{RateLimitFields, ResetForm, Tell};
pub(crate) use self::jitter::Jitter;
pub(crate) use self::retry::retry_after_seconds;
pub use self::retry::{WaitFields, X_RATE_LIMITED_FOR};
pub(crate) use self::timing::append_server_timing;
pub(crate) use self::writer::{Fields, Reading, Writer};

/// What is left of each policy.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// What each policy grants.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The fields that scripts in a browser may read only if the server says so: for
/// `Access-Control-Expose-Headers`. The last four are those of gRPC-Web.
///
/// The CORS layer goes *outside* of the rate limit, so that rejections have its fields, too (one without them is a network
/// error to a script, and tells it nothing), and so that it answers preflights before they are counted.
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
