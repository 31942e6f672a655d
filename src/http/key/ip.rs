//! `PeerIp`: keys from the address of the connected peer, and the networks that IP keys stand for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{KeyError, KeyExtractor, hint};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by the address of the connected peer; IPv6 grouped by network.
///
/// Behind a reverse proxy, the peer is the proxy for all clients: use [`ClientIp`](super::ClientIp) there. A request
/// from a private or loopback address with a forwarding header is logged once per process.
///
/// The server must provide the peer's address in one of these request extensions:
///
/// - axum's `ConnectInfo<SocketAddr>` (crate feature `axum`), there when the app is served with
///   `into_make_service_with_connect_info::<SocketAddr>()`;
/// - tonic's `TcpConnectInfo` (crate feature `tonic`), which its server always inserts, also under TLS;
/// - a plain [`SocketAddr`], for any other server.
///
/// Without one, requests are answered 500 and the mistake is logged by name: if all clients shared one bucket
/// instead, the mistake would show only in the next outage.
///
/// # Accuracy
///
/// An IPv6 client usually owns a whole /64 and can send from any of its addresses, so a key stands for a /64
/// unless [set otherwise](Self::with_ipv6_prefix). Each IPv4 address is a key, also
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
///     Policy::new(name, TokenBucket::new(Quota::per_second(limit))).key(PeerIp::new().with_ipv6_prefix(prefix))
/// };
/// let layer = RateLimitLayer::new([tier("device", 64, 10), tier("home", 56, 40), tier("site", 48, 200)]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: u8,
}

pub(super) const DEFAULT_IPV6_PREFIX: u8 = 64;

impl PeerIp {
    /// Keys by IPv4 address or IPv6 /64.
    #[must_use]
    pub const fn new() -> Self {
        Self { ipv6_prefix: DEFAULT_IPV6_PREFIX }
    }

    /// Sets the prefix length of the IPv6 networks that have a budget each. Many homes have a /56, many sites a /48.
    ///
    /// # Panics
    ///
    /// If `prefix` is not within 32 and 128.
    #[must_use]
    #[track_caller]
    pub const fn with_ipv6_prefix(self, prefix: u8) -> Self {
        Self { ipv6_prefix: checked_prefix(prefix) }
    }
}

/// Rejects prefixes shorter than /32, which would make one client of a whole provider, and longer than /128.
#[track_caller]
pub(super) const fn checked_prefix(prefix: u8) -> u8 {
    assert!(prefix >= 32 && prefix <= 128, "an IPv6 prefix groups clients sensibly from /32 to /128");
    prefix
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
    #[cfg(feature = "tonic")]
    if let Some(peer) =
        head.extensions().get::<tonic::transport::server::TcpConnectInfo>().and_then(|info| info.remote_addr.as_ref())
    {
        return Some(peer);
    }
    head.extensions().get::<SocketAddr>()
}

#[cold]
pub(super) fn peer_unknown() -> KeyError {
    KeyError::Misconfigured {
        problem: "peer address unknown: serve the app with into_make_service_with_connect_info::<SocketAddr>() \
                  (axum, with this crate's feature `axum`), turn on its feature `tonic` (tonic), or insert a SocketAddr into the request's extensions"
            .into(),
    }
}

/// The IPv4 address or IPv6 network that one key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    base: IpAddr,
    prefix: u8,
}

impl IpNetwork {
    /// Returns the network of `ip`: the address itself for IPv4 in any spelling and within the local NAT64 prefix, and
    /// the first `ipv6_prefix` bits of any other.
    #[must_use]
    pub fn of(ip: IpAddr, ipv6_prefix: u8) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self { base: ip.into(), prefix: 32 },
            IpAddr::V6(ip) => match embedded_ipv4(ip) {
                Some(ip) => Self { base: ip.into(), prefix: 32 },
                // One client each: its IPv4 address is in one of five places, as the operator chose (RFC 6052, section
                // 2.2).
                None if ip.to_bits() >> 80 == LOCAL_NAT64 => Self { base: ip.into(), prefix: 128 },
                None => {
                    let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix.min(128))).unwrap_or(0);
                    Self { base: Ipv6Addr::from_bits(ip.to_bits() & mask).into(), prefix: ipv6_prefix.min(128) }
                }
            },
        }
    }
}

/// The first 48 bits of `64:ff9b:1::/48` (RFC 8215).
const LOCAL_NAT64: u128 = 0x0064_ff9b_0001;

/// Returns the IPv4 address in a NAT64 (RFC 6052, 64:ff9b::/96) or 6to4 (RFC 3056, 2002::/16) address.
///
/// Masked to a /64, NAT64 would be one key for all of IPv4. Both are recognised by their bits, never by
/// notation.
fn embedded_ipv4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = ip.to_bits();
    #[allow(clippy::cast_possible_truncation)]
    if bits >> 32 == 0x0064_ff9b_0000_0000_0000_0000 {
        Some(Ipv4Addr::from_bits(bits as u32))
    } else if bits >> 112 == 0x2002 {
        Some(Ipv4Addr::from_bits((bits >> 80) as u32))
    } else {
        None
    }
}

impl From<IpNetwork> for PartitionKey {
    /// Uses the network's bytes. Networks of different lengths can have the same key: a policy uses one length.
    fn from(network: IpNetwork) -> Self {
        // `base` is canonical already.
        match network.base {
            IpAddr::V4(ip) => Self::from(ip.octets().as_slice()),
            IpAddr::V6(ip) => Self::from(ip.octets().as_slice()),
        }
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}
