//! Capacity: the memory of a limit in a process; memory, processors, nodes and dollars of a shared one.
//!
//! **You want** to know how large a Redis or a PostgreSQL must be, and the price of DynamoDB, before the traffic is
//! there. Measure or
//! guess five numbers: keys, requests per second, the share that is rejected, how unevenly keys are asked for, and
//! processes. Then ask the [model](https://github.com/tower-sluice/tower-sluice/tree/main/examples/capacity):
//!
//! ```text
//! cargo run --release -p tower-sluice-capacity -- --keys 1e8 --rate 1e6 --rejected 5 --distribution zipf:1.0 --processes 128
//! cargo run --release -p tower-sluice-capacity -- --store postgres --keys 1e6 --rate 5_000 --processes 8
//! cargo run --release -p tower-sluice-capacity -- --store dynamodb --algorithm fixed-window --lease 50
//! cargo run --release -p tower-sluice-capacity -- --check
//! ```
//!
//! The first three print the needs of such a limit, in a second. The last one starts a `redis-server`, measures it for
//! some minutes, and prints the model beside it: do that on your machines.
//!
//! A limit in memory needs no server, and [little memory](#how-much-memory-a-process-needs).
//!
//! # The formulas
//!
//! | what | is |
//! |---|---|
//! | memory of Redis | keys that owe something × bytes per key; see below |
//! | calls per second | requests per second × calls per request |
//! | busy processors of Redis | calls × 10.2 µs + leased requests × 0.12 µs, per second |
//! | nodes of a cluster | enough for each to be at most half busy, and to keep at most 16 GiB; the hottest key is on one of them |
//! | network of Redis | calls × 210 bytes, both ways together, without the overhead of TCP |
//! | busy cores of PostgreSQL | calls × 155 µs, per second |
//! | its table and index | keys that owe something × 223 bytes (windows: 212) × 16/15, since one row in 16 has expired |
//! | its connections, of all processes | calls per second × (round trip + 155 µs), twice, for peaks |
//! | its transaction ids | one per call: all tables are frozen once per 200 million, every 11 hours at 5,000 per second ([vacuum](super::postgres#vacuum)) |
//! | write units of DynamoDB | calls × 1 for a window, × 1.0 to 1.5 for a bucket |
//! | price of DynamoDB | write units × $0.625 per million on demand (us-east-1), and a fifth of that for a read unit |
//! | partitions of DynamoDB | write units per second / 1,000; one key is in one partition |
//! | memory of each process | 1.9 MiB per limiter, 3.0 with leases |
//!
//! **Keys that owe something.** A key is kept until its debt is paid. For a bucket of 10 per second that is a second or
//! less after its last request, so few of your clients are there at any one time. For a window it is the end of the
//! window: with a quota per day, all clients of the day.
//!
//! **Bytes per key**, on a Redis 7.0 with a limiter called `per-client`: a bucket takes 144 to 160, a fixed window 160
//! to 176, a sliding window and a window of the calendar 176 to 192. That is the name of the key (48 bytes), the value
//! (16 to 48), two entries of hash tables (64), and their places (16 to 32). A longer name of the limiter takes 16 more
//! for each 16 bytes. A bucket takes 32 more if the time for a unit is no whole number of microseconds (7 per second),
//! and 48 if its limit has 15 digits, too. Counts of 13 digits take 16 more each: a fixed window and one of the
//! calendar has one, and a sliding window two. While a table grows, Redis has the old and the new places: leave a tenth
//! free.
//!
//! **Processors.** A call takes 5.6 µs for its script, and 4.6 µs to be read and answered. A process with many calls in
//! flight makes those for different keys as one, except in a cluster: then a decision takes 3.2 µs, if 32 keys come
//! together. The tables count single calls. A server with little to do takes up to 40 µs, since it falls asleep between
//! two calls; that time it has.
//!
//! # Calls per request
//!
//! At most one, but for the refund of a lease. Three things save calls. The model counts them so:
//!
//! - **A known rejection.** A process that has seen that a key is used up rejects without a call until a unit is free,
//!   and verifies that twice per second. It remembers 8,192 keys. That saves much if a client that is rejected sends
//!   faster than units come back, as in an attack, and at the end of a window; and little for a bucket of 1,000 per
//!   second, where the next unit is a millisecond away.
//! - **Single flight.** Requests of a process for a key with a call in flight share the next call. So a process makes
//!   at most one call per key and round trip, and that only helps for keys with more requests than round trips.
//! - **Leases.** One call pays for up to a lease of requests in advance. See below.
//!
//! How much each of them saves depends on the traffic, so it is simulated: requests come at random (Poisson), keys by
//! Zipf's law or uniformly, each to any of the processes. All keys have one limit, which rejects the given share. If
//! the share is zero, the limit is twice the rate of the hottest key. Of the 2,048 sets of the tables, 16 are
//! simulated, and also the sets of the hottest keys, at the real rates and in all processes. A set has no influence on
//! another, so the rest is like them. The same seed gives the same figures; another one differs by less than 2 %.
//!
//! # Redis Cluster
//!
//! A round trip of 1 ms; 5 % are rejected if the keys follow Zipf's law (exponent 1.0), and 0 % if they are uniform;
//! leases of 50 for a second. Memory is for buckets, if all keys owe something. *Nodes* are primaries, half busy at
//! most.
//!
//! | keys | requests per second | processes | traffic | calls per request | calls per second | memory | busy processors | nodes | hottest key, calls per second |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 1M | 10k | 8 | uniform, buckets | 1.00 | 10.0k | 0.13 GiB | 0.10 | 1 | 0.01 |
//! | 1M | 10k | 8 | Zipf, buckets | 0.99 | 9.89k | 0.13 GiB | 0.10 | 1 | 602 |
//! | 1M | 10k | 8 | Zipf, buckets, leases | 0.86 | 8.56k | 0.13 GiB | 0.09 | 1 | 601 |
//! | 1M | 10k | 8 | Zipf, windows | 0.95 | 9.52k | 0.13 GiB | 0.10 | 1 | 282 |
//! | 1M | 10k | 8 | Zipf, windows, leases | 0.84 | 8.43k | 0.13 GiB | 0.09 | 1 | 60.8 |
//! | 10M | 100k | 32 | uniform, buckets | 1.00 | 100k | 1.44 GiB | 1.02 | 3 | 0.01 |
//! | 10M | 100k | 32 | Zipf, buckets | 1.00 | 99.9k | 1.44 GiB | 1.02 | 3 | 5.89k |
//! | 10M | 100k | 32 | Zipf, buckets, leases | 0.85 | 84.7k | 1.44 GiB | 0.87 | 2 | 5.89k |
//! | 10M | 100k | 32 | Zipf, windows | 0.95 | 95.0k | 1.44 GiB | 0.97 | 2 | 2.01k |
//! | 10M | 100k | 32 | Zipf, windows, leases | 0.82 | 81.8k | 1.44 GiB | 0.84 | 2 | 280 |
//! | 100M | 1M | 128 | uniform, buckets | 1.00 | 1.00M | 13.92 GiB | 10.20 | 21 | 0.01 |
//! | 100M | 1M | 128 | Zipf, buckets | 1.00 | 996k | 13.92 GiB | 10.15 | too hot | 49.0k |
//! | 100M | 1M | 128 | Zipf, buckets, leases | 0.83 | 831k | 13.92 GiB | 8.50 | too hot | 49.0k |
//! | 100M | 1M | 128 | Zipf, windows | 0.95 | 949k | 13.92 GiB | 9.68 | 28 | 14.7k |
//! | 100M | 1M | 128 | Zipf, windows, leases | 0.80 | 800k | 13.92 GiB | 8.19 | 17 | 1.28k |
//!
//! # PostgreSQL
//!
//! A round trip of 1 ms; otherwise as for Redis, with fewer requests. *Cores* are those of a primary that is half busy
//! with decisions. One row takes some 2,000 calls per second, since they are made one after the other: *too hot*
//! beyond.
//!
//! | keys | requests per second | processes | traffic | calls per request | calls per second | table | busy cores | cores | connections | hottest key, calls per second |
//! |---|---|---|---|---|---|---|---|---|---|---|
//! | 100k | 1k | 4 | uniform, buckets | 1.00 | 1.00k | 0.02 GiB | 0.15 | 1 | 3 | 0.01 |
//! | 100k | 1k | 4 | Zipf, buckets | 0.98 | 981 | 0.02 GiB | 0.15 | 1 | 3 | 65.0 |
//! | 100k | 1k | 4 | Zipf, buckets, leases | 0.91 | 912 | 0.02 GiB | 0.14 | 1 | 3 | 64.7 |
//! | 100k | 1k | 4 | Zipf, windows | 0.96 | 955 | 0.02 GiB | 0.15 | 1 | 3 | 41.7 |
//! | 100k | 1k | 4 | Zipf, windows, leases | 0.92 | 915 | 0.02 GiB | 0.14 | 1 | 3 | 20.0 |
//! | 1M | 10k | 8 | uniform, buckets | 1.00 | 10.0k | 0.22 GiB | 1.55 | 4 | 24 | 0.01 |
//! | 1M | 10k | 8 | Zipf, buckets | 0.99 | 9.89k | 0.22 GiB | 1.53 | 4 | 23 | 602 |
//! | 1M | 10k | 8 | Zipf, buckets, leases | 0.86 | 8.56k | 0.22 GiB | 1.33 | 3 | 20 | 601 |
//! | 1M | 10k | 8 | Zipf, windows | 0.95 | 9.52k | 0.22 GiB | 1.48 | 3 | 22 | 282 |
//! | 1M | 10k | 8 | Zipf, windows, leases | 0.84 | 8.43k | 0.22 GiB | 1.31 | 3 | 20 | 60.8 |
//! | 10M | 100k | 32 | uniform, buckets | 1.00 | 100k | 2.21 GiB | 15.50 | 31 | 231 | 0.01 |
//! | 10M | 100k | 32 | Zipf, buckets | 1.00 | 99.9k | 2.21 GiB | 15.48 | 31 | 231 | 5.89k (too hot) |
//! | 10M | 100k | 32 | Zipf, buckets, leases | 0.85 | 84.7k | 2.21 GiB | 13.13 | 27 | 196 | 5.89k (too hot) |
//! | 10M | 100k | 32 | Zipf, windows | 0.95 | 95.0k | 2.21 GiB | 14.73 | 30 | 220 | 2.01k (too hot) |
//! | 10M | 100k | 32 | Zipf, windows, leases | 0.82 | 81.8k | 2.21 GiB | 12.68 | 26 | 189 | 280 |
//!
//! # DynamoDB
//!
//! The same with a round trip of 5 ms, on demand. A bucket is written by one of two conditional updates, and a wrong
//! guess costs a unit. An item is about 200 bytes (estimated): 20 GB for 10⁸ keys.
//!
//! | keys | requests per second | processes | traffic | write units per request | write units per second | partitions | hottest key, units per second | dollars per hour | per million requests |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 1M | 10k | 8 | uniform, buckets | 1.50 | 15.0k | 15 | 0.01 | 33.66 | 0.94 |
//! | 1M | 10k | 8 | Zipf, buckets | 1.04 | 10.4k | 11 | 653 | 23.48 | 0.65 |
//! | 1M | 10k | 8 | Zipf, buckets, leases | 0.88 | 8.75k | 9 | 654 | 19.70 | 0.55 |
//! | 1M | 10k | 8 | Zipf, windows | 0.95 | 9.49k | 10 | 263 | 21.35 | 0.59 |
//! | 1M | 10k | 8 | Zipf, windows, leases | 0.84 | 8.43k | 9 | 60.7 | 18.97 | 0.53 |
//! | 10M | 100k | 32 | uniform, buckets | 1.50 | 150k | 151 | 0.02 | 337.96 | 0.94 |
//! | 10M | 100k | 32 | Zipf, buckets | 1.03 | 103k | 104 | 4.93k (too hot) | 232.58 | 0.65 |
//! | 10M | 100k | 32 | Zipf, buckets, leases | 0.85 | 84.6k | 85 | 4.94k (too hot) | 190.26 | 0.53 |
//! | 10M | 100k | 32 | Zipf, windows | 0.94 | 94.3k | 95 | 1.56k (too hot) | 212.06 | 0.59 |
//! | 10M | 100k | 32 | Zipf, windows, leases | 0.82 | 81.8k | 82 | 280 | 183.98 | 0.51 |
//! | 100M | 1M | 128 | uniform, buckets | 1.48 | 1.48M | 1481 | 0.01 | 3330.94 | 0.93 |
//! | 100M | 1M | 128 | Zipf, buckets | 1.01 | 1.01M | 1013 | 31.1k (too hot) | 2278.10 | 0.63 |
//! | 100M | 1M | 128 | Zipf, buckets, leases | 0.81 | 812k | 813 | 31.2k (too hot) | 1827.98 | 0.51 |
//! | 100M | 1M | 128 | Zipf, windows | 0.93 | 932k | 932 | 7.42k (too hot) | 2095.98 | 0.58 |
//! | 100M | 1M | 128 | Zipf, windows, leases | 0.80 | 800k | 800 | 1.28k (too hot) | 1799.09 | 0.50 |
//!
//! # Hot keys
//!
//! More nodes, cores and partitions do not help one key. A node of Redis takes 50,000 calls per second for a key (half
//! busy), a row of PostgreSQL 2,000, a partition of DynamoDB 1,000 writes. The model has the cost of the hottest key.
//! If it is too much:
//!
//! 1. Lease units of it: a key of 20,000 requests per second in 32 processes costs 17,200 calls per second without
//!    leases, 392 with leases of 50, and 165 with leases of 1,000 (a fixed window: 619 and 385, since its leases end
//!    with it).
//! 2. Divide it, as by region or by process: *n* keys, each with an *n*th of the limit. In memory, that is a limit per
//!    machine, and needs no server.
//!
//! # When leases pay
//!
//! Leases pay for keys with several requests per second *and process*: with 128 processes, only for the hottest keys.
//! In the tables, they save 11 to 17 % of all calls.
//!
//! A key that is exhausted has nothing to lease, with any algorithm. The cache of rejections is for such keys. In the
//! tables that is the hottest key: one of its requests in twenty is rejected. As a bucket it gets single units all the
//! time, and each is asked for. As a window it has a new quota at once, and leases save 78 to 91 % of its calls. A
//! bucket below its limit needs least: a lease of it lasts for its whole lifetime, and one of a window no longer than
//! the window.
//!
//! # What was measured
//!
//! By `--check`, on a cloud machine with 2 virtual processors (x86-64) that also ran the client: Redis 7.0.15 of Debian
//! without persistence, 100,000 keys for memory; 10,007 keys for processors; and for calls, 3,000 requests per second
//! for 2,000 keys by Zipf's law from 4 clients. The rows of PostgreSQL were counted without it: 100,000 of them, made
//! by the migration and one `INSERT`.
//!
//! | | model | measured | ratio |
//! |---|---|---|---|
//! | bytes per key: buckets | 149 | 149 | 1.00 |
//! | bytes per key: fixed window | 165 | 165 | 1.00 |
//! | bytes per key: sliding window, window of the calendar | 181 | 181 | 1.00 |
//! | main thread per request, 64 in flight on one connection | 5.67 µs | 5.24 µs | 1.08 |
//! | main thread per request, one in flight on each of 64 connections | 10.2 µs | 9.22 µs | 1.11 |
//! | main thread per request, leases of 1,024 | 0.125 µs | 0.106 µs | 1.19 |
//! | bytes per row of PostgreSQL 15.18, with the index: buckets, window of the calendar | 223 | 223 | 1.00 |
//! | bytes per row of PostgreSQL: fixed and sliding window | 212 | 212 | 1.00 |
//! | calls per request: bucket, 20 % rejected | 0.89 | 0.89 | 1.00 |
//! | calls per request: the same with leases of 50 | 0.76 | 0.75 | 1.01 |
//! | calls per request: bucket, none rejected, leases of 50 | 0.58 | 0.57 | 1.03 |
//! | calls per request: fixed window, 20 % rejected | 0.81 | 0.80 | 1.00 |
//! | calls per request: the same with leases of 50 | 0.71 | 0.70 | 1.02 |
//! | calls per request: fixed window, none rejected, leases of 50 | 0.72 | 0.70 | 1.03 |
//!
//! In four more runs, while compilers ran on the same processors, bytes were within 1 %, and the first two times
//! between 5.2 and 7.7 µs, and between 9.2 and 10.8 µs. Then the client does not keep 64 calls in flight. Calls per
//! request can only be compared when the client sends in time; the program says when it did not.
//!
//! # What was not measured
//!
//! - DynamoDB on AWS: its calls and writes are simulated. Its price and the 1,000 writes of a partition are AWS's
//!   figures.
//! - PostgreSQL on a machine with more than two cores. The 155 µs of a statement were measured with `pgbench`, by one
//!   connection. On a [busy machine](super::postgres#what-it-costs) it was 340 µs: measure yours.
//! - A cluster of Redis, persistence, replicas and TLS: each takes processor time of its own. Redis 8 and Valkey 8,
//!   which keep keys in fewer bytes, were not measured either.
//! - More than 3,000 requests per second: beyond, the simulation is trusted. Retries of rejected clients, bursts and
//!   times of day are not in it either. Plan for the peak.
//!
//! # How much memory a process needs
//!
//! A table holds [65,536 keys](crate::store::MemoryStore) unless set otherwise, at 16 bytes each for buckets and
//! windows (52 or 68 for [large limits](crate::store::MemoryStore#memory)), and never grows. Only keys that still owe
//! something need a slot: the slots are new keys per second × the time until their spent units are earned again. With
//! ten per second, a request owes for 0.1 s, a burst of 20 for two seconds; so 65,536 keys are some 30,000 new clients
//! per second that all spend their burst. With five per day, a request owes for 4.8 hours, and the table is full at
//! four new clients per second. Size those limits by clients per day.
//!
//! A [`LeakyQueue`](crate::LeakyQueue) remembers 65,536 keys, too, unless set otherwise
//! ([`max_keys`](crate::LeakyQueue::max_keys)), at up to 200 bytes each, and allocates them on demand. When it is full,
//! it rejects new keys; a full table evicts the key that owes least.
//!
//! Next: [share limits on PostgreSQL](super::postgres).
