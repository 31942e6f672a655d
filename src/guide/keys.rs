//! Keys: whose budget a request draws on.
//!
//! **You want** each client to have a budget of its own. The [key](crate::Policy::key) of a policy identifies the
//! client. Without one, all clients share one budget, and a rejection is 503 instead of 429, since the client may have
//! done nothing wrong. Here, a client is an address:
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, key::PeerIp};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     // The same as `RateLimitLayer::per_client(…)`.
//!     let policy = Policy::new("per-client", Quota::per_second(10).burst(20)).key(PeerIp::new());
//!     let layer = RateLimitLayer::new(policy);
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! #   if true { return each_address_has_a_budget(app).await; }
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! #
//! # async fn each_address_has_a_budget(app: Router) -> std::io::Result<()> {
//! #     use axum::{body::Body, extract::ConnectInfo, http::Request};
//! #     let send = async |address: u8| {
//! #         let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     let mut sent = 0;
//! #     while send(1).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "it is never rejected");
//! #     }
//! #     assert!(sent >= 20, "{sent} at once");
//! #     for _ in 0..20 {
//! #         assert_eq!(send(2).await, 200);
//! #     }
//! #     Ok(())
//! # }
//! ```
//!
//! # Which key?
//!
//! | clients are | key |
//! |---|---|
//! | addresses that connect to you | [`PeerIp`] |
//! | addresses behind proxies of yours | [`ClientIp`]: see [behind a proxy](super::proxies) |
//! | users that an outer layer has authenticated | [`ExtensionKey`], [`User::key`](crate::key::User::key) |
//! | holders of API keys | [`HeaderKey`], or [`QueryKey`] |
//! | sessions | [`CookieKey`] |
//! | users, each per route | a tuple: `(User::key(), PathKey::matched())` |
//! | addresses, each per method | a tuple: `(PeerIp::new(), MethodKey::new())` |
//! | something else in the request's head | [`key_fn`](crate::key::key_fn) |
//!
//! The best key is the most expensive one for an attacker to change: the number of an account rather than an address,
//! an address rather than a header.
//!
//! # Addresses, directly
//!
//! The server must provide the peer's address: with axum, by `into_make_service_with_connect_info`. Without it,
//! requests are answered 500, and the log names the cure.
//!
//! **IPv6** addresses count by their /64, since that is the least that a client owns. A home often has a /56, and
//! a site a /48: [tiers](crate::key::PeerIp#tiers) with rising quotas bound those, too. Each IPv4 address is a key, in
//! any spelling.
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
//!     // Requests without an account are counted by address, and only these.
//!     Policy::new("per-address", Quota::per_second(5))
//!         .key(PeerIp::new())
//!         .when(|request| request.extensions().get::<Account>().is_none()),
//! ]);
//! # accounts_are_counted_by_account_and_strangers_by_address(layer);
//! # fn accounts_are_counted_by_account_and_strangers_by_address(layer: RateLimitLayer) {
//! #     use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
//! #     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! #     let send = async |address: u8, account: Option<u64>| {
//! #         let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let mut request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
//! #         account.map(|number| request.extensions_mut().insert(Account { number }));
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #         // A thousand requests of one account from one address, and its next one from another.
//! #         for _ in 0..1_000 {
//! #             assert_eq!(send(1, Some(17)).await, 200);
//! #         }
//! #         assert_eq!(send(2, Some(17)).await, 429);
//! #         // Another account on that address is not concerned, and neither are strangers.
//! #         assert_eq!(send(1, Some(18)).await, 200);
//! #         let mut sent = 0;
//! #         while send(1, None).await != 429 {
//! #             sent += 1;
//! #             assert!(sent < 10_000, "strangers are never rejected");
//! #         }
//! #         assert!(sent >= 5, "{sent}");
//! #         assert_eq!((send(2, None).await, send(1, Some(18)).await), (200, 200));
//! #     });
//! # }
//! ```
//!
//! - A request without its key is rejected with 400, unless the policy has [`Skip`](crate::MissingKey::Skip) (it does
//!   not apply) or [`Share`](crate::MissingKey::Share) (all requests without a key share one budget). Skip only beside
//!   another policy.
//! - A policy applies to every request for which it finds its key. Without [`when`](crate::Policy::when), the policy by
//!   address would count accounts, too, and reject an account's sixth request in a second.
//! - The layer that inserts the account goes outside of the limit, and the key has the type that this layer inserts: an
//!   `Account` is not found where an `Arc<Account>` was inserted. If no request has it, that is
//!   [logged](super::misconfigured#no-request-had-its-extension).
//! - A client that can choose the value of a header chooses the budget. Check API keys before you use them as keys.
//! - Cookies and queries are decoded, as apps do, since a client would have a budget for each spelling. Nothing else is
//!   normalised: use the account as the key, and not the name as it was typed; if there is nothing else,
//!   `nfkc_casefold_trim` (feature `unicode`) makes its spellings one.
//!
//! # Different limits for different clients
//!
//! One policy, with [a quota per customer](super::quotas#a-quota-per-customer): the quota of the customer's
//! [plan](super::plans), which the authentication layer knows.
//!
//! # A part of the body
//!
//! No layer reads bodies. A middleware can, and puts the result into the extensions: [protect a login](super::login).
//! Or the handler asks [a limiter](super::direct) itself.
//!
//! # Exempt requests
//!
//! Health checks and callers of your own: [an allow-list](super::allow_list).
//!
//! # How keys are stored
//!
//! Keys are compared byte for byte; of those above 256 bytes, the SHA-256 is. Tables in memory store bits of a keyed
//! hash, and Redis stores a hash. No log and no response has a key; [a keyed
//! hash](crate::headers::RateLimitFields::partition_key) in the fields is optional.
//!
//! Next: [limits by day, week or month](super::calendar).
//!
//! [`PeerIp`]: crate::key::PeerIp
//! [`ClientIp`]: crate::key::ClientIp
//! [`ExtensionKey`]: crate::key::ExtensionKey
//! [`HeaderKey`]: crate::key::HeaderKey
//! [`CookieKey`]: crate::key::CookieKey
//! [`QueryKey`]: crate::key::QueryKey
