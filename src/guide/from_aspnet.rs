//! Coming from ASP.NET Core's rate limiting.
//!
//! **You want** the limits of `AddRateLimiter` in a Tower service.
//!
//! ```text
//! builder.Services.AddRateLimiter(options => {
//!     options.RejectionStatusCode = 429;
//!     options.AddPolicy("api", context => RateLimitPartition.GetTokenBucketLimiter(
//!         context.User.Identity?.Name, _ => new TokenBucketRateLimiterOptions {
//!             TokenLimit = 20, TokensPerPeriod = 10, ReplenishmentPeriod = TimeSpan.FromSeconds(1) }));
//! });
//! ```
//!
//! becomes
//!
//! ```
//! use tower_sluice::key::User;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let quota = Quota::per_second(10).burst(20);
//! let layer = RateLimitLayer::new(Policy::new("api", quota).key(User::key()));
//! # let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |user: &'static str| {
//! #         let request = http::Request::get("/").extension(User::new(user)).body(axum::body::Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     let mut sent = 0;
//! #     while send("ada").await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "a user is never rejected");
//! #     }
//! #     assert!(sent >= 20 && send("bob").await == 200, "{sent}");
//! # });
//! ```
//!
//! where an outer layer has authenticated the request and inserted a [`User`](crate::key::User).
//!
//! | ASP.NET Core | here |
//! |---|---|
//! | `FixedWindowRateLimiterOptions { PermitLimit, Window }` | [`FixedWindow`](crate::FixedWindow)`::new(Quota::per(permit_limit, window))` |
//! | `SlidingWindowRateLimiterOptions { PermitLimit, Window, SegmentsPerWindow }` | [`SlidingWindow`](crate::SlidingWindow); there are no segments to choose |
//! | `TokenBucketRateLimiterOptions { TokensPerPeriod, ReplenishmentPeriod, TokenLimit }` | [`TokenBucket`](crate::TokenBucket)`::new(Quota::per(tokens_per_period, replenishment_period).burst(token_limit))` |
//! | `ConcurrencyLimiterOptions { PermitLimit, QueueLimit }` | [`Concurrency`](super::in_flight)`::new(permit_limit).max_queue(queue_limit)` |
//! | `QueueLimit = n` | [`LeakyQueue`](crate::LeakyQueue)`::new(quota).max_queue(n)` in place of the limiter |
//! | `QueueProcessingOrder.OldestFirst` | always so; there is no `NewestFirst` |
//! | `AutoReplenishment`, `TryReplenish()` | nothing: tokens follow from the time, without a timer |
//! | `RateLimitPartition.Get…Limiter(key, …)` | [`.key(…)`](crate::Policy::key): see [keys](super::keys) |
//! | `RateLimitPartition.GetNoLimiter(key)` | [`.exempt(…)`](super::allow_list), or a [`.when(…)`](crate::Policy::when) that is false for it |
//! | different options per partition | [`.quota_fn(…)`](super::quotas#a-quota-per-customer) |
//! | `PartitionedRateLimiter.CreateChained(…)` | several policies in one layer |
//! | `GlobalLimiter`, and a policy per endpoint | a layer around the router, and one on the route |
//! | `[EnableRateLimiting("api")]`, `RequireRateLimiting("api")` | `get(handler).layer(layer)` |
//! | `[DisableRateLimiting]` | a route outside the layer |
//! | `AttemptAcquire(n)`: permits | [`.cost(n)`](crate::Policy::cost) |
//! | `RejectionStatusCode` (503 unless set) | 429, or 503 if clients share the limit; [`.status(…)`](crate::Policy::status) |
//! | `OnRejected`, and in it `MetadataName.RetryAfter` | `Retry-After` is always sent; [`rejection_response`](super::rejections) for the rest |
//!
//! # A queue
//!
//! ```text
//! options.AddTokenBucketLimiter("reports", o => {
//!     o.TokenLimit = 4; o.TokensPerPeriod = 2; o.ReplenishmentPeriod = TimeSpan.FromSeconds(1);
//!     o.QueueLimit = 10; o.QueueProcessingOrder = QueueProcessingOrder.OldestFirst; });
//! ```
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};
//!
//! // Four at once, then one every half second; ten may wait, which takes five seconds.
//! let queue = LeakyQueue::new(Quota::per_second(2).burst(4))
//!     .max_queue(10)
//!     .max_wait(Duration::from_secs(5));
//! let layer = RateLimitLayer::new(Policy::new("reports", queue));
//! ```
//!
//! # What is different
//!
//! - **A queue is an algorithm of its own**, and not a property of all. Here, one request departs every half second,
//!   where a limiter that is replenished once a second releases two at a time. Windows do not queue.
//! - **A queue is bounded in time**, not only in length: [`max_wait`](crate::LeakyQueue::max_wait), 30
//!   seconds unless set. Requests that would wait for longer are rejected on arrival. `QueueLimit` counts permits;
//!   `max_queue` counts requests.
//! - **Windows begin at full periods of the clock**, on the hour or at midnight UTC; there, a window begins when its
//!   limiter was made, and each partition has its own.
//! - **Tokens come continuously**: ten per second are one every 100 ms, and not ten at each full second.
//! - **Several policies charge all or none.** A chain charges one limiter after the other.
//! - **A request without its key is rejected** with 400, unless the policy [skips it, or lets such requests share a
//!   budget](crate::MissingKey).
//! - **`Retry-After` is exact** for all of them, also for sliding windows and queues. For concurrency, both have no
//!   wait to report.
//! - **A fixed amount of memory** for all clients of a policy, instead of one limiter each that is disposed of when
//!   idle: see [how much](super::capacity#how-much-memory-a-process-needs).
//! - **Several machines** can [share one limit](super::machines).
//!
//! Next: [try the new limits out before they reject](super::shadow).
