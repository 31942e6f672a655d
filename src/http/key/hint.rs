//! Mistakes in the set-up that the first requests give away. Each is told once for the process: from then on, and
//! after so many requests without it, looking costs one relaxed load.

use std::net::IpAddr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

use super::source::IpSource;
use crate::util::log;

/// How many requests are looked at. More than the health checks that a load balancer sends before anybody
/// else comes.
const LOOKS: u32 = 1 << 16;
/// As how many of them a peer counts with a public address, which is no proxy of one's own: a server that such peers reach
/// is soon known to have none before it.
const LOOKS_OF_PUBLIC: u32 = 1 << 7;
/// More than `LOOKS`, and than the threads that count up to it at the same time.
const OVER: u32 = 1 << 31;

/// The headers of REQ-99 that proxies set without being asked to.
static FORWARDING: [HeaderName; 3] =
    [HeaderName::from_static("x-forwarded-for"), FORWARDED, HeaderName::from_static("x-real-ip")];

/// One mistake, looked for in the first requests.
struct Hint {
    looks: AtomicU32,
}

impl Hint {
    const fn new() -> Self {
        Self { looks: AtomicU32::new(0) }
    }

    #[inline]
    fn is_over(&self) -> bool {
        !cfg!(feature = "tracing") || self.looks.load(Ordering::Relaxed) >= LOOKS
    }

    /// Counts a look at a public peer, which finds nothing, as many.
    fn count_public<T>(&self) -> Option<T> {
        self.looks.fetch_add(LOOKS_OF_PUBLIC - 1, Ordering::Relaxed);
        None
    }

    /// What `found` has found, the first time that it finds something.
    #[inline]
    fn look<T>(&self, found: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.is_over() { None } else { self.look_closely(found) }
    }

    #[cold]
    fn look_closely<T>(&self, found: impl FnOnce() -> Option<T>) -> Option<T> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let found = found()?;
        (self.looks.swap(OVER, Ordering::Relaxed) < OVER).then_some(found)
    }
}

/// Where headers are not looked at: a private peer that forwards is a proxy, and everybody's.
#[inline]
pub(super) fn peer_is_the_key(peer: impl FnOnce() -> IpAddr, headers: &HeaderMap) {
    static HINT: Hint = Hint::new();
    let found = HINT.look(|| {
        let class = class(peer());
        if class == PUBLIC {
            return HINT.count_public();
        }
        forwarding(headers, None).map(|header| (class, header))
    });
    if let Some((class, header)) = found {
        log::proxy_is_the_client(class, header);
    }
}

/// Where a header is looked at, and whoever sends it is not trusted. Told once of private peers and once of public
/// ones: of the latter, anybody can bring it about.
#[inline]
pub(super) fn peer_is_not_trusted(peer: IpAddr, headers: &HeaderMap, source: &IpSource) {
    static PRIVATE_OR_PUBLIC: Hint = Hint::new();
    static LOGGED: [Once; 2] = [const { Once::new() }; 2];
    PRIVATE_OR_PUBLIC.look(|| {
        let class = class(peer);
        if source.name().is_some_and(|name| headers.contains_key(name)) {
            LOGGED[usize::from(class == PUBLIC)].call_once(|| log::untrusted_forwarding(class, source));
        }
        // Goes on looking for the other one.
        None::<()>
    });
}

/// Where a trusted proxy did not send the header that was asked for, but perhaps another one.
#[inline]
pub(super) fn source_is_absent(headers: &HeaderMap, source: &IpSource) {
    static HINT: Hint = Hint::new();
    let found = HINT.look(|| {
        let name = source.name()?;
        if headers.contains_key(name) { None } else { forwarding(headers, Some(name)) }
    });
    if let Some(header) = found {
        log::another_forwarding_header(source, header);
    }
}

fn forwarding(headers: &HeaderMap, but: Option<&HeaderName>) -> Option<&'static HeaderName> {
    FORWARDING.iter().find(|name| Some(*name) != but && headers.contains_key(*name))
}

const PUBLIC: &str = "public";

/// All that is logged of an address.
fn class(ip: IpAddr) -> &'static str {
    let ip = ip.to_canonical();
    let (is_loopback, is_private, is_link_local) = match ip {
        IpAddr::V4(ip) => (ip.is_loopback(), ip.is_private(), ip.is_link_local()),
        IpAddr::V6(ip) => (ip.is_loopback(), ip.is_unique_local(), ip.is_unicast_link_local()),
    };
    match (is_loopback, is_private, is_link_local) {
        (true, _, _) => "loopback",
        (_, true, _) => "private",
        (_, _, true) => "link-local",
        _ => PUBLIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        for (ip, expected) in [
            ("127.9.9.9", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("10.9.9.9", "private"),
            ("::ffff:192.168.0.1", "private"),
            ("fd00::1", "private"),
            ("169.254.1.1", "link-local"),
            ("fe80::1", "link-local"),
            ("203.0.113.9", PUBLIC),
            ("2001:db8::1", PUBLIC),
        ] {
            assert_eq!(class(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn a_hint_is_given_once_and_not_looked_for_for_ever() {
        let hint = Hint::new();
        assert_eq!(hint.look(|| None::<u8>), None);
        assert_eq!(hint.look(|| Some(7)), Some(7));
        assert_eq!(hint.look(|| -> Option<u8> { panic!("looked again") }), None);

        let hint = Hint::new();
        let looks = (0..2 * LOOKS).filter(|_| {
            let mut looked = false;
            hint.look(|| {
                looked = true;
                None::<u8>
            });
            looked
        });
        assert_eq!(looks.count(), LOOKS as usize);
        assert_eq!(hint.look(|| Some(7)), None);

        let hint = Hint::new();
        for _ in 0..LOOKS / LOOKS_OF_PUBLIC {
            assert!(!hint.is_over());
            assert_eq!(hint.look(|| hint.count_public::<u8>()), None);
        }
        assert!(hint.is_over());
    }
}
