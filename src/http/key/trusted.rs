//! `TrustedProxies`: the proxies whose forwarding headers count.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The proxies whose forwarding headers are trusted: by address, by number, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct TrustedProxies {
    /// If empty, there is a count, and every peer is a proxy unless that is zero.
    ranges: Vec<Range>,
    /// The number of proxies that append to the list; `None` to skip the elements within the ranges.
    pub(super) count: Option<usize>,
}

impl TrustedProxies {
    /// Trusts these addresses (`192.0.2.7`) and ranges of addresses (`10.0.0.0/8`, `fd00::/8`).
    ///
    /// # Errors
    ///
    /// If there is none, or one is malformed or has bits set beyond its prefix; or if they span, all together, half of
    /// all IPv4 addresses or half of the IPv6 addresses of the internet (`2000::/3`): a server that trusts all peers
    /// lets every client choose its address.
    pub fn ranges(ranges: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, TrustedProxiesError> {
        Self { ranges: Vec::new(), count: None }.and_ranges(ranges)
    }

    /// Trusts the last `n` elements of the list: `n` is the number of proxies in front of this
    /// server that append to it, including the one that is connected. Zero trusts no peer.
    ///
    /// Every peer is taken for a proxy, unless there are [ranges](Self::and_ranges) as
    /// well: only for servers that nothing but the proxies can reach. A header of one value has no elements to
    /// count; there, any `n` but 0 trusts every peer.
    pub const fn count(n: usize) -> Self {
        Self { ranges: Vec::new(), count: Some(n) }
    }

    /// Trusts this machine (`127.0.0.0/8`, `::1`): for a proxy on it, if no other process on it can connect.
    pub fn loopback() -> Self {
        Self { ranges: [LOOPBACK_V4, LOOPBACK_V6].into(), count: None }
    }

    /// Trusts all private addresses: loopback (`127.0.0.0/8`, `::1`), RFC 1918 (`10.0.0.0/8`,
    /// `172.16.0.0/12`, `192.168.0.0/16`), unique local (`fc00::/7`) and link-local
    /// (`169.254.0.0/16`, `fe80::/10`).
    ///
    /// Not for networks where clients or other tenants have such addresses too.
    pub fn private() -> Self {
        let v4 = |a, b, prefix| Range { base: [a, b, 0, 0].into(), prefix };
        let v6 = |first, prefix| Range { base: [first, 0, 0, 0, 0, 0, 0, 0].into(), prefix };
        let v4 = [v4(10, 0, 8), v4(172, 16, 12), v4(192, 168, 16), v4(169, 254, 16)];
        let v6 = [v6(0xfc00, 7), v6(0xfe80, 10)];
        Self { ranges: [&[LOOPBACK_V4, LOOPBACK_V6], v4.as_slice(), &v6].concat(), count: None }
    }

    /// Trusts these [`ranges`](Self::ranges) too. After a [`count`](Self::count), the elements are
    /// counted only if the peer is within the ranges.
    ///
    /// # Errors
    ///
    /// As for [`ranges`](Self::ranges).
    pub fn and_ranges(
        mut self,
        ranges: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, TrustedProxiesError> {
        for range in ranges {
            self.ranges.push(range.as_ref().parse()?);
        }
        check_span(&self.ranges)?;
        if self.ranges.is_empty() { Err(TrustedProxiesError::Empty) } else { Ok(self) }
    }

    /// Takes the `n`-th element from the right, as [`count`](Self::count) does, if the peer is within the ranges,
    /// instead of the first element outside the ranges.
    pub const fn and_count(mut self, n: usize) -> Self {
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
        self.ranges.iter().any(|range| range.contains(ip))
    }
}

const LOOPBACK_V4: Range = Range { base: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };
const LOOPBACK_V6: Range = Range { base: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 };

/// Canonical addresses with equal first bits. Unlike [`IpNetwork`](super::IpNetwork), which is for keys, it takes
/// NAT64 and 6to4 addresses literally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    base: IpAddr,
    prefix: u8,
}

impl Range {
    fn contains(self, ip: IpAddr) -> bool {
        let equal_bits = match (self.base, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        equal_bits >= self.prefix.into()
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let written: IpAddr = address.parse().ok()?;
        let bits: u8 = if written.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = match prefix {
            // Not 08, which others may read as octal.
            Some(digits) if digits.starts_with('0') && digits.len() > 1 => return None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            Some(_) => return None,
            None => bits,
        };
        let base = written.to_canonical();
        // An IPv4-mapped range: its first 96 bits are those of the notation.
        let mapped = if base.is_ipv4() && written.is_ipv6() { 96 } else { 0 };
        if prefix > bits { None } else { Some(Self { base, prefix: prefix.checked_sub(mapped)? }) }
    }

    /// Returns the range with the bits beyond the prefix cleared.
    fn cleared(self) -> Self {
        let prefix = u32::from(self.prefix);
        let base = match self.base {
            IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(32 - prefix).unwrap_or(0)).into()),
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(128 - prefix).unwrap_or(0)).into()),
        };
        Self { base, ..self }
    }
}

