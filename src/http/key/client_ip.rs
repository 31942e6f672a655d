//! `ClientIp`: the client's address behind trusted proxies, from one forwarding header.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};

use super::forwarded::{self, ForwardedNode};
use super::hint;
use super::ip::{peer_addr, peer_unknown};
use super::list::{Elements, Unreadable};
use super::network::{self, DEFAULT_IPV6_PREFIX, IpNetwork, checked_prefix};
use super::source::{CLOUDFRONT_VIEWER_ADDRESS, FORWARDED, IpSource, X_FORWARDED_FOR};
use super::text;
use super::trusted::TrustedProxies;
use super::{KeyError, KeyExtractor, KeyTextError, identity_of};
use crate::http::head::RequestHead;
use crate::http::key::log;
use crate::values::PartitionKey;

/// Keys by the client's address as trusted proxies report it; IPv6 grouped by network.
///
/// Any client can send a header that names any address. It means something only if one of your proxies
/// wrote it, so you configure which **one** header that is ([`IpSource`]) and which proxies are yours
/// ([`TrustedProxies`]). No other header is read, even if that one is absent.
///
/// ```
/// use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
///
/// let key = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["10.0.0.0/8", "192.0.2.7"])?);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// The server must provide the peer's address, as for [`PeerIp`](super::PeerIp). A peer that is not a trusted proxy is
/// the client, with any fields. (For a proxy that connects through a Unix socket, insert a
/// [`SocketAddr`](std::net::SocketAddr) of your choice, and trust that.)
///
/// A list is read from its end, where your proxies append to it, across all its field lines:
///
/// - With ranges, addresses within them are skipped and the first other one is the client. If
///   there is no other, the leftmost one is.
/// - With a count of `n`, the `n`-th element from the right is the client, with any other elements.
///
/// An unreadable element (`unknown`, a name, `0.0.0.0`), or more than 64 elements or 8 KiB before the client's, ends
/// the search: the client is [`Unidentified`]. Elements to the left of the client's are not read.
///
/// # What to be careful about
///
/// - Trusting a range trusts every host in it. If it is a CDN's, any other customer of
///   that CDN can have it send you any header; if it is a private network, every host
///   in it can. Trust single addresses where you can.
/// - A header of one value ([`IpSource::Header`]) is under the client's control unless the proxy replaces
///   it in every request. Many proxies pass it on.
/// - A proxy must append to the list, not pass it on unchanged.
/// - A count that is too large lets clients choose their address; a number that is too small makes one client of all
///   clients behind a proxy. A count without ranges trusts every peer that can connect.
///
/// # What is logged
///
/// Each once per process, as a warning with the cure and without addresses (crate feature `tracing`): a trusted proxy
/// sends another forwarding header than the configured one; the first hundred requests of trusted proxies have none at
/// all; its list is shorter than the count; an untrusted peer sends
/// the configured header (once for public addresses, and once for all others). With [`peer`](Self::peer): the warning
/// that [`PeerIp`](super::PeerIp) logs.
///
/// # Accuracy
///
/// As for [`PeerIp`](super::PeerIp): one budget per IPv4 address in any notation, and per IPv6 /64
/// unless [set otherwise](Self::ipv6_prefix).
#[derive(Clone, Debug)]
#[must_use]
#[doc(alias("X-Forwarded-For", "Forwarded", "proxy", "SmartIpKeyExtractor"))]
pub struct ClientIp {
    source: IpSource,
    trusted: TrustedProxies,
    unidentified: Unidentified,
    ipv6_prefix: u8,
    lenient: bool,
    obfuscated: bool,
}

/// How to key a request whose trusted proxy does not report the client's address, or not readably.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unidentified {
    /// By the proxy's address: all such requests of one proxy share a budget. The default.
    #[default]
    UsePeer,
    /// Not at all: the key is [missing](KeyError::Missing), and
    /// [`Policy::on_missing_key`](crate::Policy::on_missing_key) decides.
    Missing,
}

impl ClientIp {
    /// Keys by the peer's address, for servers without a proxy. No header is read.
    pub const fn peer() -> Self {
        Self::from_source(IpSource::Peer, TrustedProxies::hops(0))
    }

    /// Keys by the address in `source` if the peer is one of the `trusted` proxies, and else by the peer's.
    pub fn new(source: IpSource, trusted: TrustedProxies) -> Self {
        match source {
            IpSource::Header(name) => Self::from_source(name.into(), trusted),
            other => Self::from_source(other, trusted),
        }
    }

