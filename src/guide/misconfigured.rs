//! Misconfigured: each mistake that the log reports, with its meaning, its causes and the cure.
//!
//! **You have** a log line of `tower_sluice` with a link to this page (the field `see`). Each mistake is logged once or
//! twice, by the policy, by the layer or by the process, and not again until a restart. The most common one is that
//! [requests have no key](#requests-have-no-key): axum passes the clients' addresses on only if the program says so:
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let layer = RateLimitLayer::per_client(Quota::per_second(10));
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     // And not `axum::serve(listener, app)`.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! Clients learn nothing of it but the status: a request that cannot be checked is answered 500, with the detail "The
//! server is misconfigured." and, for gRPC, `INTERNAL`.
//!
//! Mistakes that can be found without a request are errors at the start: of
//! [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) ([`PolicyError`](crate::policy::PolicyError)), of
//! [`Config::parse`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html#method.parse) (with file and line), and of `Redis::open`.
//!
//! No log line can tell that **a layer has no requests**: in axum, `Router::layer` applies to the routes before it, so
//! `.layer(limit).route("/", …)` limits nothing. Call `layer` after all routes, and let a test send one request more
//! than the limit: [testing](super::testing) shows one.
//!
//! # Requests have no key
//!
//! > rate limiter misconfigured: requests have no key
//!
//! The key of the policy is read from a part of the request that the server does not provide. All requests of the
//! policy are answered 500; a [shadow](crate::Policy::shadow) lets them pass, uncounted. The field `problem` names it.
//!
//! *peer address unknown*: [`PeerIp`](crate::key::PeerIp) or [`ClientIp`](crate::key::ClientIp) found no address in the
//! extensions of the request.
//!
//! | server | cure |
//! |---|---|
//! | axum 0.8 | the crate feature `axum`, and `app.into_make_service_with_connect_info::<SocketAddr>()` in place of `app` |
//! | axum of another version | its `ConnectInfo` is another type, which this crate does not read: the last row |
//! | tonic 0.14 | the crate feature `tonic` |
//! | hyper, or any other | insert the address that `accept` has returned: `request.extensions_mut().insert(address)`, a [`SocketAddr`](std::net::SocketAddr) |
//! | a test without a server | the same; or, with the crate feature `axum`, axum's `MockConnectInfo` around the app |
//!
//! A middleware translates from another version of axum, outside of the rate limit:
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::extract::{ConnectInfo, Request};
//! use axum::middleware::Next;
//! use axum::response::Response;
//!
//! async fn peer(ConnectInfo(peer): ConnectInfo<SocketAddr>, mut request: Request, next: Next) -> Response {
//!     request.extensions_mut().insert(peer); // a plain `SocketAddr`
//!     next.run(request).await
//! }
//! ```
//!
//! Any other problem comes from a [key extractor](crate::key::KeyExtractor) of your own, which returned
//! [`KeyError::Misconfigured`](crate::key::KeyError::Misconfigured).
//!
//! # No request is exempt by its network
//!
//! > rate limiter misconfigured: no request is exempt by its network
//!
//! An [exemption by network](crate::Exemptions::networks) needs the client's address, which is unknown. Requests are
//! charged as if they came from elsewhere. The cure is in [the section above](#requests-have-no-key).
//!
//! # The peer is a proxy
//!
//! > the peer is a proxy, and every client behind it shares one budget
//!
//! The policy counts by [`PeerIp`](crate::key::PeerIp), and a request with a forwarding header came from a private or
//! loopback address (`network`). So there is a proxy in front, and all of its clients share one budget.
//!
//! Use [`ClientIp`](crate::key::ClientIp), with the header that your proxy sets and the proxy's network: see [behind a
//! proxy](super::proxies).
//! Nothing is wrong if it was a request of yours, made by hand.
//!
//! # A forwarding header was not trusted
//!
//! > a forwarding header was not trusted and was ignored
//!
//! A request came from a peer that is not among the [trusted proxies](crate::key::TrustedProxies), with the header that
//! [`ClientIp`](crate::key::ClientIp) reads. It was counted by the address of the peer.
//!
//! If `network` is private or loopback, it is probably your proxy: add its network. If it is public, a client has
//! forged the header, or the proxies of a CDN are not listed; a client that reaches your server past the CDN can do so
//! at any time, which is harmless.
//!
//! # A trusted proxy sends another forwarding header
//!
//! > a trusted proxy sends another forwarding header than the configured one
//!
//! A proxy that you trust did not send the header `configured`, but `seen`. All clients behind it share one budget, or
//! have no key, as [`ClientIp`](crate::key::ClientIp) is set. Name the header that the proxy sends in
//! [`IpSource`](crate::key::IpSource) (`source` in TOML), or have the proxy send the configured one.
//!
//! # Trusted proxies report no client
//!
//! > trusted proxies have reported no client in the first 100 requests
//!
//! The requests came from a proxy that you trust, with no forwarding header at all. All clients behind it share one
//! budget, or have no key, as [`ClientIp`](crate::key::ClientIp) is set. Let the proxy set the header `configured`: see
//! [behind a proxy](super::proxies), and for `sluice serve` the [files of each proxy](super::gateways). Nothing is
//! wrong if these were health checks of a load balancer.
//!
//! # Fewer elements than proxies
//!
//! > fewer elements than proxies
//!
//! With [`TrustedProxies::hops`](crate::key::TrustedProxies::hops) (`hops` in TOML), the header must have an element
//! for each proxy, and a request had fewer. Either there are fewer proxies than `hops`: lower it. Or a client has
//! reached the server past a proxy: close that way, since such a client chooses its own key.
//!
//! # All requests had the same key
//!
//! > the first 1,000 requests all had the same key
//!
//! The key should distinguish clients, and has not done so yet. Usual causes: a proxy that is not configured (see [the
//! peer is a proxy](#the-peer-is-a-proxy)), a header that a gateway sets to one value, a [`key_fn`](crate::key::key_fn)
//! that returns a constant. Nothing is wrong if there is one client only, as in a load test.
//!
//! # The quota of a key goes back and forth
//!
//! > the quota of a key goes back and forth
//!
//! [`quota_fn`](crate::Policy::quota_fn) returned two quotas for one key in turn, among the first 1,000 requests. The
//! used units of the key are converted each time, unit for unit, so the generous quota forgives units that were used
//! under the strict one: with 5 per hour for `/login` and 100 per second for other paths, five requests a second to
//! each pass, 18,000 logins an hour. Return the same quota for all requests of a key, and write [a policy for each kind
//! of request](super::quotas#a-quota-per-customer). Nothing is wrong if a customer has changed the plan and changed it
//! back. The same holds for [windows](super::billing_days) and [limits in
//! flight](super::in_flight#a-limit-per-customer) of keys.
//!
//! # No request had a matched route
//!
//! > PathKey::matched: none of the first 100 requests had a matched route
//!
//! At the first one there is a line at `info` already: that may have been a path without a route.
//!
//! [`PathKey::matched`](crate::key::PathKey) reads the route that axum has matched. Around a router, nothing is matched
//! yet, so that all requests share one budget. Put the layer inside, by `Router::layer` or `Router::route_layer`. With
//! another version of axum than 0.8, whose `MatchedPath` is another type, use [`key_fn`](crate::key::key_fn).
//!
//! # The first request of a policy had no key
//!
//! > the first request of a policy had no key
//!
//! Logged at `info`, if the very first request lacks the source of the policy's key (`problem` names it). It was
//! answered 400, passed without a limit or was charged to a shared budget, as
//! [`on_missing_key`](crate::Policy::on_missing_key) says. Nothing is wrong if that client is anonymous, or was a
//! health check. Once a request has had a key, nothing more is logged. Otherwise the hundredth request without one
//! brings [the next line](#no-request-had-a-key).
//!
//! # No request had a key
//!
//! > none of the first 100 requests had the key of the policy
//!
//! All of them lacked the source of the key, or had it twice (`problem`). With
//! [`MissingKey::Reject`](crate::MissingKey::Reject), the default, they were answered 400; with
//! [`Skip`](crate::MissingKey::Skip) and in a [shadow](crate::Policy::shadow) they passed without a limit; with
//! [`Share`](crate::MissingKey::Share) they used up one budget. Usual causes:
//!
//! - **The name of a header is misspelt**, or a proxy removes the header, renames it or adds a second one.
//! - **The layer that sets it is further inside**, and so comes too late. Put it outside of the rate limit. In axum,
//!   the last `Router::layer` is the outermost; in tonic and in a `tower::ServiceBuilder`, the
//!   [first](super::grpc#users).
//! - **It inserts another type** than the `extension` of an [`ExtensionKey`](crate::key::ExtensionKey) (or of
//!   [`User::key`](crate::key::User::key), `key = "user"` in TOML). `Account`, `Arc<Account>` and `Extension<Account>`
//!   are three types, and so are the types of one name in two versions of a crate. Key by the type that is inserted:
//!   `ExtensionKey::new(|account: &Arc<Account>| account.id)`.
//!
//! Nothing is wrong if no client has logged in yet.
//!
//! # A policy has applied to no request
//!
//! > a policy has applied to none of the first 1,000 requests
//!
//! Logged at `info`: its condition ([`when`](crate::Policy::when)) or its [exemptions](crate::Policy::exempt) have left
//! all of them out, so that it has limited nothing yet. Nothing is wrong if the requests that it is for are rare, such
//! as a password reset. Otherwise the condition can never hold: it looks for a path that a router has cut off (`nest`),
//! or for a header that nobody sends.
//!
//! # A handler reports a cost that no policy awaits
//!
//! > a handler reports a cost that no policy awaits
//!
//! A handler has called [`settle`](crate::Settlement::settle), [`add`](crate::Settlement::add) or
//! [`meter`](crate::Settlement::meter) with a name (`policy`) that no policy of the process has that is
//! [settled by the handler](crate::Policy::settle_by_handler); `known` are the names that would do. Or it has called
//! [`settle_all`](crate::Settlement::settle_all), and there is no such policy at all. So the estimates stay charged.
//! Logged at the first report and at the hundredth.
//!
//! A report to a policy that has not charged this request, since it is exempt or another alternative was charged, is
//! not logged: `settle` returns the error.
//!
//! # A layer is built for each request
//!
//! > layers of a policy are dropped after a few requests each
//!
//! A hundred layers with a policy of this name had fewer than ten requests each, and their counts were gone with them.
//! A [`RateLimitLayer`](crate::RateLimitLayer) that is built in a handler, in a closure per request or per connection
//! has a table of its own each time, and limits nobody. Build it once, and clone it; or keep the limiter in an `Arc`.
//! Nothing is wrong in a test program that builds many.
//!
//! # A request lacks its extension
//!
//! > a request lacks the extension that its key is read from
//!
//! Logged at `debug`, as requests without a user are usual; they are answered 400 unless
//! [`on_missing_key`](crate::Policy::on_missing_key) is set. If all requests lack it, see [the section
//! above](#no-request-had-a-key).
//!
//! # A layer is mounted around itself
//!
//! > a rate limit layer is mounted around itself and charges each request twice
//!
//! A request has passed the same [`RateLimitLayer`](crate::RateLimitLayer), or a clone of it, twice: around a router
//! and again around one of its routes, say. Mount it once. Two layers of their own, with different policies, are no
//! mistake.
//!
//! # The CORS layer is inside of the rate limit
//!
//! > the CORS layer is inside of the rate limit
//!
//! Responses of the inner service have CORS fields, so the layer that adds them is inside, and rejections lack them.
//! Browsers hide such a rejection from scripts, and report a network error. Put the CORS layer outside, and [expose the
//! fields](crate::headers::EXPOSED_HEADERS) that scripts are to read.
//!
//! # A handler takes a verdict that no layer adds
//!
//! > a handler takes a Verdict that no layer adds
//!
//! The handler has an argument of type [`Verdict`](crate::Verdict), and its requests lack it; they are answered 500.
//! Build the layer with [`verdict`](crate::layer::RateLimitLayerBuilder::verdict), and mount it around the handler. If
//! some of its routes have no limit, take an `Option<Verdict>`.
//!
//! # The body of a custom rejection failed
//!
//! > the body of a custom rejection failed and was cut off
//!
//! A body that [`rejection_response`](crate::layer::RateLimitLayerBuilder::rejection_response) returned has failed with
//! `error` while it was sent. The client got a part of it. Return a text or bytes, which cannot fail.
//!
//! # A memory store is filling up
//!
//! > a memory store is filling up and may lose keys
//!
//! More keys owe something at once than the table has room for comfortably, and when it is full, keys that owe least
//! are forgotten or new ones rejected, as [`when_full`](crate::store::WhenFull) says. Raise the
//! [capacity](super::capacity#how-much-memory-a-process-needs). If an attack makes the keys (they are addresses, or
//! anything that a client invents), put a policy with a coarser key before it.
//!
//! # A queue is full of keys
//!
//! > a queue is full of keys
//!
//! More keys have a queue at once than [`max_keys`](crate::LeakyQueue::max_keys). Further ones are treated as its
//! [`when_full`](crate::LeakyQueue::when_full) says: rejected unless set. Raise it, or put a policy with a coarser key
//! before.
//!
//! # More keys have requests in flight than there is room for
//!
//! > more keys have requests in flight than a limiter has room for
//!
//! The same, for a [`Concurrency`](crate::Concurrency) limit: requests of further keys are rejected until others are
//! over. Raise its [`max_keys`](crate::Concurrency::max_keys).
//!
//! # Redis may evict budgets
//!
//! > redis: when its memory is full, the server may evict budgets in use
//!
//! The server's `maxmemory-policy` is not `noeviction`. When its memory is full it deletes budgets, and their
//! clients start with full budgets. Set it to `noeviction`, or use a server for the limits alone. All keys expire by
//! themselves.
//!
//! Next: [what happens when something fails](super::failure).