/// Rejects ranges that span half of all addresses: clients are within them, too.
fn check_span(ranges: &[Range]) -> Result<(), TrustedProxiesError> {
    /// The addresses that are routed on the internet (RFC 4291, section 2.4): an eighth of all IPv6 addresses. The
    /// others are not counted.
    const INTERNET: Range = Range { base: IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0)), prefix: 3 };
    const HALF_OF_V4: u128 = 1 << 31;
    const HALF_OF_V6: u128 = 1 << 124;
    let mut sorted = ranges.to_vec();
    // Two ranges are disjoint, or one contains the other and sorts first.
    sorted.sort_unstable_by_key(|range| (range.base, range.prefix));
    let (mut spanned_v4, mut spanned_v6, mut last) = (0, 0, None::<Range>);
    for range in sorted {
        if last.is_some_and(|last| last.prefix <= range.prefix && last.contains(range.base)) {
            continue;
        }
        last = Some(range);
        let (spanned, half, size) = match range.base {
            IpAddr::V4(_) => (&mut spanned_v4, HALF_OF_V4, 1_u128 << (32 - range.prefix)),
            IpAddr::V6(_) if range.prefix <= INTERNET.prefix && range.contains(INTERNET.base) => {
                (&mut spanned_v6, HALF_OF_V6, 2 * HALF_OF_V6)
            }
            IpAddr::V6(base) if INTERNET.contains(base.into()) => {
                (&mut spanned_v6, HALF_OF_V6, 1_u128 << (128 - range.prefix))
            }
            IpAddr::V6(_) => continue,
        };
        *spanned += size;
        if *spanned >= half {
            return Err(TrustedProxiesError::HalfOfAll { range: range.to_string(), is_alone: size >= half });
        }
    }
    Ok(())
}

impl FromStr for Range {
    type Err = TrustedProxiesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let range = Self::parse(text).ok_or_else(|| TrustedProxiesError::Malformed { range: text.into() })?;
        if range.prefix == 0 {
            Err(TrustedProxiesError::Everybody { range: text.into() })
        } else if range.cleared() != range {
            let (cleared, address) = (range.cleared().to_string(), range.base);
            Err(TrustedProxiesError::BitsBehindPrefix { range: text.into(), cleared, address })
        } else {
            Ok(range)
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// Why [`TrustedProxies`] cannot be built from these ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustedProxiesError {
    /// There is no range, so that no proxy would be trusted.
    Empty,
    /// It is neither an address nor a range of addresses.
    Malformed {
        /// What was written.
        range: String,
    },
    /// It names an address within a range, so that either may be meant.
    BitsBehindPrefix {
        /// What was written.
        range: String,
        /// The whole range.
        cleared: String,
        /// The address.
        address: IpAddr,
    },
    /// It spans all addresses, so that every client could choose its address.
    Everybody {
        /// What was written.
        range: String,
    },
    /// The ranges span half of all addresses or more, so that many a client could choose its address.
    HalfOfAll {
        /// The range with which half was reached.
        range: String,
        /// Whether it spans that much without the others.
        is_alone: bool,
    },
}

impl fmt::Display for TrustedProxiesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no proxy is trusted; write their addresses or ranges, such as 10.0.0.0/8"),
            Self::Malformed { range } => write!(
                f,
                "{range:?} is not a range of addresses; write an address such as 192.0.2.7, or a range such as \
                 10.0.0.0/8 or fd00::/8"
            ),
            Self::BitsBehindPrefix { range, cleared, address } => {
                write!(f, "{range:?} is an address within a range; write {cleared} for the range, or {address}")
            }
            Self::Everybody { range } => write!(
                f,
                "{range:?} trusts all addresses, so that clients can choose their address; write the ranges of your \
                 proxies, or count the proxies"
            ),
            Self::HalfOfAll { range, is_alone } => {
                let subject = if *is_alone { "trusts" } else { "and the others together trust" };
                write!(
                    f,
                    "{range:?} {subject} half of all addresses or more, so that clients can choose their address; write \
                     the ranges of your proxies, or count the proxies"
                )
            }
        }
    }
}

impl Error for TrustedProxiesError {}
