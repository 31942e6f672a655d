//! Operating: trying limits out, monitoring them, reading the log, changing limits at run time (hot reload).
//!
//! **You want** to turn a limit on without rejecting requests by mistake, and to notice problems with it.
//!
//! # Try it out first
//!
//! A [shadow](crate::Policy::shadow) policy (a dry run) counts and never rejects. It is charged for the requests that
//! are served, and clients see nothing of it.
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new([
//!     Policy::new("per-client", Quota::per_second(50)).key(PeerIp::new()),
//!     Policy::new("stricter", Quota::per_second(10)).key(PeerIp::new()).shadow(),
//! ]);
//! // After a day:
//! let would_have_rejected = layer.shadow_rejected("stricter");
//! assert_eq!(would_have_rejected, Some(0));
//! ```
//!
//! 1. Add the limit as a shadow. Let a day pass, or a week: limits are often reached at month's end.
//! 2. Check how many requests it would have rejected, and [which](#which-requests).
//! 3. Remove `.shadow()`.
//!
//! # What to monitor
//!
//! | what | is | act when |
//! |---|---|---|
//! | [`RateLimitLayer::shadow_rejected`](crate::RateLimitLayer::shadow_rejected) | requests that a shadow would have rejected | more than you want to reject |
//! | [`RateLimitLayer::limiter_failures`](crate::RateLimitLayer::limiter_failures) | requests on which a limiter could not decide | it grows: the store fails, and the [failure mode](super::failure) applies |
//! | [`Stats::nodes`](crate::store::Stats::nodes) of a limiter, [`Redis::health`](crate::store::redis::Redis::health) | each node of a store: its circuit breaker, calls in flight, connected | a breaker is open, and requests arrive: [only they probe](#metrics) |
//! | [`evicted_live`](crate::RateLimiter::evicted_live) | keys that were evicted with debts, also by live changes of a full table | it grows: raise the capacity, or check for a flood of keys |
//! | [`turned_away`](crate::RateLimiter::turned_away) | requests of new keys that were rejected or had to share | the same |
//! | [`LeakyQueue::waiting`](crate::LeakyQueue::waiting) | waiters, over all keys | it stays near its bounds: lasting overload, see [waiting](super::queue) |
//!
//! Share limiters and queues by an `Arc` to read their figures while a policy uses them:
//!
//! ```
//! use std::sync::Arc;
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
//!
//! let clients = MemoryStore::with_capacity(1_000_000);
//! let clients = Arc::new(RateLimiter::new(TokenBucket::new(Quota::per_second(10)), clients));
//! let queue = Arc::new(LeakyQueue::new(Quota::per_second(100)));
//! let layer = RateLimitLayer::new([
//!     Policy::new("clients", clients.clone()),
//!     Policy::new("queue", queue.clone()),
//! ]);
//!
//! println!("{} evicted, {} waiting", clients.evicted_live(), queue.waiting());
//! ```
//!
//! # Which requests
//!
//! [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) puts the decisions of all policies into the extensions of
//! every response, also of admitted requests. An outer layer can log or count them, together with its own data on the
//! request:
//!
//! ```
//! use tower_sluice::Verdict;
//!
//! fn log<B>(path: &str, response: &http::Response<B>) {
//!     let Some(verdict) = response.extensions().get::<Verdict>() else { return };
//!     for policy in verdict.policies().iter().filter(|policy| !policy.decision().is_allowed()) {
//!         let what = if policy.is_shadow() { "would have rejected" } else { "rejected" };
//!         println!("{} {what} {path}", policy.name());
//!     }
//! }
//! # log("/", &http::Response::new(()));
//! ```
//!
//! Without an outer layer: log rejections where their response is made. A limiter of its own bounds the lines per client,
//! or rejected clients would fill the log:
//!
//! ```
//! use http::Response;
//! use tower_sluice::key::{ClientIp, PeerIp};
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::{PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
//!
//! let client = ClientIp::peer(); // behind a proxy, the key of your policy
//! let lines = RateLimiter::new(TokenBucket::new(Quota::per_minute(1)), MemoryStore::with_capacity(65_536));
//! let policy = Policy::new("per-client", Quota::per_second(10)).key(PeerIp::new());
//! let layer = RateLimitLayer::builder(policy).rejection_response(move |rejection, request| {
//!     if let Ok(network) = client.network(request) {
//!         let address = PartitionKey::from(network);
//!         if lines.check(&address).is_allowed() {
//!             let violated: Vec<_> = rejection.verdict().violated().map(|policy| policy.name()).collect();
//!             eprintln!("{network}: rejected by {violated:?}");
//!         }
//!     }
//!     Response::builder().status(rejection.status()).body(rejection.detail().into_owned()).unwrap()
//! }).build();
//! # let _: RateLimitLayer = layer;
//! ```
//!
//! Many clients still write many lines: bound all together by a second limiter with
//! [`PartitionKey::SHARED`](crate::PartitionKey::SHARED).
//!
//! # Metrics
//!
//! The feature `metrics` counts through the [`metrics`](https://docs.rs/metrics) facade. For Prometheus:
//!
//! ```toml
//! [dependencies]
//! tower-sluice = { version = "0.1", features = ["axum", "metrics"] }
//! metrics-exporter-prometheus = { version = "0.18", default-features = false }
//! ```
//!
//! Install a recorder before the first request, name the route of each layer, and update gauges before each scrape.
//! Without buckets, the exporter makes summaries of the two histograms, and the dashboard and the alerts find none:
//!
#![cfg_attr(feature = "metrics", doc = "```")]
#![cfg_attr(not(feature = "metrics"), doc = "```ignore")]
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let waits = Matcher::Suffix("time_in_queue".to_owned());
//! let calls = Matcher::Suffix("call.duration".to_owned());
//! let metrics = PrometheusBuilder::new()
//!     .with_recommended_naming(true)
//!     .set_buckets_for_metric(waits, &[0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])?
//!     .set_buckets_for_metric(calls, &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1])?
//!     .install_recorder()?;
//! let policy = Policy::new("clients", Quota::per_second(10));
//! let layer = RateLimitLayer::builder(policy).route("/api").build();
//!
//! // In the handler of /metrics (`Config::observe` does so for a whole file):
//! layer.observe();
//! let text = metrics.render();
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! | `tower_sluice_rate_limiting_…` | type | labels | meaning |
//! |---|---|---|---|
//! | `requests_total` | a counter | `route`, `policy`, `result` | `allowed`, `delayed`, `rejected`, `shadow-rejected`, `skipped`, `missing-key`, `limiter-failed`, `cancelled` |
//! | `limiter_failures_total` | a counter | `route`, `policy` | requests whose limiter failed, including those that the local fallback decided |
//! | `queued_requests` | a gauge | `route`, `policy` | waiters now |
//! | `request_time_in_queue_seconds` | a histogram | `route`, `policy`, `result` | how long they waited |
//! | `in_flight` | a gauge | `route`, `policy` | units of [`Concurrency`](crate::Concurrency) in flight, over all keys |
//! | `table_live_keys`, `table_capacity` | gauges | `route`, `policy` | how full the table is (an estimate, mostly to within 2 %) |
//! | `table_evicted_live_total`, `table_turned_away_total` | counters | `route`, `policy` | what a full table did |
//! | `ban_table_live_keys`, `ban_table_capacity`, `ban_table_evicted_live_total` | as above | `route`, `policy` | the same of the table of bans |
//! | `debt_table_live_keys`, `debt_table_capacity`, `debt_table_evicted_live_total` | as above | `route`, `policy` | the same of the table of what keys [owe](crate::Policy::owe_shortfalls) |
//! | `store_conversions_total` | a counter | `route`, `policy` | states on a server that were converted to another quota of their key: it grows for as long as two versions of your program [disagree on a quota](super::plans) |
//! | `store_lost_swaps_total` | a counter | `route`, `policy` | attempts to write a key on a server that were lost to another process: [many processes share a key](super::own_stores#a-hot-key) |
//! | `store_breaker` | a gauge | `route`, `policy`, `node` | the circuit breaker of each [node](crate::store::NodeHealth) of a store: 0 closed, 1 half-open (one probe), 2 open. Requests and `Redis::ping` probe: a process that does neither keeps reporting an open one |
//! | `store_call_duration_seconds` | a histogram | `result`: `ok`, or the reason | calls to Redis |
//!
//! A `node` is a server of Redis (`10.0.0.7:6379`), a table (`DynamoDB table limits`), or the store behind one
//! [`KeyValueBackend`](crate::store::remote::KeyValueBackend) (`key-value store of per-client`). A
//! [`Backend`](crate::store::remote::Backend::health) of your own names its nodes.
//!
//! `deploy/` in the repository has a dashboard for Grafana and alerts for Prometheus. A
//! [`ThrottleLayer`](crate::ThrottleLayer) has no names, and is not counted. Series of a store's results begin with
//! their first call, so `rate()` does not see the first failures of a kind: alert on `limiter_failures_total`, which
//! begins at zero.
//!
//! Do not label metrics with keys or paths that clients choose: a client that sends many fills up your metrics.
//!
//! # What is logged
//!
//! Through `tracing` (a default feature): [mistakes in the set-up](super::misconfigured), each once, and outages, one line as they begin and
//! one as they end. Never a key or a client's address, and no line per rejection: otherwise rejected clients could fill
//! your log. At `debug` (`RUST_LOG=tower_sluice=debug`), there is one event per decision, with a hash of the key that
//! stays the same until the process ends, and one per request that lacks the extension of an
//! [`ExtensionKey`](crate::key::ExtensionKey), with its type.
//!
//! Outages are warnings, as most mistakes are. `EnvFilter::from_default_env()` without `RUST_LOG` shows errors
//! only, and hides them; these two lines show them (`tracing-subscriber` with the feature `env-filter`):
//!
//! ```ignore
//! let levels = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
//! tracing_subscriber::fmt().with_env_filter(levels).init();
//! ```
//!
//! The line of a mistake has a link (`see`) to its section in [misconfigured](super::misconfigured): what it means, how it comes
//! about, and the cure.
//!
//! | it says | do |
//! |---|---|
//! | rate limiter misconfigured: requests have no key | follow its [advice](super::misconfigured#requests-have-no-key); requests are answered 500. With axum 0.8, serve by `into_make_service_with_connect_info` |
//! | rate limiter misconfigured: no request is exempt by its network | the same: the networks of [`exempt`](crate::Policy::exempt) are not known |
//! | the peer is a proxy, and every client behind it shares one budget | use [`ClientIp`](crate::key::ClientIp) instead of `PeerIp` |
//! | a forwarding header was not trusted and was ignored | if your proxy sent it, trust its network; otherwise nothing: it was forged |
//! | a trusted proxy sends another forwarding header than the configured one | name that one in [`IpSource`](crate::key::IpSource) |
//! | fewer elements than proxies | lower `hops`, or close the way past the proxies |
//! | a rate limit layer is mounted around itself | mount it once: it charges each request twice, and only the first 1,000 requests of a layer are checked |
//! | the first 1,000 requests all had the same key | check the key: it does not distinguish clients |
//! | none of the first 1,000 requests had a matched route | put the layer inside the router |
//! | none of the first requests had the extension | put the layer that inserts it outside, or key by the type that it [really inserts](super::misconfigured#no-request-had-its-extension) |
//! | the CORS layer is inside of the rate limit | put it outside, or pages of other origins cannot read rejections |
//! | a memory store is filling up and may lose keys | raise its [capacity](#how-much-memory) |
//! | policies replaced: this one could not inherit | nothing, if intended: its new limiter is of another kind |
//! | configuration changed: a policy was removed; configuration changed: fields of a policy were removed | nothing, if intended: a truncated file may still be valid |
//! | limiter failed; limiter recovered | see [failure](super::failure) |
//! | store: a node keeps failing; a node is back | the same |
//! | redis: topology changed | nothing: a failover, or slots have moved |
//! | redis: when its memory is full, the server may evict budgets | `maxmemory-policy noeviction` |
//! | a handler takes a Verdict that no layer adds | build the layer with [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) |
//! | the body of a custom rejection failed | check the body that [`rejection_response`](crate::layer::RateLimitLayerBuilder::rejection_response) returns |
//!
//! # When a customer calls
//!
//! ```
//! use tower_sluice::key::User;
//! use tower_sluice::{LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, SlidingWindow};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LimiterError> {
//!     let exports = Policy::new("exports", SlidingWindow::new(Quota::per_day(5))).key(User::key());
//!     let layer = RateLimitLayer::new(exports);
//!
//!     let alice = PartitionKey::from("alice");
//!     println!("{} left", layer.peek("exports", &alice).await?.remaining());
//!     layer.reset("exports", &alice).await?; // nothing is owed, and a ban is lifted
//!     Ok(())
//! }
//! ```
//!
//! The key must be the one that the policy makes of a request. Of any other, `peek` shows a full budget and `reset` resets
//! nothing; neither is an error.
//!
//! | the key of the policy | the key of a customer |
//! |---|---|
//! | [`User::key`](crate::key::User::key), a header, or a closure that returns a text | `PartitionKey::from("alice")` |
//! | a closure that returns a number | `PartitionKey::from(7_u64)`, of the same type |
//! | [`PeerIp`](crate::key::PeerIp), [`ClientIp`](crate::key::ClientIp) | `PartitionKey::from(IpNetwork::of(address, 64))`, with the prefix of the policy: an IPv6 address counts by its /64, so `PartitionKey::from(address)` is the key of nobody |
//! | a tuple | `PartitionKey::from_parts([first.as_bytes(), second.as_bytes()])`, with the keys of its parts in their order |
//! | none, or [`Share`](crate::MissingKey::Share) | [`PartitionKey::SHARED`](crate::PartitionKey::SHARED) |
//!
//! A handler for support staff. A customer failed to log in, and [both limits](super::login) may be in the way:
//!
//! ```
//! use std::net::IpAddr;
//!
//! use axum::extract::{Path, State};
//! use axum::http::StatusCode;
//! use axum::{Router, routing::post};
//! use tower_sluice::key::{ExtensionKey, IpNetwork, PeerIp};
//! use tower_sluice::{LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, SlidingWindow};
//!
//! /// The key of an address, as `PeerIp` and `ClientIp` make it unless another prefix is set.
//! fn key_of_address(address: IpAddr) -> PartitionKey {
//!     IpNetwork::of(address, 64).into()
//! }
//!
//! /// Only for staff: put it behind their login, or on a port that only they reach.
//! async fn reset(
//!     State(logins): State<RateLimitLayer>,
//!     Path((name, address)): Path<(String, IpAddr)>,
//! ) -> Result<String, StatusCode> {
//!     let (name, address) = (PartitionKey::from(name), key_of_address(address));
//!     let both = PartitionKey::from_parts([name.as_bytes(), address.as_bytes()]);
//!     let mut answer = String::new();
//!     for (policy, key) in [("account-here", both), ("address", address)] {
//!         let before = logins.peek(policy, &key).await.map_err(status_of)?.remaining();
//!         let after = logins.reset(policy, &key).await.map_err(status_of)?.remaining();
//!         answer += &format!("{policy}: {before} left before, {after} now\n");
//!     }
//!     Ok(answer)
//! }
//!
//! /// The message of an error does not repeat its source: what a server answered is in that.
//! fn status_of(error: LimiterError) -> StatusCode {
//!     eprintln!("{error}: {:?}", std::error::Error::source(&error));
//!     match () {
//!         () if error.is_unknown_policy() => StatusCode::NOT_FOUND,
//!         () if error.is_unsupported() => StatusCode::METHOD_NOT_ALLOWED, // a queue, say, cannot be reset
//!         () => StatusCode::BAD_GATEWAY,
//!     }
//! }
//!
//! #[derive(Clone)]
//! struct Login {
//!     name: String,
//! }
//!
//! let name = ExtensionKey::new(|login: &Login| login.name.clone());
//! let logins = RateLimitLayer::new([
//!     Policy::new("address", SlidingWindow::new(Quota::per_hour(20))).key(PeerIp::new()),
//!     Policy::new("account-here", SlidingWindow::new(Quota::per_hour(5))).key((name, PeerIp::new())),
//! ]);
//! // A clone of the layer shares its budgets.
//! let staff: Router = Router::new().route("/reset/{name}/{address}", post(reset)).with_state(logins.clone());
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn check(logins: RateLimitLayer, staff: Router) {
//! #     use tower::{Layer, ServiceExt, service_fn};
//! #     let login = |address: &str| {
//! #         let mut request = http::Request::new(());
//! #         request.extensions_mut().insert(Login { name: "ada".to_owned() });
//! #         request.extensions_mut().insert(std::net::SocketAddr::new(address.parse().unwrap(), 4711));
//! #         let ok = service_fn(|_| async { Ok::<_, std::convert::Infallible>(http::Response::new(String::new())) });
//! #         let response = logins.layer(ok).oneshot(request);
//! #         async { response.await.unwrap().status().as_u16() }
//! #     };
//! #     let reset = async |address: &str| {
//! #         let request = http::Request::post(format!("/reset/ada/{address}")).body(axum::body::Body::empty()).unwrap();
//! #         let response = staff.clone().oneshot(request).await.unwrap();
//! #         let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
//! #         String::from_utf8(body.to_vec()).unwrap()
//! #     };
//! #     for address in ["192.0.2.1", "2001:db8::1"] {
//! #         for _ in 0..5 {
//! #             assert_eq!(login(address).await, 200);
//! #         }
//! #         assert_eq!(login(address).await, 429);
//! #         let reported = "account-here: 0 left before, 5 now\naddress: 15 left before, 20 now\n";
//! #         // Of IPv6, any address of the customer's network.
//! #         assert_eq!(reset(&address.replace("::1", "::2")).await, reported);
//! #         assert_eq!(login(address).await, 200);
//! #     }
//! # }
//! # check(logins, staff);
//! ```
//!
//! # How much memory
//!
//! A table holds [65,536 keys](crate::store::MemoryStore) unless set otherwise, at 16 bytes each for buckets and
//! windows (52 or 68 for [large limits](crate::store::MemoryStore#memory)), and never grows.
//! Only keys that still owe something need a slot: new keys per second × the time until their spent units are earned
//! again. With ten per second, a request owes for 0.1 s, a burst of 20 for two seconds; so 65,536 keys are some 30,000
//! new clients per second that all spend their burst. With five per day, a request owes for 4.8 hours, and the table is
//! full at four new clients per second. Size those limits by clients per day.
//!
//! A [`LeakyQueue`](crate::LeakyQueue) remembers as many keys unless set otherwise
//! ([`max_keys`](crate::LeakyQueue::max_keys)), at up to 200 bytes each, and allocates them on demand. Beyond, it
//! rejects new keys, where a table evicts the key that owes least.
//!
//! # Change a limit
//!
//! Keep the [handle](crate::RateLimitLayer::handle) of the layer in the code that reads your configuration. Build the
//! new policies as at the start; each inherits the state of the policy with its name. A set that `try_new` would reject
//! changes nothing.
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::policy::PolicyError;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let clients = |quota| Policy::new("clients", quota).key(PeerIp::new());
//! let layer = RateLimitLayer::new(clients(Quota::per_second(10)));
//! let limits = layer.handle();
//!
//! // Later, from any thread:
//! limits.replace(clients(Quota::per_second(50)))?;
//! # Ok::<_, PolicyError>(())
//! ```
//!
//! | you change | then |
//! |---|---|
//! | limit, period or burst of a bucket | the debt of a key stays, in tokens, and is paid at the new rate |
//! | the limit of a window | the counts stay |
//! | the period of a window | the count of the present window counts in the present window of the new period. Back to a longer one, it is [gone](crate::LimitsHandle#the-period-of-a-window): from 1,000 per day to 10 per second and back, 1,000 more pass |
//! | rate, `max_queue` or `max_wait` of a queue | waiters keep their order; a waiter that would not be accepted now is rejected, with the exact time after which to retry |
//! | cost, condition, exemptions, key, shadow, status | applies to requests from now on |
//! | penalty | a ban ends at its original time, whatever the new length is; while there is no penalty, none is enforced, but for those that [a server keeps](crate::Penalty#on-several-machines) |
//! | the algorithm (bucket to window, say), or the store | all keys lose their state: [`Replaced::not_inherited`](crate::layer::Replaced::not_inherited) names the policy, and a warning is logged |
//! | the name | a new policy; all keys lose their state |
//!
//! On Redis, debts are kept [in time](crate::store::redis::RedisStore#another-quota), and waiters of a queue depart at the
//! times that they got. Try a stricter limit first as a shadow, and then enforce it under the same name: its counts are
//! kept.
//!
//! With a configuration file: [`Config::change`](crate::config::Config::change). The example server calls it whenever
//! its `--config` is edited. It logs that the limits were changed, or file, line and field of the mistake, which
//! changes nothing. Policies and fields that the new text lacks are logged by name, as warnings.
//!
//! # Shut down
//!
//! Close the queues, or a graceful shutdown waits for all waiters.
//! [`RateLimitLayer::close`](crate::RateLimitLayer::close), [`LimitsHandle::close`](crate::LimitsHandle::close) and
//! [`Config::close`](crate::config::Config::close) reject all waiters and all later requests with 503;
//! [`LeakyQueue::close`](crate::LeakyQueue::close) does so for one queue. A closed queue stays closed, and so do queues
//! that a later change adds. Call it when SIGTERM arrives, before the server waits for requests in flight:
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//! use tokio::signal::unix::{SignalKind, signal};
//! use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let layer = RateLimitLayer::new(Policy::new("queue", LeakyQueue::new(Quota::per_second(10))));
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer.clone());
//!
//!     let mut sigterm = signal(SignalKind::terminate())?;
//!     let stop = async move {
//!         sigterm.recv().await;
//!         layer.close();
//!     };
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).with_graceful_shutdown(stop).await
//! }
//! ```
//!
//! Bound the drain: a client that never ends its request would keep the server alive for ever. The example server exits
//! after ten seconds. It also drops connections whose request head takes longer than ten (`header_read_timeout` of
//! hyper, and a timeout of its own for the first head): `axum::serve` has neither.
