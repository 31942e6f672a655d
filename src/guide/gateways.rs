//! Limits for Envoy, nginx, Traefik, Caddy, HAProxy, and for services in other languages: `sluice serve`.
//!
//! **You want** the limits of this crate where no Tower service is: at the proxy, or in front of services in other
//! languages. The program `sluice` serves a [configuration file](super::configuration). Proxies ask it, and hand its
//! true waits on to clients.
//!
//! ```sh
//! git clone https://github.com/tower-sluice/tower-sluice && cd tower-sluice
//! cargo run --release -p sluice -- serve --config crates/sluice/examples/proxies/limits.toml --listen 127.0.0.1:8081
//! ```
//!
//! One port serves all of it:
//!
//! | path | |
//! |---|---|
//! | `envoy.service.ratelimit.v3.RateLimitService` | Envoy's rate limit service, over gRPC |
//! | `/auth` | a decision over HTTP: 200, or the rejection |
//! | `/auth-403`, `/auth-401` | likewise, for a proxy that knows no other status for a rejection, such as nginx |
//! | `/metrics`, `/healthz` (or `/healthcheck`), `grpc.health.v1.Health` | [metrics](super::monitoring), health |
//!
//! The file is read again when it changes, and on SIGHUP; used quota carries over. On SIGTERM, the listener closes at
//! once, so that new connections are refused, the requests in flight are completed, and the process ends. `--redis
//! URL` shares the limits between several instances: they admit the limit exactly, together. `--admin ADDR` serves the
//! [page for operators](super::support).
//!
//! # nginx, Traefik, Caddy, HAProxy
//!
//! They ask over HTTP for each request. The fields `X-Forwarded-Method` and `X-Forwarded-Uri` describe it, and the
//! policies of the route with its path decide:
//!
//! ```toml
//! [client-ip]                    # the proxy is on this machine, and reports its clients
//! source = "x-forwarded-for"
//! trusted = ["127.0.0.1"]
//!
//! [[route]]
//! path = "/search"
//!   [[route.policy]]
//!   name = "per-client"
//!   algorithm = "token-bucket"
//!   limit = 10
//!   per = "1s"
//!   burst = 20
//!   key = "client-ip"
//! ```
//!
//! ```text
//! $ curl -i -H 'X-Forwarded-Uri: /search?q=tea' -H 'X-Forwarded-For: 192.0.2.1' http://127.0.0.1:8081/auth
//! HTTP/1.1 200 OK
//! ratelimit-policy: "per-client";q=20;w=2
//! ratelimit: "per-client";r=19;t=2
//! ```
//!
//! The repository has a [configuration of each proxy][proxies], which tests run. They make the proxy overwrite these
//! fields, so that no client can ask about another path than its own. A key may also be `header:NAME`, `cookie:NAME`,
//! `query:NAME` or `method`; HAProxy and Envoy hand on the fields that their files list. A queue works, too, if the
//! proxy's timeouts are longer than its longest wait: the proxy waits for the answer, and so the request waits its
//! turn.
//!
//! # Paths
//!
//! **The service must read a path as your app does.** Otherwise, a client that writes it in another way is not limited.
//!
//! | a client writes | the service reads | |
//! |---|---|---|
//! | `/%73earch`, `//search`, `/a/../search`, `/search#x` | `/search` | always: all spellings of a path are one |
//! | `/Search`, `/search/`, `/search;x=1` | another path | unless the route says that your app does not distinguish them |
//!
//! Express, Fiber, Rails, Django and ASP.NET take some of the latter for `/search`, servlet containers the last one. A
//! router of axum distinguishes all of them. Say so for each route:
//!
//! ```toml
//! [[route]]
//! path = "/search"
//! path-ignores = ["case", "trailing-slash", "parameters"]
//! ```
//!
//! `sluice check` warns of routes that such an app would take for one. If several routes match, the most specific one
//! decides: `/search` before `/{name}`, and this before `/{*rest}`. As in axum, `/files/{*rest}` does not match
//! `/files/`, which `sluice check` notes. What no route matches passes, whatever bytes it has, and is counted by
//! `sluice_requests_without_route_total`.
//!
//! # Envoy
//!
//! Envoy sends *descriptors*: lists of keys with values, which its route makes of the request. Its `domain` names a
//! route of the file, and a policy counts the descriptors whose entries it lists, in this order. A value that is not
//! written has a budget of its own each:
//!
//! ```toml
//! [[route]]
//! path = "/shop"                 # domain: shop
//!   [[route.policy]]
//!   name = "per-address"
//!   algorithm = "token-bucket"
//!   limit = 10
//!   per = "1s"
//!   key = "descriptor:remote_address"
//!
//!   [[route.policy]]
//!   name = "free-users"          # of the plan `free`, each user
//!   algorithm = "sliding-window"
//!   limit = 1000
//!   per = "1day"
//!   key = ["descriptor:plan=free", "descriptor:user"]
//! ```
//!
//! - All descriptors of a request are charged, or none: if one is over its limit, the others keep what they have.
//! - `duration_until_reset` is the true wait of a descriptor that is over its limit. Envoy's client gets the fields and
//!   the body that a Tower service would send, `Retry-After` included.
//! - `hits_addend` of a descriptor is its cost. 0 only looks: the request is rejected if nothing is left, and is not
//!   charged.
//! - A domain, or a descriptor, without a policy is not limited.
//! - A policy that delays (`leaky-queue`, `slow-down`) is an error there, since Envoy does not wait.
//! - A request without descriptors is an error: a gateway that sends its charges like this would never be limited.
//!   `sluice_hits_not_charged_total` counts these and all other hits that no limit has counted, by `reason`: `no-rule`,
//!   `no-domain`, `no-descriptor`, and `rejected` in a domain that charges all or none.
//! - A request may have 256 descriptors of 64 entries. More are an error, by which Envoy passes the request.
//!
//! # Files of other services
//!
//! `--envoy-config FILE` reads a file of envoyproxy/ratelimit, or a folder of them, as it is; `--limitador-config FILE`
//! reads the limits of Limitador, whose conditions and variables are CEL. So a change of the service needs no change of
//! its files, and ten thousand rules cost a request no more than a hundred:
//!
//! ```yaml
//! domain: shop
//! descriptors:
//!   - key: remote_address
//!     rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token-bucket, burst: 10}
//! ```
//!
//! In fixed windows, the answers are those of envoyproxy/ratelimit; a test compares them in a million random sequences
//! of looks and charges. What differs on purpose:
//!
//! | | there | here |
//! |---|---|---|
//! | the limit | a fixed window | likewise; `algorithm: token-bucket`, `leaky-bucket` or `sliding-window` in a `rate_limit` replaces it, and `burst` is that of a bucket |
//! | a request with several descriptors, of which one has no room | all of them are charged | likewise; with `all_or_none: true` beside `domain`, none is charged |
//! | a cost that does not fit | is spent: the limit is used up | likewise; with `all_or_none: true`, it is not charged |
//! | a look, with a `hits_addend` of 0, at a limit that is used up exactly | OK; the next request is over the limit | over the limit |
//! | `duration_until_reset` of what is over the limit | the end of the window | the time after which the same request fits |
//! | keys such as `a_b` with `c`, and `a` with `b_c` | share a counter | do not |
//!
//! Values with a `*`, `share_threshold`, `shadow_mode`, `quota_mode`, `unlimited` and `replaces` work as there. Its
//! environment has no counterpart: write `shadow_mode` into the file in place of `SHADOW_MODE`, and `--redis` in place
//! of `REDIS_URL`. There is no `/json`. In the metrics, requests over a quota (`quota_mode`) are `shadow-rejected`,
//! since a quota alone rejects nothing.
//!
//! A `replaces` that names no limit of the file, a `rate_limit` without `requests_per_unit`, an unknown field and a `*`
//! in a key are errors. `detailed_metric`, `value_to_metric`, `metadata` and a `name` at the root are accepted, and
//! have no effect.
//!
//! Metrics have the name of the rule as the label `policy`, such as `user:ada`; `rate_limit.name` is in answers and
//! in `sluice check`. A limit of Limitador has its `name` as the label. `policy="request.limit"` stands for the limits
//! that requests bring.
//!
//! # Costs that are known at the end
//!
//! The tokens of a language model are known when its answer has ended. Gateways look before a request, with a
//! `hits_addend` of 0, and charge the tokens afterwards, with the same descriptor. A file of envoyproxy/ratelimit works
//! as it does there: tokens beyond the limit use it up, and the next look is over the limit. In a route of Envoy (its
//! `route: rate_limits` would ignore `hits_addend`):
//!
//! ```yaml
//! typed_per_filter_config:
//!   envoy.filters.http.ratelimit:
//!     "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
//!     rate_limits:
//!     - actions:
//!       - request_headers: {header_name: x-user, descriptor_key: user}
//!       hits_addend: {number: 0}
//!     - actions:
//!       - request_headers: {header_name: x-user, descriptor_key: user}
//!       hits_addend: {format: "%DYNAMIC_METADATA(llm:tokens)%"}
//!       apply_on_stream_done: true
//! ```
//!
//! Routes in TOML, and files with `all_or_none: true`, charge nothing if a cost does not fit. There, say that the
//! tokens were spent already, by a further entry `sluice-report` with any value: `generic_key: {descriptor_key:
//! sluice-report, descriptor_value: "1"}`. Such a descriptor counts as if it had no such entry, is charged as far as
//! units are left, and rejects nothing.
//!
//! # How it fails
//!
//! | what fails | what happens |
//! |---|---|
//! | `sluice` does not answer | the proxy decides: see the comments in its configuration. Envoy passes the request unless `failure_mode_deny` is set |
//! | its Redis | its own limits decide, per instance, or as [`on-failure`](super::failure) says; shadows and quotas count on |
//! | an edited file has a mistake | the limits stay as they were, and the log has the line and the cure |
//!
//! It listens on the loopback unless told otherwise: all that reach it may use up the budget of every client. The
//! [README of `sluice`][sluice] has all options, a unit for systemd, and figures.
//!
//! [proxies]: https://github.com/tower-sluice/tower-sluice/tree/main/crates/sluice/examples/proxies
//! [sluice]: https://github.com/tower-sluice/tower-sluice/tree/main/crates/sluice
//!
//! Next: [monitor it](super::monitoring).
