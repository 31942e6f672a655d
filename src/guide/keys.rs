//! Keys: whose budget a request draws on, also behind proxies.
//!
//! **You want** each client to have a budget of its own. The [key](crate::Policy::key) of a policy identifies the
//! client. Without one, all clients share one budget, and a rejection is 503 instead of 429, since the client may have
//! done nothing wrong.
//!
//! | clients are | key |
//! |---|---|
//! | addresses that connect to you | [`PeerIp`] |
//! | addresses behind proxies of yours | [`ClientIp`] |
//! | users that an outer layer has authenticated | [`ExtensionKey`], [`User::key`](crate::key::User::key) |
//! | holders of API keys | [`HeaderKey`] |
//! | users, each per route | a tuple: `(User::key(), PathKey::matched())` |
//! | something else in the request's head | [`key_fn`](crate::key::key_fn) |
//!
//! The best key is the one that costs an attacker most to change: the number of an account rather than an address, an
//! address rather than a header.
//!
//! # Addresses, directly
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, key::PeerIp};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let quota = Quota::per_second(10).burst(20);
//!     let policy = Policy::new("per-client", quota).key(PeerIp::new());
//!     let layer = RateLimitLayer::new(policy);
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! The server must provide the peer's address: with axum, by `into_make_service_with_connect_info`. Without it,
//! requests are answered 500, and the log names the cure.
//!
//! **IPv6** addresses count by their /64, since that is the least that a client owns. A home often has a /56, and
//! a site a /48: [tiers](crate::key::PeerIp#tiers) with rising quotas bound those, too. Each IPv4 address is a key, in
//! any spelling.
//!
//! # Addresses, behind proxies
//!
//! Behind a proxy, the peer is the proxy for all clients. The proxy writes the client's address into a header, and **so
//! can any client**. It means something only if your proxy wrote it. So configure two things: which one header, and
//! which proxies.
//!
//! ```
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//!
//! // A proxy on the same machine.
//! let local = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::loopback());
//!
//! // A load balancer in a network of yours, with nothing else in it.
//! let balanced = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::ranges(["10.0.0.0/24"])?);
//!
//! // Two proxies whose addresses change, one behind the other, and no way past them.
//! let counted = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::count(2));
//!
//! // A CDN that replaces a header of its own in every request; these are its addresses.
//! let cdn = ClientIp::new(IpSource::cf_connecting_ip(), TrustedProxies::ranges(["192.0.2.0/24"])?);
//! # Ok::<_, tower_sluice::key::TrustedProxiesError>(())
//! ```
//!
//! | what was sent | trusted | the client |
//! |---|---|---|
//! | `X-Forwarded-For: 198.51.100.7`, from 10.0.0.5 | `10.0.0.0/24` | 198.51.100.7 |
//! | `X-Forwarded-For: 1.1.1.1, 198.51.100.7`, from 10.0.0.5 | `10.0.0.0/24` | 198.51.100.7; the client wrote the rest |
//! | `X-Forwarded-For: 198.51.100.7, 10.0.0.9`, from 10.0.0.5 | `10.0.0.0/24` | 198.51.100.7: the last that is not a proxy of yours |
//! | `X-Forwarded-For: 198.51.100.7`, from 203.0.113.1 | `10.0.0.0/24` | 203.0.113.1: no proxy of yours |
//! | `X-Forwarded-For: unknown`, from 10.0.0.5 | `10.0.0.0/24` | [unidentified](crate::key::Unidentified): counts as 10.0.0.5, unless you say otherwise |
//!
//! Try yours:
//!
//! ```
//! use std::net::SocketAddr;
//! use tower_sluice::RequestHead;
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//!
//! let key = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::ranges(["10.0.0.0/24"])?);
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
//! - A CDN's range serves its other customers, too, who can have it send you any header. If it can
//!   authenticate itself to you (a client certificate, a secret header), check that, and trust only the checking proxy.
//! - A count that is too large lets clients choose their address. One that is too small makes one client of all.
//! - The proxy must append to the header or replace it, and not pass it on unchanged.
//!
//! Most mistakes are logged once, with the cure: see [operating](super::operating#what-is-logged).
//!
//! # Users and API keys
//!
//! ```
//! use tower_sluice::key::{ExtensionKey, PeerIp};
//! use tower_sluice::{MissingKey, Policy, Quota, RateLimitLayer, SlidingWindow};
//!
//! #[derive(Clone)]
//! struct Account {
//!     number: u64,
//! }
//!
//! let layer = RateLimitLayer::new([
//!     // An outer layer has authenticated the request and put the account into its extensions.
//!     Policy::new("per-account", SlidingWindow::new(Quota::per_hour(1_000)))
//!         .key(ExtensionKey::new(|account: &Account| account.number))
//!         .on_missing_key(MissingKey::Skip),
//!     // Requests without an account are counted by address.
//!     Policy::new("per-address", Quota::per_second(5)).key(PeerIp::new()),
//! ]);
//! ```
//!
//! - A request without its key is rejected with 400, unless the policy has [`Skip`](crate::MissingKey::Skip) (it does
//!   not apply) or [`Share`](crate::MissingKey::Share) (all requests without a key share one budget). Skip only beside
//!   another policy.
//! - A client that can choose the value of a header chooses the budget. Check API keys before you use them as keys.
//! - Nothing is normalised. Key on what an identity resolves to, and not on what was typed; if there is nothing
//!   else, `nfkc_casefold_trim` (feature `unicode`) makes its spellings one.
//!
//! # Different limits for different clients
//!
//! One policy whose keys have [quotas of their own](super::quotas#a-quota-per-customer): that of the customer's plan, as the
//! authentication layer knows it.
//!
//! # Exempt requests
//!
//! Health checks, callers of your own, a page of static files: [`except`](crate::Policy::except) takes networks, secret
//! header values and paths out of a policy. In a configuration file, that is `except`, in a policy or for a whole route.
//!
//! ```
//! use http::HeaderName;
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//! use tower_sluice::{Exemptions, Policy, Quota};
//!
//! let client = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::ranges(["192.0.2.0/24"])?);
//! let exemptions = Exemptions::new()
//!     .networks(client.clone(), ["10.0.0.0/8"])?
//!     .header(HeaderName::from_static("x-internal"), "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7")?
//!     .path("/healthz")?;
//! let policy = Policy::new("per-client", Quota::per_second(10)).key(client).except(exemptions);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! - An exemption is a way around the limit, so none can be forged: an address counts only if it is the client's beyond
//!   doubt, a header only in full, and a path only as it is written here. `/healthz/` and `//healthz` are charged.
//! - Behind a proxy that you did not configure, all clients seem to come from its network. If it sends a forwarding header,
//!   none of them is exempt; if it passes connections through, with no header, all of them are.
//! - A policy that should still bound exempt requests is another policy, with a higher limit.
//!
//! # Guesses
//!
//! A request that one policy of a layer rejects is charged to none. Against guessing (passwords, API keys, codes) that
//! is wrong: a guess that the account's policy rejects should still count against the address. Layers charge
//! separately, so put the policy by address into an outer layer of its own:
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_sluice::key::{HeaderKey, PeerIp};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, TokenBucket};
//!
//! let tries = TokenBucket::new(Quota::per_minute(10));
//! let per_address = Policy::new("tries", tries).key(PeerIp::new());
//! let login = HeaderKey::from_static("x-login");
//! let per_account = Policy::new("account", Quota::per_hour(5)).key(login);
//! let app: Router = Router::new()
//!     .route("/login", post(|| async { "welcome" }))
//!     .layer(RateLimitLayer::new(per_account))
//!     .layer(RateLimitLayer::new(per_address)); // the last layer is the outermost
//! ```
//!
//! # How keys are stored
//!
//! Keys are compared byte for byte; of those above 256 bytes, the SHA-256 is. Tables in memory store bits of a keyed
//! hash, and Redis stores a hash. No log and no response has a key; [a keyed
//! hash](crate::headers::RateLimitFields::partition_key) in the fields is optional.
//!
//! [`PeerIp`]: crate::key::PeerIp
//! [`ClientIp`]: crate::key::ClientIp
//! [`ExtensionKey`]: crate::key::ExtensionKey
//! [`HeaderKey`]: crate::key::HeaderKey
