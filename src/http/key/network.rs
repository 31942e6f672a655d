//! `IpNetwork`: the IPv4 address or IPv6 network that an address's key stands for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::engine::key::text::{self, KeyTextError};
use crate::values::PartitionKey;

/// The prefix length that groups IPv6 addresses under one budget, unless set. It is the smallest network that a
/// provider gives to a customer (RFC 6177).
pub(super) const DEFAULT_IPV6_PREFIX: u8 = 64;

/// The IPv4 address or IPv6 network that one key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    pub(super) base: IpAddr,
    pub(super) prefix: u8,
}

impl IpNetwork {
    /// Returns the network that `ip` is in: the address itself for IPv4 in any spelling and within the local NAT64
    /// prefix, and otherwise the first `ipv6_prefix` bits.
    #[must_use]
    pub fn of(ip: IpAddr, ipv6_prefix: u8) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self { base: ip.into(), prefix: 32 },
            IpAddr::V6(ip) => match embedded_ipv4(ip) {
                Some(ip) => Self { base: ip.into(), prefix: 32 },
                // Each address is one client. Its IPv4 address is in one of four places, because the operator chose a
                // prefix of 48, 56, 64 or 96 bits (RFC 6052, section 2.2).
                None if ip.to_bits() >> 80 == LOCAL_NAT64 => Self { base: ip.into(), prefix: 128 },
                None => Self { base: ip.into(), prefix: ipv6_prefix.min(128) }.cleared(),
            },
        }
    }
}

/// Returns the key that an operator writes as an address, or as the network that has the budget.
pub(super) fn read_text(text: &str, ipv6_prefix: u8) -> Result<PartitionKey, KeyTextError> {
    let name = text::unquoted_text(text).unwrap_or_default();
    let (address, prefix) = name.split_once('/').map_or((&*name, None), |(address, prefix)| (address, Some(prefix)));
    let network = address.parse().ok().map(|address| IpNetwork::of(address, ipv6_prefix));
    let is_this = |network: &IpNetwork| prefix.is_none_or(|prefix| prefix == network.prefix.to_string());
    network.filter(is_this).map(PartitionKey::from).ok_or_else(|| {
        KeyTextError::new(format!(
            "an address, such as 203.0.113.7 or 2001:db8::1, or a network 2001:db8::/{ipv6_prefix}"
        ))
    })
}

/// Writes a key's address or network.
pub(super) fn write_text(key: &PartitionKey, ipv6_prefix: u8) -> Option<String> {
    let address = text::address(key)?;
    let network = IpNetwork::of(address, ipv6_prefix);
    Some(if address.is_ipv4() || network.prefix == 128 { address.to_string() } else { network.to_string() })
}

/// The first 48 bits of `64:ff9b:1::/48` (RFC 8215).
const LOCAL_NAT64: u128 = 0x0064_ff9b_0001;

/// Returns the IPv4 address in a NAT64 (RFC 6052, 64:ff9b::/96) or 6to4 (RFC 3056, 2002::/16) address.
///
/// Masked to a /64, NAT64 would be one key for all IPv4 clients. Both are recognised by their bits, never by notation.
fn embedded_ipv4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = ip.to_bits();
    #[allow(clippy::cast_possible_truncation, reason = "the address is 32 of the bits")]
    if bits >> 32 == 0x0064_ff9b_0000_0000_0000_0000 {
        Some(Ipv4Addr::from_bits(bits as u32))
    } else if bits >> 112 == 0x2002 {
        Some(Ipv4Addr::from_bits((bits >> 80) as u32))
    } else {
        None
    }
}

/// Rejects prefixes shorter than /32, which would make a whole provider one client, and longer than /128.
#[track_caller]
pub(super) const fn checked_prefix(prefix: u8) -> u8 {
    assert!(prefix >= 32 && prefix <= 128, "an IPv6 prefix groups clients sensibly from /32 to /128");
    prefix
}

impl From<IpNetwork> for PartitionKey {
    /// Uses the network's bytes. Networks with different lengths can have the same key, but a policy uses one length.
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
