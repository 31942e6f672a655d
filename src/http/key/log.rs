//! The log lines about keys that are read from the wrong place, one function each. They never contain a key.
//!
//! The callers log each mistake once. `network` is the peer address's class, such as "private".

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use std::fmt::Display;
use std::sync::Once;

use crate::util::log::{event, page};

/// Logged once per process, because a client that bypasses the proxies can cause it at will.
pub(crate) fn short_forwarding_list(header: &dyn Display, hops: usize) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        event!(warn: see = page!("fewer-elements-than-proxies"), %header, hops, "fewer elements than proxies: too many hops, or a direct connection");
    });
}

pub(crate) fn proxy_is_the_client(network: &str, header: &dyn Display) {
    event!(warn: see = page!("the-peer-is-a-proxy"), network, %header, "the peer is a proxy, and every client behind it shares one budget: use ClientIp with TrustedProxies instead of PeerIp, or in a file the source and the trusted proxies of [client-ip]");
}

pub(crate) fn untrusted_forwarding(network: &str, header: &dyn Display) {
    event!(warn: see = page!("a-forwarding-header-was-not-trusted"), network, %header, "a forwarding header was not trusted and was ignored: if your proxy sent it, add the proxy's network to TrustedProxies; if not, it is a forgery");
}

pub(crate) fn another_forwarding_header(configured: &dyn Display, seen: &dyn Display) {
    event!(warn: see = page!("a-trusted-proxy-sends-another-forwarding-header"), %configured, %seen, "a trusted proxy sends another forwarding header than the configured one: set IpSource to the header that your proxy sends");
}

pub(crate) fn no_client_is_reported(configured: &dyn Display) {
    event!(warn: see = page!("trusted-proxies-report-no-client"), %configured, "trusted proxies have reported no client in the first 100 requests, so that all clients share one budget: let the proxy set this header");
}

pub(crate) fn first_unmatched() {
    event!(info: see = page!("no-request-had-a-matched-route"), "PathKey::matched: the first request had no matched route, so it is charged to a budget that such requests share. Nothing is wrong if it was for a path without a route; if none of the first 100 has one, a warning follows");
}

pub(crate) fn no_route_matched() {
    event!(warn: see = page!("no-request-had-a-matched-route"), "PathKey::matched: none of the first 100 requests had a matched route, so they share one budget: put the layer inside of the router (Router::layer, Router::route_layer)");
}

/// At `debug`, because requests without a user are usual. `extension` is a type name.
pub(crate) fn extension_missing(extension: &str) {
    event!(debug: see = page!("a-request-lacks-its-extension"), extension, "a request lacks the extension that its key is read from: if all do, put the layer that inserts it outside of the rate limit");
}
