//! `IpSource`: where proxies write the client's address.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::header::{self, InvalidHeaderName};

pub(super) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) static FORWARDED: HeaderName = header::FORWARDED;
pub(super) const X_REAL_IP: &str = "x-real-ip";
pub(super) const CLOUDFRONT_VIEWER_ADDRESS: &str = "cloudfront-viewer-address";

/// Where proxies write the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum IpSource {
    /// Nowhere, because the peer is the client.
    Peer,
    /// `X-Forwarded-For`: a list of addresses, to which each proxy appends its peer's address. A port, brackets and
    /// quotation marks around an address are accepted.
    XForwardedFor,
    /// `Forwarded`, RFC 7239: a list like `X-Forwarded-For`. Its obfuscated names (`for=_abc`) are not addresses.
    Forwarded,
    /// A header with one address: [`x_real_ip`](Self::x_real_ip), [`cf_connecting_ip`](Self::cf_connecting_ip) and the
    /// like, or any other by name. If it has several addresses, it counts as absent.
    ///
    /// Use this only for a header that the proxy replaces or removes in every request. By default, `True-Client-IP` at
    /// Akamai and Cloudflare and `Fastly-Client-IP` are not replaced.
    Header(HeaderName),
}

/// Headers with one address, with the proxies that set them, and whether these replace a value that a client sends. If
/// not, configure the proxy to do so before you trust the header.
impl IpSource {
    /// `X-Real-IP`, usual with nginx. Replaced if you configure it with `proxy_set_header X-Real-IP $remote_addr`.
    pub const fn x_real_ip() -> Self {
        Self::one_address(X_REAL_IP)
    }

    /// `CF-Connecting-IP`, from Cloudflare. Always replaced.
    pub const fn cf_connecting_ip() -> Self {
        Self::one_address("cf-connecting-ip")
    }

    /// `True-Client-IP`, from Akamai and Cloudflare. **Passed on as sent by the client** unless turned on there.
    pub const fn true_client_ip() -> Self {
        Self::one_address("true-client-ip")
    }

    /// `Fly-Client-IP`, from Fly.io. Always replaced.
    pub const fn fly_client_ip() -> Self {
        Self::one_address("fly-client-ip")
    }

    /// `X-Envoy-External-Address`, from Envoy. Replaced at its edge (`use_remote_address`), passed on elsewhere.
    pub const fn x_envoy_external_address() -> Self {
        Self::one_address("x-envoy-external-address")
    }

    /// `CloudFront-Viewer-Address`, from Amazon CloudFront, always with a port, and IPv6 without brackets. Replaced if
    /// the origin request policy adds it.
    pub const fn cloudfront_viewer_address() -> Self {
        Self::one_address(CLOUDFRONT_VIEWER_ADDRESS)
    }

    /// `Fastly-Client-IP`, from Fastly. **Passed on as sent by the client** unless your VCL sets it.
    pub const fn fastly_client_ip() -> Self {
        Self::one_address("fastly-client-ip")
    }

    /// `X-Azure-ClientIP`, from Azure Front Door. Set there, but a client that reaches the origin directly can set it,
    /// too.
    pub const fn x_azure_client_ip() -> Self {
        Self::one_address("x-azure-clientip")
    }

    const fn one_address(name: &'static str) -> Self {
        Self::Header(HeaderName::from_static(name))
    }

    /// The header's name, if the source is a header.
    pub(super) fn name(&self) -> Option<&HeaderName> {
        match self {
            Self::Peer => None,
            Self::XForwardedFor => Some(&X_FORWARDED_FOR),
            Self::Forwarded => Some(&FORWARDED),
            Self::Header(name) => Some(name),
        }
    }
}

/// Reads the header with this name: the two lists as lists, any other as one address.
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

/// Parses `peer`, or a header name, both in any case.
impl FromStr for IpSource {
    type Err = InvalidHeaderName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("peer") { Ok(Self::Peer) } else { text.parse().map(HeaderName::into) }
    }
}

/// Writes the text that [`FromStr`] parses, in lower case.
impl fmt::Display for IpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().map_or("peer", HeaderName::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are written in lower case.
    #[test]
    fn sources_are_parsed_in_any_case() {
        for (text, source, written) in [
            ("peer", IpSource::Peer, "peer"),
            ("Peer", IpSource::Peer, "peer"),
            ("X-Forwarded-For", IpSource::XForwardedFor, "x-forwarded-for"),
            ("FORWARDED", IpSource::Forwarded, "forwarded"),
            ("X-Real-IP", IpSource::x_real_ip(), "x-real-ip"),
        ] {
            assert_eq!(text.parse::<IpSource>().unwrap(), source, "{text}");
            assert_eq!(source.to_string(), written);
        }
        assert!("".parse::<IpSource>().is_err() && "x real ip".parse::<IpSource>().is_err());
    }
}
