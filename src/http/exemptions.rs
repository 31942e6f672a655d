//! `Exemptions`: the requests that a policy does not charge, by network, header value or path.

use std::error::Error;
use std::fmt;
use std::hint::black_box;
use std::sync::Once;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::engine::policy::log;
use crate::http::head::{RequestHead, only_line, trimmed};
use crate::http::key::{ClientIp, KeyError, Ranges, TrustedProxiesError};

/// Requests to which a policy does not apply, from some networks, with some header values, or to some paths. If a
/// request meets one condition, it is exempt. See [`Policy::exempt`](crate::Policy::exempt).
///
/// ```
/// use http::HeaderName;
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
/// use tower_sluice::{Exemptions, Policy, Quota};
///
/// let client = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["192.0.2.7"])?);
/// let exemptions = Exemptions::new()
///     .networks(client.clone(), ["10.0.0.0/8", "2001:db8:1::/48"])?
///     .header(HeaderName::from_static("x-internal"), "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7")?
///     .path("/healthz")?
///     .path("/assets/*")?;
/// let policy = Policy::new("per-client", TokenBucket::new(Quota::per_second(10))).key(client).exempt(exemptions);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
///
/// Each request is compared with all networks and paths, one after the other, and an exempt header's value is hashed
/// (SHA-256) once per exempt value for this header. Nothing is allocated.
#[derive(Clone, Default)]
#[must_use]
#[doc(alias("allowlist", "whitelist", "bypass"))]
pub struct Exemptions {
    networks: Vec<(ClientIp, Ranges)>,
    headers: Vec<(HeaderName, Hash)>,
    paths: Vec<Path>,
}

/// The SHA-256 of a header value. The value itself is not kept, so that nothing can print it.
type Hash = [u8; 32];

#[derive(Clone, Debug)]
enum Path {
    Exact(Box<str>),
    /// All paths that begin with this, which ends in a slash.
    Below(Box<str>),
}

impl Exemptions {
    /// Makes exemptions that do not exempt any request yet.
    pub const fn new() -> Self {
        Self { networks: Vec::new(), headers: Vec::new(), paths: Vec::new() }
    }

