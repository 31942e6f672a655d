//! Choosing an algorithm.
//!
//! **You want** to limit something, and there are five ways to do it. In short:
//!
//! | you want | take |
//! |---|---|
//! | a steady rate, with room for bursts after silence; or you do not know yet | [`TokenBucket`] |
//! | the same, thinking in how full a bucket is | [`LeakyBucket`]: the same decisions |
//! | requests to wait and leave evenly spaced, in order | [`LeakyQueue`] |
//! | "*n* in any minute", about | [`SlidingWindow`] |
//! | "*n* per calendar hour", starting anew at the full hour | [`FixedWindow`] |
//!
//! The pictures below show the same traffic before all five. Each is set to ten per second: the buckets hold ten, the
//! windows last a second, and in the queue ten may wait. A block is a request. It stands above the line if it passes,
//! pale while it waits, and hangs below the line if it is refused. The dark line is what the algorithm remembers.
//!
//! # A burst after silence
//!
#![doc = include_str!("shapes/burst.svg")]
//!
//! - **The buckets** admit ten at once: that is the burst, which is set [apart from the rate](super::quotas). From then
//!   on they earn a token every 100 ms. A client that goes on at half the rate notices nothing, and has saved up a full
//!   burst two seconds later.
//! - **The fixed window** admits ten, refuses all until the second is over, and then forgets everything.
//! - **The sliding window** admits ten, and refuses until they weigh less: the last second's count fades out over the
//!   next.
//! - **The queue** lets one pass, ten wait, and refuses nine, for whom it has no place. They leave every 100 ms: what
//!   is behind the limiter never sees the burst.
//!
//! Token bucket and leaky bucket are the same machine, seen from both sides: tokens left, or how full it is. One line
//! is the other upside down.
//!
//! # Twice the limit
//!
#![doc = include_str!("shapes/overload.svg")]
//!
//! - **The buckets** spend what was saved up, and then admit every other request: evenly.
//! - **The fixed window** admits everything for half a second and nothing for the other half. What is behind it sees
//!   the full rate, in blocks; and all clients come back at the same instant, unless each key's windows are
//!   [staggered](crate::algorithm::FixedWindow::staggered), or waits are [lengthened at
//!   random](crate::RateLimitLayerBuilder::retry_jitter).
//! - **The sliding window** begins like it, and becomes even in the second period.
//! - **The queue** admits no more than the others. It only makes everybody wait for the longest time first: a queue
//!   evens out bursts, and does not help when too much comes for long. See [waiting](super::waiting).
//!
//! # Around the edge of a window
//!
#![doc = include_str!("shapes/edge.svg")]
//!
//! Ten come shortly before the full second, ten shortly after. **The fixed window admits all twenty**, twice the limit
//! within a quarter of a second. That is its price, and why it is for quotas that are counted by the calendar, not for
//! protecting something. The sliding window admits eleven.
//!
//! # Below the limit
//!
#![doc = include_str!("shapes/steady.svg")]
//!
//! There is nothing to choose: all pass, at once. A client that keeps to the rate meets none of this.
//!
//! # What each promises
//!
//! | | at most, in any time *t* | remembers of a key | in memory |
//! |---|---|---|---|
//! | [`TokenBucket`], [`LeakyBucket`] | burst + rate × *t* | one number | 17 bytes |
//! | [`SlidingWindow`] | limit + rate × *t*, and about the limit in a period ([how far off](crate::algorithm::SlidingWindow#accuracy)) | two counts | 50 bytes |
//! | [`FixedWindow`] | 2 × limit + rate × *t* | one count | 50 bytes |
//! | [`LeakyQueue`] | burst + rate × (*t* + 50 ms); its burst is 1 unless set | who waits | [some 110 bytes](crate::LeakyQueue#memory-and-cost) per waiter |
//!
//! All waits that are told are exact: whoever waits as long as it was told, alone on its key, is admitted.
//!
//! # Several at once
//!
//! "Twenty at once, ten per second, and no more than 5,000 a day" are two policies. A request passes if both admit it,
//! and then both are charged, otherwise none:
//!
//! ```
//! use tower_sluice::algorithm::{FixedWindow, TokenBucket};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let key = || HeaderKey::from_static("x-api-key");
//! let layer = RateLimitLayer::new([
//!     Policy::new("per-second", TokenBucket::new(Quota::per_second(10).burst(20))).key(key()),
//!     Policy::new("per-day", FixedWindow::new(Quota::per_day(5_000))).key(key()),
//! ]);
//! ```
//!
//! # None of these
//!
//! - So many **at the same time**, whatever the rate: that is tower's
//!   [`ConcurrencyLimit`](https://docs.rs/tower/latest/tower/limit/struct.ConcurrencyLimit.html). Put it inside of the
//!   rate limit.
//! - An algorithm of your own is [a pure function](crate::algorithm::Algorithm), and runs in memory like these.
//!
//! The pictures are drawn by `cargo run --example shapes`, which asks the algorithms themselves.
//!
//! [`TokenBucket`]: crate::algorithm::TokenBucket
//! [`LeakyBucket`]: crate::algorithm::LeakyBucket
//! [`SlidingWindow`]: crate::algorithm::SlidingWindow
//! [`FixedWindow`]: crate::algorithm::FixedWindow
//! [`LeakyQueue`]: crate::LeakyQueue
