use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::header::{FORWARDED, InvalidHeaderName};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::forwarded;
use super::ip::{DEFAULT_IPV6_PREFIX, IpNetwork, checked_prefix, peer_addr, peer_unknown};
use super::list::Elements;
use super::trusted::TrustedProxies;
use super::{KeyError, KeyExtractor};
use crate::head::RequestHead;
use crate::partition::PartitionKey;
use crate::telemetry;

/// The address of the client as trusted proxies tell it; IPv6 grouped by network.
///
/// Anybody can send a header that names any address. It means something only if a proxy of yours
/// wrote it, so you say which **one** header that is ([`IpSource`]) and which proxies are yours
/// ([`TrustedProxies`]). No other header is looked at, also when that one is absent.
///
/// ```
/// use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
///
/// let key = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::ranges(["10.0.0.0/8", "192.0.2.7"])?);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// The server must say who is connected, as for [`PeerIp`](super::PeerIp). If that is not a trusted
/// proxy, it is the client, whatever it has sent. (For a proxy that connects through a Unix socket,
/// insert a [`SocketAddr`](std::net::SocketAddr) of your choice, and trust that.)
///
/// A list is read from its end, where your proxies have added to it, and all its lines count:
///
/// - With ranges, addresses within them are passed over and the first other one is the client. If
///   there is no other, the leftmost one is.
/// - With a count of `n`, the `n`-th element from the right is the client, whatever the others are.
///
/// What cannot be read (`unknown`, names, `0.0.0.0`, a list of more than 64 elements or 8 KiB before
/// the answer) ends the search: the client is [`Unidentified`]. What is left of the answer is not
/// looked at.
///
/// # What to be careful about
///
/// - A trusted range is believed with all that live in it. If it is a CDN's, any other customer of
///   that CDN can have it send you whatever header they like; if it is a private network, everybody
///   in there can. Trust single addresses where you can.
/// - A header of one value ([`IpSource::Header`]) is the client's own word unless the proxy replaces
///   it in every request. Many pass on what they got.
/// - A proxy must append to the list, not pass it on as it is.
/// - A count that is too large lets clients choose their address; one that is too small makes one
///   client of everybody behind a proxy. A count without ranges believes whoever can connect.
///
/// # Accuracy
///
/// As for [`PeerIp`](super::PeerIp): IPv4 addresses count one by one in whichever notation, IPv6
/// addresses by their /64 unless [set otherwise](Self::with_ipv6_prefix).
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientIp {
    source: IpSource,
    trusted: TrustedProxies,
    unidentified: Unidentified,
    ipv6_prefix: u8,
    lenient: bool,
}

/// Where proxies write the address of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IpSource {
    /// Nowhere: whoever is connected is the client.
    Peer,
    /// `X-Forwarded-For`: a list of addresses, to which each proxy appends the one it was called
    /// from. A port, brackets and quotation marks around an address are accepted.
    XForwardedFor,
    /// `Forwarded`, RFC 7239, likewise a list. Its obfuscated names (`for=_abc`) are no addresses.
    Forwarded,
    /// A header with one address, such as `X-Real-IP`, `CF-Connecting-IP` or `Fly-Client-IP`. More
    /// than one is none.
    ///
    /// Only for a header that the proxy replaces or removes in every request. By default that is
    /// not so for `True-Client-IP` at Akamai and Cloudflare, nor for `Fastly-Client-IP`.
    Header(HeaderName),
}

/// What becomes of a request whose client a trusted proxy did not tell, or not legibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unidentified {
    /// It counts as the proxy's own, and draws on one budget with all others from there. The
    /// default.
    #[default]
    UsePeer,
    /// It has [no key](KeyError::Missing), so that
    /// [`Policy::on_missing_key`](crate::Policy::on_missing_key) decides.
    Missing,
}

impl ClientIp {
    /// Whoever is connected, for servers without a proxy. No header is looked at.
    pub const fn peer() -> Self {
        Self::of(IpSource::Peer, TrustedProxies::count(0))
    }

    /// The address in `source`, if one of the `trusted` proxies is connected.
    pub fn new(source: IpSource, trusted: TrustedProxies) -> Self {
        match source {
            IpSource::Header(name) => Self::of(name.into(), trusted),
            other => Self::of(other, trusted),
        }
    }

    const fn of(source: IpSource, trusted: TrustedProxies) -> Self {
        let (unidentified, ipv6_prefix) = (Unidentified::UsePeer, DEFAULT_IPV6_PREFIX);
        Self { source, trusted, unidentified, ipv6_prefix, lenient: false }
    }

    /// One budget per IPv6 network of this prefix length; 64 unless set.
    ///
    /// # Panics
    ///
    /// If `prefix` is not within 32 and 128.
    pub fn with_ipv6_prefix(self, prefix: u8) -> Self {
        Self { ipv6_prefix: checked_prefix(prefix), ..self }
    }

