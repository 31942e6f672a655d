//! Properties that hold for any list of forwarding addresses.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, HeaderValue, Request};
use tower_sluice::RequestHead;
use tower_sluice::key::{ClientIp, KeyExtractor, TrustedProxies};

const PROXY: &str = "10.0.0.1:555";
const STRANGER: &str = "192.0.2.1:555";

/// The first byte chooses options. The rest is the header's lines.
pub struct Case<'a> {
    header: HeaderName,
    options: u8,
    lines: Vec<&'a [u8]>,
}

impl<'a> Case<'a> {
    /// Returns `None` if a line cannot be a header's value.
    pub fn new(header: &'static str, data: &'a [u8]) -> Option<Self> {
        let (options, text) = data.split_first()?;
        let lines: Vec<_> = text.split(|byte| *byte == b'\n').collect();
        let is_valid = lines.iter().all(|line| HeaderValue::from_bytes(line).is_ok());
        is_valid.then(|| Self { header: HeaderName::from_static(header), options: options.wrapping_sub(b'0'), lines })
    }

    fn key(&self, trusted: TrustedProxies) -> ClientIp {
        let key = ClientIp::new(self.header.clone().into(), trusted);
        let key = if self.options & 1 == 0 { key } else { key.lenient_forwarded() };
        if self.options & 2 == 0 { key } else { key.obfuscated_nodes() }
    }

    fn request(&self, peer: &str, lines: &[impl AsRef<[u8]>]) -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer.parse::<SocketAddr>().unwrap());
        for line in lines {
            let value = HeaderValue::from_bytes(line.as_ref()).expect("checked");
            request.headers_mut().append(self.header.clone(), value);
        }
        request
    }

    fn resolve(&self, trusted: TrustedProxies, peer: &str, lines: &[impl AsRef<[u8]>]) -> Option<IpAddr> {
        let (key, request) = (self.key(trusted), self.request(peer, lines));
        let head = RequestHead::from(&request);
        assert!(key.extract(&head).is_ok(), "the peer is the substitute for an unidentified client");
        key.resolve(&head).expect("the peer is known")
    }

    /// Checks the resolved client against the definition. `split` parses a line from the left, independently of the
    /// crate. It fails if the line is not well-formed, and so has no elements.
    pub fn check(&self, split: impl Fn(&'a [u8]) -> Option<Vec<&'a [u8]>>) {
        let trusted = || TrustedProxies::networks(["10.0.0.0/8", "fd00::/8"]).unwrap();
        let is_trusted = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets()[0] == 10,
            IpAddr::V6(ip) => ip.octets()[0] == 0xfd,
        };
        let count = usize::from(self.options >> 2 & 3) + 1;
        let by_range = self.resolve(trusted(), PROXY, &self.lines);
        let by_count = self.resolve(trusted().and_hops(count), PROXY, &self.lines);

        // An untrusted peer is the client.
        assert_eq!(self.resolve(trusted(), STRANGER, &self.lines), Some([192, 0, 2, 1].into()));

        // Elements to the left of the client's have no effect.
        for garbage in [&b"6.6.6.6"[..], b"\"", b"for=6.6.6.6;x=\"", b"\\", b"for=\"[::1]\"", b"\xff,,"] {
            let mut same_line: Vec<_> = self.lines.iter().map(|line| line.to_vec()).collect();
            same_line[0] = [garbage, b", ", &*same_line[0]].concat();
            let other_line: Vec<_> = [garbage].into_iter().chain(self.lines.iter().copied()).collect();
            if by_range.is_some_and(|ip| !is_trusted(ip)) {
                assert_eq!(self.resolve(trusted(), PROXY, &same_line), by_range, "after {garbage:?}");
                assert_eq!(self.resolve(trusted(), PROXY, &other_line), by_range, "after a line {garbage:?}");
            }
            if by_count.is_some() {
                assert_eq!(self.resolve(trusted().and_hops(count), PROXY, &same_line), by_count, "after {garbage:?}");
                assert_eq!(self.resolve(trusted().and_hops(count), PROXY, &other_line), by_count, "after a line");
            }
        }

        // The client agrees with the definition.
        let Some(elements) = self.lines.iter().map(|line| split(line)).collect::<Option<Vec<_>>>() else { return };
        let elements: Vec<_> =
            elements.concat().into_iter().filter(|element| !element.trim_ascii().is_empty()).collect();
        let bytes: usize = self.lines.iter().map(|line| line.len() + 1).sum();
        let commas = self.lines.concat().iter().filter(|byte| **byte == b',').count();
        if commas + self.lines.len() > 64 || bytes > 8 * 1024 {
            return;
        }
        let read = |element: &&[u8]| self.resolve(TrustedProxies::hops(1), PROXY, &[element]);
        let from_right = || elements.iter().rev().map(read);
        let first = from_right().find(|ip| !ip.is_some_and(is_trusted));
        assert_eq!(by_range, first.unwrap_or_else(|| from_right().next_back().flatten()), "{:?}", self.lines);
        assert_eq!(by_count, from_right().nth(count - 1).flatten(), "{:?}", self.lines);
    }
}
