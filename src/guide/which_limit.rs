//! Which limit? Replay an access log.
//!
//! **You want** to know which limit to set, before a customer meets it. The program `sluice` replays an access log, of
//! nginx, Apache, Caddy, Traefik, Envoy, HAProxy, AWS, IIS or any server whose format you can write down, against a
//! [configuration file](super::configuration), and reports who would have been rejected or delayed:
//!
//! ```sh
//! git clone https://github.com/tower-sluice/tower-sluice && cd tower-sluice
//! cargo run --release -p sluice -- replay --config crates/sluice/examples/limits.toml crates/sluice/examples/access.log
//! ```
//!
//! The clock of the log drives the layers of the file themselves, so a replay decides as a server with this file would
//! have, request by request.
//!
//! # A first file
//!
//! The repository has the [log of a small shop][log], two hours long, and [limits] for it. This is what the file says:
//!
//! ```text
//! $ cargo run -p sluice -- check crates/sluice/examples/limits.toml
//! crates/sluice/examples/limits.toml is valid: 4 routes, 4 policies
//!
//! route                          policy    who                  what                                   when full
//! /login                         attempts  each client address  5 within any minute, about             rejected with 429; banned for 15m after 20 early retries in 1m
//! /api/orders, /api/orders/{id}  programs  each user            20 at once, then 10 per second         rejected with 429
//! /items/{id}                    readers   each client address  3 at once, then paced at 2 per second  waits its turn (up to 10 requests, 30s), then 429
//! /search                        searches  each client address  2 at once, then 1 per minute           counted only (a shadow)
//!
//! with `sluice serve`, these have no effect:
//! crates/sluice/examples/limits.toml:18: policy `programs`: no request has the key `user` here; let the proxy send the user in a field, and write header:NAME
//! ```
//!
//! # The report
//!
//! ```text
//! $ cargo run -p sluice -- replay --config crates/sluice/examples/limits.toml --suggest 99 crates/sluice/examples/access.log
//! crates/sluice/examples/access.log: 1,129 lines
//!   from 2026-03-02 08:01:00 to 2026-03-02 09:54:05 UTC
//!   1 line is unreadable; the first is line 513: the request is not of the form "GET /path HTTP/1.1"
//!     192.0.2.9 - - [02/Mar/2026:08:40:00 +0000] "\x16\x03\x01\x02\x00" 400 157 "-" "-…
//!   1 line was out of order, by up to 43.00 s, and put in order (the window is 5 min)
//!
//! crates/sluice/examples/limits.toml
//!   91 requests to no route of the file
//!
//! /login  attempts
//!   each client address: 5 within any minute, about
//!   when full: rejected with 429; banned for 15m after 20 early retries in 1m
//!   requests       221
//!   admitted       43 (19.5 %)
//!   rejected       178 (80.5 %)
//!   clients        17, 2 of them rejected
//!   first rejected 2026-03-02 08:52:05, line 587: 192.0.2.66
//!   worst minutes  2026-03-02 08:53 (66), 08:52 (65), 08:54 (26), 08:55 (21)
//!   keys hit most  192.0.2.66: 95 of 100 rejected
//!                  192.0.2.67: 83 of 100 rejected
//!   over time      admitted   ▁     ▁▁▁ ▁    ▁    ▁ ▁▁ ▁▁     ▁     ▁ ▁  ▁ ▁
//!                  rejected                         █▄
//!                  a column is 2 min 8 s, the first from 2026-03-02 08:00:32 on; █ is 127 requests
//!   to never reject 99 % of the clients:
//!     limit = 61, per = "1m"
//!
//! /api/orders, /api/orders/{id}  programs
//!   each user: 20 at once, then 10 per second
//!   when full: rejected with 429
//!   requests       260
//!   admitted       234 (90.0 %)
//!   rejected       26 (10.0 %)
//!   clients        2, 1 of them rejected
//!   first rejected 2026-03-02 08:05:23, line 33: acme
//!   worst minutes  2026-03-02 08:05 (5), 08:19 (5), 08:33 (5), 09:01 (5), 09:43 (5)
//!   keys hit most  acme: 26 of 200 rejected
//!   over time      admitted ▁▁█▁▁▁▁▁▇▁▁▁▁▁▁▇▁▁▁▁▁▁▇▁▁▁▁▁█▁▁▁▁▁▁▇▁▁▁▁▁▇▁▁▁▁▁▁▇▁▁▁▁▁
//!                  rejected   ▂     ▂      ▂            ▂      ▁            ▂
//!                  a column is 2 min 8 s, the first from 2026-03-02 08:00:32 on; █ is 27 requests
//!   to never reject 99 % of the clients:
//!     limit = 10, per = "1s", burst = 25
//!     limit = 25, per = "1s", burst = 25
//!
//! /items/{id}  readers
//!   each client address: 3 at once, then paced at 2 per second
//!   when full: waits its turn (up to 10 requests, 30s), then 429
//!   requests       479
//!   admitted       479 (100 %)
//!   rejected       0 (0 %)
//!   clients        46, 0 of them rejected
//!   delayed        210: p50 1.00 s, p95 2.50 s, p99 2.50 s, most 2.50 s
//!   over time      admitted  ▁▂▁▁▁ ▇▄▆▆▇▇▅▆▇▄▇▆█▆▆▄▇▇▇▄▁▂▁   ▁▁▁▁▁▂▁▁ ▁▁▁▂▁▁▂▁
//!                  a column is 2 min 8 s, the first from 2026-03-02 08:00:32 on; █ is 30 requests
//!   to never reject 99 % of the clients:
//!     limit = 2, per = "1s", max-queue = 5 (and a max-wait for it)
//!     limit = 8, per = "1s", max-queue = 5
//!
//! /search  searches
//!   each client address: 2 at once, then 1 per minute
//!   when full: counted only (a shadow)
//!   requests       77
//!   admitted       69 (89.6 %)
//!   rejected       8 (10.4 %)
//!   clients        45, 8 of them rejected
//!   first rejected 2026-03-02 08:22:52, line 189: 2001:db8::/64
//!   worst minutes  2026-03-02 08:22 (1), 08:36 (1), 08:39 (1), 09:00 (1), 09:23 (1)
//!   keys hit most  198.51.100.13: 1 of 3 rejected
//!                  198.51.100.22: 1 of 3 rejected
//!                  198.51.100.44: 1 of 3 rejected
//!                  198.51.100.47: 1 of 3 rejected
//!                  198.51.100.54: 1 of 3 rejected
//!                  2001:db8:19::/64: 1 of 3 rejected
//!                  2001:db8::/64: 1 of 3 rejected
//!                  2001:db8:a::/64: 1 of 3 rejected
//!   over time      admitted  ▂█▂▂▄  ▂▂▄ ▂▄  ▄▄   ▂▄▄▂▂▄▅▅▂   ▄▂▂▅▅▇ ▂ ▂▂▂▇▂▅▅▅
//!                  rejected           ▂      ▂▂         ▂         ▂▂     ▂▂
//!                  a column is 2 min 8 s, the first from 2026-03-02 08:00:32 on; █ is 5 requests
//!   to never reject 99 % of the clients:
//!     limit = 1, per = "1m", burst = 3
//!     limit = 3, per = "1m", burst = 3
//! ```
//!
//! # How to read it
//!
//! - **`/login`**: two machines guess passwords. The limit rejects nearly all of their attempts, and nobody else's: of
//!   17 clients, only these two. The suggestion is of no use here: it would let the machines in. Look at the
//!   keys first.
//! - **`/api/orders`**: a customer sends its orders in bursts, and loses some of each. This customer is no attacker, so
//!   the limit is too tight. A larger burst costs the server little: the rate stays.
//! - **`/items/{id}`**: a crawler is slowed down, and nobody is rejected. The waits are what it would have felt.
//! - **`/search`**: a [shadow](super::shadow) rejects nothing. It shows whom the stricter limit would hit: people who
//!   search a third time.
//!
//! # Suggestions
//!
//! `--suggest 99.9` prints limits under which 99.9 % of the clients are never rejected. For each key, `sluice` computes
//! the tightest limit under which none of its requests would have been rejected, and prints the least number that
//! suffices for so many keys. Of a bucket or a queue, there are two ways: a larger burst at the same rate, or a higher
//! rate with the burst that belongs to it. Attackers and crawlers are clients, too: with few clients, one of them is
//! more than 0.1 %.
//!
//! Change the file, and compare: `--compare other.toml` prints both side by side. `--plot report.svg` draws admitted
//! and rejected requests over time, and `--json` is for programs.
//!
//! # What a log cannot know
//!
//! - Clients that are rejected come back, or slow down; in a replay, they come as they did.
//! - A log does not say how long a request was in flight. Limits of [requests in flight](super::in_flight) and
//!   [overload](super::overload) reject nothing in a replay.
//! - Headers, such as API keys, are not in plain logs. The report says which field to log; give the new format to
//!   `--log-format`. Until then, take the user or the address as the key.
//! - Behind a proxy, the log must have the address of the client, and not of the proxy.
//! - Lines are put in order within five minutes (`--window`). If a report begins with a warning about their times,
//!   follow it first: the figures below it are not those of your traffic.
//!
//! So put the limit in force as a [shadow](super::shadow) first, if it matters. The [README of `sluice`][sluice] has
//! all options, the formats of logs and the exit codes.
//!
//! [log]: https://github.com/tower-sluice/tower-sluice/blob/main/crates/sluice/examples/access.log
//! [limits]: https://github.com/tower-sluice/tower-sluice/blob/main/crates/sluice/examples/limits.toml
//! [sluice]: https://github.com/tower-sluice/tower-sluice/tree/main/crates/sluice
//!
//! Next: [try it out as a shadow](super::shadow).
