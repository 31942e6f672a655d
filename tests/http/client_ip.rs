//! The client's address and its key: test vectors, and forgeries.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::support::cases::cases;
use crate::support::effort::rounds;
use http::{HeaderName, HeaderValue, Request};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;
use tower_sluice::key::{ClientIp, IpSource, KeyError, KeyExtractor, PeerIp, TrustedProxies, Unidentified};
use tower_sluice::{PartitionKey, RequestHead};

const PROXY: &str = "10.0.0.1:555";
const XFF: &str = "x-forwarded-for";

fn proxies() -> TrustedProxies {
    TrustedProxies::networks(["10.0.0.0/8"]).unwrap()
}

fn behind_proxies() -> ClientIp {
    ClientIp::new(IpSource::XForwardedFor, proxies())
}

fn request<V: AsRef<[u8]>>(peer: &str, header: &str, lines: impl IntoIterator<Item = V>) -> Request<()> {
    let mut request = Request::new(());
    let peer = peer.parse().unwrap_or_else(|_| SocketAddr::new(peer.parse().expect("an address"), 0));
    request.extensions_mut().insert(peer);
    for line in lines {
        let name: HeaderName = header.parse().unwrap();
        request.headers_mut().append(name, HeaderValue::from_bytes(line.as_ref()).unwrap());
    }
    request
}

fn resolve<V: AsRef<[u8]>>(
    key: &ClientIp,
    peer: &str,
    header: &str,
    lines: impl IntoIterator<Item = V>,
) -> Option<IpAddr> {
    key.resolve(&RequestHead::from(&request(peer, header, lines))).unwrap()
}

