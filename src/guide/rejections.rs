//! A rejection of your own: JSON, a page, another status.
//!
//! **You want** the 429 to look like the other errors of your API. [`rejection_response`] makes the response; the layer
//! then adds `Retry-After` and the fields with the remaining units, so that no client has to parse the body.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::get};
//! use http::{Response, StatusCode, header};
//! use tower_sluice::rejection::Reason;
//! use tower_sluice::{Policy, Quota, RateLimitLayer, Rejection, RequestHead};
//!
//! fn json(rejection: &Rejection, request: &RequestHead<'_>) -> Response<String> {
//!     let code = match rejection.reason() {
//!         Reason::LimitExceeded | Reason::Banned | Reason::BannedByHand => "rate_limited",
//!         Reason::Suspended => "plan_paused",
//!         Reason::Overloaded => "overloaded",
//!         Reason::MissingKey | Reason::AmbiguousKey => "no_credentials",
//!         _ => "unavailable",
//!     };
//!     let violated: Vec<&str> = rejection.verdict().violated().map(|policy| policy.name()).collect();
//!     let body = serde_json::json!({
//!         "error": {
//!             "code": code,
//!             "message": rejection.detail(),
//!             "path": request.uri().path(),
//!             "limits": violated,
//!             // Rounded up: a client that waits that long is admitted.
//!             "retry_after_ms": rejection.retry_after().map(|wait| wait.as_nanos().div_ceil(1_000_000) as u64),
//!         }
//!     });
//!     Response::builder()
//!         .status(rejection.status()) // 429, 503, 400 or 500: see the table below
//!         .header(header::CONTENT_TYPE, "application/json")
//!         .body(body.to_string())
//!         .expect("the parts are valid")
//! }
//!
//! let policy = Policy::new("everybody", Quota::per_minute(1)).status(StatusCode::TOO_MANY_REQUESTS);
//! let layer = RateLimitLayer::builder(policy).rejection_response(json).build();
//! let app: Router = Router::new().route("/orders", get(|| async { "[]" })).layer(layer);
//! #
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     use tower::ServiceExt;
//! #     let get = || http::Request::get("/orders").body(axum::body::Body::empty()).unwrap();
//! #     assert_eq!(app.clone().oneshot(get()).await.unwrap().status(), 200);
//! #     let (head, body) = app.clone().oneshot(get()).await.unwrap().into_parts();
//! #     assert_eq!(head.status, 429);
//! #     assert!(head.headers.contains_key("retry-after") && head.headers.contains_key("ratelimit"));
//! #     let body = axum::body::to_bytes(body, 1_000).await.unwrap();
//! #     let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
//! #     assert_eq!(body["error"]["code"], "rate_limited");
//! #     assert_eq!(body["error"]["limits"], serde_json::json!(["everybody"]));
//! #     assert!(body["error"]["retry_after_ms"].as_u64().unwrap() > 59_000);
//! # });
//! ```
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/json
//! retry-after: 60
//! x-rate-limited-for: 59.998214
//! ratelimit-policy: "everybody";q=1;w=60
//! ratelimit: "everybody";r=0;t=60
//! cache-control: no-store
//!
//! {"error":{"code":"rate_limited","message":"The limit is used up; retry in 60 seconds.","path":"/orders",
//!  "limits":["everybody"],"retry_after_ms":59999}}
//! ```
//!
//! - The body is a `String`, bytes, axum's `Body`, or any other by
//!   [`RejectionBody::new`](crate::rejection::RejectionBody::new).
//! - gRPC and gRPC-Web clients do not get it: they always get [a gRPC error](super::grpc).
//! - In a configuration, `Config::reader().layers(|layer| layer.rejection_response(json))` sets it for all routes.
//! - Do not put keys or addresses of other clients into it.
//!
//! # Without code
//!
//! | you want | set |
//! |---|---|
//! | problem details (RFC 9457) | nothing: it is the default |
//! | plain text, or no body | [`rejection_format`](crate::layer::RateLimitLayerBuilder::rejection_format) |
//! | another status than 429, or 429 where clients share a limit | [`Policy::status`](crate::Policy::status) |
//! | `X-RateLimit-Limit`, `-Remaining`, `-Reset` | [`RateLimitFields::x_ratelimit`](crate::headers::RateLimitFields::x_ratelimit) |
//! | no fields on what is left, or on rejections only | [`RateLimitFields::advertise`](crate::headers::RateLimitFields::advertise) |
//! | milliseconds: `retry-after-ms` | [`WaitFields::retry_after_ms`](crate::headers::WaitFields::retry_after_ms) |
//! | clients that do not all return at one instant | [`retry_jitter`](crate::layer::RateLimitLayerBuilder::retry_jitter) |
//!
//! The fields have the syntax of draft-ietf-httpapi-ratelimit-headers-11, which expired on 2026-11-24 without a
//! successor known on 2026-11-26; clients that want certainty read `Retry-After`, which is a standard (RFC 9110).
//!
//! A handler that asks a limiter itself answers by [`Rejection::unless_allowed`](super::direct#a-handler).
//!
//! # Uploads
//!
//! A rejected request is answered before its body was read. Hyper then closes the connection, and a client that still
//! sends may find it reset, and never see the 429. A client that asks before it sends (`Expect: 100-continue`, as curl
//! does above 1 MiB) sees it at once, and so do those over HTTP/2 and behind a proxy that reads uploads first, as nginx
//! does. For all others, read on for a while, outside of the limit:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::sync::{Arc, Mutex, PoisonError};
//! use std::task::Context;
//! use std::time::Duration;
//!
//! use axum::body::{Body, HttpBody};
//! use axum::extract::Request;
//! use axum::middleware::{self, Next};
//! use axum::response::Response;
//! use axum::{Router, routing::post};
//! use futures_util::{StreamExt, stream};
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! const MOST_BYTES: usize = 64 << 20;
//! const LONGEST: Duration = Duration::from_secs(30);
//!
//! /// Answers at once, and reads what a rejected client still sends.
//! async fn read_on(request: Request, next: Next) -> Response {
//!     if request.body().is_end_stream() {
//!         return next.run(request).await;
//!     }
//!     let (head, body) = request.into_parts();
//!     let body = Arc::new(Mutex::new(body.into_data_stream()));
//!     let shared = Arc::clone(&body);
//!     let chunks = stream::poll_fn(move |context: &mut Context<'_>| {
//!         shared.lock().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(context)
//!     });
//!     let response = next.run(Request::from_parts(head, Body::from_stream(chunks))).await;
//!     // Nobody else has it once the request is over.
//!     if let Some(rest) = Arc::into_inner(body) {
//!         let mut rest = rest.into_inner().unwrap_or_else(PoisonError::into_inner);
//!         let reading = async move {
//!             let mut bytes = 0;
//!             while let Some(Ok(chunk)) = rest.next().await {
//!                 bytes += chunk.len();
//!                 if bytes > MOST_BYTES {
//!                     return;
//!                 }
//!             }
//!         };
//!         tokio::spawn(tokio::time::timeout(LONGEST, reading));
//!     }
//!     response
//! }
//!
//! let layer = RateLimitLayer::new(Policy::new("uploads", Quota::per_hour(1)));
//! let app: Router = Router::new().route("/upload", post(|| async { "thanks" })).layer(layer);
//! let app = app.layer(middleware::from_fn(read_on));
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! #     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! #     let address = listener.local_addr().unwrap();
//! #     tokio::spawn(async move { axum::serve(listener, app).await });
//! #     // The handler reads no body, either, and a client that sends sixty megabytes sees its answer all the same.
//! #     for status in ["200", "503"] {
//! #         let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
//! #         let length = 60 << 20;
//! #         let head = format!("POST /upload HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
//! #         client.write_all(head.as_bytes()).await.unwrap();
//! #         client.write_all(&vec![b'x'; length]).await.unwrap();
//! #         let mut answer = String::new();
//! #         client.read_to_string(&mut answer).await.unwrap();
//! #         assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
//! #     }
//! # });
//! ```
//!
//! It reads what a limit has saved you from reading, so the bounds are yours to choose. A client that is beyond them is
//! reset as before.
//!
//! Which status a rejection has unless you set it: [failure](super::failure#what-a-client-gets).
//!
//! Next: [look plans up in a database](super::look_ups).
//!
//! [`rejection_response`]: crate::layer::RateLimitLayerBuilder::rejection_response