    /// What becomes of requests whose client is not told.
    pub fn on_unidentified(self, unidentified: Unidentified) -> Self {
        Self { unidentified, ..self }
    }

    /// Reads `Forwarded` also if ports and IPv6 addresses in it are not quoted, or IPv6 addresses
    /// are not in brackets. RFC 7239 asks for both; some proxies do neither.
    pub fn with_lenient_forwarded(self) -> Self {
        Self { lenient: true, ..self }
    }

    /// The client's address; `None` if a trusted proxy did not tell it. IPv4 is never in its IPv6
    /// notation.
    ///
    /// # Errors
    ///
    /// [`KeyError::Misconfigured`] if the server does not say who is connected.
    pub fn resolve(&self, head: &RequestHead<'_>) -> Result<Option<IpAddr>, KeyError> {
        let peer = peer_ip(head)?;
        Ok(if self.trusted.believe(peer) { self.told(peer, head.headers()) } else { Some(peer) })
    }

    /// The client's address, or what [stands in for it](Self::on_unidentified).
    ///
    /// # Errors
    ///
    /// [`KeyError::Misconfigured`] if the server does not say who is connected, and
    /// [`KeyError::Missing`] if the client is not told and nothing stands in.
    pub fn address(&self, head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        match (self.resolve(head)?, self.unidentified) {
            (Some(client), _) => Ok(client),
            (None, Unidentified::UsePeer) => peer_ip(head),
            (None, Unidentified::Missing) => {
                Err(KeyError::Missing { what: format!("client address in {}", self.source).into() })
            }
        }
    }

    /// What the key stands for: the [address](Self::address), or the IPv6 network that it is in.
    ///
    /// # Errors
    ///
    /// As for [`address`](Self::address).
    pub fn network(&self, head: &RequestHead<'_>) -> Result<IpNetwork, KeyError> {
        Ok(IpNetwork::of(self.address(head)?, self.ipv6_prefix))
    }

    fn told(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let lines = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
        match &self.source {
            IpSource::Peer => Some(peer),
            IpSource::XForwardedFor => {
                self.search(Elements::of_x_forwarded_for(lines(&X_FORWARDED_FOR)), forwarded::address)
            }
            IpSource::Forwarded => self.search(Elements::of_forwarded(lines(&FORWARDED)), |element| {
                forwarded::forwarded_for(element, self.lenient)
            }),
            IpSource::Header(name) => {
                // REQ-109: of two values, one is likely the client's.
                let mut values = lines(name).map(<[u8]>::trim_ascii);
                match (values.next()?, values.next()) {
                    (value, None) if *name == CLOUDFRONT_VIEWER_ADDRESS => forwarded::viewer_address(value),
                    (value, None) => forwarded::address(value),
                    _ => None,
                }
            }
        }
    }

    fn search<'a, L>(&self, elements: Elements<'a, L>, read: impl Fn(&'a [u8]) -> Option<IpAddr>) -> Option<IpAddr>
    where
        L: DoubleEndedIterator<Item = &'a [u8]>,
    {
        if let Some(count) = self.trusted.count {
            let nth = elements.reaching(count).nth(count.checked_sub(1)?);
            if nth.is_none() {
                telemetry::short_forwarding_list(&self.source, count);
            }
            return nth?.ok().and_then(read);
        }
        let mut leftmost = None;
        for element in elements {
            let Ok(Some(ip)) = element.map(&read) else { return None };
            if !self.trusted.contains(ip) {
                return Some(ip);
            }
            leftmost = Some(ip);
        }
        leftmost
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        self.network(head).map(PartitionKey::from)
    }
}

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static CLOUDFRONT_VIEWER_ADDRESS: HeaderName = HeaderName::from_static("cloudfront-viewer-address");

fn peer_ip(head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
    peer_addr(head).map(|peer| peer.ip().to_canonical()).ok_or_else(peer_unknown)
}

/// The source that this header is: the two lists are read as such.
impl From<HeaderName> for IpSource {
    fn from(name: HeaderName) -> Self {
        if name == X_FORWARDED_FOR {
            Self::XForwardedFor
        } else if name == FORWARDED {
            Self::Forwarded
        } else {
            Self::Header(name)
        }
    }
}

/// `peer`, or the name of a header.
impl FromStr for IpSource {
    type Err = InvalidHeaderName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "peer" { Ok(Self::Peer) } else { text.parse().map(HeaderName::into) }
    }
}

/// What [`FromStr`] reads.
impl fmt::Display for IpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "peer",
            Self::XForwardedFor => X_FORWARDED_FOR.as_str(),
            Self::Forwarded => FORWARDED.as_str(),
            Self::Header(name) => name.as_str(),
        })
    }
}
