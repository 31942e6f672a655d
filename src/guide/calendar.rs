//! Sell a quota per month.
//!
//! **You want** a plan of 10,000 requests per month, counted from the first, from the customer's billing day, or from
//! midnight of every day, by the clocks of a country. A [`FixedWindow`](crate::FixedWindow) cannot do that:
//! its periods are counted from 1970, and drift through the months. A
//! [`CalendarWindow`](crate::CalendarWindow) (feature `calendar`) begins at midnight of the dates you name.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{CalendarWindow, Policy, Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let customer = || HeaderKey::from_static("x-api-key");
//!     // From the first to the first, by the clocks of Berlin.
//!     let plan = CalendarWindow::monthly(10_000).zone("Europe/Berlin")?;
//!     let layer = RateLimitLayer::new([
//!         Policy::new("plan", plan).key(customer()),
//!         // A quota per month does not protect the service: all of it may come in one second.
//!         Policy::new("pace", Quota::per_second(10).burst(20)).key(customer()),
//!     ]);
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! #   if true { return each_customer_has_a_month_and_a_pace(app).await; }
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).await?;
//!     Ok(())
//! }
//! #
//! # async fn each_customer_has_a_month_and_a_pace(app: Router) -> Result<(), Box<dyn std::error::Error>> {
//! #     use axum::{body::Body, http::Request};
//! #     let send = async |customer: &str| {
//! #         let request = Request::get("/").header("x-api-key", customer).body(Body::empty()).unwrap();
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
//! #         let field = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
//! #         (response.status().as_u16(), field("ratelimit-policy"), field("ratelimit"))
//! #     };
//! #     let (status, policies, left) = send("a").await;
//! #     assert!(status == 200 && policies.contains(r#""plan";q=10000"#) && left.contains(r#""plan";r=9999;t="#));
//! #     let mut sent = 1;
//! #     while send("a").await.0 != 429 {
//! #         sent += 1;
//! #         assert!(sent < 9_999, "the pace does not hold");
//! #     }
//! #     assert!(sent >= 20, "{sent}");
//! #     assert!(send("b").await.2.contains(r#""plan";r=9999;t="#), "another customer has another month");
//! #     Ok(())
//! # }
//! ```
//!
//! # Which window
//!
//! | you want | write |
//! |---|---|
//! | calendar months | `CalendarWindow::monthly(10_000)` |
//! | billing months from the 17th | `CalendarWindow::monthly(10_000).anchor(17)` |
//! | the last day of each month | `CalendarWindow::monthly(10_000).anchor(31)` |
//! | weeks from Monday, or from another day | `CalendarWindow::weekly(2_500)`, `.week_start(Weekday::Sunday)` |
//! | days of a country | `CalendarWindow::daily(500).zone("America/New_York")?` |
//! | days of UTC | `FixedWindow::new(Quota::per_day(500))`: the same windows, in a third of the memory, without the feature |
//!
//! Without a zone, windows begin at midnight UTC. A month with an anchor that it does not have begins on its last day.
//! Customers with different billing days, or in different countries, have [windows of their own](super::billing_days).
//!
//! # What clients see
//!
//! ```text
//! RateLimit-Policy: "plan";q=10000
//! RateLimit: "plan";r=9217;t=1036800
//! ```
//!
//! `t` is the time to the next window, in seconds, also over a change of clocks: a day may have 23 or 25 hours. `q` has
//! no `w` beside it, since no number of seconds is a month. With the fields of draft-07, `RateLimit-Policy` is left out
//! for such a policy, because its `w` is not optional there.
//!
//! `Retry-After` is the same time, up to 24.8 days: [many clients cannot wait longer](crate::headers::WaitFields).
//!
//! # A clock that is wrong
//!
//! Midnight is by the wall clock of the machine, also after a suspend, and after a correction. If it is set back, no
//! day begins a second time: a customer who has used up the day that it had reached waits for the end of that day. If
//! it was days ahead, the units that were used then count in the present window.
//!
//! # Several machines
//!
//! In memory, a restart forgets the used units, unless there is a [snapshot](super::restarts). A quota that is sold
//! belongs on Redis, where all processes share it and a server that [writes to disk](super::machines) keeps it. The
//! server's clock decides when a window begins; a process only sends the bounds of two windows with its call, which
//! stays one round trip. So a process with a wrong clock begins no window early. A quota beyond doubt, as for an
//! invoice, is counted by the system that bills.
//!
//! # By configuration
//!
//! ```toml
//! [[route.policy]]
//! name = "plan"
//! algorithm = "fixed-window"
//! limit = 10_000
//! per = "month"            # or day, week
//! zone = "Europe/Berlin"   # default: UTC
//! anchor = 17              # of a month; default: 1
//! # week-start = "sunday"  # of a week; default: monday
//! key = "header:x-api-key"
//! ```
//!
//! # Changes
//!
//! [Replacing](crate::LimitsHandle) the policy keeps the used units of the present window: it counts in the present
//! window of the new limit, period, zone or anchor. A customer who has used 7,000 of a month and moves to another
//! billing day has used 7,000 of the billing month that runs then. A count that comes into a shorter window ends with
//! it, and is gone after a change back.
//!
//! Rules of time zones change. They come from the system's database, or, if the system has no such database, as in slim
//! containers, from a copy that is compiled in. A process follows an update once it is restarted.
//!
//! Next: [a window per customer](super::billing_days).