    const fn from_source(source: IpSource, trusted: TrustedProxies) -> Self {
        let unidentified = Unidentified::UsePeer;
        let ipv6_prefix = DEFAULT_IPV6_PREFIX;
        Self { source, trusted, unidentified, ipv6_prefix, lenient: false, obfuscated: false }
    }

    /// Sets the prefix length of the IPv6 networks that have a budget each; 64 unless set.
    ///
    /// # Panics
    ///
    /// If `prefix` is not within 32 and 128.
    #[track_caller]
    pub fn ipv6_prefix(self, prefix: u8) -> Self {
        Self { ipv6_prefix: checked_prefix(prefix), ..self }
    }

    /// Sets how to key requests whose client is unidentified.
    pub fn on_unidentified(self, unidentified: Unidentified) -> Self {
        Self { unidentified, ..self }
    }

    /// Reads `Forwarded` also if ports and IPv6 addresses in it are not quoted, or IPv6 addresses are not in brackets.
    /// RFC 7239 asks for both; some proxies do not do either.
    pub fn lenient_forwarded(self) -> Self {
        Self { lenient: true, ..self }
    }

    /// Gives each client that a trusted proxy reports by a name instead of its address (`Forwarded: for=_abc`, RFC
    /// 7239, section 6.3) a budget of its own. Without this, they are unidentified.
    ///
    /// Only for proxies that give a client the same name each time. Two proxies that use one name for two clients
    /// make them share a budget.
    pub fn obfuscated_nodes(self) -> Self {
        Self { obfuscated: true, ..self }
    }

    /// Returns the client's address; `None` if a trusted proxy does not report it. IPv4 is never in its IPv6
    /// notation.
    ///
    /// # Errors
    ///
    /// [`KeyError::Misconfigured`] if the server does not provide the peer's address.
    pub fn resolve(&self, head: &RequestHead<'_>) -> Result<Option<IpAddr>, KeyError> {
        Ok(self.find(peer_ip(head)?, head.headers()).and_then(|node| node.address()))
    }

    /// Returns the client's address if it may count in the client's favour, as for an
    /// [exemption](crate::Exemptions::networks): [`resolve`](Self::resolve), but `None` for a peer that counts as the
    /// client and forwards for others. Such a peer is a proxy that the operator did not configure, and anybody may be
    /// behind it.
    pub(crate) fn proven(&self, head: &RequestHead<'_>) -> Result<Option<IpAddr>, KeyError> {
        let (peer, headers) = (peer_ip(head)?, head.headers());
        let is_peer = self.source == IpSource::Peer || !self.trusted.trusts(peer);
        let names_a_client = || self.source.name().is_some_and(|name| headers.contains_key(name));
        if is_peer && (hint::is_forwarded(headers) || names_a_client()) {
            return Ok(None);
        }
        self.resolve(head)
    }

    /// Returns the client's address, or the [substitute](Self::on_unidentified) for it.
    ///
    /// # Errors
    ///
    /// [`KeyError::Misconfigured`] if the server does not provide the peer's address, and
    /// [`KeyError::Missing`] if the client is unidentified and there is no substitute.
    pub fn address(&self, head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        match self.resolve(head)? {
            Some(client) => Ok(client),
            None => self.substitute(peer_ip(head)?),
        }
    }

    fn substitute(&self, peer: IpAddr) -> Result<IpAddr, KeyError> {
        match self.unidentified {
            Unidentified::UsePeer => Ok(peer),
            Unidentified::Missing => {
                Err(KeyError::Missing { what: format!("client address in {}", self.source).into() })
            }
        }
    }

    /// Returns the address that the key stands for: the [address](Self::address), or the IPv6 network that it is in. (A
    /// key made of a [name](Self::obfuscated_nodes) stands for no address; this is the substitute's network then.)
    ///
    /// # Errors
    ///
    /// As for [`address`](Self::address).
    pub fn network(&self, head: &RequestHead<'_>) -> Result<IpNetwork, KeyError> {
        Ok(IpNetwork::of(self.address(head)?, self.ipv6_prefix))
    }