fn client(key: &ClientIp, lines: &[&str]) -> Option<IpAddr> {
    resolve(key, PROXY, XFF, lines)
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

fn partition(key: &impl KeyExtractor, request: &Request<()>) -> PartitionKey {
    key.extract(&RequestHead::from(request)).unwrap()
}

fn without_zone(address: &str) -> String {
    match address.split_once('%') {
        Some((start, rest)) => start.to_owned() + rest.find(']').map_or("", |end| &rest[end..]),
        None => address.into(),
    }
}

fn vectors(json: &str) -> Vec<Value> {
    serde_json::from_str(json).unwrap()
}

#[test]
fn client_vectors() {
    for case in vectors(include_str!("../vectors/client_ip.json")) {
        let text = |name: &str| case[name].as_str().unwrap();
        let list =
            |name: &str| case[name].as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>();
        let trusted = match text("mode") {
            "cidr" => TrustedProxies::networks(list("trusted")).unwrap(),
            "hops" => TrustedProxies::hops(case["n"].as_u64().unwrap().try_into().unwrap()),
            mode => panic!("{mode}: {case}"),
        };
        let strict = ClientIp::new(text("header").parse().unwrap(), trusted);
        let peer = without_zone(text("peer"));
        let got = |key: &ClientIp| resolve(key, &peer, text("header"), list("lines")).map(|ip| ip.to_string());
        let want = case["want"].as_str().map(String::from);

        let needs_lenience = case["lenient"].as_bool().unwrap_or(false);
        if needs_lenience || want.is_some() {
            assert_eq!(got(&strict.clone().lenient_forwarded()), want, "{case}");
        }
        assert_eq!(got(&strict), want.filter(|_| !needs_lenience), "{case}");
    }
}

#[test]
fn key_vectors() {
    for case in vectors(include_str!("../vectors/ipv6_key.json")) {
        let prefix = case["prefix"].as_u64().unwrap().try_into().unwrap();
        let key = case["key"].as_str().unwrap();
        let (base, _) = key.split_once('/').unwrap();
        let written = case["ip"].as_str().unwrap();

        let direct = request(&without_zone(written), XFF, [""; 0]);
        let peer = ClientIp::peer().ipv6_prefix(prefix);
        assert_eq!(peer.network(&RequestHead::from(&direct)).unwrap().to_string(), key, "{case}");
        assert_eq!(partition(&peer, &direct), PartitionKey::from(ip(base).unwrap()), "{case}");

        let proxied = request(PROXY, XFF, [written]);
        let behind = behind_proxies().ipv6_prefix(prefix);
        assert_eq!(behind.network(&RequestHead::from(&proxied)).unwrap().to_string(), key, "{case}");
        assert_eq!(partition(&behind, &proxied), partition(&peer, &direct), "{case}");
    }
}

#[test]
fn forged_prefixes_do_not_change_the_key() {
    let keys: HashSet<_> = (0..1_000)
        .map(|i| format!("198.51.{}.{}, \"x{i}", i / 256, i % 256))
        .flat_map(|forged| {
            [request(PROXY, XFF, [format!("{forged}, 203.0.113.9")]), request(PROXY, XFF, [&forged, "203.0.113.9"])]
        })
        .map(|request| partition(&behind_proxies(), &request))
        .collect();
    assert_eq!(keys, HashSet::from([PartitionKey::from(ip("203.0.113.9").unwrap())]));
}

/// All other IPv6 addresses have one key per /64.
#[test]
fn embedded_ipv4_has_one_key_per_address() {
    let count = rounds(4_096, 65_536);
    let keys = |base: &str, shift: u32| {
        let base: Ipv6Addr = base.parse().unwrap();
        let address = |i: u32| Ipv6Addr::from_bits(base.to_bits() + (u128::from(i) << shift)).to_string();
        let key = |i| partition(&behind_proxies(), &request(PROXY, XFF, [address(i)]));
        (0..u32::try_from(count).unwrap()).map(key).collect::<HashSet<_>>().len()
    };
    assert_eq!(keys("::ffff:203.0.0.0", 0), count);
    assert_eq!(keys("64:ff9b::203.0.0.0", 0), count);
    // A local NAT64 prefix (RFC 8215) puts the address at the end, or at one of four other places (RFC 6052, section
    // 2.2).
    for (base, shift) in
        [("64:ff9b:1::", 0), ("64:ff9b:1:fffe::cb00:0", 0), ("64:ff9b:1::", 40), ("64:ff9b:1:ab00::", 48)]
    {
        assert_eq!(keys(base, shift), count, "{base}");
    }
    assert_eq!(keys("64:ff9b:2::", 0), 1);
    assert_eq!(keys("2002:cb00::", 80), count);
    assert_eq!(keys("2001:db8::", 0), 1);
    assert_eq!(keys("2001:db8::", 48), 1);
    assert_eq!(keys("2001:db8::", 64), count);
}

#[test]
fn only_ipv4_notations_are_the_same_client() {
    let key = |text| partition(&behind_proxies(), &request(PROXY, XFF, [text]));
    assert_eq!(key("1.2.3.4"), key("::ffff:1.2.3.4"));
    assert_eq!(key("1.2.3.4"), key("::ffff:102:304"));
    assert_ne!(key("1.2.3.4"), key("2001:db8::1.2.3.4"));
    assert_eq!(key("2001:db8::1.2.3.4"), key("[2001:db8::1%eth0]:80"));
}

#[test]
fn nat64_and_6to4_are_trusted_literally() {
    let translated = ["10.0.0.2, 64:ff9b::10.0.0.1", "10.0.0.2, 2002:a00:1::"];
    assert_eq!(client(&behind_proxies(), &translated[..1]), ip("64:ff9b::a00:1"));
    assert_eq!(client(&behind_proxies(), &translated[1..]), ip("2002:a00:1::"));
}

#[test]
fn no_other_header_is_read() {
    let mut request = request(PROXY, "x-real-ip", ["6.6.6.6"]);
    request.headers_mut().insert("forwarded", HeaderValue::from_static("for=6.6.6.6"));
    let head = RequestHead::from(&request);
    assert_eq!(behind_proxies().resolve(&head), Ok(None));
    assert_eq!(ClientIp::peer().resolve(&head), Ok(ip("10.0.0.1")));
    assert_eq!(ClientIp::new(IpSource::Peer, proxies()).resolve(&head), Ok(ip("10.0.0.1")));
}

/// If the policy says so, they have no key instead.
#[test]
fn unidentified_clients_share_the_peers_key() {
    for lines in [&[][..], &["unknown"], &[", ,"], &["0.0.0.0"]] {
        let request = request("[::ffff:10.0.0.1]:555", XFF, lines);
        let head = RequestHead::from(&request);
        assert_eq!(behind_proxies().resolve(&head), Ok(None));
        assert_eq!(behind_proxies().address(&head), Ok("10.0.0.1".parse().unwrap()));
        assert_eq!(partition(&behind_proxies(), &request), partition(&PeerIp::new(), &request));
        let error = behind_proxies().on_unidentified(Unidentified::Missing).extract(&head).unwrap_err();
        assert_eq!(error, KeyError::Missing { what: "client address in x-forwarded-for".into() });
    }
}

#[test]
fn without_a_peer_no_header_is_trusted() {
    let request = Request::builder().header(XFF, "6.6.6.6").body(()).unwrap();
    for key in [ClientIp::peer(), behind_proxies(), ClientIp::new(IpSource::XForwardedFor, TrustedProxies::hops(1))] {
        assert!(matches!(key.extract(&RequestHead::from(&request)), Err(KeyError::Misconfigured { .. })));
    }
}

#[test]
fn headers_with_a_single_address() {
    let key = |name: &str| ClientIp::new(name.parse().unwrap(), proxies());
    let table: [(&str, &[&str], &str); 9] = [
        ("X-Real-IP", &[" 3.3.3.3\t"], "3.3.3.3"),
        ("cf-connecting-ip", &["2001:db8::7"], "2001:db8::7"),
        ("cf-connecting-ip", &["10.0.0.7"], "10.0.0.7"),
        ("cloudfront-viewer-address", &["2001:db8::7:443"], "2001:db8::7"),
        ("x-real-ip", &["3.3.3.3", "3.3.3.3"], "-"),
        ("x-real-ip", &["3.3.3.3, 4.4.4.4"], "-"),
        ("x-real-ip", &["3.3.3.3,"], "-"),
        ("x-real-ip", &[""], "-"),
        ("x-real-ip", &[], "-"),
    ];
    for (name, lines, want) in table {
        assert_eq!(resolve(&key(name), PROXY, name, lines), if want == "-" { None } else { ip(want) }, "{lines:?}");
        assert_eq!(resolve(&key(name), "9.9.9.9:1", name, lines), ip("9.9.9.9"));
    }
}

#[test]
fn well_known_headers_have_constructors() {
    for (source, name) in [
        (IpSource::x_real_ip(), "x-real-ip"),
        (IpSource::cf_connecting_ip(), "cf-connecting-ip"),
        (IpSource::true_client_ip(), "true-client-ip"),
        (IpSource::fly_client_ip(), "fly-client-ip"),
        (IpSource::x_envoy_external_address(), "x-envoy-external-address"),
        (IpSource::cloudfront_viewer_address(), "cloudfront-viewer-address"),
        (IpSource::fastly_client_ip(), "fastly-client-ip"),
        (IpSource::x_azure_client_ip(), "x-azure-clientip"),
    ] {
        assert_eq!(source, name.parse().unwrap());
        let with_port = if name.starts_with("cloudfront") { "3.3.3.3:443" } else { "3.3.3.3" };
        let key = ClientIp::new(source, proxies());
        assert_eq!(resolve(&key, PROXY, name, [with_port]), ip("3.3.3.3"), "{name}");
        assert_eq!(resolve(&key, PROXY, name, [with_port, with_port]), None, "{name}");
    }
}

#[test]
fn obfuscated_nodes_are_clients_if_enabled() {
    let plain = ClientIp::new(IpSource::Forwarded, proxies());
    let named = plain.clone().obfuscated_nodes();
    let of = |key: &ClientIp, line: &str| partition(key, &request(PROXY, "forwarded", [line]));
    let proxy = PartitionKey::from(ip("10.0.0.1").unwrap());

    assert_eq!(of(&plain, "for=6.6.6.6, for=_abc"), proxy);
    assert_ne!(of(&named, "for=6.6.6.6, for=_abc"), proxy);
    // Only the name counts, and the proxy that wrote it; elements before the name and after it do not matter.
    for same in ["for=7.7.7.7, for=\"_abc\"", "x=\", for=_abc", "for=_abc, for=10.0.0.9", "for=\"_abc:80\";proto=http"]
    {
        assert_eq!(of(&named, same), of(&named, "for=_abc"), "{same}");
    }
    let others =
        ["for=_abd", "for=_ABC", "for=_abcdefghijklmno", "for=95.97.98.99", "for=\"[5f61:6263::]\"", "for=unknown"];
    let keys: HashSet<_> = others.into_iter().chain(["for=_abc"]).map(|line| of(&named, line)).collect();
    assert_eq!(keys.len(), 7);
    assert_eq!(of(&named, "for=3.3.3.3, for=_"), proxy, "no name, and the end of the search");

    // An obfuscated name is not an address. From an untrusted peer it is ignored. With a proxy count, its position
    // decides.
    assert_eq!(resolve(&named, PROXY, "forwarded", ["for=_abc"]), None);
    assert_eq!(
        named.network(&RequestHead::from(&request(PROXY, "forwarded", ["for=_abc"]))).unwrap().to_string(),
        "10.0.0.1/32"
    );
    let stranger = request("9.9.9.9:1", "forwarded", ["for=_abc"]);
    assert_eq!(partition(&named, &stranger), PartitionKey::from(ip("9.9.9.9").unwrap()));
    let counted = ClientIp::new(IpSource::Forwarded, TrustedProxies::hops(2)).obfuscated_nodes();
    assert_eq!(of(&counted, "for=6.6.6.6, for=_abc, for=_proxy"), of(&named, "for=_abc"));
}

#[test]
fn sources_have_names() {
    let header = |name| IpSource::Header(HeaderName::from_static(name));
    let names = [("peer", IpSource::Peer), (XFF, IpSource::XForwardedFor), ("forwarded", IpSource::Forwarded)];
    for (name, source) in names.into_iter().chain([("x-real-ip", header("x-real-ip"))]) {
        assert_eq!(name.parse::<IpSource>().unwrap(), source);
        assert_eq!(source.to_string(), name);
    }
    assert!("x real ip".parse::<IpSource>().is_err());
    let list = ClientIp::new(header(XFF), proxies());
    assert_eq!(client(&list, &["3.3.3.3, 10.0.0.2"]), ip("3.3.3.3"));
}

#[test]
fn ranges_and_a_count_together() {
    for trusted in [proxies().and_hops(2), TrustedProxies::hops(2).and_networks(["10.0.0.0/8"]).unwrap()] {
        let key = ClientIp::new(IpSource::XForwardedFor, trusted);
        assert_eq!(client(&key, &["6.6.6.6, 3.3.3.3, 8.8.8.8"]), ip("3.3.3.3"));
        assert_eq!(client(&key, &["6.6.6.6, 10.0.0.3, unknown"]), ip("10.0.0.3"));
        assert_eq!(client(&key, &["8.8.8.8"]), None);
        assert_eq!(resolve(&key, "9.9.9.9:1", XFF, ["3.3.3.3, 8.8.8.8"]), ip("9.9.9.9"));
    }
    let many = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::hops(200));
    assert_eq!(client(&many, &["3.3.3.3", &["10.0.0.2"; 199].join(",")]), ip("3.3.3.3"));
    let none = ClientIp::new(IpSource::XForwardedFor, proxies().and_hops(0));
    assert_eq!(client(&none, &["3.3.3.3"]), ip("10.0.0.1"));
}

