//! Support: show a customer's limits, and let her in.
//!
//! **You want** your support staff to see why a customer is rejected and since when, and to let her in again. The
//! [admin service](https://docs.rs/tower-sluice-admin/latest/tower_sluice_admin/) is a page for that, and calls in JSON; it has a port of its own, and a guard:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::extract::{Request, State};
//! use axum::http::StatusCode;
//! use axum::middleware::{Next, from_fn, from_fn_with_state};
//! use axum::response::{IntoResponse, Response};
//! use axum::{Router, routing::get};
//! use tower::ServiceExt;
//! use tower_sluice::key::{PeerIp, User};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, SlidingWindow};
//!
//! /// Stands for the login of your staff.
//! #[derive(Clone)]
//! struct Staff {
//!     token: String,
//!     /// Answers wrong tokens. A right one does not come here, so that nobody's guesses lock the staff out.
//!     wrong: Router,
//! }
//!
//! async fn only_staff(State(staff): State<Staff>, request: Request, next: Next) -> Response {
//!     match request.headers().get("authorization") {
//!         None => StatusCode::UNAUTHORIZED.into_response(),
//!         Some(given) if given.as_bytes() == format!("Bearer {}", staff.token).as_bytes() => next.run(request).await,
//!         Some(_) => staff.wrong.oneshot(request).await.into_response(),
//!     }
//! }
//!
//! fn staff(limits: &RateLimitLayer, token: String) -> Router {
//!     let guesses = Policy::new("guesses", SlidingWindow::new(Quota::per_hour(20))).key(PeerIp::new());
//!     let wrong = Router::new().fallback(|| async { StatusCode::FORBIDDEN }).layer(RateLimitLayer::new(guesses));
//!     tower_sluice_admin::router([("app", limits.handle())]).layer(from_fn_with_state(Staff { token, wrong }, only_staff))
//! }
//!
//! /// Stands for your authentication.
//! async fn authenticate(mut request: Request, next: Next) -> Response {
//!     request.extensions_mut().insert(User::new("ada"));
//!     next.run(request).await
//! }
//!
//! fn limits() -> RateLimitLayer {
//!     RateLimitLayer::new([
//!         Policy::new("pace", Quota::per_second(10).burst(20)).key(User::key()),
//!         Policy::new("exports", SlidingWindow::new(Quota::per_day(5))).key(User::key()),
//!     ])
//! }
//!
//! fn app(limits: RateLimitLayer) -> Router {
//!     Router::new().route("/export", get(|| async { "a long table" })).layer(limits).layer(from_fn(authenticate))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     # return check().await;
//!     # #[allow(unreachable_code)] {
//!     let limits = limits();
//!     let staff = staff(&limits, std::env::var("STAFF_TOKEN")?);
//!     let public = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
//!     let private = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
//!     let with_peer = |router: Router| router.into_make_service_with_connect_info::<SocketAddr>();
//!     let (app, staff) = (with_peer(app(limits)), with_peer(staff));
//!     tokio::try_join!(axum::serve(public, app).into_future(), axum::serve(private, staff).into_future())?;
//!     Ok(())
//!     # }
//! }
//! #
//! # async fn check() -> Result<(), Box<dyn std::error::Error>> {
//! #     use axum::body::Body;
//! #     let limits = limits();
//! #     let (staff, app) = (staff(&limits, "secret".to_owned()), app(limits));
//! #     let export = async || {
//! #         app.clone().oneshot(Request::get("/export").body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
//! #     };
//! #     let ask = async |call: &str, body: &str, token: &str| {
//! #         let peer = axum::extract::ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 1)));
//! #         let request = Request::post(format!("/api/{call}")).extension(peer);
//! #         let request = request.header("content-type", "application/json");
//! #         let request = request.header("authorization", format!("Bearer {token}"));
//! #         let response = staff.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
//! #         let status = response.status().as_u16();
//! #         let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
//! #         (status, String::from_utf8(body.to_vec()).unwrap())
//! #     };
//! #     for _ in 0..5 {
//! #         assert_eq!(export().await, 200);
//! #     }
//! #     assert_eq!(export().await, 429);
//! #     let (status, text) = ask("key", r#"{"key": "ada", "policy": "exports"}"#, "secret").await;
//! #     assert!(status == 200 && text.contains(r#""left":0,"limit":5"#), "{status} {text}");
//! #     let reset = r#"{"key": "ada", "policy": "exports"}"#;
//! #     assert_eq!(ask("reset", reset, "wrong").await.0, 403);
//! #     assert_eq!(export().await, 429);
//! #     assert_eq!(ask("reset", reset, "secret").await.0, 200);
//! #     assert_eq!(export().await, 200);
//! #     for _ in 0..30 {
//! #         let _ = ask("key", reset, "wrong").await;
//! #     }
//! #     assert_eq!(ask("key", reset, "wrong").await.0, 429);
//! #     assert_eq!(ask("key", reset, "secret").await.0, 200);
//! #     Ok(())
//! # }
//! ```
//!
//! ```text
//! $ call() { curl -H "authorization: Bearer $STAFF_TOKEN" -H 'content-type: application/json' -d "$2" http://127.0.0.1:3001/api/$1; }
//! $ call key '{"key": "ada"}'
//! {"key":"ada","policies":[{"layer":"app","policy":"exports","state":"limited","left":0,"limit":5,…
//! $ call reset '{"key": "ada", "policy": "exports"}'
//! $ call ban '{"key": "mallory", "policy": "pace", "for": "1h", "reason": "scrapes the catalogue"}'
//! ```
//!
//! A browser shows the page at `http://127.0.0.1:3001/`: it needs a guard that browsers know, such as a proxy with single
//! sign-on, or HTTP Basic. [How to guard it](https://docs.rs/tower-sluice-admin/latest/tower_sluice_admin/#guard-it)
//! has the rules. With a file of limits, `tower_sluice_admin::router(&config)` has all its routes. The example server
//! shows all of it: `--admin 127.0.0.1:3001`.
//!
//! With a quota per customer ([`quota_fn`](crate::Policy::quota_fn)), a key without a request so far is shown under the
//! policy's own quota, since only a request has the customer's plan.
//!
//! # In your own back office
//!
//! The service is a view of [`LimitsHandle`](crate::LimitsHandle), which your own endpoints may call:
//!
//! ```
//! use tower_sluice::{LimiterError, LimitsHandle};
//!
//! /// What the customer's page of your back office says.
//! async fn describe(limits: &LimitsHandle, customer: &str) -> Result<String, LimiterError> {
//!     let mut text = String::new();
//!     for policy in limits.policies() {
//!         let status = limits.peek(policy.name(), customer).await?;
//!         let decision = status.decision();
//!         text += &format!("{}: {} of {} left", policy.name(), decision.remaining(), decision.limit());
//!         if let Some(ban) = status.ban() {
//!             text += &format!(", banned for another {} s: {}", ban.left().as_secs(), ban.reason());
//!         }
//!         text += "\n";
//!     }
//!     Ok(text)
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LimiterError> {
//! #     use tower_sluice::{Policy, Quota, RateLimitLayer, key::User};
//! #     let limits = RateLimitLayer::new(Policy::new("pace", Quota::per_second(10)).key(User::key())).handle();
//! #     assert_eq!(describe(&limits, "ada").await?, "pace: 10 of 10 left\n");
//! #     let _ = limits.ban("pace", "ada", std::time::Duration::from_secs(3_601), "scrapes").await?;
//! #     assert_eq!(describe(&limits, "ada").await?, "pace: 0 of 10 left, banned for another 3600 s: scrapes\n");
//! #     Ok(())
//! # }
//! ```
//!
//! # Which key
//!
//! [Text](crate::policy::KeyOf) is read as the policy's key extractor does, and a text that is no key is an error that
//! says what the keys are. A request may stand for its key, too. A `PartitionKey` is taken as it is: if it is not the
//! one that the policy makes of a request, `peek` shows a full budget and `reset` resets nothing.
//!
//! | the key of the policy | the key of a customer |
//! |---|---|
//! | [`User::key`](crate::key::User::key), a header, or a closure that returns a text | `alice` |
//! | a closure that returns a number | `7` |
//! | [`PeerIp`](crate::key::PeerIp), [`ClientIp`](crate::key::ClientIp) | `203.0.113.7`; for IPv6, any address of the network, or `2001:db8::/64` |
//! | a tuple | `alice + 203.0.113.7`: its parts in their order |
//! | none, or [`Share`](crate::MissingKey::Share) | `(shared)` |
//! | any, if its bytes are no text that a person can type, or more than are kept | as it is shown: `"caf\xe9"`, `(0x00ff)`, `(sha256:9835…)` |
//!
//! # A customer who cannot log in
//!
//! [Two limits of the login](super::login) may be in the way: the one by address, and the one by account and address.
//!
//! ```
//! use tower_sluice::{LimiterError, RateLimitLayer};
//!
//! async fn unlock(logins: &RateLimitLayer, name: &str, address: &str) -> Result<(), LimiterError> {
//!     let _ = logins.handle().reset("account-here", &format!("{name} + {address}")).await?;
//!     let _ = logins.handle().reset("address", address).await?;
//!     Ok(())
//! }
//! # use tower_sluice::key::{ExtensionKey, PeerIp};
//! # use tower_sluice::{Policy, Quota, SlidingWindow};
//! # #[derive(Clone)]
//! # struct Login {
//! #     name: String,
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     use tower::{Layer, ServiceExt, service_fn};
//! #     let name = ExtensionKey::new(|login: &Login| login.name.clone());
//! #     let logins = RateLimitLayer::new([
//! #         Policy::new("address", SlidingWindow::new(Quota::per_hour(20))).key(PeerIp::new()),
//! #         Policy::new("account-here", SlidingWindow::new(Quota::per_hour(5))).key((name, PeerIp::new())),
//! #     ]);
//! #     let login = |address: &str| {
//! #         let mut request = http::Request::new(());
//! #         request.extensions_mut().insert(Login { name: "ada".to_owned() });
//! #         request.extensions_mut().insert(std::net::SocketAddr::new(address.parse().unwrap(), 4711));
//! #         let ok = service_fn(|_| async { Ok::<_, std::convert::Infallible>(http::Response::new(String::new())) });
//! #         let response = logins.layer(ok).oneshot(request);
//! #         async { response.await.unwrap().status().as_u16() }
//! #     };
//! #     for address in ["192.0.2.1", "2001:db8::1"] {
//! #         for _ in 0..5 {
//! #             assert_eq!(login(address).await, 200);
//! #         }
//! #         assert_eq!(login(address).await, 429);
//! #         // Of IPv6, any address of the customer's network.
//! #         unlock(&logins, "ada", &address.replace("::1", "::2")).await.unwrap();
//! #         assert_eq!(logins.handle().peek("address", address).await.unwrap().decision().remaining(), 20);
//! #         assert_eq!(login(address).await, 200);
//! #     }
//! # }
//! ```
//!
//! # On several machines
//!
//! With a shared store, one process resets the budget for all. In memory, ask each of them:
//! [which processes share what](super::sharing).
//!
//! Next: [change limits while the server runs](super::hot_reload).
