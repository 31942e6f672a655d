//! Notifies the service manager when requests are served. systemd then starts the units that are ordered after a unit
//! with `Type=notify`.
//!
//! The protocol is `sd_notify(3)`: a datagram to the socket that `NOTIFY_SOCKET` names, a path or, behind an `@`, an
//! abstract name.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the sockets listen. Does nothing if no manager waits for it.
pub(super) fn ready() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = address(name.as_encoded_bytes())
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1\n", &address));
    if let Err(error) = sent {
        tracing::error!("the service manager is not told that requests are served: NOTIFY_SOCKET: {error}");
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => of_path(name),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    of_path(name)
}

fn of_path(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::unix::ffi::OsStrExt;
    SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))
}