#[test]
fn ranges_are_canonical_and_checked() {
    let trusts = |trusted: TrustedProxies, peer: &str| {
        let key = ClientIp::new(IpSource::XForwardedFor, trusted);
        resolve(&key, peer, XFF, ["3.3.3.3"]) == ip("3.3.3.3")
    };
    for (range, inside, outside) in [
        ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
        ("192.0.2.7", "::ffff:192.0.2.7", "192.0.2.6"),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.0"),
        ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("fd00::/8", "fdff::1", "fc00::1"),
        ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
        ("::/96", "::a00:1", "10.0.0.1"),
        ("64:ff9b::/96", "64:ff9b::a00:1", "10.0.0.1"),
    ] {
        assert!(trusts(TrustedProxies::networks([range]).unwrap(), inside), "{range}");
        assert!(!trusts(TrustedProxies::networks([range]).unwrap(), outside), "{range}");
    }
    for peer in ["127.9.9.9", "::1", "10.9.9.9", "172.31.9.9", "192.168.9.9", "169.254.9.9", "fd00::1", "febf::1"] {
        assert!(trusts(TrustedProxies::private(), peer), "{peer}");
    }
    for peer in
        ["128.0.0.1", "::2", "11.0.0.1", "172.32.0.1", "172.15.0.1", "192.169.0.1", "169.255.0.1", "fe00::1", "fec0::1"]
    {
        assert!(!trusts(TrustedProxies::private(), peer), "{peer}");
    }
    assert!(trusts(TrustedProxies::private().and_networks(["192.0.2.7"]).unwrap(), "192.0.2.7"));
    for peer in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
        assert!(trusts(TrustedProxies::loopback(), peer), "{peer}");
    }
    for peer in ["128.0.0.1", "10.0.0.1", "::2", "fe80::1"] {
        assert!(!trusts(TrustedProxies::loopback(), peer), "{peer}");
    }

    let complaint = |range: &str| TrustedProxies::networks([range]).unwrap_err().to_string();
    let malformed =
        ["", "proxy", "10/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/8/8", "fd00::/129", " ::1"];
    for range in malformed.into_iter().chain(["fe80::1%eth0", "::ffff:10.0.0.0/8"]) {
        assert!(complaint(range).contains("write an address such as"), "{range}");
    }
    assert!(complaint("10.0.0.1/8").contains("write 10.0.0.0/8 for the network, or 10.0.0.1"));
    assert!(complaint("2001:db8::1/32").contains("write 2001:db8::/32 for the network, or 2001:db8::1"));
    assert!(TrustedProxies::networks([""; 0]).unwrap_err().to_string().contains("no proxy is trusted"));
    assert!(TrustedProxies::hops(1).and_networks([""; 0]).is_err());
    for range in ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"] {
        assert!(complaint(range).contains("trusts all addresses"), "{range}");
    }
}

