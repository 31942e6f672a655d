//! Several machines: one limit that they share.
//!
//! **You want** four servers behind a load balancer to admit ten per second together, and not forty. Keep the budgets
//! on Redis, with the package [`tower-sluice-redis`](https://docs.rs/tower-sluice-redis):
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::key::PeerIp;
//! use tower_sluice_redis::{Redis, RedisStore};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, SharedQueue, TokenBucket};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // Connects with the first request. Until it can, this process decides by itself.
//!     let redis = Redis::open("redis://10.0.0.7:6379")?;
//!     let bucket = TokenBucket::new(Quota::per_second(10).burst(20));
//!     let limiter = RateLimiter::new(bucket, RedisStore::new(&redis, "per-client"));
//!     let layer = RateLimitLayer::new(Policy::new("per-client", limiter).key(PeerIp::new()));
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! ```
//!
//! Behind a load balancer, the key is [`ClientIp`](super::proxies) in place of `PeerIp`. Run two processes on different
//! ports, and send 25 requests to each in turn: together, they admit twenty at once.
//!
//! Nothing else changes: the same algorithms, headers and exact waits. In memory, *n* machines admit up to *n* times
//! the limit. To protect each machine from overload, that is right, and Redis is not needed.
//!
//! # What it costs
//!
//! | a request | costs |
//! |---|---|
//! | of one policy | one round trip: one script, on the server's clock |
//! | of several policies of a layer, on one server | one round trip for all |
//! | of a key for which this process is already waiting for an answer | no round trip of its own: all requests that wait for the key go into the next call (single flight) |
//! | of another key, while calls for the same policies, or for queues with the same quota, are in flight | the same, with up to 32 keys in a call (bundle); not in a cluster |
//! | of a key that is known to be used up | nothing: this process rejects it, with its exact wait (negative cache) |
//! | with an idempotency key, where [retries are charged once](crate::ChargeOnce#on-a-server) | one round trip of its own, and a call in the background; [more](crate::ChargeOnce#cost) on other servers |
//!
//! So a flood costs the server one call per key and wait. If one key is so busy that even this is much, a process can
//! [lease units in advance](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html#method.leasing), for an accuracy that is documented there. How
//! large the server must be: [capacity](super::capacity).
//!
//! # What is shared
//!
//! Used units, bans, debts and free retries are shared. Queues and units in flight are shared if the limiter is [one
//! for servers](#a-shared-queue). Metrics, the counts of a shadow, and changes at run time are each process's own. The
//! whole table: [which processes share what](super::sharing).
//!
//! # Names
//!
//! Processes share budgets under the same names: the [prefix](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.prefix) of the
//! `Redis`, and the name of the store. Two services on one Redis need different prefixes, and two limiters different
//! names.
//!
//! A changed quota may keep its name. After a change [at run time](super::hot_reload), used units stay used units.
//! After a restart with another limit, a process keeps a bucket's debt as a time, and a full bucket at most: no client
//! gets more than the new burst, and none waits for longer than the new bucket takes to fill. A window continues to
//! count under the new limit; with another period, the used units count in the next window, too. While a change is
//! rolled out, each process decides with the quota that it has.
//!
//! Clients are stored as hashes. With a [secret](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.secret), a reader of the
//! server cannot identify them by trying all keys.
//!
//! # Sentinels and clusters
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_sluice_redis::Redis;
//!
//! let sentinels = ["redis://10.0.0.7:26379", "redis://10.0.0.8:26379"];
//! let watched = Redis::sentinel("main", sentinels).open()?;
//! let cluster = Redis::cluster(["redis://10.0.1.1:6379", "redis://10.0.1.2:6379"])
//!     .prefix("shop")
//!     .timeout(Duration::from_millis(20))
//!     .open()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! When a primary fails and a replica is promoted, charges that were not replicated yet are lost: per key, up to burst
//! + rate × lag is admitted twice.
//!
//! # Set the server up
//!
//! - `maxmemory-policy noeviction`, or a server of its own. A server that evicts keys forgets debts; a warning is
//!   logged once.
//! - A short round trip. A decision waits for one, and 50 ms at most, unless [set
//!   otherwise](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.timeout).
//! - No persistence is needed: at most, what clients owe is lost. For a quota [per month](super::calendar), that may be
//!   much: let the server append to a file (`appendonly yes`). What is in flight is reported again.
//!
//! # Is it ready?
//!
//! [`Redis::ping`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.Redis.html#method.ping) is for a readiness probe: it asks all primaries that are known,
//! past their circuit breakers, and closes a breaker that had opened because no answer came.
//! [`Redis::health`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.Redis.html#method.health) is not: it reports the results of the last calls. A process
//! that makes no calls and does not ping keeps reporting an open breaker.
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, extract::State, http::StatusCode, routing::get};
//! use tower_sluice_redis::Redis;
//!
//! async fn ready(State(redis): State<Redis>) -> StatusCode {
//!     match redis.ping().await {
//!         Ok(()) => StatusCode::OK,
//!         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
//!     }
//! }
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let app: Router = Router::new().route("/ready", get(ready)).with_state(redis);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! A process that is not ready by this could still serve, since it falls back to its own memory. So let a probe use it
//! only if a shared limit matters more than the service.
//!
//! # While Redis fails
//!
//! Each process falls back to the same quota in its own memory, which includes the requests that it has admitted. The
//! [choices](super::failure).
//!
//! # A shared queue
//!
//! A [`SharedQueue`](crate::SharedQueue) is one queue for all machines: together they call the partner ten times per
//! second.
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_sluice_redis::Redis;
//! use tower_sluice::{Policy, Quota, SharedQueue};
//! use tower_sluice_client::ThrottleLayer;
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let queue = SharedQueue::new(redis, "partner", Quota::per_second(10))
//!     .max_queue(20)
//!     .max_wait(Duration::from_secs(2));
//! let layer: ThrottleLayer<http::Request<String>> = ThrottleLayer::new(Policy::on("partner", queue));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Redis assigns the departure times, and each process waits locally. The departure of a waiter that is cancelled goes
//! to the next arrival, since the waiters behind it have their times already: one of [its
//! differences](crate::SharedQueue) to the queue in memory.
//!
//! On [PostgreSQL](super::postgres) and [DynamoDB](super::dynamodb), with `postgres.records()` or `dynamo.records()` in
//! place of `redis`, an arrival takes two round trips in place of one.
//!
//! # What is in flight on all machines
//!
//! A [`SharedConcurrency`](crate::SharedConcurrency) limits how many requests of a client are in flight at once, over
//! all machines:
//!
//! ```no_run
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice_redis::Redis;
//! use tower_sluice::{Policy, RateLimitLayer, SharedConcurrency};
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let downloads = SharedConcurrency::new(redis, "downloads", 4);
//! let layer = RateLimitLayer::new(Policy::new("downloads", downloads).key(HeaderKey::from_static("x-api-key")));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Each process has a lease of the units of its requests, and renews it while they last. The units of a process that is
//! killed are free when its [lease](crate::SharedConcurrency::lease) ends, 10 seconds later at most. A request takes
//! one round trip when it comes, and does not wait for one when it is over. With
//! [`max_queue`](crate::SharedConcurrency::max_queue), requests that do not fit wait in their process, and a line of
//! them costs a bounded number of [calls](crate::SharedConcurrency#waiting).
//!
//! # Without Redis
//!
//! [PostgreSQL](super::postgres) does as well, at one statement per decision, and [DynamoDB](super::dynamodb), at one
//! conditional write. So does any key-value store that can compare and swap, at two calls per decision: [stores of your
//! own](super::own_stores). Requests in flight on all machines take [two round
//! trips](crate::SharedConcurrency#memory-and-cost) on each of these, and one to be rejected.
//!
//! # By configuration
//!
//! With the package `tower-sluice-config`, `[redis]` and its `url` put all policies of a file on Redis: see
//! [`tower-sluice-config`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/).
//!
//! Next: [which processes share what](super::sharing).
