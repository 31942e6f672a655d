//! One limit for several machines.
//!
//! **You want** four servers behind a load balancer to admit ten per second together, and not forty. Keep the budgets
//! on Redis (feature `redis`):
//!
//! ```no_run
//! use tower_sluice::algorithm::TokenBucket;
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::store::{Redis, RedisStore};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter};
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let bucket = TokenBucket::new(Quota::per_second(10).burst(20));
//! let limiter = RateLimiter::new(bucket, RedisStore::new(&redis, "per-client"));
//! let policy = Policy::new("per-client", limiter);
//! let layer = RateLimitLayer::new(policy.key(PeerIp::new()));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing else changes: the same algorithms, headers and exact waits. In memory, *n* machines admit up to *n* times
//! the limit. That may be all that you need: to protect each machine from too much, memory is right, and Redis is not.
//!
//! # What it costs
//!
//! | a request | costs |
//! |---|---|
//! | that asks | one round trip: one script, on the server's clock |
//! | of several policies of a layer, on one server | one round trip for all |
//! | of a key for which another call is under way | a share in the next |
//! | of a key that is known to be used up | nothing: refused here, with its exact wait |
//!
//! So a flood costs the server one call per key and wait. If one key is asked for so often that even this is much, a
//! process can [take units in advance](crate::store::RedisStore::leasing), for an accuracy that is told there.
//!
//! # Names
//!
//! Budgets are shared by what is named alike: the [prefix](crate::store::redis::RedisBuilder::prefix) of the `Redis`,
//! and the name of the store. Two services on one Redis want different prefixes, and two limiters different names.
//!
//! A changed quota may keep its name. What a bucket remembers is when its debt will be paid, so the debt stays as long as
//! it was, and is a full bucket at most: nobody gets more than the new burst, and nobody waits for longer than the new
//! bucket takes to fill. A window goes on counting under the new limit; with another period, what was used counts in the
//! next window, too. While a change is rolled out, each process judges by the quota that it has.
//!
//! Clients are stored as hashes. With a [secret](crate::store::redis::RedisBuilder::secret), nobody who reads the
//! server can find out whose they are by trying.
//!
//! # Sentinels and clusters
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_sluice::store::Redis;
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
//! When a primary fails and a replica takes over, what was not replicated yet is forgotten: per key, up to burst + rate
//! × lag is admitted twice.
//!
//! # Set the server up
//!
//! - `maxmemory-policy noeviction`, or a server of its own. A server that evicts keys forgets debts; that is warned of
//!   once.
//! - Near. A decision waits for a round trip, and 50 ms at the most, unless [set
//!   otherwise](crate::store::redis::RedisBuilder::timeout).
//! - No persistence is needed: what is lost is at most what clients owe.
//!
//! # While Redis is out of reach
//!
//! Each process goes on with the same quota alone, counting from what it has seen pass. The [choices](super::failure).
//!
//! # A line for all
//!
//! A queue that all machines stand in is a [`RedisQueue`](crate::RedisQueue): together they call the partner ten times
//! per second.
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_sluice::store::Redis;
//! use tower_sluice::{Quota, RedisQueue, ThrottleLayer};
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let queue = RedisQueue::new(&redis, "partner", Quota::per_second(10))
//!     .capacity(20)
//!     .max_wait(Duration::from_secs(2));
//! let layer: ThrottleLayer<http::Request<String>> = ThrottleLayer::new(queue);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Redis hands out the times of departure, and each process waits by itself. The place of a waiter that leaves early goes
//! to the next that comes, since those behind it know their times already: [its differences](crate::RedisQueue) to the
//! queue in memory.
//!
//! # By configuration
//!
//! With the feature `config`, `[redis]` and its `url` put all policies of a file on Redis: see
//! [`config`](crate::config).
