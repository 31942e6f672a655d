//! Streams from a language model: charge by tokens when the stream ends.
//!
//! **You want** each customer to have 100,000 tokens per minute, behind a model with an API like OpenAI's. The tokens
//! of an answer are known when its stream ends: in its last event, if the request asks for them (`include_usage`). A
//! client may hang up before that. So count the events as they pass, and correct the count at the end:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::body::{Body, Bytes};
//! use axum::extract::State;
//! use axum::http::{Request, StatusCode, header::CONTENT_TYPE};
//! use axum::response::IntoResponse;
//! use axum::{Json, Router, routing::post};
//! use futures_util::TryStreamExt;
//! use http_body_util::BodyExt;
//! use hyper_util::client::legacy::{Client, connect::HttpConnector};
//! use hyper_util::rt::TokioExecutor;
//! use serde_json::{Value, json};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer, Settlement, SlidingWindow};
//!
//! /// Reports the tokens of a stream of server-sent events.
//! struct TokenCount {
//!     settlement: Settlement,
//!     /// The line so far: a chunk may end within it.
//!     line: Vec<u8>,
//! }
//!
//! impl TokenCount {
//!     /// Called before the chunk is sent.
//!     fn read(&mut self, chunk: &Bytes) {
//!         for byte in chunk {
//!             match byte {
//!                 b'\n' => self.read_line(),
//!                 _ if self.line.len() < 65_536 => self.line.push(*byte),
//!                 _ => {}
//!             }
//!         }
//!     }
//!
//!     fn read_line(&mut self) {
//!         let line = std::mem::take(&mut self.line);
//!         let event = line.strip_prefix(b"data:").map(serde_json::from_slice::<Value>);
//!         let Some(Ok(event)) = event else { return }; // an empty line, or `data: [DONE]`
//!         match event["usage"]["total_tokens"].as_u64() {
//!             // The last event has the tokens of prompt and answer: this replaces the count.
//!             Some(tokens) => self.settlement.settle_all(tokens),
//!             // Each other event has about one token.
//!             None => self.settlement.add_all(1),
//!         };
//!     }
//! }
//!
//! async fn chat(
//!     State(model): State<Model>,
//!     settlement: Settlement,
//!     Json(mut prompt): Json<Value>,
//! ) -> Result<impl IntoResponse, StatusCode> {
//!     prompt["stream"] = json!(true);
//!     prompt["stream_options"] = json!({ "include_usage": true });
//!     // From here on, the count is charged, and no longer the estimate. A token of English has some four bytes.
//!     let prompt = prompt.to_string();
//!     settlement.settle_all(prompt.len() as u64 / 4);
//!     let request = Request::post(&model.url).header(CONTENT_TYPE, "application/json").body(Body::from(prompt));
//!     let request = request.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     let answer = model.client.request(request).await;
//!     let Some(answer) = answer.ok().filter(|answer| answer.status().is_success()) else {
//!         settlement.settle_all(0);
//!         return Err(StatusCode::BAD_GATEWAY);
//!     };
//!     let mut count = TokenCount { settlement, line: Vec::new() };
//!     let events = answer.into_body().into_data_stream().inspect_ok(move |chunk| count.read(chunk));
//!     Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)))
//! }
//!
//! #[derive(Clone)]
//! struct Model {
//!     client: Client<HttpConnector, Body>,
//!     url: String,
//! }
//!
//! fn app(url: String) -> Router {
//!     let model = Model { client: Client::builder(TokioExecutor::new()).build_http(), url };
//!     let tokens = Policy::new("tokens", SlidingWindow::new(Quota::per_minute(100_000)))
//!         .key(HeaderKey::from_static("x-api-key"))
//!         .cost(500) // the estimate: prompt and answer of a usual request
//!         .settle_by_handler()
//!         .owe_shortfalls();
//!     Router::new().route("/v1/chat", post(chat)).layer(RateLimitLayer::new(tokens)).with_state(model)
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     # return Ok(check().await);
//!     # #[allow(unreachable_code)] {
//!     let app = app("http://127.0.0.1:8080/v1/chat/completions".to_owned());
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//!     # }
//! }
//! #
//! # async fn check() {
//! #     use tower::ServiceExt;
//! #     // A model that answers in five events, whose chunks end within lines. It fails if asked to.
//! #     async fn model(Json(prompt): Json<Value>) -> Result<Body, StatusCode> {
//! #         assert_eq!(prompt["stream_options"]["include_usage"], true);
//! #         if prompt["model"] == "none" {
//! #             return Err(StatusCode::NOT_FOUND);
//! #         }
//! #         let mut text = String::new();
//! #         for _ in 0..5 {
//! #             text += "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n";
//! #         }
//! #         text += "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"total_tokens\":47}}\n\n";
//! #         text += "data: [DONE]\n\n";
//! #         let chunks: Vec<_> = text.as_bytes().chunks(66).map(|part| Bytes::from(part.to_vec())).collect();
//! #         let slowly = futures_util::StreamExt::then(futures_util::stream::iter(chunks), |chunk| async {
//! #             tokio::time::sleep(std::time::Duration::from_millis(20)).await;
//! #             Ok::<_, std::io::Error>(chunk)
//! #         });
//! #         Ok(Body::from_stream(slowly))
//! #     }
//! #     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! #     let address = listener.local_addr().unwrap();
//! #     tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(model))).await });
//! #     let app = app(format!("http://{address}/"));
//! #     let send = async |customer: &str, model: &str| {
//! #         let request = Request::post("/v1/chat").header("x-api-key", customer);
//! #         let request = request.header(CONTENT_TYPE, "application/json");
//! #         let body = Body::from(json!({ "model": model }).to_string());
//! #         app.clone().oneshot(request.body(body).unwrap()).await.unwrap()
//! #     };
//! #     // A model that does not answer costs nothing, so such a request shows the units that are left.
//! #     let left = async |customer: &str| {
//! #         let response = send(customer, "none").await;
//! #         assert_eq!(response.status(), 502);
//! #         let field = response.headers()["ratelimit"].to_str().unwrap().to_owned();
//! #         field.split(";r=").nth(1).unwrap().split(';').next().unwrap().parse::<u64>().unwrap()
//! #     };
//! #     let full = left("ada").await;
//! #     assert_eq!(left("ada").await, full);
//! #     // To the end: the usage is charged.
//! #     let text = send("ada", "some").await.into_body().collect().await.unwrap().to_bytes();
//! #     assert!(text.ends_with(b"data: [DONE]\n\n"));
//! #     assert_eq!(full - left("ada").await, 47);
//! #     // A client that hangs up: the prompt, and the events that it got.
//! #     let mut body = send("bob", "some").await.into_body();
//! #     for _ in 0..3 {
//! #         body.frame().await.unwrap().unwrap();
//! #     }
//! #     drop(body);
//! #     let charged = full - left("bob").await;
//! #     assert!((10..=30).contains(&charged), "{charged}");
//! # }
//! ```
//!
//! Dependencies: as in [start here](super::start), and `futures-util`, `http-body-util`, `serde_json`, and `hyper-util`
//! with the features `client-legacy`, `http1` and `tokio`.
//!
//! # What is charged
//!
//! | the stream | the customer pays |
//! |---|---|
//! | ends | its `total_tokens`: prompt and answer |
//! | is dropped, since the client hangs up | the estimate of the prompt, and one token per event that was sent. The connection to the model is closed, too |
//! | fails in the middle | the same; the response fails as well |
//! | does not begin, since the model does not answer | nothing; the client gets 502 |
//!
//! - **Report a chunk before you send it.** A dropped stream runs no further. With a report at the end alone, a client
//!   that reads all but the last event and hangs up would get the answer for the estimate.
//! - **A model without usage**: leave out `stream_options`, and a [`Meter`](crate::policy::Meter) is enough.
//! - **A task that reads on** after the client has left, to store the answer, can add no units:
//!   [`add`](crate::Settlement::add) returns [`Ended`](crate::policy::SettleError::Ended). Charge such an answer as a
//!   whole at the beginning, or as far as it was sent.
//! - **The debt of a long answer** is [owed](crate::Policy::owe_shortfalls), and time pays it: see
//!   [how to choose the estimate](super::real_costs#how-to-choose-the-estimate).
//!
//! An open stream also takes a connection to the model. To limit how many streams a customer has at once, add a
//! [`Concurrency`](super::in_flight). With plans, months and guesses at keys around it: [sell an API](super::plans).
//!
//! Next: [clients behind a proxy](super::proxies).
