//! Protect a login: slow guessing down without locking the owner out.
//!
//! **You want** to stop clients that try thousands of passwords, from one address or from many. And an attacker must
//! not be able to lock the owner of an account out by failing on purpose. One limit cannot do that.
//! [Four](#the-four-limits) can. Dependencies: as in [start here](super::start), and `serde_json = "1"`.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::collections::HashMap;
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::body::{Body, to_bytes};
//! use axum::extract::Request;
//! use axum::http::{HeaderMap, StatusCode};
//! use axum::middleware::{Next, from_fn};
//! use axum::response::Response;
//! use axum::{Json, Router, routing::post};
//! use tower_sluice::key::{ExtensionKey, PeerIp};
//! use tower_sluice::policy::ResponseHead;
//! use tower_sluice::{Penalty, Policy, Quota, RateLimitLayer, SlidingWindow};
//!
//! const QUARTER: Duration = Duration::from_secs(15 * 60);
//! const ATTEMPTS: Quota = Quota::per_minute(30);
//! const FAILURES_OF_AN_ADDRESS: Quota = Quota::per(20, QUARTER);
//! const FAILURES_HERE: Quota = Quota::per(5, QUARTER);
//! const FAILURES_ANYWHERE: Quota = Quota::per(50, QUARTER);
//! const EARLY_RETRIES: Quota = Quota::per(10, QUARTER);
//! const BAN: Duration = Duration::from_secs(3_600);
//!
//! /// Whom a request wants to log in as, and from which device, if that account has logged in on it before.
//! #[derive(Clone)]
//! struct Login {
//!     name: String,
//!     device: Option<String>,
//! }
//!
//! const NAME: ExtensionKey<Login> = ExtensionKey::new(|login| login.name.as_str().into());
//! const DEVICE: ExtensionKey<Login> = ExtensionKey::new(|login| login.device.as_deref().unwrap_or("unknown").into());
//!
//! /// Reads the name from the body, which no layer does, and passes the body on.
//! async fn read_login(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     let (mut head, body) = request.into_parts();
//!     let body = to_bytes(body, 4_096).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
//!     let form: HashMap<String, String> = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
//!     // One spelling per account. Better: the number of the account, or this if there is no such account.
//!     let name = form.get("name").ok_or(StatusCode::BAD_REQUEST)?.trim().to_lowercase();
//!     let device = known_device(&head.headers, &name);
//!     head.extensions.insert(Login { name, device });
//!     Ok(next.run(Request::from_parts(head, Body::from(body))).await)
//! }
//!
//! /// Stands for your check of a cookie that is set when a login succeeds. It must be signed, for this account and
//! /// with the number of the device: otherwise each invented cookie would have a budget of its own.
//! fn known_device(headers: &HeaderMap, name: &str) -> Option<String> {
//!     let cookie = headers.get("cookie")?.to_str().ok()?;
//!     (cookie == "device=signed-7" && name == "ada").then(|| "7".to_owned())
//! }
//!
//! /// Stands for yours.
//! async fn login(Json(form): Json<HashMap<String, String>>) -> StatusCode {
//!     match (form["name"].trim(), form.get("password").map(String::as_str)) {
//!         ("ada", Some("correct horse")) => StatusCode::OK,
//!         _ => StatusCode::UNAUTHORIZED,
//!     }
//! }
//!
//! fn app() -> Router {
//!     let is_failure = |response: &ResponseHead<'_>| response.status() == StatusCode::UNAUTHORIZED;
//!     let failures = RateLimitLayer::new([
//!         Policy::new("address", SlidingWindow::new(FAILURES_OF_AN_ADDRESS))
//!             .key(PeerIp::new())
//!             .charge_when(is_failure)
//!             .penalty(Penalty::new(EARLY_RETRIES, BAN)),
//!         Policy::new("account-here", SlidingWindow::new(FAILURES_HERE))
//!             .key((NAME, PeerIp::new()))
//!             .charge_when(is_failure)
//!             .penalty(Penalty::new(EARLY_RETRIES, BAN)),
//!         // No penalty here: a ban of an account would lock its owner out.
//!         Policy::new("account", SlidingWindow::new(FAILURES_ANYWHERE)).key((NAME, DEVICE)).charge_when(is_failure),
//!     ]);
//!     // More than ten retries per minute that come too early: banned for ten minutes. A policy's penalty counts that
//!     // policy's own rejections only, so the policies above have penalties of their own.
//!     let attempts = Policy::new("attempts", ATTEMPTS)
//!         .key(PeerIp::new())
//!         .penalty(Penalty::new(Quota::per_minute(10), Duration::from_secs(600)));
//!     Router::new()
//!         .route("/login", post(login))
//!         // Not `layer`, which would also be around the answer 404 to an unknown path: that would be charged as an
//!         // attempt, and be answered 400, as it has no name.
//!         .route_layer(failures)
//!         .route_layer(from_fn(read_login))
//!         .route_layer(RateLimitLayer::new(attempts)) // The last is the outermost: no body is read for a flood.
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     # return an_attacker_does_not_lock_the_owner_out().await;
//!     # #[allow(unreachable_code)] {
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//!     # }
//! }
//! #
//! # async fn an_attacker_does_not_lock_the_owner_out() -> Result<(), Box<dyn std::error::Error>> {
//! #     use axum::extract::ConnectInfo;
//! #     use tower::ServiceExt;
//! #     let app = app();
//! #     let ask = async |address: u8, name: &str, password: &str, cookie: &str| {
//! #         let body = serde_json::json!({ "name": name, "password": password }).to_string();
//! #         let mut request = Request::post("/login")
//! #             .header("content-type", "application/json")
//! #             .header("cookie", cookie)
//! #             .body(Body::from(body))
//! #             .unwrap();
//! #         request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711))));
//! #         app.clone().oneshot(request).await.unwrap()
//! #     };
//! #     let send = async |address: u8, name: &str, password: &str, cookie: &str| {
//! #         ask(address, name, password, cookie).await.status().as_u16()
//! #     };
//! #     // Five failures from one address: then it is over there, also with the right password and another spelling.
//! #     for _ in 0..5 {
//! #         assert_eq!(send(1, "ada", "guess", "").await, 401);
//! #     }
//! #     assert_eq!(send(1, "ada", "correct horse", "").await, 429);
//! #     assert_eq!(send(1, " ADA ", "guess", "").await, 429);
//! #     // The owner is elsewhere, and successes are not counted.
//! #     for _ in 0..20 {
//! #         assert_eq!(send(2, "ada", "correct horse", "").await, 200);
//! #     }
//! #     // The address tries other accounts: 15 more failures, and no more.
//! #     for account in 0..15 {
//! #         assert_eq!(send(1, &format!("user-{account}"), "guess", "").await, 401);
//! #     }
//! #     assert_eq!(send(1, "user-15", "guess", "").await, 429);
//! #     // Many addresses try the account of Ada: 45 more failures, and no more.
//! #     for address in 10..55 {
//! #         assert_eq!(send(address, "ada", "guess", "").await, 401, "{address}");
//! #     }
//! #     assert_eq!(send(60, "ada", "guess", "").await, 429);
//! #     // So nobody can log in from a new device. On the known one, the owner can, and a forged cookie is none.
//! #     assert_eq!(send(3, "ada", "correct horse", "").await, 429);
//! #     assert_eq!(send(3, "ada", "correct horse", "device=signed-8").await, 429);
//! #     assert_eq!(send(3, "ada", "correct horse", "device=signed-7").await, 200);
//! #     // Another account is not touched, and one that does not exist looks like one that does.
//! #     assert_eq!(send(3, "nobody", "guess", "").await, 401);
//! #     // A flood is banned, by its address alone.
//! #     let mut last = 0;
//! #     for _ in 0..60 {
//! #         last = send(99, "bob", "guess", "").await;
//! #     }
//! #     assert_eq!(last, 429);
//! #     assert_eq!(send(98, "bob", "guess", "").await, 401);
//! #     // A client that continues after five failures is banned for this account there, though `attempts` has not
//! #     // rejected a request.
//! #     for attempt in 0..17 {
//! #         assert_eq!(send(97, "carl", "guess", "").await, if attempt < 5 { 401 } else { 429 });
//! #     }
//! #     let banned = ask(97, "carl", "guess", "").await;
//! #     let wait: u64 = banned.headers()["retry-after"].to_str().unwrap().parse().unwrap();
//! #     assert!((3_500..=3_600).contains(&wait), "{wait}");
//! #     assert_eq!(send(97, "dora", "guess", "").await, 401);
//! #     assert_eq!(send(96, "carl", "guess", "").await, 401);
//! #     // An unknown path is a 404, as without limits.
//! #     let unknown = Request::get("/unknown").body(Body::empty()).unwrap();
//! #     assert_eq!(app.clone().oneshot(unknown).await.unwrap().status(), 404);
//! #     Ok(())
//! # }
//! ```
//!
//! Try it: the sixth guess is rejected, and so is the right password from that address.
//!
//! ```text
//! $ for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{http_code} ' -H 'content-type: application/json' \
//!       -d '{"name": "ada", "password": "guess"}' http://127.0.0.1:3000/login; done
//! 401 401 401 401 401 429
//! ```
//!
//! # The four limits
//!
//! | limit | counts | against |
//! |---|---|---|
//! | per address, outermost | all attempts, also rejected ones; bans addresses that continue | floods |
//! | per address | failures; bans addresses that continue | one address that tries many accounts |
//! | per account and address | failures; bans pairs that continue | one address that tries one account |
//! | per account: a budget for each known device, and one for all unknown devices | failures | many addresses that try one account |
//!
//! The account is in the body, which no layer reads. So a middleware reads it, and puts it into the request.
//!
//! # Why so
//!
//! - **Two layers.** A layer charges all of its policies or none. A guess that the account's policy rejects should
//!   still count against the address, so the count of attempts is a layer of its own, further out.
//! - **Bans that grow.** A client that goes on after its ban is over can be banned for longer each time:
//!   `Penalty::new(EARLY_RETRIES, BAN).growing(2, DAY)` doubles each further ban, up to a day, until the client was not
//!   banned for as long ([`growing`](crate::Penalty::growing)).
//! - **Three penalties.** A policy's penalty counts that policy's own rejections only. `attempts` admits one guess per
//!   two seconds, also if `account-here` rejects each: without a penalty there, such a client would never be banned.
//! - **Only failures are charged.** Each request is [charged when it comes, and refunded](crate::Policy::charge_when)
//!   if it succeeds. So no client has more guesses in flight than the limit allows. Use a window for that: of a bucket
//!   of 5 per minute, a client that holds its own logins open for 20 minutes has [105 guesses at one
//!   instant](crate::Policy::charge_when).
//! - **A login in flight counts as a failure** until it is answered, also with the right password. Of 30 valid logins
//!   of one address at one instant, as behind a company's gateway after an outage, 20 pass, and 10 are rejected, with a
//!   wait of about the time of a login. If that happens to you, raise the quota of `address`.
//! - **The bans are by address.** A ban, or a small limit, by account alone is a weapon against its owner. Here, an
//!   attacker with one address is stopped alone. One with thousands of them uses up `account` for unknown devices only;
//!   on a device that has logged in before, the owner has a separate budget (OWASP calls it a *device cookie*).
//! - **An account that does not exist is counted as well.** Otherwise the answers would show which accounts exist.
//! - **Behind a proxy**, write [`ClientIp`](super::proxies) in place of [`PeerIp`](crate::key::PeerIp). An address is a
//!   /64 in IPv6, since that is the least that a client owns.
//!
//! # What to set
//!
//! - Five per quarter of an hour is not a hard bound: a [`SlidingWindow`](crate::SlidingWindow#accuracy) admits at most
//!   limit + rate × time, so up to ten in an unlucky quarter; 5 to 9 were measured.
//! - If your rule is "five per account", set `account` to 5 and drop `account-here`. Then new devices wait during an
//!   attack, and known devices do not.
//! - Responses show the quotas to guessers;
//!   [`.fields(RateLimitFields::none())`](crate::layer::RateLimitLayerBuilder::fields) hides them.
//! - Of 50 guesses per quarter of an hour, 4,800 are made in a day, over all addresses: a password that is among the
//!   commonest thousand will be found. These limits buy time; they do not replace a second factor.
//! - An attacker may invent names. Each takes a slot of the table for a quarter of an hour, and a full table
//!   [forgets the keys that owe least](crate::store::WhenFull). Size it, or choose another answer:
//!   `RateLimiter::new(window, MemoryStore::with_capacity(1 << 20))` in place of the window.
//! - On [several machines](super::machines), choose [`FailureMode::Reject`](super::failure) if an outage of Redis must
//!   not help to guess.
//! - Names as people type them have many spellings: `nfkc_casefold_trim` (feature `unicode`) makes them one.
//! - When a locked-out customer calls: [reset both limits](super::support#a-customer-who-cannot-log-in).
//!
//! Password resets, one-time codes and sign-ups are the same, with other numbers. API keys are checked with each
//! request: [charge the look-up](super::plans#what-happens), not the request.
//!
//! Next: [sell an API](super::plans).
