use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{KeyError, KeyExtractor, hint};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// The address of the socket's other end; IPv6 grouped by network.
///
/// Behind a reverse proxy that is the proxy, for everybody: use [`ClientIp`](super::ClientIp) there. If a request
/// comes from a private or loopback address with a forwarding header, that is logged once for the process.
///
/// The server must say who is connected, in one of these request extensions:
///
/// - axum's `ConnectInfo<SocketAddr>` (crate feature `axum`), there when the app is served with
///   `into_make_service_with_connect_info::<SocketAddr>()`;
/// - tonic's `TcpConnectInfo` (crate feature `tonic`), which its server always inserts, also under TLS;
/// - a plain [`SocketAddr`], for any other server.
///
/// With none, requests are answered 500 and the mistake is logged by name: a limiter that put
/// everybody in one bucket instead would be found out in the next outage.
///
/// # Accuracy
///
/// An IPv6 client usually owns a whole /64 and can send from any of its addresses, so that is what
/// a key stands for, unless [set otherwise](Self::with_ipv6_prefix). IPv4 addresses are keys of their own, also
/// in their IPv6 spellings (IPv4-mapped, NAT64 `64:ff9b::/96`, 6to4 `2002::/16`). Addresses of a local NAT64
/// (`64:ff9b:1::/48`, RFC 8215) stand for one IPv4 address each, wherever in them it is, and are keys of their own, too.
///
/// # Tiers
///
/// A home is often given a /56 and a site a /48: whoever has one can send from 256 or 65,536 networks of /64. Tiers
/// with rising quotas bound that, and leave neighbours room:
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
    /// One budget per IPv4 address or IPv6 /64.
    #[must_use]
    pub const fn new() -> Self {
        Self { ipv6_prefix: DEFAULT_IPV6_PREFIX }
    }

    /// One budget per IPv6 network of this prefix length. /56 is what many homes are given, /48
    /// many sites.
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

/// REQ-125: shorter than /32 would be whole providers, longer than /128 does not exist.
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
            // A key of its own: nothing to be cut off.
            SocketAddr::V4(peer) => PartitionKey::from(peer.ip().octets().as_slice()),
            SocketAddr::V6(peer) => ipv6_key(*peer.ip(), self.ipv6_prefix),
        })
    }
}

/// Apart, since it takes more room than the key of an IPv4 address.
#[inline(never)]
fn ipv6_key(ip: Ipv6Addr, prefix: u8) -> PartitionKey {
    IpNetwork::of(ip.into(), prefix).into()
}

/// Who is connected, as far as the server has said.
#[must_use]
pub fn peer_addr(head: &RequestHead<'_>) -> Option<SocketAddr> {
    peer(head).copied()
}

/// The kinds of extensions are looked up in a fixed order, and never by which one was there last: where a request has
/// several, each request is to be judged by the same one. An app of axum pays for one look.
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

/// What one IP key stands for: an IPv4 address, or an IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    base: IpAddr,
    prefix: u8,
}

impl IpNetwork {
    /// The network of `ip`: the address itself for IPv4 in any spelling, and within the local NAT64 prefix; else
    /// `ipv6_prefix` bits of it.
    #[must_use]
    pub fn of(ip: IpAddr, ipv6_prefix: u8) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self { base: ip.into(), prefix: 32 },
            IpAddr::V6(ip) => match embedded_ipv4(ip) {
                Some(ip) => Self { base: ip.into(), prefix: 32 },
                // One client each: the operator has put its IPv4 address into one of five places (RFC 6052, section 2.2).
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

/// The IPv4 address of a NAT64 (RFC 6052, 64:ff9b::/96) or 6to4 (RFC 3056, 2002::/16) address.
///
/// Cut to a /64, the former would be one key for all of IPv4. Both are decided by bits, never by
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
    /// The network's bytes. Networks of different lengths are not told apart: a policy has one.
    fn from(network: IpNetwork) -> Self {
        // Canonical already.
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
