//! Top-ups and debits: units that customers buy beyond their quota, and charges by hand.
//!
//! **You want** each customer to have an included quota, and to use bought units once that is used up. A payment adds
//! units, which expire after a year; it must count once, however often the payment service reports it. And work that is
//! no request, such as a batch job, is charged by hand.
//!
//! Bought units are in a [`Balance`], a limiter of its own: a key has what was [credited](crate::LimitsHandle::credit)
//! to it, and no time restores anything. Put it behind the included quota as the second member of an alternative,
//! `included.or_else(bought)`: a request is charged to the first member that has room. Here, the endpoint that the
//! payment service calls:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::time::Duration;
//! use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
//! use tower_sluice::key::User;
//! use tower_sluice::limiter::Credit;
//! use tower_sluice::{Balance, LimitsHandle, Policy, RateLimitLayer};
//!
//! #[derive(serde::Deserialize)]
//! struct Payment {
//!     id: String,
//!     customer: String,
//!     units: u64,
//! }
//!
//! /// If this fails, the payment service calls again: the reference says that it is the same payment.
//! async fn paid(State(limits): State<LimitsHandle>, Json(payment): Json<Payment>) -> StatusCode {
//!     let year = Duration::from_secs(365 * 86_400);
//!     let credit = Credit::units(payment.units).expires_in(year).reference(payment.id);
//!     match limits.credit("bought", &payment.customer, credit).await {
//!         Ok(_) => StatusCode::OK,
//!         Err(error) => {
//!             // With `#`, also the cause: that the server cannot be reached, for instance.
//!             eprintln!("a payment is not entered yet: {error:#}");
//!             StatusCode::SERVICE_UNAVAILABLE
//!         }
//!     }
//! }
//!
//! fn bought() -> Policy {
//!     // On several machines, and to outlive a restart: `SharedBalance::new(postgres.records(), "bought")`, or
//!     // `SharedBalance::new(redis.clone(), "bought")`.
//!     Policy::new("bought", Balance::new()).key(User::key())
//! }
//!
//! /// For the payment service, and for nobody else.
//! fn payments(limits: LimitsHandle) -> Router {
//!     Router::new().route("/paid", post(paid)).with_state(limits)
//! }
//! #
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #     use tower::ServiceExt;
//! #     let layer = RateLimitLayer::new(bought());
//! #     let payments = payments(layer.handle());
//! #     for _ in 0..2 {
//! #         let request = axum::http::Request::post("/paid").header("content-type", "application/json");
//! #         let body = r#"{"id": "invoice-17", "customer": "alice", "units": 500}"#;
//! #         let response = payments.clone().oneshot(request.body(axum::body::Body::from(body))?).await?;
//! #         assert_eq!(response.status(), 200);
//! #     }
//! #     assert_eq!(layer.handle().peek("bought", "alice").await?.decision().remaining(), 500);
//! #     // Bought units are used once the included ones are used up: one per day, here.
//! #     let included = Policy::new("included", tower_sluice::Quota::per_day(1)).key(User::key());
//! #     let layer = RateLimitLayer::new(included.or_else(bought()));
//! #     let limits = layer.handle();
//! #     let _ = limits.credit("bought", "alice", Credit::units(2)).await?;
//! #     let app = Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(layer);
//! #     for (status, bought) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
//! #         let request = axum::http::Request::get("/").extension(User::new("alice"));
//! #         let response = app.clone().oneshot(request.body(axum::body::Body::empty())?).await?;
//! #         let left = limits.peek("bought", "alice").await?.decision().remaining();
//! #         assert_eq!((response.status().as_u16(), left), (status, bought));
//! #     }
//! #     Ok(())
//! # }
//! ```
//!
//! In a [configuration file](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/): `algorithm = "balance"`, without a limit and a period. Operators credit
//! and charge by `POST /api/credit` and `POST /api/charge` of the [admin service](https://docs.rs/tower-sluice-admin/latest/tower_sluice_admin/#calls).
//!
//! # Lots
//!
//! Each credit is a lot with an expiry, or without one. The lot that expires first is used first. Let many small
//! credits expire at the end of a month ([`expires_at`](crate::limiter::Credit::expires_at)): then they are one lot. A
//! key has at most 64 lots.
//!
//! A request that costs less in the end ([real costs](super::real_costs)), or that another policy rejects, gives its
//! units back to the lots that have paid them. Units that are given back never live longer than before.
//!
//! # A debit by hand
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_sluice::key::User;
//! use tower_sluice::limiter::Debit;
//! use tower_sluice::{FixedWindow, Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new(Policy::new("included", FixedWindow::new(Quota::per_day(1_000))).key(User::key()));
//! let limits = layer.handle();
//! let job = Debit::units(1_200).reference("job-4711");
//! # let again = job.clone();
//! assert_eq!(limits.charge("included", "alice", job).await?.decision().remaining(), 0);
//! # // It is entered once, however often it is reported, and another customer's units stay.
//! # assert!(limits.charge("included", "alice", again).await?.is_repeated());
//! # assert_eq!(limits.peek("included", "bob").await?.decision().remaining(), 1_000);
//! # Ok(())
//! # }
//! ```
//!
//! It goes beyond the limit. What is not left is owed, and the next requests are rejected until it is paid:
//!
//! | the limiter | a debt by hand is paid by |
//! |---|---|
//! | a bucket or a window, in memory or on a server | time, at the rate of the quota, as with [`owe_shortfalls`](crate::Policy::owe_shortfalls) |
//! | a `Balance` | the next credits |
//! | a queue, a limit of requests in flight | an error: it cannot be charged by hand |
//!
//! With [`owe_shortfalls`](crate::Policy::owe_shortfalls), a balance owes what a request costs beyond its charge, too.
//!
//! A [reset](crate::LimitsHandle::reset) forgives the debt, and leaves bought units as they are. If the policy has a
//! [`quota_fn`](crate::Policy::quota_fn), name the key by a request, which says what its quota is.
//!
//! # What is exact, and what survives
//!
//! No unit is used twice, and a reference is entered once: for the key and for seven days, or as long as its units can
//! be used.
//!
//! | | balances | references | after a restart |
//! |---|---|---|---|
//! | `Balance` | exact between threads | in this process | gone; in no [snapshot](super::restarts) |
//! | [`SharedBalance`](crate::SharedBalance) | exact between processes | on the server | there, as far as the server keeps its data |
//! | a charge by hand, in memory | exact between threads | in this process | the debt is in a snapshot, the reference is not |
//! | a charge by hand, on Redis or [PostgreSQL](super::postgres) | exact between processes | on the server | there, as far as the server keeps its data. After a crash, PostgreSQL has emptied its table of states, which is unlogged by default; the reference is still known |
//! | a charge by hand, on [a store of your own](super::own_stores#charges-by-hand) | exact between processes | on the server, if it [enters both in one step](crate::store::remote::ChargeByHand); otherwise in this process | the debt is there |
//!
//! **Bought units are money: keep them on a server**, and keep the payments themselves in your database. What the
//! server loses is lost:
//!
//! | on | so that nothing is lost |
//! |---|---|
//! | PostgreSQL, in the [records](https://docs.rs/tower-sluice-postgres/latest/tower_sluice_postgres/struct.PostgresRecords.html) beside its table | nothing to do: that table is logged. Leave `synchronous_commit` on for the role |
//! | Redis | `maxmemory-policy noeviction` and `appendfsync always` |
//! | [DynamoDB](super::dynamodb), in [records](https://docs.rs/tower-sluice-dynamodb/latest/tower_sluice_dynamodb/struct.DynamoRecords.html) in its table | nothing to do: a write is acknowledged when two of three zones have it |
//! | [a store of your own](super::own_stores), by [`KeyValueRecords`](crate::store::remote::KeyValueRecords) | what it needs |
//!
//! While the server is out of reach, nobody knows what is left: requests that need bought units are answered 503,
//! whatever local fallback other policies have, unless the policy is [`FailureMode::Allow`](crate::FailureMode).
//!
//! A credit or a charge that fails may have been entered nevertheless. Repeat it with its reference: it is entered
//! once, also if a process was killed in the middle of it. A test explores all orders of the calls of two processes
//! that enter one reference, each killed after any call, or without an answer to any; others kill processes that enter
//! payments, and charges by hand, on PostgreSQL.
//!
//! # Costs
//!
//! | | `Balance` | `SharedBalance` on Redis | on PostgreSQL, or on other records |
//! |---|---|---|---|
//! | a decision | a lock, of 64 | one round trip | two: it reads, and swaps |
//! | a rejection | a lock, of 64 | one round trip | one |
//! | a credit, or a charge by hand | two locks | one round trip | two; five with a reference |
//! | a charge by hand to a bucket or a window | as two decisions | two round trips; two more each time that another process is faster | the same |
//! | memory per key with one lot | some 220 bytes | 120 bytes, as `MEMORY USAGE` counts them | 36 bytes, and the name |
//! | each further lot | 16 bytes | 15 bytes | 16 bytes |
//! | a reference | some 200 bytes | 140 bytes | the name |
//!
//! A rejected request takes a round trip, too: where clients may send many, put a bucket per client before it. On
//! records, a key changes once in two round trips at most. Requests of one process for one key take turns.
//!
//! Next: the [list of all pages](super).
//!
//! [`Balance`]: crate::Balance
