//! Failure: what happens when something breaks.
//!
//! **You want** to know, before the night on which it matters. In memory, nothing can fail: there is no I/O, no lock
//! that is held across a wait, and the memory is bounded. What follows is about stores elsewhere, queues, and what
//! clients are told.
//!
//! # Redis is down, or slow, or says no
//!
//! | the policy's [`FailureMode`](crate::FailureMode) | a request that cannot be decided | together, *n* processes admit |
//! |---|---|---|
//! | `LocalFallback`, the default | is decided by this process, by the same quota, in memory | up to *n* × the quota, and (*n* + 1) × over the outage and the recovery |
//! | `Deny` | is answered 503 | nothing |
//! | `Allow` | passes, uncounted | everything |
//!
//! ```no_run
//! # use tower_sluice::algorithm::TokenBucket;
//! # use tower_sluice::store::{Redis, RedisStore};
//! use tower_sluice::{FailureMode, Policy, Quota, RateLimiter};
//!
//! # let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let store = RedisStore::new(&redis, "logins");
//! let logins = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)), store);
//! // Rather nobody than a guesser.
//! let policy = Policy::new("logins", logins).on_failure(FailureMode::Deny);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! - **The guard is warm.** It counts along whatever Redis admits, for up to 65,536 keys. A client that was limited
//!   before the outage stays so.
//! - **The guard keeps its count to itself.** Redis never hears of what guards admitted, so after the recovery it grants
//!   its own quota: 2, 3 and 5 times the quota in all were measured for 1, 2 and 4 processes.
//! - **A slow server is a failed one.** A decision takes [50 ms](crate::store::redis::RedisBuilder::timeout) at the
//!   most, then the mode decides. After five failures in a row, or when half of at least twenty calls in ten seconds
//!   failed, the node is left alone and nobody waits for it. A pause of the server of less than two timeouts is not enough
//!   for that. One call tries again after 100 ms, and less and less often, up to every 5 s, until one succeeds.
//! - **Nothing is charged twice.** A call that may have been carried out is never repeated. What it charged stays
//!   charged.
//! - **A failure is never a 429.** The client did nothing wrong: it is told 503, and to come back after a second.
//!
//! That a limiter begins to fail, and that it works again, is one line each in the log. How many requests were
//! affected: [`limiter_failures`](crate::RateLimitLayer::limiter_failures). Which requests:
//! [`PolicyVerdict::fell_back`](crate::PolicyVerdict::fell_back).
//!
//! # A process dies
//!
//! What was in its memory is forgotten: its clients start without debts. On Redis, nothing is lost but, in a [shared
//! line](super::machines#a-line-for-all), the places of those who waited in it; they stay empty.
//!
//! # More clients than the table has room for
//!
//! It never grows. Beyond its capacity, a new key may find its places taken, and the one that owes least is forgotten:
//! whoever has drawn most stays limited. [What that means, in numbers, and the other choices](crate::store::WhenFull).
//! For quotas with a burst of 1 that must hold (logins), choose one of those.
//!
//! # The clock jumps
//!
//! The default clock is anchored to the Unix epoch once and monotonic from there. Setting the wall clock grants
//! nothing, and locks nobody out. On Redis, the server's clock counts; a state from the future is put right.
//!
//! # A queue without its runtime
//!
//! Waiting needs a tokio runtime with a timer. Where there is none, the answer is an error, so 503 or as the policy
//! says. If the runtime that kept the time is shut down, another's takes over.
//!
//! # The server shuts down
//!
//! A graceful shutdown waits for requests that are waiting in a queue. [`RateLimitLayer::close`](crate::RateLimitLayer::close)
//! rejects them at once, with 503, and all that come afterwards: whatever the policy does on failures, since it is none.
//!
//! # The server is set up wrong
//!
//! Where it cannot tell whom to count, it answers 500 and logs the cure: see
//! [operating](super::operating#what-is-logged). One bucket for everybody would work until the day on which it does
//! not.
//!
//! # What a client is told
//!
//! | | HTTP | gRPC | `Retry-After` |
//! |---|---|---|---|
//! | its limit is used up | 429 | `RESOURCE_EXHAUSTED` | exact, rounded up to the second |
//! | everybody's limit is used up | 503 | `RESOURCE_EXHAUSTED` | the same |
//! | it costs more than is ever admitted | 429 or 503 | `RESOURCE_EXHAUSTED` | none: do not retry |
//! | it lacks its key, or sent it twice | 400 | `INVALID_ARGUMENT` | none |
//! | the limiter failed, and the policy denies | 503 | `UNAVAILABLE` | 1 |
//! | the server is set up wrong | 500 | `INTERNAL` | none |
//!
//! The status of a used-up limit can be [set](crate::Policy::status), and that of gRPC for the
//! [layer](crate::RateLimitLayerBuilder::grpc_status).
