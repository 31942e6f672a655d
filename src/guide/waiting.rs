//! Queues: when to let requests wait, how many, and for how long.
//!
//! **You want** a burst to be spread out instead of refused. A [`LeakyQueue`] lets requests leave one by one at the
//! quota's rate, in the order in which they came, each key for itself. Whoever could not leave within its bounds is
//! refused on arrival, with the time after which a retry finds a place.
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{Ask, LeakyQueue, Policy, Quota, RateLimitLayer};
//!
//! // The printer takes ten pages per second; nobody waits for more than two seconds.
//! let queue = LeakyQueue::new(Quota::per_second(10))
//!     .capacity(20)
//!     .max_wait(Duration::from_secs(2));
//! let layer = RateLimitLayer::new(Policy::new("printer", queue));
//! ```
//!
//! # To wait or to be refused?
//!
//! | let it wait | refuse it |
//! |---|---|
//! | it will be served anyhow, and only comes too close together: jobs, webhooks, a client's own bursts | who asks would rather know at once: a person at a screen |
//! | someone downstream counts by the second: a partner's API, a printer, mail | the caller has another server to ask, or a cache |
//! | the wait is short against the caller's timeout | the caller's deadline is about as long as the wait |
//! | a refusal is dear: the upload would start again | waiting is dear: each holds a connection, memory, a transaction |
//!
//! A queue evens out bursts. It does not add capacity: when more comes than leaves for longer than the longest wait,
//! the line is full, everybody waits for the longest time, and as many are refused as without it. Keep lines short. A
//! full line of half a second is a buffer; one of a minute is an outage that answers 200.
//!
//! Both go together: a bucket per client first, which refuses whoever overdoes it, and a queue for all behind it. In
//! one layer, policies that delay are asked last, so that nobody waits only to be refused.
//!
//! # How many: Little's law
//!
//! **L = λ × W**: as many wait as leave per second (λ), times the seconds that each waits (W). For one line, λ is the
//! quota's rate. So choose the wait that clients bear, and take the capacity from it:
//!
//! | rate λ | longest wait W | [`capacity`](crate::LeakyQueue::capacity) L |
//! |---|---|---|
//! | 10 per second | 2 s | 20 |
//! | 10 per second | 5 s | 50 |
//! | 200 per second | 0.5 s | 100 |
//! | 6 per minute | 30 s | 3 |
//!
//! Or the other way: a capacity of 50 at 5 per second means that the last one waits for 10 s. Only one of the two
//! bounds, capacity and [`max_wait`](crate::LeakyQueue::max_wait), is ever met: a capacity beyond λ × W is never used.
//! Unless set, the capacity is the quota's limit (a period's worth), and the longest wait 30 seconds.
//!
//! ```
//! # use std::time::Duration;
//! # use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let queue = LeakyQueue::new(Quota::per_second(10))
//!     .capacity(50)
//!     .max_wait(Duration::from_secs(2));
//! let key = PartitionKey::from("printer");
//! let places: Vec<_> = (0..60).map(|_| queue.acquire(&key, 1)).collect();
//! // One left at once, and λ × W = 20 wait; of the capacity, 30 are never used.
//! assert_eq!(queue.waiting(), 20);
//! # drop(places);
//! # }
//! ```
//!
//! **Over all keys together**, λ is what all busy lines release, and W the mean wait. 300 busy clients at 10 per second
//! that wait for half a second are 300 × 10 × 0.5 = 1,500 requests, each with a connection, headers, and perhaps a body
//! in the buffers. [`max_waiters`](crate::LeakyQueue::max_waiters) bounds it: 65,536 unless set, which is much. Ask
//! what 65,536 open requests are to your server, and its limit of file descriptors.
//!
//! **Keys in which nobody waits** are remembered, too, until the last of their departures is an interval ago.
//! [`max_keys`](crate::LeakyQueue::max_keys) bounds them: 65,536 unless set, which is little for 1 per hour and many
//! clients. Beyond it, requests of new keys are rejected until there is room;
//! [`when_full`](crate::LeakyQueue::when_full) has the other choices, and what each admits. The metrics
//! `table_live_keys`, `table_capacity` and `table_turned_away_total` show it, and the first such request is logged.
//!
//! # What a proxy in front does to a queue
//!
//! | it | so that | do |
//! |---|---|---|
//! | gives up after its own timeout, often 60 s, and answers 504 | a request leaves the queue for nobody | keep `max_wait` well below every timeout in front of you |
//! | keeps its connection to you open when its client goes, or does not notice | ghosts keep their places until their turn, and are served to nobody | short lines; a proxy that closes or resets |
//! | reads the whole request before it passes it on | the wait begins after the upload; a slow client holds no place | nothing, that is good |
//! | keeps the number of its connections to you low | those who wait use them up, and requests that need not wait wait for a connection | more connections than `max_waiters`, or HTTP/2 |
//! | retries what took too long or was answered 503 | one client has two places, and gets in its own way | no retries at the proxy on limited routes, or [`status(429)`](crate::Policy::status) |
//! | checks your health on a limited route | it waits in line, is late, and takes you out | leave the check out with [`when`](crate::Policy::when) |
//!
//! **Without a proxy, clients leave unnoticed, too.** Over HTTP/1, a server that does not read does not see the
//! connection close: if the client has left with its body unread, or with one byte more than its request, its place
//! stays taken until its turn (measured with hyper 1). Over HTTP/2 a reset is noticed. That is why no bound of
//! a queue is infinite by default, and why the bounds, and not the hope that clients will go away, are what keeps a
//! queue short.
//!
//! Whoever *is* noticed to have left gives up its place at once, and all behind it move up. The queue charges nothing
//! for it.
//!
//! # Deadlines
//!
//! A gRPC request whose `grpc-timeout` ends before its turn is refused on arrival ([gRPC](super::grpc)). Other callers
//! of a limiter pass what they know to [`Ask::within`](crate::Ask::within).
//!
//! # A queue for what you send
//!
//! The same in front of a client: a partner allows five calls per second, so they leave every 200 ms.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_sluice::{LeakyQueue, Quota, ThrottleLayer};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_sluice::ThrottleError<std::io::Error>> {
//! let partner = service_fn(|order: u32| async move { Ok::<_, std::io::Error>(order) });
//! let pace = LeakyQueue::new(Quota::per_second(5)).capacity(25); // five seconds' worth
//! let mut partner = ServiceBuilder::new().layer(ThrottleLayer::new(pace)).service(partner);
//!
//! let answer = partner.ready().await?.call(7).await?;
//! # assert_eq!(answer, 7);
//! # Ok(())
//! # }
//! ```
//!
//! When you count for a partner, count less than it does: its clock begins when your call arrives, and calls that left
//! 200 ms apart may arrive closer. A quota of nine tenths is a common choice.
//!
//! More: [`LeakyQueue`], for its exact rules and costs; [several machines](super::machines#a-line-for-all), for one
//! that they share.
//!
//! [`LeakyQueue`]: crate::LeakyQueue
