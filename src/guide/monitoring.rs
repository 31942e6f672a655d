//! Monitoring: metrics, figures to watch, and log lines.
//!
//! **You want** to notice problems with your limits before your customers do. The feature `metrics` counts through the
//! [`metrics`](https://docs.rs/metrics) facade. For Prometheus, add `metrics-exporter-prometheus = { version = "0.18",
//! default-features = false }`. Install a recorder before the first request, and name the route of each layer:
//!
#![cfg_attr(feature = "metrics", doc = "```")]
#![cfg_attr(not(feature = "metrics"), doc = "```ignore")]
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let waits = Matcher::Suffix("time_in_queue".to_owned());
//! let lines = Matcher::Suffix("time_in_line".to_owned());
//! let calls = Matcher::Suffix("call.duration".to_owned());
//! let metrics = PrometheusBuilder::new()
//!     .with_recommended_naming(true)
//!     .set_buckets_for_metric(waits, &[0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])?
//!     .set_buckets_for_metric(lines, &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0])?
//!     .set_buckets_for_metric(calls, &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1])?
//!     .install_recorder()?;
//! let policy = Policy::new("clients", Quota::per_second(10));
//! let layer = RateLimitLayer::builder(policy).route("/api").build();
//!
//! // In the handler of /metrics (`Config::observe` does so for a whole file):
//! layer.observe(); // updates the gauges
//! let text = metrics.render();
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Without buckets, the exporter makes summaries of the histograms, and the dashboard and the alerts do not find
//! them.
//!
//! # Metrics
//!
//! | `tower_sluice_rate_limiting_…` | type | labels | meaning |
//! |---|---|---|---|
//! | `requests_total` | a counter | `route`, `policy`, `result` | `allowed`, `delayed`, `rejected`, `shadow-rejected`, `passed-over`, `skipped`, `missing-key`, `limiter-failed`, `cancelled` |
//! | `crossings_total` | a counter | `route`, `policy`, `warn_at` | times that a key has passed a [share](super::warnings) of its limit |
//! | `limiter_failures_total` | a counter | `route`, `policy` | requests whose limiter failed, including those that the local fallback decided |
//! | `queued_requests` | a gauge | `route`, `policy` | waiters now |
//! | `request_time_in_queue_seconds` | a histogram | `route`, `policy`, `result` | how long they waited |
//! | `banned_by_hand`, `allowed_by_hand` | gauges | `route`, `policy` | keys that an operator has [banned or allowed](super::support), as far as this process keeps or has seen them |
//! | `in_flight` | a gauge | `route`, `policy` | units of [`Concurrency`](crate::Concurrency) or [`Overload`](crate::Overload) in flight, over all keys |
//! | `overload_limit` | a gauge | `route`, `policy` | the limit of units in flight that an [`Overload`](crate::Overload) has found |
//! | `overload_overloaded` | a gauge | `route`, `policy` | 1 while requests wait for too long, and 0 otherwise |
//! | `overload_worker_lag_seconds` | a gauge | `route`, `policy` | how long tasks wait for a worker of the runtime, measured while requests come |
//! | `overload_waiting` | a gauge | `route`, `policy`, `priority` | waiters now, by [class](crate::limiter::Priority) |
//! | `overload_shed_total` | a counter | `route`, `policy`, `priority`, `share` | requests that it has rejected: of keys `within` their share of the queue, or `over` it |
//! | `table_live_keys`, `table_capacity` | gauges | `route`, `policy` | how full the table is (an estimate, mostly to within 2 %) |
//! | `table_evicted_live_total`, `table_turned_away_total` | counters | `route`, `policy` | what a full table did |
//! | `ban_table_live_keys`, `ban_table_capacity`, `ban_table_evicted_live_total` | as above | `route`, `policy` | the same of the table of bans |
//! | `debt_table_live_keys`, `debt_table_capacity`, `debt_table_evicted_live_total` | as above | `route`, `policy` | the same of the table of what keys [owe](crate::Policy::owe_shortfalls) |
//! | `outgoing_calls_total` | a counter | `pacer`, `result` | calls through a [`PacerLayer`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html) with a [name](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.name): `accepted`, `rejected` (by the partner), `failed`, `throttled`, `wait-too-long`, `line-full`, `cancelled`. A call that is sent again counts once per attempt |
//! | `waiting_calls` | a gauge | `pacer` | calls that wait in line now |
//! | `outgoing_call_time_in_line_seconds` | a histogram | `pacer` | how long calls waited before they were sent |
//! | `throttled_partners` | a gauge | `pacer` | partners that keep [failing](super::partners#when-a-partner-fails), as of the last call to each |
//! | `store_conversions_total` | a counter | `route`, `policy` | states on a server that were converted to another quota of their key: it grows for as long as two versions of your program [disagree on a quota](super::plans) |
//! | `store_lost_swaps_total` | a counter | `route`, `policy` | attempts to write a key on a server that were lost to another process: [many processes share a key](super::own_stores#a-hot-key) |
//! | `store_breaker` | a gauge | `route`, `policy`, `node` | the circuit breaker of each [node](crate::store::NodeHealth) of a store: 0 closed, 1 half-open (one probe), 2 open. Requests and `Redis::ping` probe: a process that does neither keeps reporting an open one |
//! | `store_call_duration_seconds` | a histogram | `result`: `ok`, or the reason | calls to Redis |
//!
//! A `node` is a server of Redis (`10.0.0.7:6379`), a table (`PostgreSQL table sluice_state`, `DynamoDB table limits`),
//! or the store behind one [`KeyValueBackend`](crate::store::remote::KeyValueBackend) (`key-value store of
//! per-client`). A [`Backend`](crate::store::remote::Backend::health) of your own names its nodes.
//!
//! `deploy/` in the repository has a dashboard for Grafana and alerts for Prometheus. The policies of a
//! [`ThrottleLayer`] are counted as those of other layers. Calls through a `PacerLayer` are counted with the feature
//! `metrics` of `tower-sluice-client`. Series of a store's results begin with their first call, so `rate()` does not
//! see the first failures of a kind: alert on `limiter_failures_total`, which begins at zero.
//!
//! A policy has some 14 series, which begin with its first request. Those of the first 256 policies of a process begin
//! at zero with the first observation. With more policies, `rate()` does not see the first request of the others.
//!
//! Do not label metrics with keys or paths that clients choose: a client that sends many fills up your metrics.
//!
//! # Figures to watch
//!
//! | what | is | act when |
//! |---|---|---|
//! | [`RateLimitLayer::shadow_rejected`](crate::RateLimitLayer::shadow_rejected) | requests that a shadow would have rejected | more than you want to reject |
//! | [`RateLimitLayer::limiter_failures`](crate::RateLimitLayer::limiter_failures) | requests on which a limiter could not decide | it grows: the store fails, and the [failure mode](super::failure) applies |
//! | [`Stats::nodes`](crate::store::Stats::nodes) of a limiter, [`Redis::health`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.Redis.html#method.health) | each node of a store: its circuit breaker, calls in flight, connected | a breaker is open, and requests arrive: [only they probe](#metrics) |
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
//! # Who is limited
//!
//! Metrics have no keys. To see which clients a policy rejects most, let it
//! [track](crate::Policy::track_offenders) them, and choose how their keys may be shown:
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::policy::ShowKey;
//! use tower_sluice::{LimiterError, LimitsHandle, Policy, Quota, RateLimitLayer};
//!
//! fn layer() -> RateLimitLayer {
//!     RateLimitLayer::new(
//!         Policy::new("per-client", Quota::per_second(10)).key(PeerIp::new()).track_offenders(ShowKey::hash()),
//!     )
//! }
//!
//! async fn print_offenders(limits: &LimitsHandle) -> Result<(), LimiterError> {
//!     let offenders = limits.offenders("per-client", 20).await?;
//!     for offender in offenders.list() {
//!         let ban = offender.banned_for().map_or(String::new(), |left| format!(", banned for {left:.0?}"));
//!         println!("{}: {} to {} rejections{ban}", offender.key(), offender.at_least(), offender.count());
//!     }
//!     println!("{} in all, by {} processes", offenders.total(), offenders.processes());
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LimiterError> {
//! #     let layer = layer();
//! #     let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer.clone());
//! #     let send = async |address: u8| {
//! #         let peer = std::net::SocketAddr::from(([192, 0, 2, address], 4711));
//! #         let request = http::Request::get("/").extension(peer).body(axum::body::Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     assert_eq!(send(2).await, 200);
//! #     let mut sent = 0;
//! #     while send(1).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "it is never rejected");
//! #     }
//! #     let offenders = layer.handle().offenders("per-client", 20).await?;
//! #     assert_eq!((offenders.list().len(), offenders.total()), (1, 1));
//! #     print_offenders(&layer.handle()).await
//! # }
//! ```
//!
//! The list has the rejections of the present hour and the one before, in UTC. Counts have a stated error of less than
//! 1 % of all rejections: a sketch of fixed size keeps them, and only rejections touch it. [`ShowKey::hash`] shows a
//! pseudonym: support finds a client that it knows, by `printf %s ADDRESS | sha256sum`. With a limiter on Redis or
//! PostgreSQL, any process lists the rejections of all.
//!
//! [`ShowKey::hash`]: crate::policy::ShowKey::hash
//!
//! # Events
//!
//! [`on_transition`](crate::layer::RateLimitLayerBuilder::on_transition) calls a function of yours when a key begins to
//! be limited, is banned, or is let in again, and when a limiter fails or works again: to write to a customer before
//! she calls, for example. So is a [crossing](super::warnings). Admitted requests look for no other events, and clients
//! cause at most ten per second and policy.
//!
//! # What is logged
//!
//! Through `tracing` (a default feature): [mistakes in the set-up](super::misconfigured), each once, outages, one
//! line as they begin and one as they end, and bans. Never a key or a client's address, and no line per rejection:
//! otherwise rejected clients could fill your log. At `debug` (`RUST_LOG=tower_sluice=debug`), there is one event per
//! decision, with a hash of the key that stays the same until the process ends, and one per request that lacks the
//! extension of an [`ExtensionKey`](crate::key::ExtensionKey), with its type.
//!
//! Outages are warnings, as most mistakes are. `EnvFilter::from_default_env()` without `RUST_LOG` shows errors
//! only, and hides them; these two lines show them (`tracing-subscriber` with the feature `env-filter`):
//!
//! ```ignore
//! let levels = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
//! tracing_subscriber::fmt().with_env_filter(levels).init();
//! ```
//!
//! The line of a mistake has a link (`see`) to its section in [misconfigured](super::misconfigured): what it means, how
//! it comes about, and the cure.
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
//! | none of the first 100 requests had a matched route | put the layer inside the router |
//! | the first request of a policy had no key | nothing, if that client is anonymous. Logged at `info` |
//! | none of the first 100 requests had the key of the policy | [find out](super::misconfigured#no-request-had-a-key) where it gets lost: a misspelt header, or a layer that comes too late |
//! | a policy has applied to none of the first 1,000 requests | nothing, if such requests are rare: otherwise its condition never holds. Logged at `info` |
//! | a handler reports a cost that no policy awaits | [correct the name](super::misconfigured#a-handler-reports-a-cost-that-no-policy-awaits), or call `settle_all` |
//! | layers of a policy are dropped after a few requests each | build the layer once, and not for each request |
//! | the CORS layer is inside of the rate limit | put it outside, or pages of other origins cannot read rejections |
//! | a memory store is filling up and may lose keys | raise its [capacity](super::capacity#how-much-memory-a-process-needs) |
//! | policies replaced: this one could not inherit | nothing, if intended: its new limiter is of another kind |
//! | configuration changed: a policy was removed; configuration changed: fields of a policy were removed | nothing, if intended: a truncated file may still be valid |
//! | limiter failed; limiter recovered | see [failure](super::failure) |
//! | the server is overloaded: requests are shed; the server is overloaded no more | add servers, or find out [what takes so much](crate::Overload) |
//! | a key is limited | nothing. Logged at `info`, if a layer has `on_transition` |
//! | a key has used a share of its limit | nothing, or [warn the customer](super::warnings). Logged at `info` |
//! | a key is banned; a key is allowed by hand; a key is unbanned by hand; a key is reset by hand | nothing; an operator's reason is in the line. To find the client: [support](super::support) |
//! | store: a node keeps failing; a node is back | the same |
//! | redis: topology changed | nothing: a failover, or slots have moved |
//! | redis: when its memory is full, the server may evict budgets | `maxmemory-policy noeviction` |
//! | a partner keeps failing; a partner accepts calls again | look at the partner: calls to it are rejected in your process, see [partners](super::partners#when-a-partner-fails) |
//! | a partner has rejected a call because of its limit | nothing: its line pauses. Logged at `info`, once a minute and partner |
//! | a handler takes a Verdict that no layer adds | build the layer with [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) |
//! | the body of a custom rejection failed | check the body that [`rejection_response`](crate::layer::RateLimitLayerBuilder::rejection_response) returns |
//!
//! Next: [answer a customer who calls](super::support).
//!
//! [`ThrottleLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.ThrottleLayer.html
