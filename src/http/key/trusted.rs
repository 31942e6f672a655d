//! `TrustedProxies`: the proxies whose forwarding headers count.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::network::IpNetwork;
use super::ranges::Ranges;

/// The proxies whose forwarding headers are trusted: by address, by number, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[doc(alias("proxy", "load balancer"))]
pub struct TrustedProxies {
    /// If this is empty, there is a count, and every peer is a proxy unless the count is zero.
    ranges: Ranges,
    /// The number of proxies that append to the list. `None` to skip the elements within the ranges.
    pub(super) count: Option<usize>,
}

impl TrustedProxies {
    /// Trusts these addresses (`192.0.2.7`) and networks (`10.0.0.0/8`, `fd00::/8`).
    ///
    /// # Errors
    ///
    /// If the list is empty, or a network is malformed or has bits set beyond its prefix, or if together they span half
    /// of all IPv4 addresses or half of the internet's IPv6 addresses (`2000::/3`), because a server that trusts all
    /// peers lets every client choose its address.
    pub fn networks(networks: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, TrustedProxiesError> {
        Self { ranges: Ranges::EMPTY, count: None }.and_networks(networks)
    }

    /// Trusts the last `n` elements in the list, where `n` is the number of proxies in front of this server that append
    /// to it, including the connected one. With zero, no peer is trusted.
    ///
    /// Every peer is taken for a proxy, unless there are [networks](Self::and_networks) as well, so use this only for
    /// servers that nothing but the proxies can reach. A header with one value has no elements to count, so any `n` but
    /// 0 trusts every peer.
    pub const fn hops(n: usize) -> Self {
        Self { ranges: Ranges::EMPTY, count: Some(n) }
    }

    /// Trusts this machine (`127.0.0.0/8`, `::1`). Use this for a proxy on it, if no other process on it can connect.
    pub fn loopback() -> Self {
        Self { ranges: Ranges::new(&[LOOPBACK_V4, LOOPBACK_V6]), count: None }
    }

    /// Trusts all private addresses: loopback (`127.0.0.0/8`, `::1`), RFC 1918 (`10.0.0.0/8`,
    /// `172.16.0.0/12`, `192.168.0.0/16`), unique local (`fc00::/7`) and link-local
    /// (`169.254.0.0/16`, `fe80::/10`).
    ///
    /// Do not use this in networks where clients or other tenants have such addresses, too.
    pub fn private() -> Self {
        let v4 = |a, b, prefix| IpNetwork { base: [a, b, 0, 0].into(), prefix };
        let v6 = |first, prefix| IpNetwork { base: [first, 0, 0, 0, 0, 0, 0, 0].into(), prefix };
        let v4 = [v4(10, 0, 8), v4(172, 16, 12), v4(192, 168, 16), v4(169, 254, 16)];
        let v6 = [v6(0xfc00, 7), v6(0xfe80, 10)];
        Self { ranges: Ranges::new(&[&[LOOPBACK_V4, LOOPBACK_V6], v4.as_slice(), &v6].concat()), count: None }
    }

    /// Trusts these [`networks`](Self::networks) too. After [`hops`](Self::hops), the elements are counted only if the
    /// peer is within the networks.
    ///
    /// # Errors
    ///
    /// As for [`networks`](Self::networks).
    pub fn and_networks(
        mut self,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, TrustedProxiesError> {
        self.ranges.add(networks)?;
        if self.ranges.is_empty() { Err(TrustedProxiesError::Empty) } else { Ok(self) }
    }

    /// Takes the `n`-th element from the right, as [`hops`](Self::hops) does, if the peer is within the networks,
    /// instead of the first element outside them.
    pub const fn and_hops(mut self, n: usize) -> Self {
        self.count = Some(n);
        self
    }

    /// Whether this peer is a proxy.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        match self.count {
            Some(0) => false,
            Some(_) if self.ranges.is_empty() => true,
            _ => self.contains(peer),
        }
    }

    /// Whether the address is within the ranges.
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.ranges.contains(ip)
    }
}

const LOOPBACK_V4: IpNetwork = IpNetwork { base: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };
const LOOPBACK_V6: IpNetwork = IpNetwork { base: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 };

/// Why [`TrustedProxies`] cannot be built from these networks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustedProxiesError {
    /// There is no network, so that no proxy would be trusted.
    Empty,
    /// It is neither an address nor a network.
    #[non_exhaustive]
    Malformed {
        /// The text as written.
        network: String,
    },
    /// It names an address within a network, so that either may be meant.
    #[non_exhaustive]
    BitsBehindPrefix {
        /// The text as written.
        network: String,
        /// The whole network.
        cleared: String,
        /// The address.
        address: IpAddr,
    },
    /// It spans all addresses, so that every client could choose its address.
    #[non_exhaustive]
    Everybody {
        /// The text as written.
        network: String,
    },
    /// The networks span half of all addresses or more, so that many clients could choose their addresses.
    #[non_exhaustive]
    HalfOfAll {
        /// The network with which half was reached.
        network: String,
        /// Whether it spans that much without the others.
        is_alone: bool,
    },
}

impl fmt::Display for TrustedProxiesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no proxy is trusted; write their addresses or networks, such as 10.0.0.0/8"),
            Self::Malformed { network } => write!(
                f,
                "{network:?} is not a network; write an address such as 192.0.2.7, or a network such as \
                 10.0.0.0/8 or fd00::/8"
            ),
            Self::BitsBehindPrefix { network, cleared, address } => {
                write!(f, "{network:?} is an address within a network; write {cleared} for the network, or {address}")
            }
            Self::Everybody { network } => write!(
                f,
                "{network:?} trusts all addresses, so that clients can choose their address; write the networks of your \
                 proxies, or count the proxies"
            ),
            Self::HalfOfAll { network, is_alone } => {
                let subject = if *is_alone { "trusts" } else { "and the others together trust" };
                write!(
                    f,
                    "{network:?} {subject} half of all addresses or more, so that clients can choose their address; write \
                     the networks of your proxies, or count the proxies"
                )
            }
        }
    }
}

impl Error for TrustedProxiesError {}
