//! One limit for several machines, on DynamoDB.
//!
//! **You want** one limit for all your functions and containers in a region of AWS, without running a Redis. Keep the
//! budgets in a DynamoDB table:
//!
//! ```ignore
//! use tower_sluice::{Policy, Quota, RateLimiter, RateLimitLayer, TokenBucket, key::PeerIp};
//! use tower_sluice_dynamodb::{Dynamo, DynamoStore};
//!
//! fn limits(client: aws_sdk_dynamodb::Client) -> RateLimitLayer {
//!     let store = DynamoStore::new(&Dynamo::new(client, "limits"), "per-client");
//!     let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10)), store);
//!     RateLimitLayer::new(Policy::new("per-client", limiter).key(PeerIp::new()))
//! }
//! ```
//!
//! The crate [`tower-sluice-dynamodb`](https://docs.rs/tower-sluice-dynamodb) (folder `crates/dynamodb` of the
//! repository) is a crate of its own, because the SDK needs a newer Rust than this one.
//!
//! The figures of this page that are about AWS itself (prices, capacities, deadlines) are from its documentation and
//! from others' measurements. This project runs an emulator and a proof: **it has not been run against AWS.**
//!
//! # The table
//!
//! Its key is the string `k`, without a sort key. Items expire by `x`. `Dynamo::create_table` does this, or:
//!
//! ```sh
//! aws dynamodb create-table --table-name limits --billing-mode PAY_PER_REQUEST \
//!   --attribute-definitions AttributeName=k,AttributeType=S --key-schema AttributeName=k,KeyType=HASH
//! aws dynamodb wait table-exists --table-name limits
//! aws dynamodb update-time-to-live --table-name limits \
//!   --time-to-live-specification Enabled=true,AttributeName=x
//! ```
//!
//! One table serves all limiters: each has a name, which the keys of its items begin with. Clients are stored as
//! hashes. An item takes about 100 bytes, and at most 450. Deletions by expiry are free, and may take days, for which
//! the decisions do not wait. No global table: regions would each admit the limit, and overwrite each other's items. No
//! cache (DAX) in front: it passes writes on, and its reads are stale.
//!
//! # The quotas
//!
//! All quotas fit. DynamoDB keeps 38 digits of a number, so limits, bursts and costs of up to
//! [`Quota::MAX_UNITS`](crate::Quota::MAX_UNITS) are exact, and limits of bytes
//! ([`settle_by_content_bytes`](crate::Policy::settle_by_content_bytes)) are counted in bytes. In
//! `crates/dynamodb/src/tests/wide.rs`, two processes send ten terabytes of a month at the same time, and both know
//! the rest to the byte.
//!
//! # The permissions
//!
//! ```json
//! {
//!   "Effect": "Allow",
//!   "Action": ["dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:DeleteItem"],
//!   "Resource": "arn:aws:dynamodb:eu-central-1:123456789012:table/limits"
//! }
//! ```
//!
//! `DeleteItem` is for [resets](crate::limiter::Mode::Reset), and for bans and allowances by hand. To create the table
//! takes `CreateTable`, `DescribeTable`, `DescribeTimeToLive` and `UpdateTimeToLive`.
//!
//! # What it costs
//!
//! A write of an item takes one write unit, also if its condition does not hold, and a read one read unit.
//!
//! | a decision by | write units | on demand, per million (at $0.625 per million writes) |
//! |---|---|---|
//! | a bucket, one process | 1.00 | $0.63 |
//! | a bucket, many processes, at any load below the limit | at most 1.5 | at most $0.94 |
//! | a window | 1.00 | $0.63 |
//! | a sliding window, the first of a key in a window, in each process | 1.00, and a read unit | $0.75 |
//! | any, with leases of 50, of a key in demand | 0.02 to 0.03 | $0.02 |
//! | a rejection that this process foresees | 0 | nothing |
//! | a rejection that it verifies, once per half a second and key | 0, and a read unit | $0.13 |
//! | a rejection that the process did not predict | at most 1 | at most $0.63 |
//!
//! A bucket needs to know whether the key owes anything, and a condition cannot compute that. So there are two writes,
//! one for each case. Exactly one applies, and each process predicts which. It is wrong at most every second time, and
//! most often at half of the limit, where a key of many processes is as often in debt as not. Counted in
//! `crates/dynamodb/src/tests/writes.rs`, with random arrivals at 5, 50, 80 and 95 % of the limit: 1.00 with one
//! process; 1.00, 1.30, 1.22 and 1.07 with four; 1.00, 1.43, 1.35 and 1.20 with 32. Several policies take a write each,
//! and one more for each that is rolled back.
//!
//! **A busy key** is limited by its partition, which takes 1,000 writes per second. Beyond that DynamoDB throttles,
//! which is a failure here: the fallback decides. Lease units, and the 1,000 become 50,000. A table on demand that has
//! never been busy takes 4,000 writes per second at first, and doubles within minutes; warm it up, or provision
//! capacity, before a launch.
//!
//! # Beyond limits over time
//!
//! Requests in flight, queues and bought units are records in the same table: `Dynamo::records` has them for
//! [`SharedConcurrency`](crate::SharedConcurrency), [`SharedQueue`](crate::SharedQueue) and
//! [`SharedBalance`](crate::SharedBalance).
//!
//! ```ignore
//! use tower_sluice::key::User;
//! use tower_sluice::{Policy, RateLimitLayer, SharedBalance, SharedConcurrency};
//! use tower_sluice_dynamodb::Dynamo;
//!
//! fn limits(dynamo: &Dynamo) -> RateLimitLayer {
//!     let in_flight = SharedConcurrency::new(dynamo.records(), "in-flight", 8);
//!     let bought = SharedBalance::new(dynamo.records(), "bought");
//!     let in_flight = Policy::new("in-flight", in_flight).key(User::key());
//!     RateLimitLayer::new(in_flight.and(Policy::new("bought", bought).key(User::key())))
//! }
//! ```
//!
//! A change of a record is a read and a conditional write, of a write unit per KB:
//!
//! | | read units | write units | per million |
//! |---|---|---|---|
//! | a request in flight: it comes, and is over | 2 | 2 | $1.50 |
//! | one that does not fit beside those of other processes | 1 | 0 | $0.13 |
//! | a lease that is renewed, per key with requests in flight, each half of the lease | 1 | 1 | $0.75 |
//! | a request that departs from a queue, at once or later | 1 | 1 | $0.75 |
//! | one that finds the queue full, unless this process knows it | 1 | 0 | $0.13 |
//! | a request that bought units pay | 1 | 1 | $0.75 |
//! | one for which too few are left | 1 | 0 | $0.13 |
//! | a payment, with its reference | 2 | 3 | $2.13 |
//!
//! Counted in `crates/dynamodb/src/tests/records.rs`. If another process changes the record in between, it is read and
//! written again. Requests of one process for one key take turns, so a key changes at most once in the time of two
//! calls: 100 times per second with calls of 5 ms. For more, take Redis.
//!
//! [Free retries](crate::ChargeOnce), [reported shares](super::warnings) and the list of [who is rejected
//! most](super::monitoring#who-is-limited) are records, too, and cost nothing where they are off. A request with an
//! idempotency key takes [calls](crate::ChargeOnce#cost) of its own. The list of a process that rejects requests is
//! written once a second at most: a read unit, and a write unit per KB.
//!
//! # The clocks
//!
//! Decisions are made by the wall clocks of the machines. Use the [time
//! service](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html) of EC2, as Amazon Linux and Lambda do by
//! default. With clocks within ε, in any interval of length *t* a bucket admits up to burst + rate × (*t* + ε), once
//! and not per request: at 100 per second and ε = 5 ms, half a request. A sliding window likewise. A fixed window
//! begins and ends ε earlier or later on some machines.
//!
//! A clock that is off by more than a second is found out by the `Date` of DynamoDB's answers. The first call of a
//! process is a read, so a machine that starts with a wrong clock writes nothing. A machine whose clock becomes wrong
//! makes one more round of writes. The others ignore items that are a minute or more in the future.
//!
//! # When DynamoDB fails
//!
//! | what happens | what you see | held by (`crates/dynamodb/src/tests`) |
//! |---|---|---|
//! | refused connections, black holes, slow answers | an error within the timeout; after five, at once (circuit breaker) | `faults.rs` |
//! | throttling: of the table, of a partition, of the account | the same, as [`Throttled`](https://docs.rs/tower-sluice-dynamodb/latest/tower_sluice_dynamodb/enum.FaultKind.html); never a rejection | `faults.rs` |
//! | internal errors, expired credentials, missing permissions, no table | the same, each with its kind | `faults.rs`, `tables.rs` |
//! | the answer is lost | an error; the charge stays, and is not repeated: the SDK's retries are off | `faults.rs` |
//! | it comes and goes | no more than the limit | `faults.rs` |
//! | more calls in flight than `max_in_flight` | an error after half of the timeout | `faults.rs` |
//! | an item of another program under our key | an error for that key; the item stays | `faults.rs` |
//! | clocks that differ, are wrong, become wrong | as above | `clocks.rs` |
//! | a live change of the quota, also during an outage; a rollout with two quotas | the key keeps what it has used | `quotas.rs`, `faults.rs` |
//! | the runtime ends while calls are in flight | nothing hangs; other runtimes are not affected | `faults.rs` |
//! | a write that arrives a minute late | it forgives nothing | `clocks.rs` |
//! | items that have expired and are still there | they count for nothing | `items.rs` |
//!
//! The [failure mode](super::failure) of the policy decides whether the request passes. These faults of Redis have no
//! counterpart: scripts that are missing or block the server, redirects, slots and nodes of a cluster, replicas that
//! are behind (reads are consistent), a failover that loses charges (a write is acknowledged when two of three zones
//! have it), memory that is full, eviction, and reconnecting, which is the SDK's.
//!
//! # Alarms
//!
//! | metric of CloudWatch | alarm |
//! |---|---|
//! | `ThrottledRequests`, by table | above 0 for five minutes: raise the capacity, lease more, or split the key |
//! | `SystemErrors` | above 0 for five minutes: AWS's health page |
//! | `SuccessfulRequestLatency` of `UpdateItem`, p99 | above half of the timeout |
//! | `ConditionalCheckFailedRequests` | more than half of `ConsumedWriteCapacityUnits`: many keys get requests that no process predicted, or a clock is wrong |
//! | `ConsumedWriteCapacityUnits` | above what you budgeted for |
//!
//! And in the service: the [failures](super::monitoring#metrics) that its fallbacks decide (`limiter_failures_total`),
//! and the gauge [`store_breaker`](super::monitoring#metrics), whose `node` is `DynamoDB table limits`: above 0 while
//! DynamoDB is not called. `Dynamo::health` has the same, and the calls in flight.
//!
//! # By configuration
//!
//! With the package `tower-sluice-config`, and the feature `file` of `tower-sluice-dynamodb`, a file names the table:
//!
//! ```toml
//! [store.dynamodb]
//! table = "limits"
//! ```
//!
//! The program has the client:
//! [`Config::reader().store("dynamodb", tower_sluice_dynamodb::file::opener(client))`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.ConfigReader.html#method.store).
//!
//! `sluice` with its feature `dynamodb` reads such files, too.
//!
//! Next: [a store of your own](super::own_stores).