    /// Returns the client: the peer, or the address that the peer reports if it is a trusted proxy. `None` if it
    /// reports nothing readable.
    fn find<'a>(&self, peer: IpAddr, headers: &'a HeaderMap) -> Option<ForwardedNode<'a>> {
        if self.source == IpSource::Peer {
            hint::peer_is_the_key(|| peer, headers);
            return Some(ForwardedNode::Address(peer));
        }
        if !self.trusted.trusts(peer) {
            hint::peer_is_not_trusted(peer, headers, &self.source);
            return Some(ForwardedNode::Address(peer));
        }
        let reported = self.reported(peer, headers);
        match &reported {
            Some(_) => hint::clients_are_reported(),
            None => hint::source_is_absent(headers, &self.source),
        }
        reported
    }

    /// The client that a trusted `peer` reports.
    fn reported<'a>(&self, peer: IpAddr, headers: &'a HeaderMap) -> Option<ForwardedNode<'a>> {
        let lines = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
        match &self.source {
            IpSource::Peer => Some(ForwardedNode::Address(peer)),
            IpSource::XForwardedFor => self.search(Elements::of_x_forwarded_for(lines(&X_FORWARDED_FOR)), |element| {
                forwarded::address(element).map(ForwardedNode::Address)
            }),
            IpSource::Forwarded => self.search(Elements::of_forwarded(lines(&FORWARDED)), |element| {
                let node = forwarded::forwarded_for(element, self.lenient);
                node.filter(|node| self.obfuscated || node.address().is_some())
            }),
            IpSource::Header(name) => {
                // Of two values, the client probably sent one.
                let mut values = lines(name).map(<[u8]>::trim_ascii);
                let address = match (values.next()?, values.next()) {
                    (value, None) if *name == CLOUDFRONT_VIEWER_ADDRESS => forwarded::viewer_address(value),
                    (value, None) => forwarded::address(value),
                    _ => None,
                };
                address.map(ForwardedNode::Address)
            }
        }
    }

    /// Finds the client in a list, by count or by range.
    fn search<'a, L>(
        &self,
        elements: Elements<'a, L>,
        read: impl Fn(&'a [u8]) -> Option<ForwardedNode<'a>>,
    ) -> Option<ForwardedNode<'a>>
    where
        L: DoubleEndedIterator<Item = &'a [u8]>,
    {
        match self.trusted.count {
            Some(count) => read(self.nth(elements.reaching(count), count)?),
            None => self.first_untrusted(elements, read),
        }
    }

    fn nth<'a>(&self, elements: impl Iterator<Item = Result<&'a [u8], Unreadable>>, count: usize) -> Option<&'a [u8]> {
        for (passed, element) in elements.enumerate() {
            let element = element.ok()?;
            if passed + 1 == count {
                return Some(element);
            }
        }
        log::short_forwarding_list(&self.source, count);
        None
    }

    fn first_untrusted<'a>(
        &self,
        elements: impl Iterator<Item = Result<&'a [u8], Unreadable>>,
        read: impl Fn(&'a [u8]) -> Option<ForwardedNode<'a>>,
    ) -> Option<ForwardedNode<'a>> {
        let mut leftmost = None;
        for element in elements {
            let node = read(element.ok()?)?;
            if !node.address().is_some_and(|ip| self.trusted.contains(ip)) {
                return Some(node);
            }
            leftmost = Some(node);
        }
        leftmost
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let peer = peer_ip(head)?;
        let ip = match self.find(peer, head.headers()) {
            Some(ForwardedNode::Obfuscated(name)) => return Ok(obfuscated_key(&name)),
            Some(ForwardedNode::Address(ip)) => ip,
            None => self.substitute(peer)?,
        };
        Ok(IpNetwork::of(ip, self.ipv6_prefix).into())
    }

    /// Also a name that begins with `_`, as a proxy writes it, if [names are keys](Self::obfuscated_nodes).
    fn identity(&self) -> Option<String> {
        identity_of(self)
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        match text::unquoted(text) {
            Some(name) if self.obfuscated && name.starts_with(b"_") => Ok(obfuscated_key(&name)),
            _ => network::read_text(text, self.ipv6_prefix),
        }
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        network::write_text(key, self.ipv6_prefix).or_else(|| text::write_name(&text::split(key, 2)?[1]))
    }
}

/// Longer than any address, so that the two never collide.
fn obfuscated_key(name: &[u8]) -> PartitionKey {
    PartitionKey::from_parts([b"for".as_slice(), name])
}

fn peer_ip(head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
    peer_addr(head).map(|peer| peer.ip().to_canonical()).ok_or_else(peer_unknown)
}
