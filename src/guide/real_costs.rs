//! Real costs: quotas of tokens, rows, seconds or bytes, which are known only when a response has ended.
//!
//! **You want** to sell the real cost of requests, and not their number. A request
//! is charged an estimate when it comes, and the rest is settled later. A search that costs its rows:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, routing::post};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer, Settlement, SlidingWindow};
//!
//! async fn search(settlement: Settlement, query: String) -> String {
//!     let rows: Vec<&str> = ["ada", "bob", "carl"].into_iter().filter(|name| name.contains(&query)).collect();
//!     settlement.settle_all(rows.len() as u64);
//!     rows.join("\n")
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let rows = Policy::new("rows", SlidingWindow::new(Quota::per_minute(100_000)))
//!         .key(HeaderKey::from_static("x-api-key"))
//!         .cost(500) // the estimate: the rows of a usual search
//!         .settle_by_handler();
//!     let app = Router::new().route("/search", post(search)).layer(RateLimitLayer::new(rows));
//! #   if true { return a_search_costs_its_rows(app).await; }
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! #
//! # async fn a_search_costs_its_rows(app: Router) -> std::io::Result<()> {
//! #     let send = async |customer: &str, query: &'static str| {
//! #         let request = axum::http::Request::post("/search").header("x-api-key", customer);
//! #         let request = request.body(axum::body::Body::from(query)).unwrap();
//! #         let (head, body) = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().into_parts();
//! #         axum::body::to_bytes(body, 1_000).await.unwrap();
//! #         let left = head.headers["ratelimit"].to_str().unwrap();
//! #         left.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
//! #     };
//! #     let left = [send("a", "a").await, send("a", "b").await, send("a", "nobody").await, send("b", "a").await];
//! #     // Two rows, one, and none, and not 500 each; unless a minute has ended meanwhile.
//! #     if left[..3].is_sorted_by(|earlier, later| earlier >= later) {
//! #         assert_eq!(left, [99_998, 99_997, 99_997, 99_998]);
//! #     }
//! #     Ok(())
//! # }
//! ```
//!
//! | the cost is known | use | settled |
//! |---|---|---|
//! | by the request | [`cost`], [`cost_fn`] | at once |
//! | by the status or a field of the response | [`charge_when`], [`cost_after`] | at the head of the response |
//! | by the handler, chunk by chunk or as a whole | [`settle_by_handler`] | at the end of the body |
//! | by the bytes that were sent | [`settle_by_content_bytes`] | at the end of the body |
//!
//! In a [configuration file](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/): `settle-by = "handler"`, or `settle-by = "content-bytes"`.
//!
//! [`settle_all`](crate::Settlement::settle_all) reports to each policy that has charged the request, and does nothing
//! for one that is exempt. If policies count different things, such as tokens and rows, name the one that is meant:
//! [`settle("rows", n)`](crate::Settlement::settle) returns an error if it has not charged the request, and a name that
//! no policy has [is logged](super::misconfigured#a-handler-reports-a-cost-that-no-policy-awaits).
//!
//! The tokens of a language model are known while its answer streams: see [streams](super::streams). **Report each
//! chunk of a stream before you send it**, by [`add`](crate::Settlement::add) or a [`Meter`](crate::policy::Meter): the
//! client may leave at any time, and a report after the last chunk may never come.
//!
//! # How to choose the estimate
//!
//! The estimate is what keeps a client from starting a hundred expensive requests at once. Too low, and requests that
//! run at the same time exceed the quota together by what was missing: a shortfall is charged as far as units are left,
//! and the rest is forgiven. Too high, and a client is rejected although it would have had enough. A usual cost, or the
//! most that the request may ask for (`max_tokens`), if it says so: [`cost_fn`] reads the head of the request.
//!
//! Or let the shortfall be **owed** ([`owe_shortfalls`], in TOML `owe-shortfalls = true`): time pays it, at the rate of
//! the quota, and until then the requests of the key are rejected, with the wait. Then nothing is forgiven, and in the
//! long run a key gets what its quota says, however low the estimate is: of 100 per hour, an answer of 10,000 takes the
//! next 100 hours.
//!
//! # What is exact
//!
//! With windows, to the unit: what is charged in the end is what was reported, in the window in which the request came,
//! as far as that still counts. A bucket refills while a response runs, and so refunds what is not refilled yet. If the
//! client disconnects or the service fails, what was reported until then counts; without a report, the estimate stays.
//! Of bytes, those count that were handed to the connection; without a response, the estimate. A client that
//! disconnects while its request waits in a queue is charged nothing, since no handler has seen it.
//!
//! The response's own fields are written with its head, and so show the estimate, or what was reported until then.
//!
//! Next: the [list of all pages](super).
//!
//! [`cost`]: crate::Policy::cost
//! [`cost_fn`]: crate::Policy::cost_fn
//! [`charge_when`]: crate::Policy::charge_when
//! [`cost_after`]: crate::Policy::cost_after
//! [`settle_by_handler`]: crate::Policy::settle_by_handler
//! [`owe_shortfalls`]: crate::Policy::owe_shortfalls
//! [`settle_by_content_bytes`]: crate::Policy::settle_by_content_bytes
