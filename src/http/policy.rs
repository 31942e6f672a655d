//! The [`Policy`] methods that are only for HTTP requests.

use std::num::NonZeroU16;
use std::sync::Arc;

use http::{HeaderName, StatusCode};

use crate::engine::policy::{ChargeOnce, Policy};
use crate::http::exemptions::{Except, Exemptions};
use crate::http::head::{RequestHead, only_line, trimmed};
use crate::limiter::IntoLimiter;

impl Policy {
    /// Makes a policy that enforces `limiter`: a [`Quota`](crate::Quota) (a [`TokenBucket`](crate::TokenBucket) in
    /// memory), an [`Algorithm`](crate::algorithm::Algorithm) in memory, a [`RateLimiter`](crate::RateLimiter), a
    /// [`LeakyQueue`](crate::LeakyQueue), a [`Concurrency`](crate::Concurrency), their counterparts on Redis, or an
    /// `Arc` with any [`Limiter`](crate::Limiter).
    ///
    /// Clients and dashboards see the name: letters, digits and ``!#$%&'*+-.^_`|~:/``, a
    /// letter or `*` first, and 64 bytes at most.
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) checks it.
    pub fn new(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        Self::make(name, limiter)
    }

    /// Exempts requests by network, header value or path, so that the policy does not apply to them, and does not ban
    /// them. They are counted as `skipped`. Replaces earlier exemptions.
    ///
    /// The layer's other policies still apply. Unlike with a condition in [`when`](Self::when), a client cannot make a
    /// request exempt with another spelling of a path or a forged header: see [`Exemptions`].
    #[doc(alias("allowlist", "whitelist", "bypass"))]
    pub fn exempt(mut self, exemptions: Exemptions) -> Self {
        let except = Except::new(exemptions);
        self.selector.except = Some(Box::new(move |policy, head| except.exempts(policy, head)));
        self
    }

    /// Sets the status for rejections, any 4xx or 5xx.
    ///
    /// Unless set, it is 429 Too Many Requests (also for [bans](Self::penalty)), 403 Forbidden if the key's quota is
    /// [suspended](crate::Quota::suspended), or 503 Service Unavailable if all clients share the budget, or if the
    /// server is [overloaded](crate::Overload), since the client may have done nothing wrong.
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = NonZeroU16::new(status.as_u16());
        self
    }

    /// A rejection's status. `is_due_to_others` says whether the client may have done nothing wrong.
    pub(crate) fn rejection_status(&self, is_due_to_others: bool) -> StatusCode {
        let usual = if is_due_to_others { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
        self.own_status().unwrap_or(usual)
    }

    /// A rejection's status if the key's quota is suspended.
    pub(crate) fn suspended_status(&self) -> StatusCode {
        self.own_status().unwrap_or(StatusCode::FORBIDDEN)
    }

    fn own_status(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.status?.get()).ok()
    }
}

/// The longest idempotency key that counts, in bytes. Stripe has this maximum, and so have most services that have
/// followed it.
const LONGEST_KEY: usize = 255;

impl ChargeOnce {
    /// Takes this header's value as the idempotency key. Retries are free once, and within 24 hours, unless set
    /// otherwise.
    // Inlined, as `new` is.
    #[inline]
    pub fn by_header(header: HeaderName) -> Self {
        Self::new(Box::new(move |head| {
            let key = idempotency_key(head, &header)?;
            Some([key, head.method().as_str().as_bytes(), head.uri().path().as_bytes()])
        }))
    }
}

/// Returns a request's idempotency key, if it has a valid one.
fn idempotency_key<'a>(head: &RequestHead<'a>, header: &HeaderName) -> Option<&'a [u8]> {
    let key = trimmed(only_line(head.headers(), header)?);
    let is_key = (1..=LONGEST_KEY).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    is_key.then_some(key)
}
