//! Coming from Sidekiq Enterprise's limiters.
//!
//! **You want** `Sidekiq::Limiter` for workers in Rust: jobs that call a partner's API, from many processes, no
//! faster than it allows.
//!
//! ```ruby
//! SHOP = Sidekiq::Limiter.leaky("shop", 60, :minute, wait_timeout: 5)
//! def perform(order)
//!   SHOP.within_limit { call_shop(order) }
//! end
//! ```
//!
//! becomes a layer of `tower-sluice-client` around the calling service:
//!
//! ```no_run
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_sluice_redis::Redis;
//! use tower_sluice::{Policy, Quota, SharedQueue};
//! use tower_sluice_client::{ThrottleError, ThrottleLayer};
//!
//! /// Stands for the call of the partner.
//! async fn call_shop(order: u32) -> std::io::Result<u32> {
//!     Ok(order)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let redis = Redis::open("redis://10.0.0.7:6379")?;
//!     // Sixty at once, then one per second.
//!     // A job that would wait for more than five seconds gets the time after which to retry.
//!     let shop = SharedQueue::new(redis, "shop", Quota::per_minute(60).burst(60));
//!     let shop = shop.max_queue(5).max_wait(Duration::from_secs(5));
//!     let mut shop = ServiceBuilder::new()
//!         .layer(ThrottleLayer::new(Policy::on("shop", shop)))
//!         .service(service_fn(call_shop));
//!
//!     let order = 7;
//!     match shop.ready().await?.call(order).await {
//!         Err(ThrottleError::Rejected(rejected)) => match rejected.retry_after() {
//!             Some(wait) => println!("reschedule {order} in {wait:?}"),
//!             None => println!("{rejected:#}"),
//!         },
//!         result => println!("{}", result?),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | Sidekiq Enterprise | here, for all processes | in one process |
//! |---|---|---|
//! | `bucket(name, 30, :second)`: in each interval of the clock | [`FixedWindow`] on a [`RedisStore`] | [`FixedWindow`] |
//! | `window(name, 5, 30)`: in any 30 seconds | [`SlidingWindow`] on a [`RedisStore`] | [`SlidingWindow`] |
//! | `leaky(name, 60, :minute)`, not waiting | [`LeakyBucket`] on a [`RedisStore`] | [`LeakyBucket`] |
//! | `leaky(…, wait_timeout: 5)` | [`SharedQueue`](crate::SharedQueue) | [`LeakyQueue`](crate::LeakyQueue) |
//! | `points(…)` | a bucket, with a [cost](crate::Policy::cost_fn) | the same |
//! | `concurrent(name, 50, …)` | [`SharedConcurrency`](crate::SharedConcurrency) | [`Concurrency`](crate::Concurrency) |
//! | `unlimited` | no layer | |
//! | a name with an identity in it, `"shop-#{id}"` | one limiter, with a [key](crate::Policy::key_by) | the same |
//! | `within_limit { … }` | the inner service, or [`acquire`](crate::LimiterExt::acquire) | the same |
//! | `wait_timeout` | [`max_wait`](crate::SharedQueue::max_wait) | the same |
//! | `raise OverLimit`, and a backoff for the job | [`ThrottleError::Rejected`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/enum.ThrottleError.html#variant.Rejected), with the exact wait | the same |
//! | `policy: :skip` | ignore that error | the same |
//!
//! Names and keys:
//!
//! ```no_run
//! use tower_sluice_redis::{Redis, RedisStore};
//! use tower_sluice::{LeakyBucket, Policy, Quota, RateLimiter};
//! use tower_sluice_client::ThrottleLayer;
//!
//! struct Call {
//!     shop: u64,
//!     points: u64,
//! }
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let points = LeakyBucket::new(Quota::per_second(50).burst(1_000));
//! let bucket = RateLimiter::new(points, RedisStore::new(&redis, "shops"));
//! let shops = Policy::on("shops", bucket).key_by(|call: &Call| call.shop).cost_fn(|call| call.points);
//! let layer = ThrottleLayer::new(shops);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is different
//!
//! - **Waiting is in order.** Each waiter has its position and its departure time, and no job retries meanwhile. In [an
//!   issue of 2022](https://github.com/sidekiq/sidekiq/issues/5315), all waiters of a leaky limiter got the same time,
//!   retried together, and some starved.
//! - **A job that cannot depart in time is rejected on arrival**, and not after a wait: no worker is blocked in vain.
//! - **The advertised wait is exact.** Reschedule the job for then, instead of backing off.
//! - **A leaky queue spaces calls out** from the first on, unless its quota has a [burst](crate::Quota::burst):
//!   `.burst(60)` lets sixty depart at once, as `leaky` does.
//! - **Costs are set before the call** in a [`ThrottleLayer`]. If the actual cost differs, decide by
//!   [`Limits`](crate::direct::Limits) in its place, and [report it](crate::direct::Admission::settle). In a server,
//!   [`cost_after`](crate::Policy::cost_after) does that.
//! - **If Redis fails**, each process keeps the limit [by itself](super::failure), instead of raising. To raise, choose
//!   [`FailureMode::Reject`](crate::FailureMode::Reject): [`on_failure`](crate::Policy::on_failure).
//! - **One round trip per call** for all kinds, and no call for a key that is known to be used up.
//!
//! Next: [try the new limits out before they reject](super::shadow).
//!
//! [`FixedWindow`]: crate::FixedWindow
//! [`SlidingWindow`]: crate::SlidingWindow
//! [`LeakyBucket`]: crate::LeakyBucket
//! [`RedisStore`]: https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html
//! [`ThrottleLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.ThrottleLayer.html
