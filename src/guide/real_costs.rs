//! Real costs: quotas of tokens, rows, seconds or bytes, which are known only when a response has ended.
//!
//! **You want** to sell what a request really cost, and not how many requests there were. The cost is an estimate when the
//! request comes; the rest is settled later:
//!
//! | the cost is known | use | settled |
//! |---|---|---|
//! | by the request | [`cost`], [`cost_fn`] | at once |
//! | by the status or a field of the response | [`charge_when`], [`cost_after`] | at the head of the response |
//! | by the handler, chunk by chunk or as a whole | [`settle_by_handler`] | at the end of the body |
//! | by the bytes that were sent | [`settle_by_content_bytes`] | at the end of the body |
//!
//! A model that streams its answer knows the tokens one by one:
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, body::{Body, Bytes}, routing::post};
//! use futures_util::{StreamExt, stream};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer, Settlement, SlidingWindow};
//!
//! async fn chat(settlement: Settlement, prompt: String) -> Body {
//!     let words: Vec<String> = prompt.split(' ').map(str::to_uppercase).collect();
//!     let answer = stream::iter(words).map(move |word| {
//!         // Before the word is sent: the client may leave after it, and then the stream never ends.
//!         let _ = settlement.add("tokens", 1);
//!         Ok::<_, std::io::Error>(Bytes::from(word))
//!     });
//!     Body::from_stream(answer)
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let tokens = Policy::new("tokens", SlidingWindow::new(Quota::per_minute(100_000)))
//!         .key(HeaderKey::from_static("x-api-key"))
//!         .cost(500) // what an answer usually takes
//!         .settle_by_handler();
//!     let app = Router::new().route("/chat", post(chat)).layer(RateLimitLayer::new(tokens));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! **Report a chunk before you send it**, and never only at the end of a stream: a client that reads all but the last chunk
//! and then hangs up would get the answer for the estimate. A dropped stream runs no further, so what is reported after the
//! last chunk is not reported at all.
//!
//! In a [configuration file](crate::config): `settle-by = "handler"`, or `settle-by = "content-bytes"`.
//!
//! # From a server behind yours
//!
//! A model behind an HTTP server sends its tokens as server-sent events, one each. Count them as they pass through, by a
//! [`Meter`](crate::policy::Meter):
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::body::Body;
//! use axum::extract::State;
//! use axum::http::{Request, StatusCode, header::CONTENT_TYPE};
//! use axum::response::IntoResponse;
//! use futures_util::TryStreamExt;
//! use http_body_util::BodyExt;
//! use hyper_util::client::legacy::{Client, connect::HttpConnector};
//! use tower_sluice::Settlement;
//!
//! async fn chat(
//!     State(model): State<Client<HttpConnector, Body>>,
//!     settlement: Settlement,
//!     prompt: String,
//! ) -> Result<impl IntoResponse, StatusCode> {
//!     // From here on, what was sent is charged, and no longer the estimate. `None` if nothing was charged: an exempt request.
//!     let tokens = settlement.meter("tokens").ok();
//!     let request = Request::post("http://127.0.0.1:8080/v1/chat").body(Body::from(prompt));
//!     let request = request.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     let answer = model.request(request).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
//!     // A chunk may end within a line.
//!     let mut line = Vec::new();
//!     let events = answer.into_body().into_data_stream().inspect_ok(move |chunk| {
//!         for byte in chunk {
//!             match byte {
//!                 b'\n' if line.starts_with(b"data:") => {
//!                     tokens.iter().for_each(|tokens| tokens.add(1));
//!                     line.clear();
//!                 }
//!                 b'\n' => line.clear(),
//!                 byte if line.len() < 5 => line.push(*byte),
//!                 _ => {}
//!             }
//!         }
//!     });
//!     Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)))
//! }
//! ```
//!
//! - **The model does not answer**: the client gets 502, and pays nothing.
//! - **It fails in the middle**: so does the response, and the client pays what was sent until then.
//! - **The client hangs up**: the stream is dropped, which closes the connection to the model. The client pays what was sent.
//! - **A task that reads on** after the client has left, to store the answer, can add no more: the meter ignores it, and
//!   [`add`](crate::Settlement::add) returns [`Ended`](crate::policy::SettleError::Ended). Such an answer is charged as a whole, at the
//!   beginning, or as far as it was sent.
//!
//! # How to choose the estimate
//!
//! The estimate is what keeps a client from starting a hundred expensive requests at once. Too low, and requests that run
//! at the same time exceed the quota together by what was missing: a shortfall is charged as far as units are left, and
//! the rest is forgiven. Too high, and a client is rejected although it would have had enough. A usual cost, or the most
//! that the request may ask for (`max_tokens`), if it says so: [`cost_fn`] reads the head of the request.
//!
//! Or let the shortfall be **owed** ([`owe_shortfalls`], in TOML `owe-shortfalls = true`): time pays it, at the rate of
//! the quota, and until then the requests of the key are rejected, with the wait. Then nothing is forgiven, and in the
//! long run a key gets what its quota says, however low the estimate is: of 100 per hour, an answer of 10,000 takes the
//! next 100 hours.
//!
//! # What is exact
//!
//! With windows, to the unit: what is charged in the end is what was reported, in the window in which the request came, as
//! far as that still counts. A bucket refills while a response runs, and so refunds what is not refilled yet. If the client
//! disconnects or the service fails, what was reported until then counts; without a report, the estimate stays. Of bytes, those count that
//! were handed to the connection; without a response, the estimate.
//!
//! The response's own fields are written with its head, and so show the estimate, or what was reported until then.
//!
//! [`cost`]: crate::Policy::cost
//! [`cost_fn`]: crate::Policy::cost_fn
//! [`charge_when`]: crate::Policy::charge_when
//! [`cost_after`]: crate::Policy::cost_after
//! [`settle_by_handler`]: crate::Policy::settle_by_handler
//! [`owe_shortfalls`]: crate::Policy::owe_shortfalls
//! [`settle_by_content_bytes`]: crate::Policy::settle_by_content_bytes
