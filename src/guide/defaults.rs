//! All defaults: the values of all settings that you leave out.
//!
//! **You want** to know the values of the settings that you did not write. Every setting of every builder is here, with
//! its default (`tests/repository/defaults.rs` compares them with the source).
//!
//! A policy without any setting, for two requests:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, body::Body, routing::get};
//! use tower::ServiceExt;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let quota = Quota::per_minute(1);
//! assert_eq!(quota.max_burst(), 1);
//! let layer = RateLimitLayer::new(Policy::new("everybody", quota));
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! let get = || http::Request::get("/").body(Body::empty()).unwrap();
//!
//! let admitted = app.clone().oneshot(get()).await.unwrap();
//! assert_eq!(admitted.headers()["ratelimit-policy"], r#""everybody";q=1;w=60"#);
//! assert_eq!(admitted.headers()["ratelimit"], r#""everybody";r=0;t=60"#);
//!
//! let rejected = app.oneshot(get()).await.unwrap();
//! assert_eq!(rejected.status(), 503); // all clients share the budget
//! assert_eq!(rejected.headers()["content-type"], "application/problem+json");
//! assert_eq!(rejected.headers()["retry-after"], "60");
//! assert!(rejected.headers().contains_key("x-rate-limited-for"));
//! assert!(!rejected.headers().contains_key("x-ratelimit-limit"));
//! # }
//! ```
//!
//! # `Quota`
//!
//! | setting | default |
//! |---|---|
//! | [`burst`](crate::Quota::burst) | of a bucket the limit; of a queue 1. Windows have none: their whole limit may come at once |
//! | the algorithm, where a quota is given in place of one | [`TokenBucket`](crate::TokenBucket), in memory |
//! | [`staggered`](crate::FixedWindow::staggered), of a window | no: the windows of all keys begin at one instant |
//! | [`zone`](crate::CalendarWindow::zone), of a calendar window | UTC |
//! | [`anchor`](crate::CalendarWindow::anchor), of months | 1, the first |
//! | [`week_start`](crate::CalendarWindow::week_start), of weeks | Monday |
//!
//! # `Policy`
//!
//! | setting | default |
//! |---|---|
//! | [`key`](crate::Policy::key) | none: all clients share one budget. `RateLimitLayer::per_client` has [`PeerIp`](crate::key::PeerIp) |
//! | [`cost`](crate::Policy::cost), [`cost_fn`](crate::Policy::cost_fn) | 1 |
//! | [`priority_fn`](crate::Policy::priority_fn), [`weight_fn`](crate::Policy::weight_fn) | normal, and 1; for limiters that shed |
//! | [`and`](crate::Policy::and), [`or_else`](crate::Policy::or_else) | none: the policies of an array all have to admit a request |
//! | [`quota_fn`](crate::Policy::quota_fn) | none: all keys have the quota of the policy |
//! | [`window_fn`](crate::Policy::window_fn), [`limit_fn`](crate::Policy::limit_fn) | none: all keys have the policy's window, and its limit in flight |
//! | [`charge_when`](crate::Policy::charge_when), [`cost_after`](crate::Policy::cost_after), [`settle_by_handler`](crate::Policy::settle_by_handler), [`settle_by_content_bytes`](crate::Policy::settle_by_content_bytes) | none: what was charged stays charged |
//! | [`owe_shortfalls`](crate::Policy::owe_shortfalls) | no: a shortfall is charged as far as units are left |
//! | [`charge_once`](crate::Policy::charge_once) | off: a retry is charged again |
//! | [`release_at_head`](crate::Policy::release_at_head) | no: what is in flight is so until its body has ended |
//! | [`penalty`](crate::Policy::penalty) | none: no key is banned |
//! | [`Penalty::growing`](crate::Penalty::growing) | no: all bans are equally long |
//! | [`Penalty::forgetting_after`](crate::Penalty::forgetting_after) | the longest ban |
//! | [`on_crossing`](crate::Policy::on_crossing), [`warn_at`](crate::Policy::warn_at) | no reports |
//! | [`track_offenders`](crate::Policy::track_offenders) | no: the names of keys are not kept |
//! | [`when`](crate::Policy::when), [`exempt`](crate::Policy::exempt) | all requests |
//! | [`shadow`](crate::Policy::shadow) | no: it is enforced |
//! | [`on_missing_key`](crate::Policy::on_missing_key) | [`Reject`](crate::MissingKey::Reject): 400 |
//! | [`on_failure`](crate::Policy::on_failure) | [`LocalFallback`](crate::FailureMode::LocalFallback): this process decides, with the same quota |
//! | [`status`](crate::Policy::status) | 429, or 503 if all clients share the budget |
//! | [`Penalty::with_clock`](crate::Penalty::with_clock) | [`Monotonic`](crate::time::Monotonic) |
//! | [`ChargeOnce::within`](crate::ChargeOnce::within) | 24 hours |
//! | [`ChargeOnce::free_retries`](crate::ChargeOnce::free_retries) | 1 |
//! | [`ChargeOnce::max_keys`](crate::ChargeOnce::max_keys) | 65,536 in this process |
//! | [`ChargeOnce::with_clock`](crate::ChargeOnce::with_clock) | `Monotonic` |
//! | [`Exemptions::networks`](crate::Exemptions::networks), [`header`](crate::Exemptions::header), [`path`](crate::Exemptions::path) | nothing is exempt |
//!
//! # Keys
//!
//! | setting | default |
//! |---|---|
//! | [`PeerIp::ipv6_prefix`](crate::key::PeerIp::ipv6_prefix), [`ClientIp::ipv6_prefix`](crate::key::ClientIp::ipv6_prefix) | 64 bits. IPv4 addresses are whole |
//! | [`ClientIp::on_unidentified`](crate::key::ClientIp::on_unidentified) | [`UsePeer`](crate::key::Unidentified::UsePeer): counts as the proxy |
//! | [`ClientIp::lenient_forwarded`](crate::key::ClientIp::lenient_forwarded) | no: as RFC 7239 has it |
//! | [`ClientIp::obfuscated_nodes`](crate::key::ClientIp::obfuscated_nodes) | no: `for=_abc` is unidentified |
//! | trusted proxies | none: there is no `ClientIp` without saying which |
//!
//! # `RateLimitLayer`
//!
//! | setting | default |
//! |---|---|
//! | [`fields`](crate::layer::RateLimitLayerBuilder::fields) | [`draft11`](crate::headers::RateLimitFields::draft11): `RateLimit` and `RateLimit-Policy` |
//! | [`RateLimitFields::advertise`](crate::headers::RateLimitFields::advertise) | [`Always`](crate::headers::Advertise::Always): on all responses |
//! | [`RateLimitFields::x_ratelimit`](crate::headers::RateLimitFields::x_ratelimit) | none |
//! | [`RateLimitFields::partition_key`](crate::headers::RateLimitFields::partition_key), [`partition_key_by`](crate::headers::RateLimitFields::partition_key_by) | none |
//! | [`wait_fields`](crate::layer::RateLimitLayerBuilder::wait_fields) | `Retry-After` and `X-Rate-Limited-For`, in seconds |
//! | [`WaitFields::exact_wait_named`](crate::headers::WaitFields::exact_wait_named), [`exact_wait_in_millis`](crate::headers::WaitFields::exact_wait_in_millis), [`without_exact_wait`](crate::headers::WaitFields::without_exact_wait) | `X-Rate-Limited-For`, in seconds |
//! | [`WaitFields::retry_after_ms`](crate::headers::WaitFields::retry_after_ms) | no |
//! | [`retry_jitter`](crate::layer::RateLimitLayerBuilder::retry_jitter) | none: waits are exact |
//! | [`server_timing`](crate::layer::RateLimitLayerBuilder::server_timing) | no |
//! | [`rejection_format`](crate::layer::RateLimitLayerBuilder::rejection_format), [`rejection_response`](crate::layer::RateLimitLayerBuilder::rejection_response) | problem details in JSON (RFC 9457) |
//! | [`exempt_preflights`](crate::layer::RateLimitLayerBuilder::exempt_preflights) | none: preflights count |
//! | [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) | no |
//! | [`on_transition`](crate::layer::RateLimitLayerBuilder::on_transition) | none: bans and outages are logged |
//! | [`route`](crate::layer::RateLimitLayerBuilder::route) | no label |
//! | [`grpc_status`](crate::layer::RateLimitLayerBuilder::grpc_status) | [`ResourceExhausted`](crate::grpc::GrpcStatus::ResourceExhausted) |
//!
//! # Limiters in memory
//!
//! | setting | default |
//! |---|---|
//! | [`MemoryStore::with_capacity`](crate::store::MemoryStore::with_capacity) | 65,536 keys |
//! | [`MemoryStore::when_full`](crate::store::MemoryStore::when_full) | [`EvictLeast`](crate::store::WhenFull::EvictLeast): evicts the key that owes least |
//! | [`MemoryStore::with_clock`](crate::store::MemoryStore::with_clock) | `Monotonic` |
//! | [`LeakyQueue::max_queue`](crate::LeakyQueue::max_queue) | the limit of the quota, per key |
//! | [`LeakyQueue::max_wait`](crate::LeakyQueue::max_wait) | 30 s |
//! | [`LeakyQueue::max_waiters`](crate::LeakyQueue::max_waiters) | 65,536 over all keys |
//! | [`LeakyQueue::max_keys`](crate::LeakyQueue::max_keys) | 65,536 |
//! | [`LeakyQueue::when_full`](crate::LeakyQueue::when_full) | [`Reject`](crate::store::WhenFull::Reject) |
//! | `LeakyQueue::precise` (feature `precise-timer`) | no: tokio's timer, in milliseconds |
//! | [`SlowDown::free`](crate::SlowDown::free) | half of the quota's burst |
//! | [`SlowDown::step`](crate::SlowDown::step) | 1 s |
//! | [`SlowDown::max_delay`](crate::SlowDown::max_delay) | 30 s |
//! | [`SlowDown::max_waiters`](crate::SlowDown::max_waiters), [`max_keys`](crate::SlowDown::max_keys), [`when_full`](crate::SlowDown::when_full) | as of `LeakyQueue` |
//! | [`Concurrency::max_queue`](crate::Concurrency::max_queue) | 0: none waits |
//! | [`Concurrency::max_wait`](crate::Concurrency::max_wait) | 30 s |
//! | [`Concurrency::max_waiters`](crate::Concurrency::max_waiters) | 65,536 over all keys |
//! | [`Concurrency::max_keys`](crate::Concurrency::max_keys) | 65,536 |
//! | [`Balance::max_keys`](crate::Balance::max_keys) | 1,048,576 |
//! | [`Overload::limits`](crate::Overload::limits) | 2 to 1,024 units in flight, over all keys |
//! | [`Overload::starting_at`](crate::Overload::starting_at) | 20 |
//! | [`Overload::queue_target`](crate::Overload::queue_target) | 20 ms |
//! | [`Overload::max_wait`](crate::Overload::max_wait) | 500 ms |
//! | [`Overload::max_queue`](crate::Overload::max_queue) | 1,024 over all keys |
//!
//! # Redis and other servers
//!
//! | setting | default |
//! |---|---|
//! | [`RedisBuilder::timeout`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.timeout) | 50 ms for a whole decision |
//! | [`RedisBuilder::connect_timeout`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.connect_timeout) | 1 s, for which no decision waits |
//! | [`RedisBuilder::max_in_flight`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.max_in_flight) | 4,096 calls per runtime and server |
//! | [`RedisBuilder::prefix`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.prefix) | `sluice` |
//! | [`RedisBuilder::secret`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.secret) | none: hashes of clients have no secret |
//! | [`RedisStore::leasing`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html#method.leasing) | none: each request asks |
//! | [`RedisStore::without_coalescing`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html#method.without_coalescing) | no: requests of a key share calls |
//! | [`SharedQueue::max_queue`](crate::SharedQueue::max_queue), [`max_wait`](crate::SharedQueue::max_wait), [`max_waiters`](crate::SharedQueue::max_waiters) | as of `LeakyQueue` |
//! | [`SharedConcurrency::lease`](crate::SharedConcurrency::lease) | 10 s |
//! | [`SharedConcurrency::max_queue`](crate::SharedConcurrency::max_queue), [`max_wait`](crate::SharedConcurrency::max_wait), [`max_waiters`](crate::SharedConcurrency::max_waiters) | as of `Concurrency` |
//! | [`RemoteStore::secret`](crate::store::remote::RemoteStore::secret), [`leasing`](crate::store::remote::RemoteStore::leasing), [`without_coalescing`](crate::store::remote::RemoteStore::without_coalescing) | as of `RedisStore` |
//! | [`RemoteStore::records`](crate::store::remote::RemoteStore::records) | none: each process has its own; a `PostgresStore` has them |
//! | [`KeyValueBackend::bounded`](crate::store::remote::KeyValueBackend::bounded) | 100 ms, and 1,024 calls in flight |
//! | [`KeyValueBackend::with_clock`](crate::store::remote::KeyValueBackend::with_clock) | [`Wall`](crate::time::Wall) |
//!
//! # Clients
//!
//! | setting | default |
//! |---|---|
//! | [`PacerLayer::key`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.key) | the host and port of the URI; without a host, the service |
//! | [`PacerLayer::quota`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.quota) | none: what the partner reports |
//! | [`PacerLayer::max_wait`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.max_wait) | 60 s |
//! | [`PacerLayer::max_waiters`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.max_waiters) | 1,000 per partner |
//! | [`PacerLayer::max_pause`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.max_pause) | 1 hour |
//! | [`PacerLayer::attempts`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.attempts) | no bound: until the longest wait is over |
//! | [`PacerLayer::wait_statuses`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.wait_statuses) | 429 and 420; 403, 418, 503, 509 and 529 if they state a wait |
//! | [`PacerLayer::throttle`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.throttle) | none: all calls are sent |
//! | [`AdaptiveThrottle::success_percent`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.AdaptiveThrottle.html#method.success_percent) | 50 |
//! | [`AdaptiveThrottle::max_percent`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.AdaptiveThrottle.html#method.max_percent) | 100 |
//! | [`AdaptiveThrottle::window`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.AdaptiveThrottle.html#method.window) | 2 minutes |
//! | [`PacerLayer::name`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.name) | none: no metrics |
//! | [`PacerLayer::shared`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.shared) | no: each process for itself |
//!
//! # A configuration file
//!
//! The same. [The format](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/#format) has each default beside its key.
//!
//! Next: [capacity](super::capacity).