/// The elements that proxies and clients may write between two commas.
#[derive(Clone, Debug)]
enum Element {
    Proxy(u8),
    Client(Ipv4Addr),
    ClientV6(Ipv6Addr),
    Junk(&'static str),
    Empty,
}

impl Element {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            4 => any::<u8>().prop_map(Self::Proxy),
            2 => any::<[u8; 2]>().prop_map(|[a, b]| Self::Client([203, 0, a, b].into())),
            2 => any::<u16>().prop_map(|a| Self::ClientV6([0x2001, 0xdb8, 0, 0, 0, 0, 0, a].into())),
            1 => select(vec!["unknown", "_hidden", "1.2.3", "1.2.3.4/32", "0.0.0.0", "[::1"]).prop_map(Self::Junk),
            1 => Just(Self::Empty),
        ]
    }

    fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::Proxy(n) => Some([10, 0, 0, n].into()),
            Self::Client(ip) => Some(ip.into()),
            Self::ClientV6(ip) => Some(ip.into()),
            Self::Junk(_) | Self::Empty => None,
        }
    }

    fn render(&self, forwarded: bool, style: u8) -> String {
        let port = if style % 2 == 0 { "" } else { ":8080" };
        let node = match *self {
            Self::Proxy(n) => format!("10.0.0.{n}{port}"),
            Self::Client(ip) if style % 3 == 0 => format!("[::ffff:{ip}]{port}"),
            Self::Client(ip) => format!("{ip}{port}"),
            Self::ClientV6(ip) => format!("[{ip}]{port}"),
            Self::Junk(text) => text.into(),
            Self::Empty => return " ".into(),
        };
        let more = ["", r#";host="a,b;for=6.6.6.6""#, r#";x="\"\\,\"";by=_b"#][usize::from(style / 6 % 3)];
        if forwarded { format!("For=\"{node}\"{more}") } else { node }
    }
}

