//! An allow-list: requests that are not limited.
//!
//! **You want** health checks, callers of your own and a customer's monitoring to pass.
//! [`exempt`](crate::Policy::exempt) takes networks, secret header values and paths out of a policy:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::get};
//! use http::HeaderName;
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//! use tower_sluice::{Exemptions, Policy, Quota, RateLimitLayer};
//!
//! fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     // The proxies are 10.0.0.0/24. Without a proxy: `ClientIp::peer()`.
//!     let client = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["10.0.0.0/24"])?);
//!     let exemptions = Exemptions::new()
//!         .networks(client.clone(), ["10.1.0.0/16", "2001:db8:1::/48", "203.0.113.7"])?
//!         .header(HeaderName::from_static("x-internal"), "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7")?
//!         .path("/healthz")?
//!         .path("/assets/*")?;
//!     let policy = Policy::new("per-client", Quota::per_second(1)).key(client).exempt(exemptions);
//!     Ok(Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .route("/healthz", get(|| async { "ok" }))
//!         .layer(RateLimitLayer::new(policy)))
//! }
//! #
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #     use tower::ServiceExt;
//! #     let app = app()?;
//! #     let twice = async |path: &str, forwarded: &str, secret: &str| {
//! #         let mut status = 0;
//! #         for _ in 0..2 {
//! #             let request = http::Request::get(path).header("x-forwarded-for", forwarded);
//! #             let request = request.header("x-internal", secret);
//! #             let mut request = request.body(axum::body::Body::empty()).unwrap();
//! #             request.extensions_mut().insert(std::net::SocketAddr::from(([10, 0, 0, 5], 4711)));
//! #             status = app.clone().oneshot(request).await.unwrap().status().as_u16();
//! #         }
//! #         status
//! #     };
//! #     assert_eq!(twice("/", "198.51.100.1", "").await, 429);
//! #     assert_eq!(twice("/", "10.1.2.3", "").await, 200);
//! #     assert_eq!(twice("/", "10.1.2.3, 198.51.100.2", "").await, 429);
//! #     assert_eq!(twice("/", "198.51.100.3", "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7").await, 200);
//! #     assert_eq!(twice("/", "198.51.100.4", "8c6b").await, 429);
//! #     assert_eq!(twice("/healthz", "198.51.100.5", "").await, 200);
//! #     assert_eq!(twice("//healthz", "198.51.100.6", "").await, 429);
//! #     Ok(())
//! # }
//! ```
//!
//! In a [configuration file](super::configuration):
//!
//! ```toml
//! [route.policy.exempt]
//! networks = ["10.1.0.0/16"]
//! headers = { x-internal = "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7" }   # do not commit the file with it
//! paths = ["/healthz", "/assets/*"]
//! ```
//!
//! - An exemption is a way around the limit, so none can be forged: an address counts only if it is the client's beyond
//!   doubt, a header only in full, and a path only as it is written here. `/healthz/` and `//healthz` are charged.
//! - Behind a proxy that you did not configure, all clients seem to come from its network. If it sends a forwarding
//!   header, none of them is exempt; if it passes connections through, with no header, all of them are.
//! - Choose the header's value at random. A second `header` of the same name adds a value, so that one can be replaced
//!   by another without a gap.
//! - Exempt requests are [counted](super::monitoring#metrics) as `skipped`.
//! - A policy that should still bound exempt requests is another policy, with a higher limit.
//!
//! | you want to exempt | also |
//! |---|---|
//! | one route | add it [outside of the layer](super::start#on-one-route) |
//! | CORS preflights | put the CORS layer outside, or [`exempt_preflights`](crate::layer::RateLimitLayerBuilder::exempt_preflights) |
//! | a method, or anything else in the head | [`when`](crate::Policy::when); the client chooses these, so be sure that they give nothing away |
//! | some customers | not at all: give them [a quota of their own](super::plans), which may be large |
//!
//! A list of clients that may *not* send is no rate limit: reject them in a middleware, or in the proxy. Clients that
//! go on after being rejected are [banned for a while](crate::Policy::penalty).
//!
//! Next: [answer rejections in your own JSON](super::rejections).
