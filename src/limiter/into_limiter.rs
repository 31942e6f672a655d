//! [`IntoLimiter`]: the arguments that become limiters.

use std::sync::Arc;

use super::deciding_bucket::DecidingBucket;
use super::{Limiter, RateLimiter};
use crate::algorithm::{Algorithm, TokenBucket};
use crate::values::Quota;

/// Conversion into a limiter: from a [`Quota`] (a [`TokenBucket`] in memory), an [`Algorithm`] (over its own
/// [`MemoryStore`](crate::store::MemoryStore)), a [`RateLimiter`], a [`LeakyQueue`](crate::LeakyQueue), a
/// [`SlowDown`](crate::SlowDown), a [`Concurrency`](crate::Concurrency), a [`Balance`](crate::Balance), their kin on
/// Redis, or a shared `Arc` of any [`Limiter`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    note = "pass a quota, an algorithm, or `Arc::new(...)` of a limiter; to share one budget between policies, \
            clone an `Arc::new(RateLimiter::in_memory(...))`"
)]
pub trait IntoLimiter {
    /// Whether each decision is made at once, and none fails, bans or holds units: true of algorithms in memory. A
    /// program with such limiters is smaller.
    #[doc(hidden)]
    const ALWAYS_DECIDES: bool = false;

    /// Converts into a limiter that can do more than decide only once it is completed, if there is one that does the
    /// same.
    #[doc(hidden)]
    fn into_deciding(self) -> Arc<dyn Limiter>
    where
        Self: Sized,
    {
        self.into_limiter()
    }

    /// Converts into a limiter.
    fn into_limiter(self) -> Arc<dyn Limiter>;
}

impl<A: Algorithm> IntoLimiter for A {
    const ALWAYS_DECIDES: bool = true;

    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(RateLimiter::in_memory(self))
    }
}

/// A [`TokenBucket`] in memory.
impl IntoLimiter for Quota {
    const ALWAYS_DECIDES: bool = true;

    fn into_limiter(self) -> Arc<dyn Limiter> {
        TokenBucket::new(self).into_limiter()
    }

    fn into_deciding(self) -> Arc<dyn Limiter> {
        Arc::new(DecidingBucket::new(self))
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
