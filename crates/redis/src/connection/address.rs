//! Addresses, as users write them and as servers report them.

use std::time::Duration;

use ::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::fault::{Fault, FaultKind};

/// How long a connection may be silent before a keepalive is sent. Firewalls drop connections that are silent for
/// minutes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Parses `redis://`, `rediss://`, or `unix://`. An error contains no part of the URL, which may have a password in it.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, Fault> {
    let scheme = url.split(':').next().unwrap_or_default();
    let wants_tls = ["rediss", "valkeys"].iter().any(|name| scheme.eq_ignore_ascii_case(name));
    if wants_tls && !cfg!(feature = "tls") {
        let cure = "rediss:// needs the feature `tls`, without which this program was built; build it with the feature, \
                    or connect to a TLS proxy on this machine, such as stunnel, by redis://";
        return Err(Fault::new(FaultKind::Misconfigured, cure));
    }
    let server = url.into_connection_info().map_err(|error| {
        Fault::new(FaultKind::Misconfigured, format!("{error}; write an address such as redis://HOST:6379"))
    })?;
    if matches!(server.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        let advice = "#insecure would accept the certificate of any server, and is not supported; leave it out, and name \
            the authority of your server in a file: SSL_CERT_FILE=authority.pem";
        return Err(Fault::new(FaultKind::Misconfigured, advice));
    }
    #[cfg(feature = "tls")]
    if wants_tls {
        tls_is_possible()?;
    }
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
    Ok(server.set_tcp_settings(tcp))
}

/// Returns the settings for connections that calls are made on: they speak RESP3, the only protocol over which the
/// `redis` crate reports the end of a connection.
pub(super) fn for_calls(server: ConnectionInfo) -> ConnectionInfo {
    let login = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    server.set_redis_settings(login)
}

/// Returns another server's address with the login and the TLS settings of `like`.
pub(super) fn moved_to(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match like.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        // A socket on this machine has no host and no TLS.
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}

/// Returns the host, unless the address is a path.
pub(super) fn host(server: &ConnectionInfo) -> Option<&str> {
    match server.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
        _ => None,
    }
}

/// Splits `HOST:PORT`. The host may be an IPv6 address without brackets, or missing.
pub(super) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// Checks for a cryptography provider. Without one, rustls panics when it connects.
#[cfg(feature = "tls")]
fn tls_is_possible() -> Result<(), Fault> {
    if rustls::crypto::CryptoProvider::get_default().is_some() {
        return Ok(());
    }
    let advice =
        "for rediss://, install a rustls CryptoProvider first, such as ring::default_provider().install_default()";
    Err(Fault::new(FaultKind::Misconfigured, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_replies_are_split() {
        assert_eq!(host_and_port("10.0.0.1:6379"), Some(("10.0.0.1", 6379)));
        assert_eq!(host_and_port("fd00::1:6379"), Some(("fd00::1", 6379)));
        assert_eq!(host_and_port(":6379"), Some(("", 6379)));
        for bad in ["", "host", "host:", "host:99999"] {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }

    /// Such a URL was opened, and then each call failed.
    #[cfg(feature = "tls")]
    #[test]
    fn certificates_are_always_checked() {
        for url in ["rediss://u:hunter2@host:6380#insecure", "rediss://u:hunter2@host:6380/2#insecure"] {
            let problem = parse(url).expect_err(url).to_string();
            assert!(problem.contains("SSL_CERT_FILE") && !problem.contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn errors_never_contain_a_password() {
        for url in [
            "redis://u:hunter2@",
            "http://u:hunter2@host",
            "redis://u:hunter2@host:99999",
            "redis://u:hunter2@h/x",
            "rediss://u:hunter2@h",
        ] {
            let fault = parse(url).expect_err(url);
            assert_eq!(fault.kind(), FaultKind::Misconfigured, "{url}");
            assert!(!format!("{fault} {fault:?}").contains("hunter2"), "{fault:?}");
        }
    }
}
