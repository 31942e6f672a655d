//! Ports for test servers.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use super::await_until;

/// This process's ports. No other test process gets one of them: the first port in a block stays bound until the
/// process ends, and marks the block as taken. All are below the ports that the system gives to outgoing connections
/// (from 32,768 on), since such a connection could take a port before its server does.
pub fn free_port() -> u16 {
    const FIRST: u16 = 16_384;
    const BLOCK: u16 = 1_024;
    static TAKEN: LazyLock<(TcpListener, u16)> = LazyLock::new(|| {
        let mark = |block: u16| Some((TcpListener::bind((Ipv4Addr::LOCALHOST, block)).ok()?, block));
        let mut taken = None;
        await_until("another process gives a block of ports back", || {
            taken = (0..16).find_map(|block| mark(FIRST + block * BLOCK));
            taken.is_some()
        });
        taken.expect("a block of ports")
    });
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    // Other programs may listen on some.
    let candidates = || Some(TAKEN.1 + 1 + NEXT.fetch_add(1, Ordering::Relaxed) % (BLOCK - 1));
    std::iter::from_fn(candidates).take(usize::from(BLOCK)).find(is_free).expect("a free port")
}
