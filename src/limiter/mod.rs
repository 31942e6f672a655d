//! For those who write a limiter, or ask one without a layer: the question, the answer, and a limiter's description.
//!
//! [`Limiter`] is the trait, [`RateLimiter`] an algorithm with its table, and [`LimiterExt`](crate::LimiterExt) asks a
//! limiter without HTTP. `testing::check_modes` and `testing::check_limiter` (feature `test-util`) test one of your
//! own.

mod acquire;
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "layers use it"))]
mod deciding_bucket;
pub(crate) mod ext;
pub(crate) mod health;
pub(crate) mod hold;
mod into_limiter;
pub(crate) mod rate_limiter;
pub(crate) mod traits;
pub(crate) mod wait_bounds;
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "bodies are HTTP's"))]
mod watched_units;

pub use self::acquire::Acquire;
pub use self::hold::Permit;
pub use self::into_limiter::IntoLimiter;
pub use crate::values::{
    Answer, Ask, Backlog, Credit, Debit, Description, Exception, Inheritance, Mode, Override, OverrideReason,
    OverrideReasonError, Pending, Priority, QuotaError, Receipt, RequestEnd, Shape, Terms,
};

#[cfg(feature = "http")]
pub(crate) use self::deciding_bucket::DecidingBucket;
#[cfg(all(test, not(sluice_loom)))]
pub(crate) use self::ext::LimiterExt;
pub(crate) use self::rate_limiter::RateLimiter;
pub(crate) use self::traits::Limiter;
pub(crate) use self::wait_bounds::WaitBounds;
#[cfg(any(feature = "http", test))]
pub(crate) use self::watched_units::WatchedUnits;