    /// Exempts clients in these networks (`10.0.0.0/8`, `fd00::/8`) or with these addresses (`192.0.2.7`).
    ///
    /// `client` finds the address, and should be the [`ClientIp`] that also finds it for the key. Without proxies in
    /// front of this server, that is [`ClientIp::peer`]. A client can only be exempt by an address that it has:
    ///
    /// - A forwarding header from a peer that is not trusted is not read.
    /// - A request from such a peer that has a forwarding header all the same (`X-Forwarded-For`, `Forwarded`,
    ///   `X-Real-IP`, `Via`, or the header that `client` reads) is not exempt, because its peer is a proxy that
    ///   `client` does not know, and any client may be behind it. So a forgotten proxy in an exempt network does not
    ///   exempt any client, unless it sends no such header, or is itself behind a trusted proxy, which reports it as
    ///   the client. Therefore list every proxy.
    /// - If a trusted proxy does not report its client, the client is not exempt, and the proxy is not exempt,
    ///   either.
    /// - IPv4 networks match IPv4 addresses, also written as IPv6 (`::ffff:10.0.0.1`), but not NAT64 or 6to4 addresses.
    ///
    /// If the server does not provide the peer's address (see [`PeerIp`](crate::key::PeerIp)), no request is exempt by
    /// its network, which is logged once.
    ///
    /// # Errors
    ///
    /// If a network is malformed or has bits set beyond its prefix, or if the networks together span half of all
    /// addresses.
    pub fn networks(
        mut self,
        client: ClientIp,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ExemptionError> {
        let mut ranges = Ranges::EMPTY;
        ranges.add(networks).map_err(|error| match error {
            TrustedProxiesError::Everybody { network } | TrustedProxiesError::HalfOfAll { network, .. } => {
                ExemptionError::HalfOfAll { network }
            }
            error => ExemptionError::Network(error),
        })?;
        if !ranges.is_empty() {
            self.networks.push((client, ranges));
        }
        Ok(self)
    }

    /// Exempts requests with this header, if it comes once and has exactly this value (except for white space around
    /// it, which is not part of a value). A second call for the same header adds a value, so that a value can be
    /// replaced without a gap.
    ///
    /// The value is a password, so choose it at random, and send it over connections that no third party can read. It
    /// is compared in constant time, and never logged, and only its hash is kept. The request goes on to the service
    /// with the header.
    ///
    /// # Errors
    ///
    /// If no request can have the value, because it is empty, begins or ends with white space, or is not a valid header
    /// value.
    pub fn header(mut self, name: HeaderName, value: &str) -> Result<Self, ExemptionError> {
        if value.is_empty() || value.trim_ascii() != value || HeaderValue::from_str(value).is_err() {
            return Err(ExemptionError::HeaderValue { name });
        }
        self.headers.push((name, Sha256::digest(value).into()));
        Ok(self)
    }

    /// Exempts requests to this path, or to all paths below it if it ends in `/*`. The query is ignored.
    ///
    /// Paths are compared as they were sent, byte for byte, and not normalised: `/healthz` does not exempt `/healthz/`,
    /// `//healthz`, `/Healthz` or `/%68ealthz`. A request with another spelling is charged, as if it were not exempt.
    ///
    /// The `*` stands for paths that all servers read the same way. It does not match a path with `%`, `;`, `\`, an
    /// empty segment (`//`) or a dot segment (`..`), because a router may read `/assets/../login`,
    /// `/assets/%2e%2e/login` and `/assets/..;/login` as `/login`. Such paths are charged, and so is a file with a
    /// space in its name.
    ///
    /// Do not exempt paths if the service routes requests by anything but the path, such as the header
    /// `X-Original-URL`. The layer compares the path that it sees itself, so inside a router that cuts off a prefix, it
    /// compares the path without the prefix. gRPC methods are paths, such as `/grpc.health.v1.Health/*`.
    ///
    /// # Errors
    ///
    /// If no request has this path, if it has a `*` that is not a whole last segment, or if it is `/*`, which would
    /// exempt all requests.
    pub fn path(mut self, path: &str) -> Result<Self, ExemptionError> {
        let written = || path.to_owned();
        let prefix = path.strip_suffix('*');
        let fixed = prefix.unwrap_or(path);
        if fixed.contains('*') || prefix.is_some_and(|prefix| !prefix.ends_with('/')) {
            return Err(ExemptionError::MisplacedStar { path: written() });
        }
        let parsed = fixed.parse::<PathAndQuery>().ok();
        if !fixed.starts_with('/') || parsed.is_none_or(|parsed| parsed.as_str() != fixed || parsed.query().is_some()) {
            return Err(ExemptionError::MalformedPath { path: written() });
        }
        match prefix {
            Some("/") => return Err(ExemptionError::EveryPath),
            Some(prefix) if !is_plain(&prefix[1..]) => return Err(ExemptionError::MisplacedStar { path: written() }),
            Some(prefix) => self.paths.push(Path::Below(prefix.into())),
            None => self.paths.push(Path::Exact(path.into())),
        }
        Ok(self)
    }

    /// Returns whether a request is exempt.
    fn match_any(&self, head: &RequestHead<'_>) -> Result<bool, KeyError> {
        if self.paths.iter().any(|path| path.matches(head.uri().path())) {
            return Ok(true);
        }
        if self.headers.iter().any(|(name, hash)| has_value(head.headers(), name, hash)) {
            return Ok(true);
        }
        for (client, ranges) in &self.networks {
            if client.proven(head)?.is_some_and(|ip| ranges.contains(ip)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Path {
    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Below(prefix) => path.strip_prefix(&**prefix).is_some_and(is_plain),
        }
    }
}

/// Returns whether all servers read this part of a path, which follows a slash, the same way. The last segment may be
/// empty.
fn is_plain(rest: &str) -> bool {
    let is_dots = |segment: &str| segment.bytes().all(|byte| byte == b'.');
    let (folders, last) = rest.rsplit_once('/').map_or((None, rest), |(folders, last)| (Some(folders), last));
    !rest.contains(['%', ';', '\\'])
        && (last.is_empty() || !is_dots(last))
        && folders.is_none_or(|folders| !folders.split('/').any(is_dots))
}

/// Returns whether a header comes once, and its value has this hash. Takes the same time for any number of correct
/// bytes.
fn has_value(headers: &HeaderMap, name: &HeaderName, hash: &Hash) -> bool {
    let Some(value) = only_line(headers, name) else { return false };
    let sent: Hash = Sha256::digest(trimmed(value)).into();
    let difference = sent.iter().zip(hash).fold(0, |difference, (a, b)| difference | (a ^ b));
    black_box(difference) == 0
}

/// Does not show header values.
impl fmt::Debug for Exemptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Exemptions")
            .field("networks", &self.networks)
            .field("headers", &headers)
            .field("paths", &self.paths)
            .finish()
    }
}

/// One policy's exemptions.
pub(crate) struct Except {
    exemptions: Exemptions,
    warning: Once,
}

impl Except {
    pub(crate) const fn new(exemptions: Exemptions) -> Self {
        Self { exemptions, warning: Once::new() }
    }