#[test]
fn ranges_spanning_the_internet_are_rejected() {
    for half in [
        ["0.0.0.0/1", "128.0.0.0/1"].as_slice(),
        &["128.0.0.0/1"],
        &["0.0.0.0/2", "64.0.0.0/2"],
        &["10.0.0.0/8", "64.0.0.0/2", "0.0.0.0/3", "32.0.0.0/3"],
        &["2000::/3"],
        &["::/1"],
        &["fd00::/8", "2000::/5", "2800::/5"],
        &["::ffff:0:0/97"],
    ] {
        assert!(TrustedProxies::networks(half).is_err(), "{half:?}");
        // They are rejected even if they are added in two calls.
        let (first, rest) = half.split_at(half.len() - 1);
        let both = proxies().and_networks(first).and_then(|trusted| trusted.and_networks(rest));
        assert!(both.unwrap_err().to_string().contains("half of all addresses"), "{half:?}");
    }
    for less in [
        ["0.0.0.0/2", "10.0.0.0/8", "64.0.0.0/3"].as_slice(),
        &["0.0.0.0/2", "0.0.0.0/2", "1.0.0.0/8"],
        &["fc00::/7", "fe80::/10", "2000::/5", "2000::/5", "2001:db8::/32"],
    ] {
        assert!(TrustedProxies::networks(less).is_ok(), "{less:?}");
    }
}

