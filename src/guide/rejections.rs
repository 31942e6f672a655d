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
//! Which status a rejection has unless you set it: [failure](super::failure#what-a-client-gets).
//!
//! Next: [look plans up in a database](super::look_ups).
//!
//! [`rejection_response`]: crate::layer::RateLimitLayerBuilder::rejection_response
