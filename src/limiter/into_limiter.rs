//! [`IntoLimiter`]: the arguments that become limiters.

use std::sync::Arc;

use super::{Limiter, RateLimiter};
use crate::algorithm::{Algorithm, TokenBucket};
use crate::values::Quota;

/// Conversion into a limiter: of a [`Quota`] (a [`TokenBucket`] in memory), an [`Algorithm`] (over a
/// [`MemoryStore`](crate::store::MemoryStore) of its own), a [`RateLimiter`], a [`LeakyQueue`](crate::LeakyQueue), a
/// [`SlowDown`](crate::SlowDown), a [`Concurrency`](crate::Concurrency), a [`Balance`](crate::Balance), their kin on
/// Redis, or a shared `Arc` of any [`Limiter`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    note = "pass a quota, an algorithm, or `Arc::new(...)` of a limiter; to share one budget between policies, \
            clone an `Arc::new(RateLimiter::in_memory(...))`"
)]
pub trait IntoLimiter {
    /// Converts into a limiter.
    fn into_limiter(self) -> Arc<dyn Limiter>;
}

impl<A: Algorithm> IntoLimiter for A {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(RateLimiter::in_memory(self))
    }
}

/// A [`TokenBucket`] in memory.
impl IntoLimiter for Quota {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        TokenBucket::new(self).into_limiter()
    }
}

impl<A: Algorithm, T> IntoLimiter for RateLimiter<A, T>
where
    Self: Limiter,
{
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl<L: Limiter> IntoLimiter for Arc<L> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        self
    }
}

impl IntoLimiter for Arc<dyn Limiter> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        self
    }
}
