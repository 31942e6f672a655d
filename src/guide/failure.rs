//! Failure: outages, crashes, full tables, clocks, and a wrong set-up.
//!
//! **You want** to know before it happens. In memory, nothing can fail: there is no I/O, no lock
//! is held across a wait, and the memory is bounded. This page is about remote stores, queues, and the responses
//! that clients get.
//!
//! # The server is down, slow, or returns errors
//!
//! This is about Redis. The same holds [on PostgreSQL](super::postgres#when-it-fails), [on
//! DynamoDB](super::dynamodb#when-dynamodb-fails) and in stores of your own, with other timeouts: 100 ms on PostgreSQL.
//!
//! ```no_run
//! use tower_sluice_redis::{Redis, RedisStore};
//! use tower_sluice::{FailureMode, Policy, Quota, RateLimiter, TokenBucket};
//!
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let store = RedisStore::new(&redis, "logins");
//! let logins = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)), store);
//! // Fail closed: an outage must not help to guess passwords.
//! let policy = Policy::new("logins", logins).on_failure(FailureMode::Reject);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! | the policy's [`FailureMode`](crate::FailureMode) | a request that cannot be decided | together, *n* processes admit |
//! |---|---|---|
//! | `LocalFallback`, the default | is decided by this process with the same quota, in memory | during the outage, up to *n* times the quota, since each process grants it once. Over the outage and the recovery together, up to *n* + 1 times: after the recovery, Redis grants it once more |
//! | `Reject` | is answered 503 | nothing |
//! | `Allow` | passes, uncounted | everything |
//!
//! - **The fallback is warm.** It counts the requests that Redis admits through this process, for up to 65,536 keys. A
//!   client that was limited before the outage stays limited until the wait that it was told is over. From then on it
//!   gets the quota of each process that it reaches, as any client does: with *n* processes, up to *n* times.
//! - **Fallbacks do not report to Redis.** Redis never learns of the requests that they admitted, so after the recovery
//!   it grants its own quota: 2, 3 and 5 times the quota in all were measured for 1, 2 and 4 processes.
//! - **Requests in flight are reported.** During an outage, a [`SharedConcurrency`](crate::SharedConcurrency) admits
//!   its limit per process, including requests that the server had admitted before. After the recovery, its leases
//!   report the requests that are in flight by then.
//! - **A slow server counts as failed.** A decision takes at most [50 ms](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisBuilder.html#method.timeout),
//!   then the failure mode applies. After five failures in a row, or if half of at least twenty calls in ten seconds
//!   fail, the circuit breaker opens: the node gets no calls, and no request waits for it. A pause of the server of
//!   less than two timeouts does not open it. One call probes the node after 100 ms, and then less and less often,
//!   until a probe succeeds: down to every 5 s, or to every second if the node answers with an error (`LOADING`,
//!   `OOM`).
//! - **Nothing is charged twice.** A call that may have been executed is never repeated, and its charge stays.
//! - **A failure is never a 429.** The client did nothing wrong: it gets 503 and `Retry-After: 1`.
//! - **Without HTTP, it is the same**: where a layer answers 503, a [decision](crate::direct::Rejected) has the reason
//!   [`LimiterFailed`](crate::rejection::Reason::LimiterFailed), and the limiter's error as its source; likewise in a
//!   [`ThrottleLayer`].
//!
//! The log has one line when the limiter of a policy begins to fail and one when it recovers; and, for any store, one
//! with the reason when a circuit breaker opens and one when it closes. The gauge
//! [`store_breaker`](super::monitoring#metrics) shows which are open. The number of affected requests is
//! [`limiter_failures`](crate::RateLimitLayer::limiter_failures), and
//! [`PolicyVerdict::fell_back`](crate::rejection::PolicyVerdict::fell_back) identifies them.
//!
//! # A process dies
//!
//! The state in its memory is lost: its clients start without debts. On Redis, nothing is lost except, in a [shared
//! queue](super::machines#a-shared-queue), the departures of its waiters; these stay unused. Its units [in
//! flight](super::machines#what-is-in-flight-on-all-machines) are free when its lease ends.
//!
//! # The table is full
//!
//! It never grows. Beyond its capacity, a new key may find both of its sets full, and the key that owes least is
//! evicted: the keys that have drawn most stay limited. [The figures, and the other choices](crate::store::WhenFull).
//! For quotas with a burst of 1 that must hold (logins), choose one of those.
//!
//! # The clock jumps
//!
//! The default clock is anchored to the Unix epoch once and monotonic from there. Setting the wall clock grants no
//! units, and locks no client out. On Redis and PostgreSQL, the server's clock counts; a state from the future is
//! corrected.
//!
//! # A queue without its runtime
//!
//! Waiting needs a tokio runtime with a timer. Without one, the decision is an error: 503, or as the policy
//! says. If a runtime that drives a queue is shut down, another with waiters drives it.
//!
//! # The server shuts down
//!
//! A graceful shutdown waits for requests that wait in a queue. [`RateLimitLayer::close`](crate::RateLimitLayer::close)
//! rejects them at once with 503, and all later ones. The failure mode does not apply, since this is no failure.
//!
//! # The server is set up wrong
//!
//! If a request's key cannot be determined, the layer answers 500 and logs the cure: see
//! [misconfigured](super::misconfigured). With one bucket for all clients instead, the mistake would show only
//! under load.
//!
//! # What a client gets
//!
//! | | HTTP | gRPC | `Retry-After` |
//! |---|---|---|---|
//! | its limit is used up | 429 | `RESOURCE_EXHAUSTED` | exact, rounded up to the second |
//! | a limit that clients share is used up | 503 | `RESOURCE_EXHAUSTED` | the same |
//! | the request costs more than is ever admitted | 429 or 503 | `RESOURCE_EXHAUSTED` | none: do not retry |
//! | the request has no key, or has it twice | 400 | `INVALID_ARGUMENT` | none |
//! | the limiter failed, and the policy rejects | 503 | `UNAVAILABLE` | 1 |
//! | the server is set up wrong | 500 | `INTERNAL` | none |
//!
//! The HTTP status of a used-up limit can be [set for the policy](crate::Policy::status), and its gRPC status [for the
//! layer](crate::layer::RateLimitLayerBuilder::grpc_status).
//!
//! Next: [all defaults](super::defaults).
//!
//! [`ThrottleLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.ThrottleLayer.html