    /// Returns whether a request is exempt from this policy. If the server does not provide the peer's address, the
    /// request is not exempt, and the mistake is logged once.
    pub(crate) fn exempts(&self, policy: &str, head: &RequestHead<'_>) -> bool {
        self.exemptions.match_any(head).unwrap_or_else(|error| {
            self.warning.call_once(|| log::networks_unknown(policy, &error));
            false
        })
    }
}

/// The reason why an exemption is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExemptionError {
    /// The text is neither a network nor an address.
    Network(TrustedProxiesError),
    /// The networks span half of all addresses or more, so that the policy would limit few clients, if any.
    #[non_exhaustive]
    HalfOfAll {
        /// The network with which half was reached.
        network: String,
    },
    /// No request can have this value, which the error does not show.
    #[non_exhaustive]
    HeaderValue {
        /// The header's name.
        name: HeaderName,
    },
    /// No request has this path, because it does not begin with a slash, has a query, or characters that a URI cannot
    /// have.
    #[non_exhaustive]
    MalformedPath {
        /// The exemption's path.
        path: String,
    },
    /// The `*` is not the last segment, or is below a path that servers may read in several ways.
    #[non_exhaustive]
    MisplacedStar {
        /// The exemption's path.
        path: String,
    },
    /// The path is `/*`, with which the policy would not limit any request.
    EveryPath,
}

impl fmt::Display for ExemptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(error) => error.fmt(f),
            Self::HalfOfAll { network } => write!(
                f,
                "{network:?}, with the networks before it, exempts half of all addresses or more; write the networks that \
                 are yours, or remove the policy"
            ),
            Self::HeaderValue { name } => write!(
                f,
                "no request can have this value of {name}; write at least one character, no control characters, and no \
                 white space at the ends"
            ),
            Self::MalformedPath { path } => write!(
                f,
                "no request has the path {path:?}; write it as it is sent, with a slash first and without a query, such as \
                 /healthz"
            ),
            Self::MisplacedStar { path } => write!(
                f,
                "{path:?} cannot be matched; write a path such as /healthz, or /assets/* for all paths below /assets/, \
                 which must have no % and no ; and no segment that is empty or made of dots"
            ),
            Self::EveryPath => {
                f.write_str("/* exempts all requests; write the paths that are exempt, or remove the policy")
            }
        }
    }
}

impl Error for ExemptionError {}
