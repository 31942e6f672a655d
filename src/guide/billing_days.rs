//! Give each customer a window of its own: billing day, zone, period.
//!
//! **You want** each customer's 10,000 requests a month to begin on the day on which the customer pays, at midnight by
//! the clocks of the customer's country; and others to have days or weeks. [`window_fn`](crate::Policy::window_fn)
//! returns a [`CalendarWindow`](crate::CalendarWindow) per key, with its limit.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::extract::Request;
//! use axum::middleware::{Next, from_fn};
//! use axum::response::Response;
//! use axum::{Router, routing::get};
//! use tower_sluice::key::User;
//! use tower_sluice::{CalendarWindow, Policy, RateLimitLayer};
//!
//! /// What the account says: an extension.
//! #[derive(Clone)]
//! struct Billing(CalendarWindow);
//!
//! /// Stands for your authentication, and your table of accounts.
//! async fn authenticate(mut request: Request, next: Next) -> Response {
//!     let (user, limit, day, zone) = ("ada", 10_000, 17, "Europe/Berlin");
//!     request.extensions_mut().insert(User::new(user));
//!     if let Ok(month) = CalendarWindow::monthly(limit).anchor(day).zone(zone) {
//!         request.extensions_mut().insert(Billing(month));
//!     }
//!     next.run(request).await
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A customer without a window has the policy's: a thousand from the first to the first, UTC.
//!     let month = Policy::new("month", CalendarWindow::monthly(1_000))
//!         .key(User::key())
//!         .window_fn(|request| request.extensions().get::<Billing>().map(|billing| billing.0.clone()));
//!     let app = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(RateLimitLayer::new(month))
//!         .layer(from_fn(authenticate)); // The last is the outermost.
//! #   if true { return a_month_begins_on_the_billing_day(app).await; }
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).await?;
//!     Ok(())
//! }
//! #
//! # async fn a_month_begins_on_the_billing_day(app: Router) -> Result<(), Box<dyn std::error::Error>> {
//! #     let request = http::Request::get("/").body(axum::body::Body::empty())?;
//! #     let response = tower::ServiceExt::oneshot(app, request).await?;
//! #     assert_eq!(response.headers()["ratelimit-policy"], r#""month";q=10000"#);
//! #     let left = response.headers()["ratelimit"].to_str()?.to_owned();
//! #     let seconds: u64 = left.strip_prefix(r#""month";r=9999;t="#).unwrap().parse()?;
//! #     // As long as the month from the 17th in Berlin still lasts; unless it ends at this moment.
//! #     let month = CalendarWindow::monthly(1).anchor(17).zone("Europe/Berlin")?;
//! #     let now = tower_sluice::time::Clock::now(&tower_sluice::time::Monotonic);
//! #     let ends = tower_sluice::algorithm::Algorithm::decide(&month, None, now, 0).0.reset_after().as_secs();
//! #     assert!(seconds.abs_diff(ends) < 3_600 || seconds < 3_600, "{seconds} and {ends}");
//! #     Ok(())
//! # }
//! ```
//!
//! Each response has the limit of its customer, and in `t` the seconds to the end of the customer's window:
//!
//! ```text
//! RateLimit-Policy: "month";q=10000
//! RateLimit: "month";r=9999;t=2419200
//! ```
//!
//! - It works on [Redis](super::machines) and in other stores in the same way, in one round trip with the other
//!   policies of the layer. The processes need the same table of accounts, and nothing else.
//! - The window is looked up once per request, and holds for its refund, its settlement and its fields.
//! - A window that is kept with the account, and cloned, is found in a process without a look at the calendar. One that
//!   is built for each request, as above, takes about a microsecond more; zone files are read once per zone, and looked
//!   at again after minutes.
//! - A window has its limit, so there is no [`quota_fn`](crate::Policy::quota_fn) beside it. With `quota_fn` alone, all
//!   customers have the policy's window, and their own limits in it.
//! - [`LimitsHandle::peek`](crate::LimitsHandle::peek) shows a key in the window of its last request. On Redis and in
//!   other stores on servers, it shows the units that are left, and the end of the policy's own window: a state does
//!   not name its calendar.
//! - A file cannot say which window a customer has, so there is nothing of this in TOML.
//!
//! # When a customer moves
//!
//! From the next request on, the units that were used in the present window count in the present window of the new
//! calendar:
//!
//! | on 20 March, with 7,000 used, a customer changes | 7,000 count until |
//! |---|---|
//! | from Berlin to New York | 1 April, midnight in New York, six hours later |
//! | the billing day from the 1st to the 25th | 25 March: the new billing month begins then |
//! | the billing day from the 25th to the 1st | 1 April |
//! | from months to days | midnight |
//! | from 10,000 to 50,000 | as before; 43,000 are left |
//!
//! A charge is refunded if the window in which it was made ends when the present one does, and otherwise stays.
//!
//! **Each change may bring the end of the present window nearer, and each end brings a fresh limit.** Between two ends,
//! nothing is gained by changing to and fro. But a customer who may set the zone at any time, and moves it westwards
//! from midnight to midnight, has a fresh day in each zone. So:
//!
//! - Take zone and billing day from the account, never from the request.
//! - Let a change of them take effect at the end of the customer's present window, or once a month.
//! - Have a pace beside it, as [plans](super::plans) do: a [bucket](crate::TokenBucket) bounds what may come in an
//!   hour, whatever the calendar says.
//!
//! A window that goes back and forth within the first 1,000 requests of a policy is
//! [logged](super::misconfigured#the-quota-of-a-key-goes-back-and-forth).
//!
//! Next: [requests in flight](super::in_flight).
