//! `PeerIp`: keys from the address of the connected peer.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use super::network::{self, DEFAULT_IPV6_PREFIX, IpNetwork, checked_prefix};
use super::{KeyError, KeyExtractor, KeyTextError, hint, identity_of};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by the address of the connected peer; IPv6 grouped by network.
///
/// Behind a reverse proxy, the peer is the proxy for all clients: use [`ClientIp`](super::ClientIp) there. A request
/// from a private or loopback address with a forwarding header is logged once per process.
///
/// The server must provide the peer's address in one of these request extensions:
///
/// - the `ConnectInfo<SocketAddr>` of axum 0.8 (crate feature `axum`), there when the app is served with
///   `into_make_service_with_connect_info::<SocketAddr>()`, or its `MockConnectInfo<SocketAddr>`, for tests without a
///   server, if there is no other;
/// - the `TcpConnectInfo` of tonic 0.14 (crate feature `tonic`), which its server always inserts, also under TLS;
/// - a plain [`SocketAddr`], for any other server.
///
/// Without one, requests are answered 500 and the mistake is logged by name: if all clients shared one bucket
/// instead, the mistake would show only in the next outage.
///
/// # Accuracy
///
/// An IPv6 client usually owns a whole /64 and can send from any of its addresses, so a key stands for a /64
/// unless [set otherwise](Self::ipv6_prefix). Each IPv4 address is a key, also
/// in its IPv6 spellings (IPv4-mapped, NAT64 `64:ff9b::/96`, 6to4 `2002::/16`). An address of a local NAT64
/// (`64:ff9b:1::/48`, RFC 8215) stands for one IPv4 address, wherever in it that is, and is a key, too.
///
/// # Tiers
///
/// A home often has a /56 and a site a /48: its clients can send from 256 or 65,536 networks of /64. Tiers
/// with rising quotas bound that, and leave room for neighbours:
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::PeerIp;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let tier = |name: &'static str, prefix, limit| {
///     Policy::new(name, TokenBucket::new(Quota::per_second(limit))).key(PeerIp::new().ipv6_prefix(prefix))
/// };
/// let layer = RateLimitLayer::new([tier("device", 64, 10), tier("home", 56, 40), tier("site", 48, 200)]);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
#[doc(alias("ConnectInfo", "PeerIpKeyExtractor", "ip address"))]
pub struct PeerIp {
    ipv6_prefix: u8,
}

impl PeerIp {
    /// Keys by IPv4 address or IPv6 /64.
    pub const fn new() -> Self {
        Self { ipv6_prefix: DEFAULT_IPV6_PREFIX }
    }

    /// Sets the prefix length of the IPv6 networks that have a budget each. Many homes have a /56, many sites a /48.
    ///
    /// # Panics
    ///
    /// If `prefix` is not within 32 and 128.
    #[track_caller]
    pub const fn ipv6_prefix(self, prefix: u8) -> Self {
        Self { ipv6_prefix: checked_prefix(prefix) }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let peer = peer(head).ok_or_else(peer_unknown)?;
        hint::peer_is_the_key(|| peer.ip(), head.headers());
        Ok(match peer {
            // Nothing to mask.
            SocketAddr::V4(peer) => PartitionKey::from(peer.ip().octets().as_slice()),
            SocketAddr::V6(peer) => ipv6_key(*peer.ip(), self.ipv6_prefix),
        })
    }

    fn identity(&self) -> Option<String> {
        identity_of(self)
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        network::read_text(text, self.ipv6_prefix)
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        network::write_text(key, self.ipv6_prefix)
    }
}

/// Not inlined, since it needs more of the stack than the key of an IPv4 address.
#[inline(never)]
fn ipv6_key(ip: Ipv6Addr, prefix: u8) -> PartitionKey {
    IpNetwork::of(ip.into(), prefix).into()
}

/// Returns the address of the connected peer, if the server provides it.
#[must_use]
pub fn peer_addr(head: &RequestHead<'_>) -> Option<SocketAddr> {
    peer(head).copied()
}

/// Looks the extensions up in a fixed order, so that requests with several of them are all keyed by the same kind. An
/// app of axum pays for one look-up.
#[inline]
fn peer<'a>(head: &RequestHead<'a>) -> Option<&'a SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = head.extensions().get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(&info.0);
    }
    other_peer(head)
}

#[cfg_attr(feature = "axum", inline(never))]
fn other_peer<'a>(head: &RequestHead<'a>) -> Option<&'a SocketAddr> {
    // After the one of a connection, as axum's own extractor has it.
    #[cfg(feature = "axum")]
    if let Some(info) = head.extensions().get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>() {
        return Some(&info.0);
    }
    #[cfg(feature = "tonic")]
    if let Some(peer) =
        head.extensions().get::<tonic::transport::server::TcpConnectInfo>().and_then(|info| info.remote_addr.as_ref())
    {
        return Some(peer);
    }
    head.extensions().get::<SocketAddr>()
}

/// The sources that this build reads, in the words of the program that has to provide them. The versions are named
/// since an extension of another version of axum or tonic is another type, which is not found.
#[cold]
pub(super) fn peer_unknown() -> KeyError {
    const AXUM: &str = if cfg!(feature = "axum") {
        "with axum 0.8, serve the app with into_make_service_with_connect_info::<SocketAddr>() (the ConnectInfo of another \
         version of axum is not found)"
    } else {
        "with axum 0.8, turn on this crate's feature `axum`, and serve the app with \
         into_make_service_with_connect_info::<SocketAddr>()"
    };
    const TONIC: &str = if cfg!(feature = "tonic") {
        "tonic 0.14 provides it by itself (that of another version is not found)"
    } else {
        "with tonic 0.14, turn on this crate's feature `tonic`"
    };
    // Made once: a server with this mistake answers all requests so.
    static PROBLEM: LazyLock<String> = LazyLock::new(|| {
        format!(
            "peer address unknown: {AXUM}; {TONIC}; with any other server, insert a SocketAddr into the request's extensions"
        )
    });
    KeyError::Misconfigured { problem: PROBLEM.as_str().into() }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// The versions in the message are those that are built.
    #[test]
    fn unknown_peers_name_the_readable_versions() {
        let error = PeerIp::new().extract(&RequestHead::from(&Request::new(()))).unwrap_err().to_string();
        let manifest = include_str!("../../../Cargo.toml");
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for name in ["axum", "tonic"] {
            let line = dependencies.lines().find(|line| line.starts_with(&format!("{name} = {{"))).unwrap();
            let version = line.split('"').nth(1).unwrap();
            assert!(error.contains(&format!("{name} {version}")), "{error}: {line}");
        }
        assert!(error.contains("into_make_service_with_connect_info") && error.contains("SocketAddr"), "{error}");
    }
}
