//! A pool for a team: guaranteed units for each member, and then shared ones.
//!
//! **You want** each member of a team to have 1,000 requests a month for certain, and the team to share 50,000 more, of
//! which no member takes over 5,000:
//!
#![cfg_attr(all(feature = "axum", feature = "calendar"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "calendar")), doc = "```ignore")]
//! use axum::extract::Request;
//! use axum::middleware::{Next, from_fn};
//! use axum::response::Response;
//! use axum::{Router, routing::get};
//! use tower_sluice::key::{User, key_fn};
//! use tower_sluice::{CalendarWindow, MissingKey, PartitionKey, Policy, RateLimitLayer};
//!
//! #[derive(Clone)]
//! struct Team(&'static str);
//!
//! /// Stands for your table of accounts.
//! fn account(api_key: &str) -> Option<(User, Option<Team>)> {
//!     match api_key {
//!         "key-of-ada" => Some((User::new("ada"), Some(Team("engines")))),
//!         "key-of-bob" => Some((User::new("bob"), None)),
//!         _ => None,
//!     }
//! }
//!
//! async fn authenticate(mut request: Request, next: Next) -> Response {
//!     let api_key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
//!     if let Some((user, team)) = api_key.and_then(account) {
//!         request.extensions_mut().insert(user);
//!         team.map(|team| request.extensions_mut().insert(team));
//!     }
//!     next.run(request).await
//! }
//!
//! fn app() -> Router {
//!     let own = Policy::new("own", CalendarWindow::monthly(1_000)).key(User::key());
//!     let pool = Policy::new("pool", CalendarWindow::monthly(50_000))
//!         .key(key_fn(|request| Some(PartitionKey::from(request.extensions().get::<Team>()?.0))))
//!         .on_missing_key(MissingKey::Skip); // a user without a team has no pool
//!     let of_pool = Policy::new("of-pool", CalendarWindow::monthly(5_000))
//!         .key(User::key())
//!         .when(|request| request.extensions().get::<Team>().is_some());
//!     Router::new()
//!         .route("/report", get(|| async { "a long table" }))
//!         .layer(RateLimitLayer::new(own.or_else(pool.and(of_pool))))
//!         .layer(from_fn(authenticate)) // The last is the outermost.
//! }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let app = app();
//! #     let send = async |key: &str| {
//! #         let request = http::Request::get("/report").header("x-api-key", key);
//! #         let request = request.body(axum::body::Body::empty()).unwrap();
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
//! #         let left = response.headers().get("ratelimit").map_or("", |left| left.to_str().unwrap());
//! #         (response.status().as_u16(), left.contains("\"own\""), left.contains("\"pool\""))
//! #     };
//! #     // A thousand of her own, and then five thousand of the team's.
//! #     for sent in 0..6_000 {
//! #         assert_eq!(send("key-of-ada").await, (200, sent < 1_000, sent >= 1_000), "{sent}");
//! #     }
//! #     assert_eq!(send("key-of-ada").await.0, 429);
//! #     // A user without a team has no pool.
//! #     for _ in 0..1_000 {
//! #         assert_eq!(send("key-of-bob").await, (200, true, false));
//! #     }
//! #     assert_eq!(send("key-of-bob").await.0, 429);
//! # });
//! ```
//!
//! `pool.and(of_pool)` is one alternative with two parts: both are charged, or neither is. A member who has taken 5,000
//! units is rejected, although the pool has more, with the wait of the policy that admits the request first.
//!
//! In a [configuration file](super::configuration), a part of several policies is a list:
//!
//! ```toml
//! [[route]]
//! path = "/report"
//! alternatives = ["own", ["pool", "of-pool"]]
//!
//! [[route.policy]]
//! name = "own"
//! algorithm = "fixed-window"
//! limit = 1_000
//! per = "month"
//! key = "user"              # the extension `User`, which an authenticating layer inserts
//!
//! [[route.policy]]
//! name = "pool"
//! algorithm = "fixed-window"
//! limit = 50_000
//! per = "month"
//! key = "header:x-team"     # which your gateway sets, and removes from the requests of clients
//! on-missing-key = "skip"
//!
//! [[route.policy]]
//! name = "of-pool"
//! algorithm = "fixed-window"
//! limit = 5_000
//! per = "month"
//! key = "user"
//! ```
//!
//! # What is guaranteed
//!
//! | | |
//! |---|---|
//! | a member's own units | nobody else can use them up |
//! | the pool | first come, first served, up to the cap of each member |
//! | the most that a team uses | its members times 1,000, and 50,000 |
//! | the most that a member uses | 6,000 |
//!
//! With caps that add up to no more than the pool, each member's cap is guaranteed as well, and the pool never decides.
//!
//! # Which order
//!
//! | the first member | the effect |
//! |---|---|
//! | own units, then the pool | the pool is for whoever needs more; own units that are left expire with the month |
//! | the pool, then own units | own units are a reserve for the day when others have emptied the pool |
//!
//! # More levels
//!
//! Alternatives nest, and each may be combined with others: `rate.and(own.or_else(pool.and(of_pool)).or_else(bought))`
//! is a rate for everything, and then three sources, one after the other. [`Policies`](crate::policy::Policies) says
//! which member is charged in each case. Members may be in memory, on Redis, and on other stores. On one Redis, the
//! whole tree takes one round trip.
//!
//! Next: [warnings](super::warnings).
