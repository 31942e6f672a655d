//! Warnings: write to a customer at 80 % of her limit, before the first rejection.
//!
//! **You want** each customer to hear of it when most of her budget is used.
//! [`on_crossing`](crate::Policy::on_crossing) calls a function once per key and window:
//!
//! ```
//! use tower_sluice::key::User;
//! use tower_sluice::{FixedWindow, MissingKey, Policy, Quota};
//!
//! async fn send_mail(customer: String, text: String) {
//!     // The client of your mail server.
//! #   MAILS.lock().unwrap().push((customer, text));
//! }
//! # static MAILS: std::sync::Mutex<Vec<(String, String)>> = std::sync::Mutex::new(Vec::new());
//!
//! let daily = Policy::new("daily", FixedWindow::new(Quota::per_day(10_000)))
//!     .key(User::key())
//!     .on_missing_key(MissingKey::Skip)
//!     .on_crossing(0.8, |crossing| {
//!         let customer = crossing.key_text();
//!         let hours = crossing.reset_after().as_secs().div_ceil(3_600);
//!         let text = format!(
//!             "You have used {} of {} requests. You get new ones in {hours} h.",
//!             crossing.used(),
//!             crossing.limit()
//!         );
//!         // The function is called while the request waits, so the mail is sent by another task.
//!         tokio::spawn(send_mail(customer, text));
//!     });
//! # let layer = tower_sluice::RateLimitLayer::new(daily);
//! # let limits = layer.handle();
//! # let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! #     let send = async |user: &'static str| {
//! #         let request = http::Request::get("/").extension(User::new(user)).body(axum::body::Body::empty()).unwrap();
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
//! #         tokio::task::yield_now().await;
//! #         response.status().as_u16()
//! #     };
//! #     // Of 10,000 requests, alice has sent 7,998, and sends three more: the second one is the 8,000th.
//! #     let _ = limits.charge("daily", "alice", 7_998).await.unwrap();
//! #     let _ = limits.charge("daily", "bob", 7_998).await.unwrap();
//! #     for _ in 0..3 {
//! #         assert_eq!(send("alice").await, 200);
//! #     }
//! #     let mails = MAILS.lock().unwrap();
//! #     // Unless the day has ended meanwhile.
//! #     if limits.peek("daily", "alice").await.unwrap().decision().remaining() == 1_999 {
//! #         let [(customer, text)] = &mails[..] else { panic!("{mails:?}") };
//! #         assert!(customer == "alice" && text.starts_with("You have used 8000 of 10000 requests."), "{text}");
//! #     }
//! # });
//! ```
//!
//! Call it once for each share: `.on_crossing(0.8, …).on_crossing(1.0, …)`. At 1.0, the last unit is used: the next
//! request is rejected. In a [configuration file](super::configuration), `warn-at = [0.8, 1.0]` logs and counts; the
//! layer's [`on_transition`](crate::layer::RateLimitLayerBuilder::on_transition) gets these crossings as
//! [`Transition::Crossed`](crate::policy::Transition::Crossed), ten per second at most.
//!
//! # When it is called
//!
//! - Use is the limit minus the remaining units. It counts when a request is charged, whatever its response.
//! - Of a [window](crate::FixedWindow), a share is reported once until the window is over. A [month](super::calendar)
//!   is one window.
//! - A [bucket](crate::TokenBucket) fills up all the time. Its use is counted from the *burst*: with 10 per second
//!   and a burst of 20, 80 % are 16 units at once. It is reported once in the time in which the bucket fills up. To
//!   warn of budgets that are sold by day or month, take a window.
//! - On Redis, on PostgreSQL and in a store [with records](super::own_stores), one of all processes reports. In others
//!   each process reports its own crossings: of a limit [in memory](super::sharing), that is the crossing of its own
//!   budget.
//! - A [shadow](super::shadow) reports, too: see [`Crossing::is_shadow`](crate::policy::Crossing::is_shadow).
//!
//! It may be missed, or come twice, in rare cases, which [`on_crossing`](crate::Policy::on_crossing) lists. So do not
//! bill by it.
//!
//! # In a response
//!
//! The fields of `draft-ietf-httpapi-ratelimit-headers-11` have no warning, so none is sent. A client that wants one
//! compares `r` in `RateLimit` with `q` in `RateLimit-Policy`. A handler sees in its
//! [`Verdict`](crate::Verdict) whether its own request has crossed a share, and can add a field of its own:
//!
//! ```
//! use http::HeaderValue;
//! use tower_sluice::Verdict;
//!
//! fn warn<B>(verdict: &Verdict, response: &mut http::Response<B>) {
//!     if verdict.policies().iter().any(|policy| policy.crossed().is_some()) {
//!         response.headers_mut().insert("x-quota-warning", HeaderValue::from_static("most of your quota is used"));
//!     }
//! }
//! # warn(&Verdict::default(), &mut http::Response::new(()));
//! ```
//!
//! # How many
//!
//! The [metric](super::monitoring) `crossings_total` counts reports by policy and share: customers who often use up
//! their plans may want a greater one.
//!
//! Next: [answer a customer who calls](super::support).