/// Header values close to valid ones, and any others.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let syntax = select(b"for=\"\\,; []:.%_0123456789abcdef\t".to_vec());
    let words =
        select(vec!["for=", "10.0.0.1", "3.3.3.3", ", ", "\"", "\\", "[::1]", ":80", ";", "for=\"[2001:db8::1]:80\""]);
    let byte = (0x20..=0xffu8).prop_filter("DEL", |byte| *byte != 0x7f);
    prop_oneof![
        prop::collection::vec(byte, 0..40),
        prop::collection::vec(syntax, 0..60),
        prop::collection::vec(words, 0..20).prop_map(|words| words.concat().into_bytes()),
    ]
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// Compares with the definition, for any element list in any number of lines.
    #[test]
    fn the_client_is_found_from_the_right(
        list in prop::collection::vec((Element::any(), any::<u8>(), any::<bool>()), 0..8),
        forwarded: bool,
        count in prop::option::of(1..4usize),
    ) {
        let mut lines = vec![String::new()];
        for (i, (element, style, new_line)) in list.iter().enumerate() {
            if *new_line {
                lines.push(String::new());
            } else if i > 0 {
                lines.last_mut().unwrap().push_str(" ,");
            }
            lines.last_mut().unwrap().push_str(&element.render(forwarded, *style));
        }
        let elements = list.iter().map(|(element, ..)| element);
        let mut from_right = elements.rev().filter(|element| !matches!(element, Element::Empty));
        let want = if let Some(count) = count {
            from_right.nth(count - 1).and_then(Element::address)
        } else {
            let passed = from_right.clone().take_while(|element| matches!(element, Element::Proxy(_))).count();
            let leftmost = from_right.clone().next_back().and_then(Element::address);
            from_right.nth(passed).map_or(leftmost, Element::address)
        };
        let header = if forwarded { "forwarded" } else { XFF };
        let trusted = count.map_or_else(proxies, |count| proxies().and_hops(count));
        let key = ClientIp::new(header.parse().unwrap(), trusted);
        prop_assert_eq!(resolve(&key, PROXY, header, &lines), want, "{:?}", lines);
    }

    /// A client may send anything; the elements that the proxies behind it append decide.
    #[test]
    fn the_client_cannot_be_forged(
        forged in prop::collection::vec(line(), 0..4),
        tail in prop::collection::vec((any::<u8>(), any::<u8>()), 0..4),
        style: u8,
        same_line: bool,
        forwarded: bool,
        lenient: bool,
    ) {
        let client = Element::Client([203, 0, 113, 9].into());
        let mut honest = vec![client.render(forwarded, style)];
        honest.extend(tail.iter().map(|&(n, style)| Element::Proxy(n).render(forwarded, style)));
        let honest = honest.join(", ").into_bytes();
        let mut lines = forged;
        match lines.last_mut() {
            Some(last) if same_line => last.extend([b", ", honest.as_slice()].concat()),
            _ => lines.push(honest),
        }

        let header = if forwarded { "forwarded" } else { XFF };
        let hops = tail.len() + 1;
        for trusted in [proxies(), TrustedProxies::hops(hops), proxies().and_hops(hops)] {
            let key = ClientIp::new(header.parse().unwrap(), trusted);
            let key = if lenient { key.lenient_forwarded() } else { key };
            prop_assert_eq!(resolve(&key, PROXY, header, &lines), client.address(), "{:?}", lines);
        }
        let key = ClientIp::new(header.parse().unwrap(), proxies());
        prop_assert_eq!(resolve(&key, "9.9.9.9:1", header, &lines), ip("9.9.9.9"));
    }

    /// Nothing panics, and the header contains the resolved address, followed by trusted ones only.
    #[test]
    fn any_bytes_yield_only_contained_addresses(
        lines in prop::collection::vec(line(), 0..5),
        count in 0..4usize,
        lenient: bool,
    ) {
        for header in [XFF, "forwarded", "x-real-ip", "cloudfront-viewer-address"] {
            for trusted in [proxies(), TrustedProxies::hops(count), TrustedProxies::private().and_hops(count)] {
                let key = ClientIp::new(header.parse().unwrap(), trusted);
                let key = if lenient { key.lenient_forwarded() } else { key };
                let request = request(PROXY, header, &lines);
                prop_assert!(key.extract(&RequestHead::from(&request)).is_ok());
            }
        }

        // The naive reader below does not know zones.
        let without_zones = |line: &Vec<u8>| line.split(|&byte| byte == b'%').collect::<Vec<_>>().concat();
        let lines: Vec<_> = lines.iter().map(without_zones).collect();
        let joined = lines.join(&b',');
        let naive = |element: &[u8]| {
            let text = std::str::from_utf8(element).ok()?.trim().trim_matches('"');
            let bare = text.trim_matches(['[', ']']).parse().ok();
            bare.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip())).map(|ip: IpAddr| ip.to_canonical())
        };
        let is_proxy = |ip: &Option<IpAddr>| matches!(ip, Some(IpAddr::V4(ip)) if ip.octets()[0] == 10);
        let elements = joined.rsplit(|&byte| byte == b',').filter(|element| !element.trim_ascii().is_empty());
        let seen: Vec<_> = elements.map(naive).collect();
        let expected = seen.iter().find(|ip| !is_proxy(ip)).or(seen.last()).copied().flatten();
        let client = resolve(&behind_proxies(), PROXY, XFF, &lines);
        prop_assert!(client.is_none() || client == expected, "{:?} of {:?}", client, lines);
    }
}
