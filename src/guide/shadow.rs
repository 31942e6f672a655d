//! A shadow: try a limit out before it rejects.
//!
//! **You want** to know how many requests a limit would reject, and whose, before it rejects one. A
//! [shadow](crate::Policy::shadow) policy (a dry run) counts and never rejects:
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new([
//!     Policy::new("per-client", Quota::per_second(50)).key(PeerIp::new()),
//!     Policy::new("stricter", Quota::per_second(10)).key(PeerIp::new()).shadow(),
//! ]);
//! # let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer.clone());
//! # assert_eq!(layer.shadow_rejected("stricter"), Some(0));
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     use axum::{body::Body, extract::ConnectInfo, http::Request};
//! #     let send = async |address: u8| {
//! #         let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     // Fifty at once pass, of which the shadow would have rejected up to forty.
//! #     for _ in 0..50 {
//! #         assert_eq!(send(1).await, 200);
//! #     }
//! #     let mut address = 2;
//! #     while layer.shadow_rejected("stricter") == Some(0) {
//! #         for _ in 0..50 {
//! #             assert_eq!(send(address).await, 200);
//! #         }
//! #         address += 1;
//! #     }
//! # });
//! // After a day:
//! let would_have_rejected = layer.shadow_rejected("stricter");
//! assert!(would_have_rejected.is_some_and(|requests| requests > 0));
//! ```
//!
//! A shadow is charged for the requests that are served. Clients see nothing of it.
//!
//! 1. Add the limit as a shadow. Let a day pass, or a week: limits are often reached at month's end.
//! 2. Check how many requests it would have rejected, and [which](#which-requests).
//! 3. Remove `.shadow()`. If you do so [while the server runs](super::hot_reload), under the same name, the counts are
//!    kept.
//!
//! In a [configuration file](super::configuration): `shadow = true`. A first limit comes from the access log of the
//! last weeks: [replay it](super::which_limit).
//!
//! # Which requests
//!
//! [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) puts the decisions of all policies into the extensions of
//! every response, also of admitted requests. An outer layer can log or count them, together with its own data on the
//! request:
//!
//! ```
//! use tower_sluice::Verdict;
//!
//! fn log<B>(path: &str, response: &http::Response<B>) {
//!     let Some(verdict) = response.extensions().get::<Verdict>() else { return };
//!     for policy in verdict.policies().iter().filter(|policy| !policy.decision().is_allowed()) {
//!         let what = if policy.is_shadow() { "would have rejected" } else { "rejected" };
//!         println!("{} {what} {path}", policy.name());
//!     }
//! }
//! # log("/", &http::Response::new(()));
//! ```
//!
//! Without an outer layer: log rejections where their response is made. A limiter of its own bounds the lines per
//! client, or rejected clients would fill the log:
//!
//! ```
//! use http::Response;
//! use tower_sluice::key::{ClientIp, PeerIp};
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::{PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
//!
//! let client = ClientIp::peer(); // behind a proxy, the key of your policy
//! let lines = RateLimiter::new(TokenBucket::new(Quota::per_minute(1)), MemoryStore::with_capacity(65_536));
//! let policy = Policy::new("per-client", Quota::per_second(10)).key(PeerIp::new());
//! let layer = RateLimitLayer::builder(policy).rejection_response(move |rejection, request| {
//!     if let Ok(network) = client.network(request) {
//!         let address = PartitionKey::from(network);
//!         if lines.check(&address).is_allowed() {
//!             let violated: Vec<_> = rejection.verdict().violated().map(|policy| policy.name()).collect();
//!             eprintln!("{network}: rejected by {violated:?}");
//!         }
//!     }
//!     Response::builder().status(rejection.status()).body(rejection.detail().into_owned()).unwrap()
//! }).build();
//! # let _: RateLimitLayer = layer;
//! ```
//!
//! Many clients still write many lines: bound all together by a second limiter with
//! [`PartitionKey::SHARED`](crate::PartitionKey::SHARED).
//!
//! Next: [metrics and logs](super::monitoring).
