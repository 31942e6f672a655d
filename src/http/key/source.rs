use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::header::{self, InvalidHeaderName};

pub(super) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) static FORWARDED: HeaderName = header::FORWARDED;

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
    /// A header with one address: [`x_real_ip`](Self::x_real_ip), [`cf_connecting_ip`](Self::cf_connecting_ip) and
    /// the like, or any other by name. More than one address is none.
    ///
    /// Only for a header that the proxy replaces or removes in every request. By default that is
    /// not so for `True-Client-IP` at Akamai and Cloudflare, nor for `Fastly-Client-IP`.
    Header(HeaderName),
}

/// Headers of one address, with who sets them (REQ-109). Whether the proxy replaces what a client has sent is said
/// for each: where it does not by itself, make it so before you trust the header.
impl IpSource {
    /// `X-Real-IP`, by habit of nginx. Replaced if you configure it with `proxy_set_header X-Real-IP $remote_addr`.
    #[must_use]
    pub const fn x_real_ip() -> Self {
        Self::Header(HeaderName::from_static("x-real-ip"))
    }

    /// `CF-Connecting-IP`, of Cloudflare. Always replaced.
    #[must_use]
    pub const fn cf_connecting_ip() -> Self {
        Self::Header(HeaderName::from_static("cf-connecting-ip"))
    }

    /// `True-Client-IP`, of Akamai and Cloudflare. **Passed on as sent by the client** unless turned on there.
    #[must_use]
    pub const fn true_client_ip() -> Self {
        Self::Header(HeaderName::from_static("true-client-ip"))
    }

    /// `Fly-Client-IP`, of Fly.io. Always replaced.
    #[must_use]
    pub const fn fly_client_ip() -> Self {
        Self::Header(HeaderName::from_static("fly-client-ip"))
    }

    /// `X-Envoy-External-Address`, of Envoy. Replaced at its edge (`use_remote_address`), passed on elsewhere.
    #[must_use]
    pub const fn x_envoy_external_address() -> Self {
        Self::Header(HeaderName::from_static("x-envoy-external-address"))
    }

    /// `CloudFront-Viewer-Address`, of Amazon CloudFront: always with a port, and IPv6 without brackets. Replaced if
    /// the origin request policy adds it.
    #[must_use]
    pub const fn cloudfront_viewer_address() -> Self {
        Self::Header(HeaderName::from_static("cloudfront-viewer-address"))
    }

    /// `Fastly-Client-IP`, of Fastly. **Passed on as sent by the client** unless your VCL sets it.
    #[must_use]
    pub const fn fastly_client_ip() -> Self {
        Self::Header(HeaderName::from_static("fastly-client-ip"))
    }

    /// `X-Azure-ClientIP`, of Azure Front Door. Set there; a client that reaches the origin directly can set it too.
    #[must_use]
    pub const fn x_azure_client_ip() -> Self {
        Self::Header(HeaderName::from_static("x-azure-clientip"))
    }

    /// The header, if it is one.
    pub(super) fn name(&self) -> Option<&HeaderName> {
        match self {
            Self::Peer => None,
            Self::XForwardedFor => Some(&X_FORWARDED_FOR),
            Self::Forwarded => Some(&FORWARDED),
            Self::Header(name) => Some(name),
        }
    }
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
        f.write_str(self.name().map_or("peer", HeaderName::as_str))
    }
}
