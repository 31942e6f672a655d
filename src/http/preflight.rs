//! Exempts CORS preflights, if a layer is configured to.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT,
    ORIGIN, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderName, Method, Request, Version};

use crate::algorithm::TokenBucket;
use crate::engine::policy::Policy;
use crate::http::head::{RequestHead, only_line};
use crate::limiter::{IntoLimiter, Limiter, RateLimiter};
use crate::store::MemoryStore;
use crate::values::{Ask, PartitionKey, Quota};

/// Exempts requests that can only be preflights, within a budget. All other requests count, and so do preflights
/// beyond the budget and preflights of banned keys.
struct PreflightExemption {
    /// One budget for the layer. A budget per client would need a key that the client cannot choose, and preflights
    /// carry no credentials. A client that uses the budget up only causes other preflights to be counted.
    budget: Quota,
    /// Made for the first preflight, on the policies' clock, because replaying a log uses another clock than the
    /// system's.
    limiter: OnceLock<Arc<dyn Limiter>>,
}

/// Returns whether a request is an exempt preflight. The last argument returns whether it certainly has no body. A
/// closure, so that a program without the exemption is not linked with it.
pub(crate) type ExemptsPreflight = Box<dyn Fn(&[Policy], &RequestHead<'_>, &dyn Fn() -> bool) -> bool + Send + Sync>;

/// Exempts preflights within a budget.
pub(crate) fn exempt_preflights(budget: Quota) -> ExemptsPreflight {
    let exemption = PreflightExemption { budget, limiter: OnceLock::new() };
    Box::new(move |policies, head, has_no_body| exemption.try_exempt(policies, head, has_no_body))
}

impl PreflightExemption {
    fn limiter(&self, policies: &[Policy]) -> &dyn Limiter {
        &**self.limiter.get_or_init(|| {
            let store = MemoryStore::with_capacity(1).with_clock(policies[0].clock());
            RateLimiter::new(TokenBucket::new(self.budget), store).into_limiter()
        })
    }

    /// Charges a request to the budget in place of the policies, if it can only be a preflight. If it returns `true`,
    /// it has charged the budget, and the request passes uncounted.
    #[cold]
    fn try_exempt(&self, policies: &[Policy], head: &RequestHead<'_>, has_no_body: &dyn Fn() -> bool) -> bool {
        let charge = || self.limiter(policies).decide(&Ask::charge(&PartitionKey::SHARED, 1)).at_once();
        is_preflight(head)
            && has_no_body()
            && !is_banned(policies, head)
            && charge().is_some_and(|decision| decision.is_allowed())
    }
}

/// Returns whether one of these policies bans a request's key. A request without a key is not banned.
fn is_banned(policies: &[Policy], head: &RequestHead<'_>) -> bool {
    let may_ban = |policy: &&Policy| policy.lineage.penalty.is_some() || policy.has_overrides();
    let mut applying = policies.iter().filter(may_ban).filter(|policy| policy.applies_to(head));
    applying.any(|policy| {
        let key = policy.selector.key.extract(head);
        key.is_ok_and(|key| policy.exception_here(&key).is_some_and(|exception| exception.is_ban))
    })
}

/// Fields that no browser sends in a preflight, which has no credentials and no body. Some frameworks use the last
/// three as the method.
static FOREIGN: [HeaderName; 13] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    COOKIE,
    CONTENT_TYPE,
    CONTENT_ENCODING,
    TRANSFER_ENCODING,
    TE,
    TRAILER,
    EXPECT,
    UPGRADE,
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// A "CORS-preflight request" in the Fetch standard. It has no `content-type`, so it cannot be gRPC.
fn is_preflight(head: &RequestHead<'_>) -> bool {
    let fields = head.headers();
    *head.method() == Method::OPTIONS
        && only_line(fields, &ORIGIN).is_some_and(|origin| is_origin(origin.as_bytes()))
        && only_line(fields, &ACCESS_CONTROL_REQUEST_METHOD)
            .is_some_and(|method| Method::from_bytes(method.as_bytes()).is_ok())
        && !FOREIGN.iter().any(|name| fields.contains_key(name))
        && fields.get_all(CONTENT_LENGTH).iter().all(|length| length == "0")
}

/// Returns whether a value is `null`, or a scheme, a host and an optional port (RFC 6454, section 7.1).
fn is_origin(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let Some((scheme, host)) = text.split_once("://") else { return text == "null" };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && host.parse::<Authority>().is_ok_and(|authority| is_host_and_port(&authority))
}

/// Returns whether an authority is a host with an optional port, and has no user.
fn is_host_and_port(authority: &Authority) -> bool {
    let host = authority.host();
    match authority.as_str().strip_prefix(host) {
        Some("") => true,
        Some(_) => !host.is_empty() && authority.port_u16().is_some(),
        None => false,
    }
}

/// Returns whether a request certainly has no body. In HTTP/1.1 and earlier, header fields announce a body, and
/// [`is_preflight`] has checked them. In later versions, only the body knows, so it must be of a known type: axum's,
/// tonic's, or `()`.
pub(crate) fn has_no_body<B: 'static>(request: &Request<B>) -> bool {
    let is_at_end = is_at_end(request.body());
    is_at_end.unwrap_or(request.version() <= Version::HTTP_11)
}

fn is_at_end(body: &dyn Any) -> Option<bool> {
    if body.is::<()>() {
        return Some(true);
    }
    #[cfg(feature = "axum")]
    if let Some(body) = body.downcast_ref::<axum::body::Body>() {
        return Some(http_body::Body::is_end_stream(body));
    }
    #[cfg(feature = "tonic")]
    if let Some(body) = body.downcast_ref::<tonic::body::Body>() {
        return Some(http_body::Body::is_end_stream(body));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_look_like_browsers_origins() {
        for origin in [
            "null",
            "https://page.example",
            "http://127.0.0.1:3000",
            "http://[::1]:80",
            "https://xn--bcher-kva.example",
            "moz-extension://0f5a8e9c-0000-4000-8000-000000000000",
            "capacitor://localhost",
        ] {
            assert!(is_origin(origin.as_bytes()), "{origin}");
        }
        for other in [
            "",
            " ",
            "*",
            "NULL",
            "null ",
            "page.example",
            "https://",
            "://page.example",
            "1https://page.example",
            "https:/page.example",
            "https://page.example/",
            "https://page.example/path",
            "https://page.example?x",
            "https://user@page.example",
            "https://page.example https://other.example",
            "https://page.example, https://other.example",
            " https://page.example",
            "https://p\u{e4}ge.example",
            "https://:80",
            "https://page.example:",
            "https://page.example:port",
            "https://page.example:65536",
        ] {
            assert!(!is_origin(other.as_bytes()), "{other}");
        }
    }
}
