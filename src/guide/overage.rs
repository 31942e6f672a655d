//! Included units, then overage.
//!
//! **You sell** 10,000 requests a month, and up to 5,000 more at a price. With
//! [`or_else`](crate::Policy::or_else), a request is charged to the first policy that has room for it:
//!
#![cfg_attr(all(feature = "axum", feature = "calendar"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "calendar")), doc = "```ignore")]
//! use axum::{Router, routing::get};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{CalendarWindow, Policy, Quota, RateLimitLayer, Verdict};
//!
//! /// What was charged: `included` or `overage`.
//! async fn report(verdict: Verdict) -> String {
//!     let charged = verdict.policies().iter().filter(|policy| policy.decision().is_allowed());
//!     charged.map(|policy| format!("{}: {} left\n", policy.name(), policy.decision().remaining())).collect()
//! }
//!
//! # static LIMITS: std::sync::OnceLock<tower_sluice::LimitsHandle> = std::sync::OnceLock::new();
//! fn app() -> Router {
//!     let customer = || HeaderKey::from_static("x-api-key");
//!     let included = Policy::new("included", CalendarWindow::monthly(10_000)).key(customer());
//!     let overage = Policy::new("overage", CalendarWindow::monthly(5_000)).key(customer());
//!     let pace = Policy::new("pace", Quota::per_second(10).burst(20)).key(customer());
//!     // The pace holds for all requests; of the two months, the first with room is charged.
//!     let limits = pace.and(included.or_else(overage));
//!     let layer = RateLimitLayer::builder(limits).verdict().build();
//! #   let _ = LIMITS.set(layer.handle());
//!     Router::new().route("/report", get(report)).layer(layer)
//! }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let app = app();
//! #     let limits = LIMITS.get().unwrap();
//! #     let send = async |customer: &str| {
//! #         let request = http::Request::get("/report").header("x-api-key", customer);
//! #         let request = request.body(axum::body::Body::empty()).unwrap();
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
//! #         (response.status().as_u16(), response.headers()["ratelimit"].to_str().unwrap().to_owned())
//! #     };
//! #     // Included units first, then the others, and then nothing.
//! #     assert!(send("a").await.1.contains("\"included\";r=9999"));
//! #     let _ = limits.charge("included", "a", 9_999).await.unwrap();
//! #     assert!(send("a").await.1.contains("\"overage\";r=4999"));
//! #     let _ = limits.charge("overage", "a", 4_999).await.unwrap();
//! #     assert_eq!(send("a").await.0, 429);
//! #     assert!(send("b").await.1.contains("\"included\";r=9999"), "another customer");
//! # });
//! ```
//!
//! In a [configuration file](super::configuration):
//!
//! ```toml
//! [[route]]
//! path = "/report"
//! alternatives = ["included", "overage"]   # `pace` is not among them, so it has to admit each request
//!
//! [[route.policy]]
//! name = "pace"
//! algorithm = "token-bucket"
//! limit = 10
//! per = "1s"
//! burst = 20
//! key = "header:x-api-key"
//!
//! [[route.policy]]
//! name = "included"
//! algorithm = "fixed-window"
//! limit = 10_000
//! per = "month"
//! key = "header:x-api-key"
//!
//! [[route.policy]]
//! name = "overage"
//! algorithm = "fixed-window"
//! limit = 5_000
//! per = "month"
//! key = "header:x-api-key"
//! ```
//!
//! # What happens
//!
//! - **Either one is charged, or the other.** A request that costs ten is charged as a whole: with four units left in
//!   `included`, all ten come from `overage`, and the four remain for smaller requests.
//! - **A rejection is for both**, with the shorter of the two waits: from then on the request is admitted.
//! - **`pace` is not used up in vain.** If both months reject a request, its charge to `pace` is refunded; if `pace`
//!   rejects it, neither month is charged.
//! - **A final cost goes to the member that was charged**: [settlements](super::real_costs) and refunds, too.
//! - **A ban closes one member.** To keep a client out, ban its key in each of them ([`support`](super::support)).
//!
//! # What clients see
//!
//! The fields name the member that was charged:
//!
//! ```text
//! RateLimit: "pace";r=19;t=1, "included";r=1;t=86400
//! RateLimit: "pace";r=19;t=1, "included";r=0;t=86400
//! RateLimit: "pace";r=19;t=1, "overage";r=4999;t=86400
//! ```
//!
//! A client that waits when `r` is 0 waits for the next month, and does not buy overage by accident. If your customers
//! should always go on, tell them so in your documentation.
//!
//! # What you see
//!
//! The [verdict](crate::Verdict) has `overage` with its decision, and `included` as
//! [passed over](crate::rejection::PolicyVerdict::is_passed_over). In the metrics, the requests of `overage` are its
//! `result="allowed"`; `included` counts them as `result="passed-over"`. A log line or an invoice per request can be
//! written from the verdict in the response's extensions. For the invoice itself, count in the system that bills: see
//! [what a limiter promises](super::calendar#several-machines).
//!
//! # Without overage for some
//!
//! A [condition](crate::Policy::when) decides who has the second policy. For everybody else it is no alternative:
//!
//! ```
//! # use tower_sluice::key::User;
//! # use tower_sluice::{Policy, Quota};
//! /// An extension of customers who have agreed to pay for more.
//! #[derive(Clone, Copy)]
//! struct PaysOverage;
//!
//! let overage = Policy::new("overage", Quota::per_hour(5_000))
//!     .key(User::key())
//!     .when(|request| request.extensions().get::<PaysOverage>().is_some());
//! ```
//!
//! # Several machines
//!
//! On one Redis, a request takes one round trip, whether it is charged to the first member or to a later one: the
//! script decides between them. The policies of one layer may be in memory and on Redis; then each store is asked in
//! turn.
//!
//! Next: [a pool for a team](super::pool).
