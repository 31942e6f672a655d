//! Limits for Envoy, nginx, Traefik, Caddy, HAProxy, and for services in other languages: `sluice serve`.
//!
//! **You want** the limits of this crate where no Tower service is: at the proxy, or in front of services in other
//! languages. The program `sluice` serves a [configuration file](super::configuration). Proxies ask it, and hand its
//! true waits on to clients.
//!
//! ```sh
//! git clone https://github.com/tower-sluice/tower-sluice && cd tower-sluice
//! cargo run --release -p sluice -- serve --config sluice/examples/proxies/limits.toml --listen 127.0.0.1:8081
//! ```
//!
//! One port serves all of it:
//!
//! | path | |
//! |---|---|
//! | `envoy.service.ratelimit.v3.RateLimitService` | Envoy's rate limit service, over gRPC |
//! | `/auth` | a decision over HTTP: 200, or the rejection |
//! | `/metrics`, `/healthz`, `grpc.health.v1.Health` | [metrics](super::monitoring), health |
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
//! fields, so that no client can ask about another path than its own. All spellings of a path are one: `/%73earch` and
//! `//search` are `/search`. `/search/` is another path, which needs a line of its own if the app serves it. A queue
//! works, too, if the proxy's timeouts are longer than its longest wait: the proxy waits for the answer, and so the
//! request waits its turn.
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
//!
//! # Files of other services
//!
//! `--envoy-config FILE` reads a file of envoyproxy/ratelimit, or a folder of them, as it is; `--limitador-config FILE`
//! reads the limits of Limitador, whose conditions and variables are CEL. So a change of the service needs no change of
//! its files:
//!
//! ```yaml
//! domain: shop
//! descriptors:
//!   - key: remote_address
//!     rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token-bucket, burst: 10}
//! ```
//!
//! `algorithm` and `burst` are our additions; without them, a limit is a fixed window. Differences from
//! envoyproxy/ratelimit: all descriptors are charged or none, waits are true, and no Redis is needed. A `replaces` that
//! names no limit of the file, a `rate_limit` without `requests_per_unit`, an unknown field and a `*` in a key are
//! errors. `detailed_metric`, `value_to_metric` and `metadata` are accepted, and have no effect.
//!
//! Metrics have the name of the rule as the label `policy`, such as `user:ada`; `rate_limit.name` is in answers and
//! in `sluice check`. A limit of Limitador has its `name` as the label. `policy="request.limit"` stands for the limits
//! that requests bring.
//!
//! # Costs that are known at the end
//!
//! The tokens of a language model are known when its answer has ended. Envoy then asks once more, with
//! `apply_on_stream_done`, and with the tokens as `hits_addend`. A request that does not fit is charged nothing, so say
//! that these were spent already, by an entry `sluice-report` with any value. Such a descriptor counts as if it had no
//! such entry, is charged as far as units are left, and rejects nothing. Requests look, with a `hits_addend` of 0:
//!
//! ```yaml
//! rate_limits:
//! - actions:
//!   - request_headers: {header_name: x-user, descriptor_key: user}
//!   hits_addend: {number: 0}
//! - actions:
//!   - request_headers: {header_name: x-user, descriptor_key: user}
//!   - generic_key: {descriptor_key: sluice-report, descriptor_value: "1"}
//!   hits_addend: {format: "%DYNAMIC_METADATA(llm:tokens)%"}
//!   apply_on_stream_done: true
//! ```
//!
//! # How it fails
//!
//! | what fails | what happens |
//! |---|---|
//! | `sluice` does not answer | the proxy decides: see the comments in its configuration. Envoy passes the request unless `failure_mode_deny` is set |
//! | its Redis | its own limits decide, per instance, or as [`on-failure`](super::failure) says |
//! | an edited file has a mistake | the limits stay as they were, and the log has the line and the cure |
//!
//! It listens on the loopback unless told otherwise: all that reach it may use up the budget of every client. The
//! [README of `sluice`][sluice] has all options, a unit for systemd, and figures.
//!
//! [proxies]: https://github.com/tower-sluice/tower-sluice/tree/main/sluice/examples/proxies
//! [sluice]: https://github.com/tower-sluice/tower-sluice/tree/main/sluice
//!
//! Next: [monitor it](super::monitoring).
