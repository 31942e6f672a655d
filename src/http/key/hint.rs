//! Set-up mistakes that the first requests reveal. Each is logged once per process, except that an untrusted peer is
//! logged once for public addresses and once for all others. From then on, and after 65,536 requests, the check costs
//! one relaxed load.

use std::net::IpAddr;
use std::sync::Once;

use http::header::{FORWARDED, VIA};
use http::{HeaderMap, HeaderName};

use super::source::{IpSource, X_REAL_IP};
use crate::engine::first_requests::FirstRequests;
use crate::engine::key::Streak;
use crate::http::key::log;

/// How many requests are checked. More than the health checks that a load balancer sends before the first client
/// connects.
const CHECKS: u32 = 1 << 16;

/// How many checks one request from a public address counts for. Such a peer is hardly the operator's proxy, so a
/// server that public peers reach directly stops checking after 512 requests.
const CHECKS_PER_PUBLIC_PEER: u32 = 1 << 7;

/// The forwarding headers that do not belong to one product.
static FORWARDING: [HeaderName; 3] =
    [HeaderName::from_static("x-forwarded-for"), FORWARDED, HeaderName::from_static(X_REAL_IP)];

/// One mistake, checked for in the first requests.
type Hint = FirstRequests<CHECKS>;

/// Checks a key that is the peer's address. If a private peer sends a forwarding header, it is a proxy, and all its
/// clients share its key.
#[inline]
pub(super) fn peer_is_the_key(peer: impl FnOnce() -> IpAddr, headers: &HeaderMap) {
    static HINT: Hint = Hint::new();
    let found = HINT.check(|| {
        let class = class_of(peer());
        if class == PUBLIC {
            // The check itself counts one.
            HINT.count(CHECKS_PER_PUBLIC_PEER - 1);
            return None;
        }
        forwarding(headers, None).map(|header| (class, header))
    });
    if let Some((class, header)) = found {
        log::proxy_is_the_client(class, header);
    }
}

/// Checks an untrusted peer's request for a key that reads a header, because the peer may be a proxy that the operator
/// forgot to trust. Logged once for private peers and once for public ones, since any client can cause the latter.
#[inline]
pub(super) fn peer_is_not_trusted(peer: IpAddr, headers: &HeaderMap, source: &IpSource) {
    static PRIVATE_OR_PUBLIC: Hint = Hint::new();
    static LOGGED: [Once; 2] = [const { Once::new() }; 2];
    PRIVATE_OR_PUBLIC.check(|| {
        let class = class_of(peer);
        if source.name().is_some_and(|name| headers.contains_key(name)) {
            LOGGED[usize::from(class == PUBLIC)].call_once(|| log::untrusted_forwarding(class, source));
        }
        // The check goes on until both are logged, because the other class may still come.
        LOGGED.iter().all(Once::is_completed).then_some(())
    });
}

/// Whether the first requests from trusted proxies all lack any forwarding header. Fewer requests may be a load
/// balancer's health checks.
static UNREPORTED: Streak<100> = Streak::new();

/// Notes that a trusted proxy has reported a client.
#[inline]
pub(super) fn clients_are_reported() {
    if !UNREPORTED.is_decided() {
        UNREPORTED.interrupt();
    }
}

/// Checks a request in which a trusted proxy did not report the client, because the proxy may send another header than
/// the configured one, or no header.
#[inline]
pub(super) fn source_is_absent(headers: &HeaderMap, source: &IpSource) {
    static HINT: Hint = Hint::new();
    let has_none = || source.name().is_some_and(|name| !headers.contains_key(name)) && !is_forwarded(headers);
    if !UNREPORTED.is_decided() && has_none() && UNREPORTED.grows_long() {
        log::no_client_is_reported(source);
    }
    let found = HINT.check(|| {
        let name = source.name()?;
        if headers.contains_key(name) { None } else { forwarding(headers, Some(name)) }
    });
    if let Some(header) = found {
        log::another_forwarding_header(source, header);
    }
}

/// Returns whether a request's fields say that it has passed a proxy.
pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    forwarding(headers, None).is_some() || headers.contains_key(VIA)
}

/// Returns a forwarding header that the request has, other than `but`.
fn forwarding(headers: &HeaderMap, but: Option<&HeaderName>) -> Option<&'static HeaderName> {
    FORWARDING.iter().find(|name| Some(*name) != but && headers.contains_key(*name))
}

const PUBLIC: &str = "public";

/// An address's class, which is logged in its place.
fn class_of(ip: IpAddr) -> &'static str {
    let ip = ip.to_canonical();
    let (is_loopback, is_private, is_link_local) = match ip {
        IpAddr::V4(ip) => (ip.is_loopback(), ip.is_private(), ip.is_link_local()),
        IpAddr::V6(ip) => (ip.is_loopback(), ip.is_unique_local(), ip.is_unicast_link_local()),
    };
    match (is_loopback, is_private, is_link_local) {
        (true, _, _) => "loopback",
        (_, true, _) => "private",
        (_, _, true) => "link-local",
        _ => PUBLIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_has_its_class() {
        for (ip, expected) in [
            ("127.9.9.9", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("10.9.9.9", "private"),
            ("::ffff:192.168.0.1", "private"),
            ("fd00::1", "private"),
            ("169.254.1.1", "link-local"),
            ("fe80::1", "link-local"),
            ("203.0.113.9", PUBLIC),
            ("2001:db8::1", PUBLIC),
        ] {
            assert_eq!(class_of(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    /// A mistake is checked for a bounded number of times.
    #[cfg(feature = "tracing")]
    #[test]
    fn mistakes_are_reported_once() {
        let hint = Hint::new();
        assert_eq!(hint.check(|| None::<u8>), None);
        assert_eq!(hint.check(|| Some(7)), Some(7));
        assert_eq!(hint.check(|| -> Option<u8> { panic!("checked again") }), None);

        let hint = Hint::new();
        let checks = (0..2 * CHECKS).filter(|_| {
            let mut checked = false;
            hint.check(|| {
                checked = true;
                None::<u8>
            });
            checked
        });
        assert_eq!(checks.count(), CHECKS as usize);
        assert_eq!(hint.check(|| Some(7)), None);

        let hint = Hint::new();
        for _ in 0..CHECKS / CHECKS_PER_PUBLIC_PEER {
            assert!(!hint.is_done());
            let found = hint.check(|| {
                hint.count(CHECKS_PER_PUBLIC_PEER - 1);
                None::<u8>
            });
            assert_eq!(found, None);
        }
        assert!(hint.is_done());
    }
}
