//! Sell an API: plans, quotas per month, requests in flight, tokens of a language model.
//!
//! **You sell** an API. Each customer has a plan: a number of requests per minute, per month, and at once. The cost of
//! a request to the language model is known when its answer has ended. And an attacker should not find a key by trying.
//!
//! Dependencies: as in [start here](super::start), with the feature `calendar` of this crate, and `futures-util =
//! "0.3"`.
//!
#![cfg_attr(all(feature = "axum", feature = "calendar"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "calendar")), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use axum::body::{Body, Bytes};
//! use axum::extract::{Request, State};
//! use axum::http::StatusCode;
//! use axum::middleware::{Next, from_fn_with_state};
//! use axum::response::Response;
//! use axum::{Router, routing::{get, post}};
//! use futures_util::{StreamExt, stream};
//! use tower_sluice::key::{KeyExtractor, PeerIp, User};
//! use tower_sluice::limiter::IntoLimiter;
//! use tower_sluice::{
//!     CalendarWindow, Concurrency, Limiter, LimiterExt, Policy, Quota, RateLimitLayer, Rejection,
//!     RequestHead, Settlement, SlidingWindow, Verdict,
//! };
//!
//! /// The limits of a plan.
//! #[derive(Clone, Copy)]
//! struct Plan {
//!     pace: Quota,
//!     per_month: u64,
//!     in_flight: u64,
//!     tokens: Quota,
//! }
//!
//! const FREE: Plan =
//!     Plan { pace: Quota::per_minute(60), per_month: 1_000, in_flight: 8, tokens: Quota::per_minute(20_000) };
//! const PRO: Plan = Plan {
//!     pace: Quota::per_minute(6_000).burst(500),
//!     per_month: 1_000_000,
//!     in_flight: 50,
//!     tokens: Quota::per_minute(500_000),
//! };
//! const MONTH: Duration = Duration::from_secs(30 * 86_400);
//!
//! /// Stands for your table of accounts.
//! fn account(api_key: &str) -> Option<(User, Plan)> {
//!     match api_key {
//!         "key-of-ada" => Some((User::new("ada"), PRO)),
//!         "key-of-bob" => Some((User::new("bob"), FREE)),
//!         _ => None,
//!     }
//! }
//!
//! /// Ten wrong keys per hour and address. Each request is charged before its key is looked up, so that no address has
//! /// more than ten guesses open, and refunded if the key is right: the time to serve the request does not count.
//! async fn authenticate(
//!     State(guesses): State<Arc<dyn Limiter>>,
//!     mut request: Request,
//!     next: Next,
//! ) -> axum::response::Result<Response> {
//!     let address = PeerIp::new().extract(&RequestHead::from(&request));
//!     let address = address.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     let guess = guesses.acquire(&address, 1).await.map_err(Box::<Rejection>::from)?;
//!     let guess = Rejection::unless_allowed("guesses", guess)?;
//!     let api_key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
//!     let (user, plan) = api_key.and_then(account).ok_or(StatusCode::UNAUTHORIZED)?;
//!     guess.refund();
//!     request.extensions_mut().insert(user);
//!     request.extensions_mut().insert(plan);
//!     Ok(next.run(request).await)
//! }
//!
//! fn plan(request: &RequestHead<'_>) -> Option<Plan> {
//!     request.extensions().get().copied()
//! }
//!
//! /// The cost of a request: 0 if it only asks for the usage.
//! fn unless_usage(cost: u64) -> impl Fn(&RequestHead<'_>) -> u64 {
//!     move |request| if request.uri().path() == "/v1/usage" { 0 } else { cost }
//! }
//!
//! /// Shows a customer the remaining units.
//! async fn usage(verdict: Verdict) -> String {
//!     let left = verdict.policies().iter().map(|policy| (policy.name(), policy.decision().remaining()));
//!     left.map(|(name, units)| format!("{name}: {units} left\n")).collect()
//! }
//!
//! /// Streams an answer, and reports each token before it is sent.
//! async fn chat(settlement: Settlement, prompt: String) -> Body {
//!     let words: Vec<String> = prompt.split(' ').map(str::to_uppercase).collect();
//!     let answer = stream::iter(words).map(move |word| {
//!         // Before the word is sent: the client may leave after it, and then the stream never ends.
//!         settlement.add_all(1);
//!         Ok::<_, std::io::Error>(Bytes::from(word))
//!     });
//!     Body::from_stream(answer)
//! }
//!
//! fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     // Each policy is built with the quota of the free plan. A customer without a plan has that one.
//!     let month = CalendarWindow::monthly(FREE.per_month).zone("Europe/Berlin")?;
//!     // One layer, so that a request is charged to all of these policies, or not at all.
//!     let plans = RateLimitLayer::builder([
//!         Policy::new("pace", FREE.pace).key(User::key()).quota_fn(|request| Some(plan(request)?.pace)),
//!         // Of a quota for a window of the calendar, only the limit counts.
//!         Policy::new("month", month)
//!             .key(User::key())
//!             .quota_fn(|request| Some(Quota::per(plan(request)?.per_month, MONTH)))
//!             .cost_fn(unless_usage(1)),
//!         Policy::new("in-flight", Concurrency::new(FREE.in_flight))
//!             .key(User::key())
//!             .limit_fn(|request| Some(plan(request)?.in_flight)),
//!         Policy::new("tokens", SlidingWindow::new(FREE.tokens))
//!             .key(User::key())
//!             .when(|request| matches!(request.uri().path(), "/v1/chat" | "/v1/usage"))
//!             .quota_fn(|request| Some(plan(request)?.tokens))
//!             .cost_fn(unless_usage(500)) // the estimate, corrected when the answer has ended
//!             .settle_by_handler()
//!             .owe_shortfalls(),
//!     ])
//!     .verdict() // for `usage`
//!     .build();
//!     let guesses = SlidingWindow::new(Quota::per_hour(10)).into_limiter();
//!
//!     Ok(Router::new()
//!         .route("/v1/orders", get(|| async { "[]" }))
//!         .route("/v1/chat", post(chat))
//!         .route("/v1/usage", get(usage))
//!         .layer(plans)
//!         .layer(from_fn_with_state(guesses, authenticate))) // The last is the outermost.
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     # return check().await;
//!     # #[allow(unreachable_code)] {
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app()?.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//!     # }
//! }
//! #
//! # async fn check() -> Result<(), Box<dyn std::error::Error>> {
//! #     use axum::extract::ConnectInfo;
//! #     use tower::ServiceExt;
//! #     let app = app()?;
//! #     let send = async |request: http::request::Builder, key: &str, body: &'static str| {
//! #         let mut request = request.header("x-api-key", key).body(Body::from(body)).unwrap();
//! #         request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
//! #         let response = app.clone().oneshot(request).await.unwrap();
//! #         let (head, body) = response.into_parts();
//! #         let body = axum::body::to_bytes(body, 100_000).await.unwrap();
//! #         let field = |name: &str| head.headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
//! #         (head.status.as_u16(), [field("ratelimit-policy"), field("ratelimit")], body)
//! #     };
//! #     let (status, [policies, left], _) = send(Request::get("/v1/orders"), "key-of-ada", "").await;
//! #     assert_eq!(status, 200);
//! #     assert!(policies.contains(r#""month";q=1000000"#) && policies.contains(r#""in-flight";q=50"#), "{policies}");
//! #     assert!(left.contains(r#""pace";r=499"#) && left.contains(r#""month";r=999999;t="#), "{left}");
//! #     let (_, [policies, left], _) = send(Request::get("/v1/orders"), "key-of-bob", "").await;
//! #     assert!(policies.contains(r#""month";q=1000,"#) || policies.contains(r#""month";q=1000;"#), "{policies}");
//! #     assert!(left.contains(r#""month";r=999;t="#), "{left}");
//! #     // An estimate of 500, of which 3 are used: at the next answer, 3 are gone.
//! #     let (status, [_, left], body) = send(Request::post("/v1/chat"), "key-of-bob", "how are you").await;
//! #     assert_eq!((status, &body[..]), (200, &b"HOWAREYOU"[..]));
//! #     assert!(left.contains(r#""tokens";r=19500"#), "{left}");
//! #     let (_, [_, left], _) = send(Request::post("/v1/chat"), "key-of-bob", "fine").await;
//! #     assert!(left.contains(r#""tokens";r=19497"#), "{left}");
//! #     // An answer of 25,000 tokens: the next one is rejected, and has not paid the month.
//! #     let long: &'static str = "a ".repeat(25_000).leak();
//! #     assert_eq!(send(Request::post("/v1/chat"), "key-of-bob", long).await.0, 200);
//! #     assert_eq!(send(Request::post("/v1/chat"), "key-of-bob", "more").await.0, 429);
//! #     for _ in 0..2 {
//! #         let (status, _, body) = send(Request::get("/v1/usage"), "key-of-bob", "").await;
//! #         let usage = String::from_utf8_lossy(&body);
//! #         assert!(status == 200 && usage.contains("month: 996 left\n") && usage.contains("\ntokens: "), "{usage}");
//! #     }
//! #     // A client that hangs up pays for what it has read.
//! #     let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711)));
//! #     let ask = Request::post("/v1/chat").header("x-api-key", "key-of-ada").extension(peer);
//! #     let mut body = app.clone().oneshot(ask.body(Body::from(long)).unwrap()).await?.into_body();
//! #     for _ in 0..24_000 {
//! #         http_body_util::BodyExt::frame(&mut body).await.unwrap()?;
//! #     }
//! #     drop(body);
//! #     let (_, _, usage) = send(Request::get("/v1/usage"), "key-of-ada", "").await;
//! #     assert!(String::from_utf8_lossy(&usage).contains("\ntokens: 476000 left"), "{usage:?}");
//! #     // Right keys are not counted. Ten wrong ones, and a right one is rejected there, too.
//! #     for _ in 0..20 {
//! #         assert_eq!(send(Request::get("/v1/orders"), "key-of-ada", "").await.0, 200);
//! #     }
//! #     for _ in 0..10 {
//! #         assert_eq!(send(Request::get("/v1/orders"), "guess", "").await.0, 401);
//! #     }
//! #     assert_eq!(send(Request::get("/v1/orders"), "key-of-ada", "").await.0, 429);
//! #     Ok(())
//! # }
//! ```
//!
//! ```text
//! $ curl -si -H 'x-api-key: key-of-bob' http://127.0.0.1:3000/v1/orders | grep -i ratelimit
//! ratelimit: "pace";r=59;t=59, "month";r=999;t=690456, "in-flight";r=7
//! ratelimit-policy: "pace";q=60;w=60, "month";q=1000, "in-flight";q=8;qu="concurrent-requests"
//! $ curl -s -H 'x-api-key: key-of-bob' -d 'how are you' http://127.0.0.1:3000/v1/chat
//! HOWAREYOU
//! $ curl -s -H 'x-api-key: key-of-bob' http://127.0.0.1:3000/v1/usage
//! pace: 59 left
//! month: 998 left
//! in-flight: 7 left
//! tokens: 19997 left
//! ```
//!
//! # By configuration
//!
//! If a proxy or gateway in front knows the customer's plan, a [file](super::configuration) has the limits of all
//! plans:
//!
//! ```toml
//! [[route]]
//! path = ["/v1/orders", "/v1/chat"]
//!
//! [[route.policy]]
//! name = "pace"
//! algorithm = "token-bucket"
//! limit = 60               # of requests without a plan below
//! per = "1m"
//! key = "header:x-api-key"
//! plans = { by = "header:x-plan", limits = { pro = { limit = 6000, burst = 500 }, team = { limit = 600 } } }
//!
//! [[route.policy]]
//! name = "month"
//! algorithm = "fixed-window"
//! limit = 1000
//! per = "month"
//! key = "header:x-api-key"
//! plans = { by = "header:x-plan", limits = { pro = { limit = 1_000_000 } } }
//!
//! [[route.policy]]
//! name = "in-flight"
//! algorithm = "concurrency"
//! limit = 8
//! key = "header:x-api-key"
//! plans = { by = "header:x-plan", limits = { pro = { limit = 50 } } }
//! ```
//!
//! - The gateway checks the API key, sets `x-plan`, and removes an `x-plan` that a client sends. Otherwise, clients
//!   choose their plan. The name of a plan is compared to the letter.
//! - All requests of a key need the same plan, as [below](#what-happens). So limits over time need a `key`, and only a
//!   policy with `path` in its key may have plans by the path.
//! - A plan has the policy's period and its other settings. `slow-down`, `overload` and `balance` have no plans, nor
//!   has a `leaky-queue` on a server.
//! - An edited file changes plans [while the app runs](super::hot_reload), and used units stay used.
//! - With `[store.postgres]` in the file, [processes share](super::sharing) all three.
//!
//! # The policies
//!
//! | you sell | policy | more |
//! |---|---|---|
//! | a rate | a token bucket, the quota from the plan by [`quota_fn`](crate::Policy::quota_fn) | [quotas](super::quotas#a-quota-per-customer) |
//! | a month | [`CalendarWindow`](crate::CalendarWindow) (feature `calendar`); from the customer's billing day by [`window_fn`](crate::Policy::window_fn) | [calendar](super::calendar), [billing days](super::billing_days) |
//! | what is in flight | [`Concurrency`](crate::Concurrency), or [`SharedConcurrency`](crate::SharedConcurrency) on a server, the number from the plan by [`limit_fn`](crate::Policy::limit_fn) | [in flight](super::in_flight#a-limit-per-customer) |
//! | units beyond the included ones, at a price | a second month, by [`or_else`](crate::Policy::or_else) | [overage](super::overage) |
//! | units that a team shares | the team's month, by `or_else` | [a pool for a team](super::pool) |
//! | units that are bought once | [`Balance`](crate::Balance), or [`SharedBalance`](crate::SharedBalance) on a server, by `or_else` | [top-ups](super::top_ups) |
//! | a mail at 80 % | [`on_crossing`](crate::Policy::on_crossing) | [warnings](super::warnings) |
//! | tokens, rows, seconds, bytes | a window, [settled](crate::Policy::settle_by_handler) when the response has ended | [real costs](super::real_costs) |
//!
//! The program [`plans`](https://github.com/tower-sluice/tower-sluice/blob/main/examples/plans.rs) sells all of this at
//! once: three plans with included units, a pool for teams, overage, bought units, months by the customer's billing day
//! and zone, and a warning at 80 %.
//!
//! # On several machines
//!
//! That program takes its store from a file: of `[store.postgres]` or `[store.redis]`, whichever is there.
//!
//! ```ignore
//! let reader = Config::reader()
//!     .store("postgres", tower_sluice_postgres::file::open)
//!     .store("redis", tower_sluice_redis::file::open);
//! let store = reader.open_store("store.toml", &std::fs::read_to_string("store.toml")?)?;
//! store.prepare().await?; // creates the table on PostgreSQL
//! let pace = Policy::new("pace", store.rate_limiter("pace", TokenBucket::new(FREE.pace).into())?);
//! let in_flight = Policy::new("in-flight", store.concurrency("in-flight", ConcurrencySpec::new(FREE.in_flight))?);
//! let bought = Policy::new("bought", store.balance("bought")?);
//! ```
//!
//! ```toml
//! [store.postgres]
//! url = "postgres://app@127.0.0.1/shop"
//! # Units that are sold are worth a wait: an answer of this process alone could give them away twice.
//! timeout = "5s"
//! ```
//!
//! All of its limits are on that server, what is in flight and the guesses at keys included. A test runs two processes
//! of it through a year of random requests, once on Redis and once on PostgreSQL, and compares each answer, to the
//! unit, with a naive ledger. The program is the same, and only the table in the file is another. Which server shares
//! what: [sharing](super::sharing#what-is-shared).
//!
//! # What happens
//!
//! - **A request is charged to all policies or to none.** One that is rejected by the month does not use up the pace,
//!   and a chat that the tokens reject has not paid the month. That holds within a layer, so the tokens are in the same
//!   one, with a condition on the path.
//! - **Asking for the usage** costs no request of the month and no tokens, but it counts for the pace: `GET /v1/usage`
//!   is a request, too.
//! - **A plan that changes** holds from the next request on, and what was used stays used: there is no fresh budget in
//!   changing plans to and fro, and an upgrade helps at once.
//! - **A plan that is paused** is [`Quota::suspended`](crate::Quota::suspended): its customer gets 403, nothing is
//!   charged, and what was used counts again when the plan resumes.
//! - **A plan is the customer's**, and not the path's: [`quota_fn`](crate::Policy::quota_fn) must return the same quota
//!   for all requests of a key. With another one per path, a generous path
//!   [forgives](super::quotas#a-quota-per-customer) what a strict one has counted.
//! - **The estimate** of 500 tokens is charged when the request comes, which keeps a client from starting a hundred
//!   expensive requests at once. When the answer has ended, or the client has gone, it becomes the number of tokens
//!   that were sent, since each is reported before it is. Tokens beyond the estimate are charged as far as units are
//!   left. The rest is [owed](crate::Policy::owe_shortfalls): time pays it, and until then the key is rejected. The
//!   usage and [`LimitsHandle::peek`](crate::LimitsHandle::peek) show how many units are left after that.
//! - **For support staff**, `peek` shows a key that was not asked yet under the policy's own quota, here that of
//!   `FREE`: only a request has the customer's plan.
//! - **In flight** is a request until its body has ended: a customer of the free plan with eight open
//!   streams gets 429 for the ninth.
//! - **Wrong keys** are counted by address, and the rest by account. Never use a header as a key before it is checked:
//!   a client that can choose the value chooses the budget.
//! - **An address with ten wrong keys** is rejected for up to an hour, with right keys as well: otherwise the eleventh
//!   guess might hit. So one customer with an old key in a loop, or an attacker, also locks out the customers behind
//!   the same address: those of an office, of a mobile provider, of a cloud's outgoing gateway. If your keys are random
//!   and have 128 bits or more, no guess ever hits: then look the key up first, charge `guesses` for wrong keys only,
//!   and no right key is rejected.
//! - **Charge guesses around the look-up, not around the request.** A policy with
//!   [`charge_when`](crate::Policy::charge_when) in an outer layer refunds when the response has come. So it also
//!   bounds what an address has in flight, right keys included, to its limit: of 1,000 valid requests of one address,
//!   100 per second of 200 ms each, a limit of ten rejected 520, as 20 are in flight and ten may be.
//!
//! # For the invoice
//!
//! In memory, a restart forgets what was used, unless there is a [snapshot](super::restarts), and each machine has its
//! own counts. A quota that is sold by the month belongs on [Redis](super::machines), on a server that writes to disk,
//! or on [PostgreSQL](super::postgres#what-a-crash-loses), in a logged table. A limit is not a bill: count what you
//! bill where you bill it.
//!
//! A customer whose client lost an answer sends the request again, and pays again. With an `Idempotency-Key`,
//! [a retry is charged once](super::quotas#charge-a-retry-once). `charge_once` cannot be combined with
//! `settle_by_handler`: there, answer a retry from what you stored.
//!
//! Next: [charge the tokens of a language model](super::streams).
