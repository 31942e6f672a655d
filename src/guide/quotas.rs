//! Quotas, bursts and costs.
//!
//! **You want** to write down how much is allowed. A [`Quota`](crate::Quota) has two numbers that are independent of
//! each other: the **rate**, which holds in the long run, and the **burst**, which may be taken at once.
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::Quota;
//!
//! const API: Quota = Quota::per_second(10).burst(20); // ten per second, twenty at once
//! const EXPORTS: Quota = Quota::per_day(5); // five at once, then one every 4.8 hours
//! const EVENLY: Quota = Quota::per_minute(60).burst(1); // one per second, never two together
//!
//! // From a file: nothing panics.
//! let quota = Quota::new(3, Duration::from_secs(5))?.try_burst(6)?;
//! assert_eq!((quota.limit(), quota.max_burst()), (3, 6));
//! # Ok::<_, tower_sluice::QuotaError>(())
//! ```
//!
//! The constructors are `const`: a zero in a constant does not compile.
//!
//! # The burst counts the first request
//!
//! `burst(1)` admits one, and the next after `period / limit`. Unless set, the burst of a bucket is its limit, and that
//! of a [`LeakyQueue`](crate::LeakyQueue) is 1. Windows have none: their whole limit may come at once, and they panic
//! if a quota asks for another.
//!
//! A client that was idle gets burst + rate × *t* in its first *t*. With `per_minute(60)`, that is 120 in the first
//! minute, and 60 in each that follows. If 60 in *any* minute is what you promised, use a
//! [`SlidingWindow`](crate::algorithm::SlidingWindow), or set a small burst.
//!
//! # Which burst?
//!
//! - At least what a well-behaved client does at once. A page that loads 15 images is 15 requests.
//! - For what is behind the limiter: the most that it can take at one instant, divided by how many clients may do so
//!   together.
//! - How long a client waits after a burst: to fill up from empty takes burst / rate. 20 at 10 per second are back
//!   after two seconds; 1,000 at one per minute after 17 hours.
//! - Not 1 without a reason. Two requests that left a second apart arrive 999 ms apart, and one of them is refused. A
//!   burst of 1 is also the hardest to hold [under a flood of keys](crate::store::WhenFull).
//!
//! # Rates are exact
//!
//! Three per second are three per second, and not one every 333 ms. There are no floating-point numbers and nothing is
//! rounded but the wait that is told, up. One per year is as exact as a million per second.
//!
//! # A request that costs more
//!
//! ```
//! use tower_sluice::algorithm::TokenBucket;
//! use tower_sluice::{Policy, Quota};
//!
//! let policy = Policy::new("points", TokenBucket::new(Quota::per_minute(600).burst(100)))
//!     .cost_fn(|request| match request.uri().path() {
//!         "/search" => 10,
//!         "/health" => 0, // passes, and counts for nothing
//!         _ => 1,
//!     });
//! ```
//!
//! - A fixed [cost](crate::Policy::cost) above the burst is refused when the layer is built. One that a
//!   [function](crate::Policy::cost_fn) returns is refused for good: without `Retry-After`, since no wait would help.
//! - In a queue, a request of cost 3 leaves when it is its turn, and the next leaves three intervals later.
//! - The cost is known before the body is read. What it turns out to be afterwards the handler
//!   [reports](crate::Policy::cost_after): the rest is charged then, or given back.
//!
//! # Only what turns out badly
//!
//! ```
//! use http::StatusCode;
//! use tower_sluice::algorithm::SlidingWindow;
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota};
//!
//! let failed_logins = Policy::new("failed-logins", SlidingWindow::new(Quota::per_hour(10)))
//!     .key(PeerIp::new())
//!     .charge_when(|response| response.status() == StatusCode::UNAUTHORIZED);
//! ```
//!
//! Each request is [charged when it comes, and given back](crate::Policy::charge_when) if the answer is another; so
//! nobody has more guesses under way than the limit of a window allows. Take a window for that: a bucket may give back
//! [too much](crate::Receipt) when answers come in another order than requests.
//!
//! # Who is charged when
//!
//! A request is charged when it is admitted, before the service is called, and stays charged if the client goes away:
//! opening and cancelling requests must not be free. A refusal costs nothing, so a client that hammers is readmitted as
//! soon as one that waits. If that is not what you want, add a [penalty](crate::Policy::penalty): a client that
//! keeps sending before the advertised wait is over is banned for a while. (For guesses at a password, see [keys](super::keys#guesses), too.)
//!
//! Next: [which algorithm](super::choosing), [for whom](super::keys).
