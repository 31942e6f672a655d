//! Sharing: the budgets, bans and queues that threads, processes and machines have in common, per store.
//!
//! **You want** to know whose requests draw on one budget. In memory, a limiter is one budget per key. Clones of a
//! layer share it, and so do policies around one `Arc`. Two layers that are built alike do not:
//!
//! ```
//! use std::sync::Arc;
//!
//! use tower_sluice::{LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LimiterError> {
//!     let limiter = Arc::new(RateLimiter::in_memory(TokenBucket::new(Quota::per_minute(10))));
//!     let api = RateLimitLayer::new(Policy::new("api", limiter.clone()));
//!     let clone = api.clone();
//!     let jobs = RateLimitLayer::new(Policy::new("jobs", limiter.clone()));
//!     let alone = RateLimitLayer::new(Policy::new("api", Quota::per_minute(10)));
//!
//!     let everybody = PartitionKey::SHARED;
//!     assert!(limiter.check(&everybody).is_allowed()); // takes one of ten units
//!     assert_eq!(api.handle().peek("api", &everybody).await?.decision().remaining(), 9);
//!     assert_eq!(clone.handle().peek("api", &everybody).await?.decision().remaining(), 9);
//!     assert_eq!(jobs.handle().peek("jobs", &everybody).await?.decision().remaining(), 9);
//!     assert_eq!(alone.handle().peek("api", &everybody).await?.decision().remaining(), 10);
//!     Ok(())
//! }
//! ```
//!
//! # Who shares a budget
//!
//! | | in memory | [on Redis](super::machines) | [on PostgreSQL](super::postgres) | [on DynamoDB](super::dynamodb) |
//! |---|---|---|---|---|
//! | threads and connections of a process | one budget | one budget | one budget | one budget |
//! | processes on one machine | a budget each | one budget | one budget | one budget |
//! | machines | a budget each | one budget | one budget | one budget |
//! | regions | a budget each | one budget, at the round trip between them | the same | a budget each: one table per region |
//! | a process after a restart | a new budget, or [the budget as it was](super::restarts) | the budget as it was | the budget as it was | the budget as it was |
//! | the same, after the server has restarted | | lost, unless Redis writes to disk | the budget as it was; after a crash, lost unless the table is [logged](super::postgres#what-a-crash-loses) | the budget as it was |
//!
//! So in memory, *n* processes admit up to *n* times the limit. Workers that a program forks count as processes.
//!
//! # What is shared
//!
//! "Shared" is: by all processes that use the same server and names. "Each" is: every process has its own.
//!
//! | | in memory | on Redis | on PostgreSQL | on DynamoDB |
//! |---|---|---|---|---|
//! | used units of a key | each | shared | shared | shared |
//! | [bans](crate::Penalty#on-several-machines) and [debts](crate::Policy::owe_shortfalls) | each | shared | shared | shared |
//! | [bans](crate::LimitsHandle::ban) and [allowances](crate::LimitsHandle::allow) by hand | each | shared | shared | shared |
//! | early retries, which are counted for a ban | each | each | each | each |
//! | the number of bans, if they [grow](crate::Penalty::growing) | each | shared | shared | each |
//! | units [in flight](super::in_flight) | each: [`Concurrency`](crate::Concurrency) | shared: [`SharedConcurrency`](crate::SharedConcurrency) | shared: `SharedConcurrency` | shared: `SharedConcurrency` |
//! | their waiters ([`max_queue`](crate::SharedConcurrency::max_queue)) | each | each | each | each |
//! | [bought units](super::top_ups) | each: [`Balance`](crate::Balance) | shared: [`SharedBalance`](crate::SharedBalance) | shared: `SharedBalance` | shared: `SharedBalance` |
//! | references of credits and charges by hand to them | each | shared | shared | shared |
//! | references of [charges](crate::LimitsHandle::charge) by hand to buckets and windows | each | shared | shared | each |
//! | [queues](super::queue) | each: [`LeakyQueue`](crate::LeakyQueue) | the departure times are shared: [`SharedQueue`](crate::SharedQueue). A waiter is in the process that has the request | as on Redis: `SharedQueue` on [its records](super::postgres) | as on Redis: `SharedQueue` on [its records](super::dynamodb#beyond-limits-over-time) |
//! | levels and waiters of a [`SlowDown`](super::slow_down) | each | each: there is none | each | each |
//! | bans and allowances of queues, limits in flight and balances; debts of queues | each | each | each | each |
//! | [events](crate::layer::RateLimitLayerBuilder::on_transition): the first rejection of a key | each | each | each | each |
//! | the report that a key [has used 80 %](super::warnings) | each | once, by the process whose charge crosses | once, by the process whose charge crosses | once, by the process whose charge crosses |
//! | [free retries](crate::ChargeOnce) | each | shared | shared | shared |
//! | counts of a [shadow](super::shadow), [metrics](super::monitoring) | each: add them up | each | each | each |
//! | the list of [who is rejected most](super::monitoring#who-is-limited) | each | shared: as of a second ago | shared: as of a second ago | shared: as of a second ago |
//! | [changes at run time](super::hot_reload) | each: change every process | each | each | each |
//! | the budget of [exempt preflights](crate::layer::RateLimitLayerBuilder::exempt_preflights) | each | each | each | each |
//!
//! [Another remote store](super::own_stores) is like DynamoDB, if it has
//! [records](crate::store::remote::RemoteStore::records). Without them, each process has its own free retries, reported
//! shares and list of who is rejected, and a store that [keeps no
//! standing](crate::store::remote::Backend::keeps_standing) leaves bans and debts to each process. One that [enters
//! charges by hand in one step](crate::store::remote::Parts::by_hand) shares their references.
//!
//! # Why some rows are "each" on a server
//!
//! | each process has its own | because |
//! |---|---|
//! | early retries | a process rejects them without a call; to count them on a server would take one for each |
//! | number of bans on DynamoDB | a count must outlive the items of its key, which expire with what they limit |
//! | references of charges by hand to buckets and windows on DynamoDB | a reference must be written in one step with the charge, which is in another item: a transaction would cost twice as much |
//! | waiters | a request waits in the process that has its connection |
//! | levels of a `SlowDown` | a delay that follows from other processes' requests would take a call for each request |
//! | bans and allowances of queues, limits in flight and balances; debts of queues | a ban is kept with the state of a bucket or a window; combine such a limit with one |
//! | events, metrics, counts of a shadow | your collector adds them up |
//! | changes at run time | a process must be able to keep its limits while others try new ones |
//! | the budget of exempt preflights | a preflight is to cost no call |
//!
//! # How exact a shared limit is
//!
//! Used units are exact: each decision is one atomic step on the server, by its clock. On DynamoDB, the clocks of the
//! machines count, which must be [synchronised](super::dynamodb). Four things are kept in each process, for speed or
//! until the server is back:
//!
//! | each process has | so |
//! |---|---|
//! | the waits of keys that are used up, are banned or owe units (negative cache) | a refund, a reset, an allowance or the end of a ban by another process shows after half a second and one call, and after a minute at most while calls fail |
//! | [leased](crate::store::remote::RemoteStore::leasing) units | they are spent in that process, or come back when the lease ends. A ban by another process shows then |
//! | the count of early retries | a client that spreads its early retries over *n* processes makes up to *n* times as many before it is banned. Once one process bans it, all reject it; a [`reset`](crate::LimitsHandle::reset) in one lifts the ban in all |
//! | the [local fallback](super::failure) | during an outage, *n* processes admit up to *n* times the quota. Each knows the bans that it has made or seen, also one that was lifted elsewhere, and keeps the debts that it makes. Retries are charged |
//!
//! [`reset`](crate::LimitsHandle::reset) reaches shared state only. For rows with "each", call it in every process.
//!
//! Next: [let requests wait](super::queue).
