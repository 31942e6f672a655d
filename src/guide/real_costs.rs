//! Real costs: quotas of tokens, rows, seconds or bytes, which are known only when a response has ended.
//!
//! **You want** to sell what a request really cost, and not how many requests there were. The cost is an estimate when the
//! request comes; the rest is settled later:
//!
//! | the cost is known | use | settled |
//! |---|---|---|
//! | by the request | [`cost`], [`cost_fn`] | at once |
//! | by the status or a field of the response | [`charge_when`], [`cost_after`] | at the head of the response |
//! | by the handler, at the latest with the last chunk | [`settled_by_handler`] | at the end of the body |
//! | by the bytes that were sent | [`charge_content_bytes`] | at the end of the body |
//!
//! A model that streams its answer knows the tokens when the stream ends:
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, body::{Body, Bytes}, routing::post};
//! use futures_util::stream;
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer, Settlement, SlidingWindow};
//!
//! async fn chat(settlement: Settlement, prompt: String) -> Body {
//!     let words: Vec<String> = prompt.split(' ').map(str::to_uppercase).collect();
//!     let answer = stream::unfold((words.into_iter(), 0), move |(mut words, tokens)| {
//!         let settlement = settlement.clone();
//!         async move {
//!             let Some(word) = words.next() else {
//!                 // The stream ends: so many tokens it was.
//!                 let _ = settlement.settle("tokens", tokens);
//!                 return None;
//!             };
//!             Some((Ok::<_, std::io::Error>(Bytes::from(word)), (words, tokens + 1)))
//!         }
//!     });
//!     Body::from_stream(answer)
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let tokens = Policy::new("tokens", SlidingWindow::new(Quota::per_minute(100_000)))
//!         .key(HeaderKey::from_static("x-api-key"))
//!         .cost(500) // what an answer usually takes
//!         .settled_by_handler();
//!     let app = Router::new().route("/chat", post(chat)).layer(RateLimitLayer::new(tokens));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! In a [configuration file](crate::config): `settle = "handler"`, or `settle = "content-bytes"`.
//!
//! # How to choose the estimate
//!
//! The estimate is what keeps a client from starting a hundred expensive requests at once. Too low, and requests that run
//! at the same time exceed the quota together by what was missing: a shortfall is charged as far as units are left, and
//! the rest is forgiven. Too high, and a client is rejected although it would have had enough. A usual cost, or the most
//! that the request may ask for (`max_tokens`), if it says so: [`cost_fn`] reads the head of the request.
//!
//! Or let the shortfall be **owed** ([`owe_shortfalls`], in TOML `shortfall = "owed"`): the next request of the key pays it,
//! beside its own cost. Then nothing is forgiven, and an estimate that is too low only delays.
//!
//! # What is exact
//!
//! With windows, to the unit: what is charged in the end is what was reported, in the window in which the request came, as
//! far as that still counts. A bucket refills while a response runs, and so refunds what is not refilled yet. If the client
//! disconnects or the service fails, the last report counts; without one, the estimate stays. Of bytes, those count that
//! were handed to the connection; without a response, the estimate.
//!
//! The response's own fields are written with its head, and so show the estimate, or what was reported until then.
//!
//! [`cost`]: crate::Policy::cost
//! [`cost_fn`]: crate::Policy::cost_fn
//! [`charge_when`]: crate::Policy::charge_when
//! [`cost_after`]: crate::Policy::cost_after
//! [`settled_by_handler`]: crate::Policy::settled_by_handler
//! [`owe_shortfalls`]: crate::Policy::owe_shortfalls
//! [`charge_content_bytes`]: crate::Policy::charge_content_bytes
