//! `Ranges`: the addresses that a policy trusts or exempts.

use std::net::{IpAddr, Ipv6Addr};

use super::network::IpNetwork;
use super::trusted::TrustedProxiesError;

/// Address ranges, which together span less than half of all addresses. A lookup compares them one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<IpNetwork>);

impl Ranges {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    pub(super) fn new(ranges: &[IpNetwork]) -> Self {
        Self(ranges.to_vec())
    }

    /// Adds ranges, written as `192.0.2.7`, `10.0.0.0/8` or `fd00::/8`. Fails as
    /// [`TrustedProxies::networks`](super::TrustedProxies::networks) does, except that an empty list has no effect.
    pub(crate) fn add(&mut self, ranges: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(), TrustedProxiesError> {
        for range in ranges {
            self.0.push(IpNetwork::read(range.as_ref())?);
        }
        check_span(&self.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(ip))
    }
}

impl IpNetwork {
    fn contains(self, ip: IpAddr) -> bool {
        let equal_bits = match (self.base, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        equal_bits >= self.prefix.into()
    }

    /// Reads a range. Unlike [`IpNetwork::of`], which is for keys, this takes NAT64 and 6to4 addresses literally, so
    /// that trusting or exempting `10.0.0.0/8` never covers an IPv6 address.
    fn read(text: &str) -> Result<Self, TrustedProxiesError> {
        let range = Self::parse(text).ok_or_else(|| TrustedProxiesError::Malformed { network: text.into() })?;
        if range.prefix == 0 {
            Err(TrustedProxiesError::Everybody { network: text.into() })
        } else if range.cleared() != range {
            let cleared = range.cleared().to_string();
            let address = range.base;
            Err(TrustedProxiesError::BitsBehindPrefix { network: text.into(), cleared, address })
        } else {
            Ok(range)
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let written: IpAddr = address.parse().ok()?;
        let bits: u8 = if written.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = match prefix {
            // Reject 08, because others may read it as octal.
            Some(digits) if digits.starts_with('0') && digits.len() > 1 => return None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            Some(_) => return None,
            None => bits,
        };
        let base = written.to_canonical();
        // In an IPv4-mapped range, the first 96 bits are the notation's prefix.
        let mapped = if base.is_ipv4() && written.is_ipv6() { 96 } else { 0 };
        if prefix > bits { None } else { Some(Self { base, prefix: prefix.checked_sub(mapped)? }) }
    }

    /// Returns the range with the bits beyond the prefix cleared.
    pub(super) fn cleared(self) -> Self {
        let prefix = u32::from(self.prefix);
        let base = match self.base {
            IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(32 - prefix).unwrap_or(0)).into()),
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(128 - prefix).unwrap_or(0)).into()),
        };
        Self { base, ..self }
    }
}

/// Rejects ranges that span half of all addresses, because clients are within them, too.
fn check_span(ranges: &[IpNetwork]) -> Result<(), TrustedProxiesError> {
    /// The addresses that are routed on the internet (RFC 4291, section 2.4), an eighth of all IPv6 addresses. The
    /// others are not counted.
    const INTERNET: IpNetwork = IpNetwork { base: IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0)), prefix: 3 };
    const HALF_OF_V4: u128 = 1 << 31;
    const HALF_OF_V6: u128 = 1 << 124;
    let mut sorted = ranges.to_vec();
    // Two ranges are disjoint, or one contains the other and sorts first.
    sorted.sort_unstable_by_key(|range| (range.base, range.prefix));
    let (mut spanned_v4, mut spanned_v6, mut last) = (0, 0, None::<IpNetwork>);
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
            return Err(TrustedProxiesError::HalfOfAll { network: range.to_string(), is_alone: size >= half });
        }
    }
    Ok(())
}
