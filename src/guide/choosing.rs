//! Choosing an algorithm.
//!
//! **You want** to limit something, and there are several ways to do it. Each is a limit of ten per second:
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Concurrency, FixedWindow, LeakyQueue, Policy, Quota, RateLimitLayer, SlidingWindow, TokenBucket};
//!
//! let ten = Quota::per_second(10);
//! let layer = RateLimitLayer::new(Policy::new("bucket", TokenBucket::new(ten)).key(PeerIp::new()));
//! let layer = RateLimitLayer::new(Policy::new("sliding", SlidingWindow::new(ten)).key(PeerIp::new()));
//! let layer = RateLimitLayer::new(Policy::new("fixed", FixedWindow::new(ten)).key(PeerIp::new()));
//! let layer = RateLimitLayer::new(Policy::new("queue", LeakyQueue::new(ten)).key(PeerIp::new()));
//! // No rate: ten at the same time.
//! let layer = RateLimitLayer::new(Policy::new("in-flight", Concurrency::new(10)).key(PeerIp::new()));
//! ```
//!
//! In short:
//!
//! | you want | take |
//! |---|---|
//! | a steady rate, with bursts after idle times; or you do not know yet | [`TokenBucket`] |
//! | the same, in terms of how full a bucket is | [`LeakyBucket`]: the same decisions |
//! | requests to wait and depart evenly spaced, in order | [`LeakyQueue`] |
//! | requests to wait longer the more a client sends | [`SlowDown`](super::slow_down) |
//! | about *n* in any minute | [`SlidingWindow`] |
//! | *n* per calendar hour, counted from the full hour | [`FixedWindow`] |
//! | *n* per day, week or month of a time zone | [`CalendarWindow`](super::calendar): a fixed window of the calendar |
//! | *n* of a client at the same time | [`Concurrency`](super::in_flight) |
//! | units that a client has bought, until they are used | [`Balance`](super::top_ups) |
//! | a server that stays fast, however many clients there are | [`Overload`](super::overload): it needs no number |
//!
//! The pictures below show the same traffic with all five. Each is set to ten per second: the buckets hold ten, the
//! windows last a second, and in the queue ten may wait. A block is a request. It stands above the line if it passes,
//! pale while it waits, and hangs below the line if it is rejected. The dark line is the algorithm's state.
//!
//! # A burst after silence
//!
#![doc = include_str!("shapes/burst.svg")]
//!
//! - **The buckets** admit ten at once: that is the burst, which is set [separately from the rate](super::quotas). From
//!   then on they earn a token every 100 ms. A client that continues at half the rate is never rejected, and has saved
//!   up a full burst two seconds later.
//! - **The fixed window** admits ten, rejects all until the second is over, and then forgets everything.
//! - **The sliding window** admits ten, and rejects until they weigh less: the weight of the last second's count
//!   decreases over the next.
//! - **The queue** lets one pass and ten wait, and rejects nine, since it is full. Requests depart every 100 ms: the
//!   service behind it never sees the burst.
//!
//! Token bucket and leaky bucket are one machine, described by the tokens left or by how full it is. One line
//! is the other upside down.
//!
//! # Twice the limit
//!
#![doc = include_str!("shapes/overload.svg")]
//!
//! - **The buckets** spend the saved tokens, and then admit every other request: evenly.
//! - **The fixed window** admits everything for half a second and nothing for the other half. The service behind it
//!   gets the full rate, in blocks; and all clients come back at the same instant, unless each key's windows are
//!   [staggered](crate::FixedWindow::staggered), or [jitter](crate::layer::RateLimitLayerBuilder::retry_jitter) is
//!   added to the waits.
//! - **The sliding window** begins like it, and becomes even in the second period.
//! - **The queue** does not admit more than the others, and makes every request wait for the longest time: a queue
//!   evens out bursts, and does not help against lasting overload. See [waiting](super::queue), and
//!   [overload](super::overload).
//!
//! # Around the edge of a window
//!
#![doc = include_str!("shapes/edge.svg")]
//!
//! Ten requests come shortly before the full second, ten shortly after. **The fixed window admits all twenty**, twice
//! the limit within a quarter of a second. That is its price: use it for quotas that are counted by the calendar, and
//! not to protect a service. The sliding window admits eleven.
//!
//! # Below the limit
//!
#![doc = include_str!("shapes/steady.svg")]
//!
//! All algorithms admit all requests at once. A client that keeps to the rate is never rejected.
//!
//! # Guarantees
//!
//! | | at most, in any time *t* | state of a key | in memory |
//! |---|---|---|---|
//! | [`TokenBucket`], [`LeakyBucket`] | burst + rate × *t* | one number | 16 bytes, or 52 for [large limits](crate::store::MemoryStore#memory) |
//! | [`SlidingWindow`] | limit + rate × *t*, and about the limit in a period ([how far off](crate::SlidingWindow#accuracy)) | two counts | 16 bytes, or 68 for [large limits](crate::store::MemoryStore#memory) |
//! | [`FixedWindow`] | 2 × limit + rate × *t* | one count | 16 bytes, or 52 for [large limits](crate::store::MemoryStore#memory) |
//! | [`CalendarWindow`](super::calendar) | 2 × limit around an edge | one count | 52 bytes |
//! | [`LeakyQueue`] | burst, or the greatest cost, + rate × (*t* + 50 ms); its burst is 1 unless set | the waiters | [some 110 bytes](crate::LeakyQueue#memory-and-cost) per waiter |
//! | [`SlowDown`](super::slow_down) | burst + rate × (*t* + the longest delay) | one number, and the waiters | the same |
//!
//! All advertised waits are exact: a client that waits that long, alone on its key, is admitted.
//!
//! # Several at once
//!
//! "Twenty at once, ten per second, and at most 5,000 a day" are two policies. A request passes if both admit it. Then
//! both are charged. Otherwise, nothing is charged:
//!
//! ```
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{FixedWindow, Policy, Quota, RateLimitLayer};
//!
//! let key = || HeaderKey::from_static("x-api-key");
//! let layer = RateLimitLayer::new([
//!     Policy::new("per-second", Quota::per_second(10).burst(20)).key(key()),
//!     Policy::new("per-day", FixedWindow::new(Quota::per_day(5_000))).key(key()),
//! ]);
//! ```
//!
//! # Others
//!
//! - A limit on requests **at the same time**, at any rate, is [`Concurrency`](super::in_flight).
//! - An algorithm of your own is [a pure function](crate::algorithm::Algorithm), and runs in memory like these.
//!
//! The pictures are drawn by `cargo run -p tower-sluice-shapes`, from the decisions of the algorithms themselves.
//!
//! Next: [quotas, bursts and costs](super::quotas).
//!
//! [`TokenBucket`]: crate::TokenBucket
//! [`LeakyBucket`]: crate::LeakyBucket
//! [`SlidingWindow`]: crate::SlidingWindow
//! [`FixedWindow`]: crate::FixedWindow
//! [`LeakyQueue`]: crate::LeakyQueue
