//! Behind a proxy: limit by the address of the client, and not by the address of nginx.
//!
//! **You have** a proxy, a load balancer or a CDN in front of the service. It is the peer of every connection, so a
//! limit by [`PeerIp`](crate::key::PeerIp) makes one client of all. The proxy writes the client's address into a
//! header, and **so can any client**. The header means something only if your proxy wrote it. So configure two things
//! here (which header, and which proxies), and check one thing there: that the proxy sets or appends to the header.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! const QUOTA: Quota = Quota::per_second(10).burst(20);
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A proxy on this machine, which appends the address of its client to X-Forwarded-For.
//!     let client = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["127.0.0.1"])?);
//!     let layer = RateLimitLayer::new(Policy::new("per-client", QUOTA).key(client));
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! #   if true { return clients_are_counted_by_their_own_address(app).await; }
//!
//!     // Not 0.0.0.0: only the proxy should reach this port.
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! #
//! # async fn clients_are_counted_by_their_own_address(app: Router) -> Result<(), Box<dyn std::error::Error>> {
//! #     use axum::{body::Body, extract::ConnectInfo, http::Request};
//! #     let send = async |peer: [u8; 4], forwarded: &str| {
//! #         let request = Request::get("/").extension(ConnectInfo(SocketAddr::from((peer, 4711))));
//! #         let request = request.header("x-forwarded-for", forwarded).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     let proxy = [127, 0, 0, 1];
//! #     let mut sent = 0;
//! #     // What the client itself sends comes before its address, and does not count.
//! #     while send(proxy, &format!("10.0.0.{}, 198.51.100.1", sent % 256)).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "a client is never rejected");
//! #     }
//! #     for _ in 0..20 {
//! #         assert_eq!(send(proxy, "198.51.100.2").await, 200, "another client of the proxy");
//! #     }
//! #     // A client that goes around the proxy is counted by its own address, whatever it sends.
//! #     let mut sent = 0;
//! #     while send([203, 0, 113, 9], &format!("198.51.100.{}", sent % 256)).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "a forged field is believed");
//! #     }
//! #     Ok(())
//! # }
//! ```
//!
//! To try it on one machine, without a proxy: `curl -H 'X-Forwarded-For: 198.51.100.7' http://127.0.0.1:3000/` comes
//! from 127.0.0.1 and is believed; with `--interface 127.0.0.2` (Linux), it is a stranger, whose header is ignored.
//!
//! In a [configuration file](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/):
//!
//! ```toml
//! [client-ip]
//! source = "x-forwarded-for"
//! trusted = ["127.0.0.1"]
//! ```
//!
//! # Which proxies
//!
//! ```
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//!
//! // A load balancer in a network of yours, with nothing else in it.
//! let balanced = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["10.0.0.0/24"])?);
//!
//! // Two proxies whose addresses change, one behind the other, and no way past them.
//! let counted = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::hops(2));
//!
//! // A CDN that replaces a header of its own in every request; these are its addresses.
//! let cdn = ClientIp::new(IpSource::cf_connecting_ip(), TrustedProxies::networks(["192.0.2.0/24"])?);
//! # Ok::<_, tower_sluice::key::TrustedProxiesError>(())
//! ```
//!
//! - Prefer ranges. With a count, every peer is taken for a proxy: nothing but the proxies may reach the port.
//! - A count that is too large lets a client choose its address, or, if it sends no header, makes it count as the
//!   proxy. One that is too small makes one client of all.
//! - A CDN's range serves its other customers, too, who can have it send you any header. If it can authenticate itself
//!   to you (a client certificate, a secret header), check that, and trust only the checking proxy.
//!
//! # The proxy's own lines
//!
//! nginx, Caddy and HAProxy were tried with these lines, as `scripts/ci/proxies` in the repository does: two clients
//! have a budget each, and none gets another by a header of its own (versions 1.22, 2.6 and 2.6, from Debian 12). **The
//! others were not tried**; their lines are from their documentation.
//!
//! **nginx.** Without the second line, nginx passes the client's own header on, which is the worst case. The variable
//! appends; `$remote_addr` in its place replaces, which is as good if no other proxy is in front.
//!
//! ```nginx
//! server {
//!     listen 80;
//!     location / {
//!         proxy_set_header Host $host;
//!         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
//!         proxy_pass http://127.0.0.1:3000;
//!     }
//! }
//! ```
//!
//! `proxy_set_header` in a `location` drops those of the `server` around it: write it where `proxy_pass` is. For gRPC,
//! it is `grpc_set_header` and `grpc_pass`.
//!
//! **Caddy** needs no line: it replaces what clients send. With another proxy in front, name that one in
//! `trusted_proxies` of `reverse_proxy`; Caddy then appends.
//!
//! ```caddy
//! example.com {
//!     reverse_proxy 127.0.0.1:3000
//! }
//! ```
//!
//! **HAProxy** appends a line with `option forwardfor`. Not `option forwardfor if-none`: that believes the client.
//!
//! ```haproxy
//! defaults
//!     mode http
//!     timeout connect 5s
//!     timeout client 60s
//!     timeout server 60s
//!
//! frontend web
//!     bind :80
//!     option forwardfor
//!     default_backend app
//!
//! backend app
//!     server app 127.0.0.1:3000
//! ```
//!
//! **Envoy** appends only with `use_remote_address: true` in its connection manager (and without `skip_xff_append`),
//! which is right at the edge. Without it, Envoy passes the header on.
//!
//! ```yaml
//! typed_config:
//!   "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
//!   use_remote_address: true
//! ```
//!
//! **Clouds and CDNs**
//!
//! | in front | header | trust |
//! |---|---|---|
//! | AWS Application Load Balancer | `X-Forwarded-For`, appended to; leave `routing.http.xff_header_processing.mode` at `append` | the subnets of the load balancer, with nothing else in them |
//! | Google Cloud's external Application Load Balancer | `X-Forwarded-For`: it appends **two** elements, the client and its own address | `TrustedProxies::hops(2)`, and a firewall that lets in nothing else |
//! | Cloudflare | [`cf_connecting_ip`](crate::key::IpSource::cf_connecting_ip) | [its ranges](https://www.cloudflare.com/ips/), and authenticated origin pulls |
//! | Amazon CloudFront | [`cloudfront_viewer_address`](crate::key::IpSource::cloudfront_viewer_address), which the origin request policy must add | its ranges, and a secret header that it adds and you check |
//! | Fly.io | [`fly_client_ip`](crate::key::IpSource::fly_client_ip) | the addresses of its proxy |
//! | Azure Front Door | [`x_azure_client_ip`](crate::key::IpSource::x_azure_client_ip) | its ranges, and the header with the number of your profile, which you check |
//! | Akamai, Fastly | [a header that they pass on unless configured](crate::key::IpSource) | after you have configured them |
//!
//! # Who the client is
//!
//! | what was sent | trusted | the client |
//! |---|---|---|
//! | `X-Forwarded-For: 198.51.100.7`, from 10.0.0.5 | `10.0.0.0/24` | 198.51.100.7 |
//! | `X-Forwarded-For: 1.1.1.1, 198.51.100.7`, from 10.0.0.5 | `10.0.0.0/24` | 198.51.100.7; the client wrote the rest |
//! | `X-Forwarded-For: 198.51.100.7, 10.0.0.9`, from 10.0.0.5 | `10.0.0.0/24` | 198.51.100.7: the last that is not a proxy of yours |
//! | `X-Forwarded-For: 198.51.100.7`, from 203.0.113.1 | `10.0.0.0/24` | 203.0.113.1: no proxy of yours |
//! | `X-Forwarded-For: unknown`, from 10.0.0.5 | `10.0.0.0/24` | [unidentified](crate::key::Unidentified): counts as 10.0.0.5, unless you say otherwise |
//!
//! Try your settings in a test:
//!
//! ```
//! use std::net::SocketAddr;
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//! use tower_sluice::RequestHead;
//!
//! let key = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["10.0.0.0/24"])?);
//! let client = |header: &str, peer: SocketAddr| {
//!     let mut request = http::Request::builder().header("x-forwarded-for", header).body(()).unwrap();
//!     request.extensions_mut().insert(peer);
//!     key.resolve(&RequestHead::from(&request)).unwrap().map(|address| address.to_string())
//! };
//! let (proxy, stranger) = ("10.0.0.5:4711".parse()?, "203.0.113.1:4711".parse()?);
//! assert_eq!(client("1.1.1.1, 198.51.100.7", proxy).as_deref(), Some("198.51.100.7"));
//! assert_eq!(client("198.51.100.7, 10.0.0.9", proxy).as_deref(), Some("198.51.100.7"));
//! assert_eq!(client("198.51.100.7", stranger).as_deref(), Some("203.0.113.1"));
//! assert_eq!(client("unknown", proxy), None);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! And in production, from two networks, with a limit of a few requests:
//!
//! ```text
//! for i in $(seq 30); do
//!   curl -s -o /dev/null -w '%{http_code}\n' -H "X-Forwarded-For: 198.51.100.$i" https://example.com/
//! done
//! ```
//!
//! The last ones must be 429. If none is, the header of the client is believed. If a client of another network then
//! gets 429 at its first request, all clients are one. Most mistakes are logged once, with a link to [the
//! cure](super::misconfigured).
//!
//! # Queues, streams and retries
//!
//! A proxy also has timeouts, buffers and retries of its own. For [queues](super::queue#proxies-in-front-of-a-queue),
//! there is a table of the effects.
//!
//! Next: [several machines](super::machines).
