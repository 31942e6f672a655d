//! Support: show a customer's limits, and reset them.
//!
//! **You want** your support staff to see why a customer is rejected, and to let the customer in again. Staff get a
//! port of their own, and a token. A clone of the layer shares its budgets:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::extract::{Path, Request, State};
//! use axum::http::StatusCode;
//! use axum::middleware::{Next, from_fn, from_fn_with_state};
//! use axum::response::Response;
//! use axum::{Router, routing::{get, post}};
//! use tower_sluice::key::User;
//! use tower_sluice::{LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, SlidingWindow};
//!
//! /// The policies that count by customer.
//! const POLICIES: [&str; 2] = ["pace", "exports"];
//!
//! /// `GET /limits/{customer}`: the units that are left. Charges nothing.
//! async fn show(
//!     State(limits): State<RateLimitLayer>,
//!     Path(customer): Path<String>,
//! ) -> Result<String, (StatusCode, String)> {
//!     let key = PartitionKey::from(customer);
//!     let mut text = String::new();
//!     for policy in POLICIES {
//!         let decision = limits.handle().peek(policy, &key).await.map_err(explain)?;
//!         text += &format!("{policy}: {} of {} left", decision.remaining(), decision.limit());
//!         // `peek` asks for a request of cost 0, which is rejected only while the key is banned.
//!         if let Some(wait) = decision.retry_after() {
//!             text += &format!(", rejected for another {} s", wait.as_secs());
//!         }
//!         text += "\n";
//!     }
//!     Ok(text)
//! }
//!
//! /// `POST /limits/{customer}/reset`: a full budget, no debt, no ban.
//! async fn reset(
//!     State(limits): State<RateLimitLayer>,
//!     Path(customer): Path<String>,
//! ) -> Result<StatusCode, (StatusCode, String)> {
//!     println!("support: the limits of {customer:?} are reset"); // for your audit log
//!     let key = PartitionKey::from(customer);
//!     for policy in POLICIES {
//!         let _ = limits.handle().reset(policy, &key).await.map_err(explain)?;
//!     }
//!     Ok(StatusCode::NO_CONTENT)
//! }
//!
//! /// The answer to an error. Its source has the reason: the answer of a Redis, for example.
//! fn explain(error: LimiterError) -> (StatusCode, String) {
//!     let status = if error.is_unknown_policy() {
//!         StatusCode::NOT_FOUND
//!     } else if error.is_unsupported() {
//!         StatusCode::METHOD_NOT_ALLOWED // a queue, for example, cannot be reset
//!     } else {
//!         StatusCode::BAD_GATEWAY
//!     };
//!     let reason = std::error::Error::source(&error).map(|source| format!(": {source}"));
//!     (status, format!("{error}{}\n", reason.unwrap_or_default()))
//! }
//!
//! /// Stands for the login of your staff.
//! async fn only_staff(State(token): State<String>, request: Request, next: Next) -> Result<Response, StatusCode> {
//!     let given = request.headers().get("authorization").ok_or(StatusCode::UNAUTHORIZED)?;
//!     if given.as_bytes() != format!("Bearer {token}").as_bytes() {
//!         return Err(StatusCode::FORBIDDEN);
//!     }
//!     Ok(next.run(request).await)
//! }
//!
//! fn staff(limits: RateLimitLayer, token: String) -> Router {
//!     // Wrong tokens only. All callers share the budget.
//!     let guesses = Policy::new("guesses", SlidingWindow::new(Quota::per_hour(20)))
//!         .charge_when(|response| response.status() == StatusCode::FORBIDDEN);
//!     Router::new()
//!         .route("/limits/{customer}", get(show))
//!         .route("/limits/{customer}/reset", post(reset))
//!         .with_state(limits)
//!         .route_layer(from_fn_with_state(token, only_staff))
//!         .route_layer(RateLimitLayer::new(guesses))
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
//!     let staff = staff(limits.clone(), std::env::var("STAFF_TOKEN")?);
//!     let public = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
//!     let private = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
//!     let app = app(limits).into_make_service_with_connect_info::<SocketAddr>();
//!     tokio::try_join!(axum::serve(public, app).into_future(), axum::serve(private, staff).into_future())?;
//!     Ok(())
//!     # }
//! }
//! #
//! # async fn check() -> Result<(), Box<dyn std::error::Error>> {
//! #     use axum::body::Body;
//! #     use tower::ServiceExt;
//! #     let limits = limits();
//! #     let (app, staff) = (app(limits.clone()), staff(limits, "secret".to_owned()));
//! #     let export = async || {
//! #         app.clone().oneshot(Request::get("/export").body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
//! #     };
//! #     let ask = async |method: &str, path: &str, token: &str| {
//! #         let request = Request::builder().method(method).uri(path);
//! #         let request = request.header("authorization", format!("Bearer {token}"));
//! #         let response = staff.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
//! #         let status = response.status().as_u16();
//! #         let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
//! #         (status, String::from_utf8(body.to_vec()).unwrap())
//! #     };
//! #     for _ in 0..5 {
//! #         assert_eq!(export().await, 200);
//! #     }
//! #     assert_eq!(export().await, 429);
//! #     let (status, text) = ask("GET", "/limits/ada", "secret").await;
//! #     assert!(status == 200 && text.ends_with("exports: 0 of 5 left\n"), "{status} {text}");
//! #     assert_eq!(ask("POST", "/limits/ada/reset", "wrong").await.0, 403);
//! #     assert_eq!(export().await, 429);
//! #     assert_eq!(ask("POST", "/limits/ada/reset", "secret").await.0, 204);
//! #     assert_eq!(ask("GET", "/limits/ada", "secret").await.1, "pace: 20 of 20 left\nexports: 5 of 5 left\n");
//! #     assert_eq!(export().await, 200);
//! #     for _ in 0..30 {
//! #         let _ = ask("GET", "/limits/ada", "wrong").await;
//! #     }
//! #     assert_eq!(ask("GET", "/limits/ada", "wrong").await.0, 503);
//! #     let error = limits_of_another_name().await;
//! #     assert_eq!(error, StatusCode::NOT_FOUND);
//! #     Ok(())
//! # }
//! # async fn limits_of_another_name() -> StatusCode {
//! #     explain(limits().handle().peek("unknown", &PartitionKey::from("ada")).await.unwrap_err()).0
//! # }
//! ```
//!
//! ```text
//! $ curl -H "authorization: Bearer $STAFF_TOKEN" http://127.0.0.1:3001/limits/ada
//! pace: 20 of 20 left
//! exports: 0 of 5 left
//! $ curl -X POST -H "authorization: Bearer $STAFF_TOKEN" http://127.0.0.1:3001/limits/ada/reset
//! ```
//!
//! With a quota per customer ([`quota_fn`](crate::Policy::quota_fn)), `peek` shows a key without a request so far under
//! the policy's own quota, since only a request has the customer's plan.
//!
//! # Which key
//!
//! The key must be the one that the policy makes of a request. For any other key, `peek` shows a full budget and
//! `reset` resets nothing; neither is an error.
//!
//! | the key of the policy | the key of a customer |
//! |---|---|
//! | [`User::key`](crate::key::User::key), a header, or a closure that returns a text | `PartitionKey::from("alice")` |
//! | a closure that returns a number | `PartitionKey::from(7_u64)`, of the same type |
//! | [`PeerIp`](crate::key::PeerIp), [`ClientIp`](crate::key::ClientIp) | `PartitionKey::from(IpNetwork::of(address, 64))`, with the prefix of the policy: an IPv6 address counts by its /64, so no request has the key `PartitionKey::from(address)` |
//! | a tuple | `PartitionKey::from_parts([first.as_bytes(), second.as_bytes()])`, with the keys of its parts in their order |
//! | none, or [`Share`](crate::MissingKey::Share) | [`PartitionKey::SHARED`](crate::PartitionKey::SHARED) |
//!
//! # A customer who cannot log in
//!
//! [Two limits of the login](super::login) may be in the way: the one by address, and the one by account and address.
//!
//! ```
//! use std::net::IpAddr;
//!
//! use tower_sluice::key::IpNetwork;
//! use tower_sluice::{LimiterError, PartitionKey, RateLimitLayer};
//!
//! async fn unlock(logins: &RateLimitLayer, name: &str, address: IpAddr) -> Result<(), LimiterError> {
//!     let name = PartitionKey::from(name);
//!     let address = PartitionKey::from(IpNetwork::of(address, 64));
//!     let both = PartitionKey::from_parts([name.as_bytes(), address.as_bytes()]);
//!     let _ = logins.handle().reset("account-here", &both).await?;
//!     let _ = logins.handle().reset("address", &address).await?;
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
//! #         unlock(&logins, "ada", address.replace("::1", "::2").parse().unwrap()).await.unwrap();
//! #         let address_key = PartitionKey::from(IpNetwork::of(address.parse().unwrap(), 64));
//! #         assert_eq!(logins.handle().peek("address", &address_key).await.unwrap().decision().remaining(), 20);
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
