//! One limit for several machines, on PostgreSQL.
//!
//! **You want** one limit for all processes of a service, and you run PostgreSQL already. A Redis would be one more
//! service to operate. Keep the budgets in a table:
//!
//! ```ignore
//! use deadpool_postgres::{Manager, Pool};
//! use tokio_postgres::NoTls;
//! use tower_sluice::{Policy, Quota, RateLimiter, RateLimitLayer, TokenBucket, key::PeerIp};
//! use tower_sluice_postgres::{Postgres, PostgresStore};
//!
//! fn limits() -> Result<RateLimitLayer, Box<dyn std::error::Error>> {
//!     let address = "postgres://limits:secret@10.0.0.7/limits".parse()?;
//!     let pool = Pool::builder(Manager::new(address, NoTls)).max_size(8).build()?;
//!     let store = PostgresStore::new(&Postgres::new(pool), "per-client");
//!     let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10)), store);
//!     Ok(RateLimitLayer::new(Policy::new("per-client", limiter).key(PeerIp::new())))
//! }
//! ```
//!
//! Create its tables first, by [the migration](#the-migration): while they are missing, each process limits by itself,
//! and says so in its log.
//!
//! The crate [`tower-sluice-postgres`](https://docs.rs/tower-sluice-postgres) (folder `crates/postgres` of the
//! repository) is a crate of its own. It takes a pool that you make: of `deadpool-postgres` (by default), of `bb8`, or
//! of `sqlx`, and makes [connections](#connections) as that one does. It is tested with PostgreSQL 15.
//!
//! # From Redis to PostgreSQL
//!
//! Two lines change: how the server is opened, and the store of a limiter.
//!
//! ```ignore
//! let redis = Redis::single(url).open()?;
//! RateLimiter::new(algorithm, RedisStore::new(&redis, name))
//!
//! let postgres = Postgres::new(pool);
//! RateLimiter::new(algorithm, PostgresStore::new(&postgres, name))
//! ```
//!
//! The program [`plans`](https://github.com/tower-sluice/tower-sluice/blob/main/examples/plans.rs) sells an API on
//! either, or in memory, as its second argument says. A test runs a year of random requests against two processes of
//! it, on Redis and on PostgreSQL, with the clocks of the server and of both processes moved. Each answer agrees, to
//! the unit, with a naive ledger.
//!
//! Units that customers buy are a [`SharedBalance`](crate::SharedBalance) on either: over `redis.clone()`, or over
//! `postgres.records()`, a second table, which is logged. Requests in flight on all machines are counted on either, by
//! a [`SharedConcurrency`](crate::SharedConcurrency), and a [`SharedQueue`](crate::SharedQueue) is one queue for all.
//! On PostgreSQL a request takes two statements for each, of which one writes, and the write waits for the disk: they
//! are for requests that last, such as downloads, exports and calls to a language model.
//!
//! # When to take it, and when not
//!
//! | you have | take |
//! |---|---|
//! | PostgreSQL, and up to some thousand decisions per second | PostgreSQL |
//! | quotas per month that must survive a crash, and no Redis that writes to disk | PostgreSQL, with a [logged table](#what-a-crash-loses) |
//! | a primary that is busy already | [Redis](super::machines): each decision is a transaction that writes |
//! | tens of thousands of decisions per second | Redis: PostgreSQL takes 15 times as much processor time and more |
//! | a key with thousands of requests per second | Redis, or [leases](#a-busy-key) |
//! | queues or requests in flight on all machines, hundreds of them per second and key | Redis; below that, either |
//! | functions that start and stop, each with a connection of its own | Redis or [DynamoDB](super::dynamodb), or a pooler in front |
//!
//! # What it costs
//!
//! | a request | costs |
//! |---|---|
//! | of one policy | one statement, in one round trip. It is a transaction of its own, and writes one row |
//! | of a key that is new, banned or allowed, and its first after a change of the quota | two statements, one after the other: the first one is half as dear, and finds that it cannot decide |
//! | of several policies of a layer, on one table | one statement for all, under the same conditions, also if the policies are [alternatives](super::overage) or have different algorithms. A rejection locks their rows while it is decided, and writes nothing else |
//! | of a key for which this process is already waiting for an answer | no statement of its own: single flight |
//! | of a key that is known to be used up | nothing: this process rejects it, with its exact wait. Twice per second and key, a request verifies that by a statement |
//! | of a key in demand, with [leases](#a-busy-key) | a share of one statement |
//! | that looks and does not charge ([`peek`](crate::LimitsHandle::peek)) | one `SELECT` by the primary key, which locks nothing |
//! | that is refunded | one `UPDATE`, after the response |
//! | of a [shared queue](crate::SharedQueue) | two statements, which all that come at one time for one key share; none if its queue is known to be full |
//!
//! Measured by `scripts/bench --postgres` over 10,000 keys, with an unlogged table, eight requests at a time:
//!
//! | | per second | processor of PostgreSQL |
//! |---|---|---|
//! | `SELECT 1` | 4,670 | 45 µs |
//! | an upsert that counts | 2,690 | 140 µs |
//! | a decision, over `deadpool-postgres` | 1,580 | 340 µs |
//! | over `sqlx` | 1,090 | 350 µs |
//! | tower-rate-limiter 0.2-alpha, over `sqlx` | 1,340 | 340 µs |
//! | two policies in one statement | 1,060 | 720 µs |
//! | in two statements | 820 | 680 µs |
//!
//! Other programs kept that machine of two processors busy: compare the rows with one another. These are figures from
//! before a decision had a statement for rows without anything unusual. Since then, PostgreSQL 15 executes 314,000
//! instructions for one, in place of 584,000, and 677,000 for two policies in one statement, in place of 1,553,000; an
//! upsert that counts takes 139,000 (counted by Valgrind, in single-user mode, over 300 decisions on 50 keys). With a
//! logged table, a decision writes 203 bytes of write-ahead log, in place of 283. With 64 requests at a time, two
//! policies in one statement were slower than in two (720 per second, and not 1,340). On one key with 64 at a time,
//! 2,590 single decisions per second were made, 15,300 by single flight, and 40,400 with leases of 50.
//!
//! # The migration
//!
//! `Postgres::migration` returns the statements that create two tables: print them, and put them among your migrations.
//! `sluice_state` has the limits over time, and `sluice_state_records` what processes share besides: queues, requests
//! in flight, bought units, free retries, and who is rejected most. `Postgres::migrate` executes them, for tests and
//! small programs: not from several processes at the same time, since PostgreSQL may then report that a table exists as
//! an error. The role that creates the tables owns them. The service needs less:
//!
//! ```sql
//! CREATE ROLE limits LOGIN PASSWORD '…';
//! GRANT USAGE ON SCHEMA public TO limits;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON sluice_state, sluice_state_records TO limits;
//! -- The default of PostgreSQL. Under another isolation, decisions on busy keys fail.
//! ALTER ROLE limits SET default_transaction_isolation = 'read committed';
//! ```
//!
//! Timeouts need no setting: each connection of the limits has a `statement_timeout` of three quarters of
//! `Postgres::timeout`, or the role's if that is less.
//!
//! One table serves all limiters of all services that use it: each limiter has a name. For a table per service, use
//! `Postgres::table("billing.sluice_state")`.
//!
//! # What a row holds
//!
//! A key is a row. Its primary key is a UUID: 128 bits of a hash over the secret, the name of the limiter, its
//! algorithm, and the key. **No row contains a text of a client.** With `Postgres::secret`, a reader of the table
//! cannot find out by trying which clients are in it. The column `limiter` has the name of the limiter, for you:
//!
//! ```sql
//! SELECT limiter, count(*), count(*) FILTER (WHERE expires <= now()) AS expired FROM sluice_state GROUP BY limiter;
//! ```
//!
//! The other columns are the state of the algorithm and the quota that it is kept under, as integers: all quotas of up
//! to [`Quota::MAX_UNITS`](crate::Quota::MAX_UNITS) are exact. Then there are a ban, a debt and an allowance, with the
//! reason that your operator gave. Windows whose beginning is [staggered](crate::FixedWindow::staggered) do not fit,
//! and `RateLimiter::new` panics for them.
//!
//! A row takes 212 to 223 bytes with its entry in the index: 22 MB for 100,000 keys.
//!
//! No index covers a column that a decision changes, and `fillfactor = 85` leaves room in each page. So PostgreSQL
//! writes the new version of a row into the same page, adds nothing to an index (*heap-only tuple*), and later
//! decisions remove the old version without a vacuum. That held for all of 200,000 updates of 100,000 rows.
//!
//! # What a crash loses
//!
//! The table is `UNLOGGED` unless you change the migration: a decision then writes 40 bytes to the write-ahead
//! log, and waits for no disk. The price:
//!
//! - After a **crash** of the server, or an immediate shutdown, the table is empty. All clients have their full
//!   budgets, and bans are over. After a regular restart, it is as it was.
//! - **Standbys** do not have its content. After a failover it is empty.
//! - It is in no physical backup.
//! - The records are logged. So a [charge by hand](super::top_ups) whose units a crash has forgotten is still known by
//!   its reference, and is not entered again.
//!
//! For limits per second or minute, that is as if a minute had passed. For quotas per month, keep the table:
//!
//! ```sql
//! ALTER TABLE sluice_state SET LOGGED;
//! ALTER ROLE limits SET synchronous_commit = off;
//! ```
//!
//! Then each decision writes its row to the log, and a crash loses nothing. With `synchronous_commit = off`, a decision
//! does not wait until the log is on the disk, and a crash loses the decisions of the last half a second or so. Leave
//! that line out only if the table is your bill: then decisions on one key can be no faster than the disk (and a
//! synchronous standby) confirms. Measured with `pgbench`, updates of 100,000 rows of this table by four connections:
//!
//! | table | updates per second | bytes of log per update |
//! |---|---|---|
//! | unlogged | 7,200 | 40 |
//! | logged, `synchronous_commit = off` | 4,300 to 9,200, since the machine was busy | 375 to 445 |
//! | logged | 1,150: the speed of its disk | the same, and pages in full after a checkpoint |
//!
//! After a failover to an asynchronous standby, charges that were not replicated are lost: per key, up to burst + rate
//! × lag is admitted twice.
//!
//! # How rows go away
//!
//! A row expires when its key owes nothing any more, and its ban and its allowance are over. Nothing depends on its
//! deletion: a decision on an expired row is one on a fresh key. No timer and no task of the server deletes rows. A
//! process that has made 16 new rows examines 256 rows that follow the last of them in the order of the primary key,
//! and deletes the expired ones among them, beside the path of requests and without waiting for a lock. Keys are
//! hashes, so these are random rows. At a steady rate of new keys, a sixteenth of the table is expired rows. If new
//! keys stop coming, the table stays as large as it is.
//!
//! To have the rows gone, as after a flood, run this statement, by hand or by
//! [`pg_cron`](https://github.com/citusdata/pg_cron). It reads the whole table:
//!
//! ```sql
//! DELETE FROM sluice_state WHERE expires <= clock_timestamp();
//! ```
//!
//! `TRUNCATE sluice_state` gives all clients full budgets. Partitions by `expires` are not possible, since the primary
//! key is the hash alone.
//!
//! # A database of its own
//!
//! Put the table into a database of its own on the same server. Each decision leaves an old version of a row, and
//! PostgreSQL keeps that while an older transaction *of the same database* is open. A report of an hour in the
//! application's database would make each decision on a busy key walk past all its versions of that hour. Measured with
//! `pgbench`, upserts of one row by four connections, for 8 seconds on PostgreSQL 15:
//!
//! | beside | upserts per second | the table, at the end |
//! |---|---|---|
//! | nothing | 19,500 | 24 KiB |
//! | a transaction that stays open in another database | 17,900 | 96 KiB |
//! | a transaction that stays open in the same database | 4,270, and falling | 1,750 KiB |
//!
//! Old replication slots and `hot_standby_feedback` hold back all databases: watch them.
//!
//! # Vacuum
//!
//! The default settings suffice. But each decision uses a transaction id: 1,000 per second are 86 million a day.
//! PostgreSQL freezes the rows of *every* table once per 200 million ids (`autovacuum_freeze_max_age`), which reads the
//! tables that have changed. Above a thousand decisions per second, raise it to a billion, and watch the age:
//!
//! ```sql
//! SELECT datname, age(datfrozenxid) FROM pg_database ORDER BY 2 DESC;
//! ```
//!
//! # Connections
//!
//! A pool says how to connect, and how many connections there may be. The limits **make connections of their own** with
//! it. So slow queries of the program take no connection from the limiter, which should protect the
//! service from them. A pool that is made for the limits alone shows how many connections they may have. Hooks of the
//! pool (`post_create`, `after_connect`) are not run for them: give settings to the role, or in the address.
//!
//! A pool needs decisions per second × seconds per decision connections. At 2,000 per second of 0.5 ms each, that is
//! one; take two to four per process. More help only if many different keys are asked for at once, since a process has
//! one statement in flight for a key. Measured with eight processes, two policies and four keys, on a machine of two
//! processors with a load of nine: with 1, 2, 4 and 8 connections each, 8,840, 6,980, 7,220 and 7,470 decisions were
//! made in ten seconds, and 0.3, 0.4, 1.0 and 0.8 % of the requests got none in time. If all are busy for longer than
//! three quarters of the timeout, the decision fails as [`PoolExhausted`](#when-it-fails).
//!
//! There are never more than the pool may have, and while PostgreSQL cannot be reached, one attempt more. A connection
//! whose statement gets no answer is closed. When the network is back, decisions are made again within a second; if a
//! connection takes long, within three times that.
//!
//! **Poolers.** Session mode works. In transaction mode, statements of a client reach connections that others use, too.
//! Tell the store so, and give the role a `statement_timeout`:
//!
//! ```ignore
//! Postgres::new(pool).behind_pooler()
//! ```
//!
//! Then nothing is prepared, and a statement is planned each time, which takes the server ten times the time. Without
//! it, decisions fail as [`Pooler`](#when-it-fails), and the settings of the limits stay on connections that the pooler
//! gives to others. `sqlx` also needs a pooler that follows prepared statements (pgbouncer from 1.21 on, with
//! `max_prepared_statements`). It is tested with pgbouncer 1.18.
//!
//! **Time limits.** A decision has 100 ms, unless `Postgres::timeout` sets another limit; in this time it waits for a
//! connection, and for the answer. After that the [failure mode](super::failure) of the policy decides. The server ends
//! a statement that has taken three quarters of it, as behind a lock. A connection may take up to a minute: it is made
//! beside requests, and the first ones fail meanwhile.
//!
//! # A busy key
//!
//! Decisions on one key are made one after the other, since each holds the lock of its row. Those of one process share
//! statements already (single flight), and one is in flight per key and process. Requests of a layer with several
//! policies share none: those with a key in common are decided one round trip after the other. If such a key is busy,
//! or many processes have requests for one key (a limit for all clients, a large tenant), lease units of it:
//!
//! ```ignore
//! PostgresStore::new(&postgres, "all-clients").leasing(50, Duration::from_secs(1))
//! ```
//!
//! Then one statement pays for up to 50 requests of that process. The price in accuracy is documented at
//! [`leasing`](crate::store::remote::RemoteStore::leasing).
//!
//! # Clocks
//!
//! The server's clock decides, read while the row is locked: all machines agree, and their own clocks do not matter.
//! The [window of a calendar](super::calendar) begins by the server's clock, too.
//!
//! If the server's clock is set back, or a standby whose clock is behind is promoted, the rows have states from the
//! future. The next decision on a key corrects its row: a bucket keeps the debt that it had, a window counts no further
//! than one window ahead, and the calendar counts in the present window. If it is set forward, keys earn the units of
//! that time.
//!
//! # When it fails
//!
//! A failure is never a rejection. The [failure mode](super::failure) of the policy decides: by default, this process
//! decides by itself. No statement that may have been carried out is sent again, so nothing is
//! charged twice. The source of the error is a `PostgresFault`, and its `kind` one of these:
//!
//! | kind | what has happened | cure |
//! |---|---|---|
//! | `Unreachable` | no connection could be made; nothing was charged | the address; whether the server runs |
//! | `TimedOut` | no answer within the timeout; the charge may have been made | look for locks and load; or a longer timeout |
//! | `ConnectionLost` | the connection ended before the answer; the charge may have been made | the network, a restart |
//! | `PoolExhausted` | all connections waited for an answer; nothing was charged | look for locks and load; or a larger pool |
//! | `TooManyInFlight` | a thousand calls of this process were in flight | the same, and look why the server is slow |
//! | `TooManyKeys` | the policies of one request have more than 62 keys in this table: each is decided in a statement of its own | none needed; or fewer policies in a layer |
//! | `BreakerOpen` | PostgreSQL kept failing, and is not called for a moment | the failures before, in the log |
//! | `NoTable` | the table is missing | run the migration; look at `search_path` |
//! | `WrongTable` | the table lacks a column or its primary key, or a column has another type | drop it, and run the migration |
//! | `Encoding` | the database has no such letter as the name of a limiter | a database whose encoding is UTF8 |
//! | `Pooler` | a pooler gave the statement to a connection of another client; nothing was charged | `Postgres::behind_pooler`, or session mode, or no pooler |
//! | `NoPermission` | the role may not use the table, or may not connect | the `GRANT` above; password, `pg_hba.conf` |
//! | `ReadOnly` | the server is a standby, also if an unlogged table is missing there, or read only | connect to the primary: `target_session_attrs=read-write` |
//! | `Serialization` | transactions of this role are not under `READ COMMITTED` | `default_transaction_isolation` for the role |
//! | `Deadlock` | PostgreSQL ended a deadlock; nothing was charged | let nothing else lock rows of the table |
//! | `StatementTimeout` | the statement took three quarters of the timeout, or the role's `statement_timeout` or `lock_timeout`; nothing was charged | look for what locks the row; or a longer timeout |
//! | `TooManyConnections` | the server accepts no further connection | smaller pools; a pooler; `max_connections` |
//! | `ShuttingDown` | the server starts or stops | wait |
//! | `DiskFull` | the server has no space left | free some; [delete expired rows](#how-rows-go-away) |
//! | `Contention` | a debt, a charge by hand or a record could not be written, since other processes changed it each time | of a key's state, [leases](#a-busy-key); of a record, fewer processes per key |
//! | `Unintelligible` | the row, or the answer, cannot be read | reset that key |
//! | `Cancelled`, `NoRuntime` | the runtime was shut down; or the caller has none | call from within a Tokio runtime that lives |
//! | `Other` | another error; its text has the SQLSTATE | look it up |
//!
//! | fault | tested by (`crates/postgres/tests/server`) |
//! |---|---|
//! | each kind with a cure, by the error that PostgreSQL really gives | `faults.rs` |
//! | the server is killed under load, with a logged and with an unlogged table | `crashes.rs` |
//! | it stands still, and goes on | `crashes.rs` |
//! | an operator ends connections and statements | `crashes.rs`, `faults.rs` |
//! | its clock is set back | `clocks.rs` |
//! | eight processes at once; 64 connections on one key | `processes.rs` |
//! | processes are killed that enter payments, or charge by hand | `accounts.rs`, `by_hand.rs` |
//! | a network that loses, delays and forgets; locks, and a failover, over each pool | `src/tests/network.rs` |
//! | pgbouncer, in both modes | `src/tests/pooler.rs` |
//!
//! # What to watch
//!
//! | what | act when |
//! |---|---|
//! | [`limiter_failures_total`](super::monitoring#metrics) | above 0: the log names the reason |
//! | the gauge [`store_breaker`](super::monitoring#metrics), whose `node` is `PostgreSQL table sluice_state` | above 0: PostgreSQL is not called |
//! | `n_tup_hot_upd` / `n_tup_upd` of the table in `pg_stat_user_tables` | below 0.9: old transactions hold pages back, or an index was added |
//! | `pg_total_relation_size('sluice_state')` | it grows while the number of clients does not: see [a database of its own](#a-database-of-its-own) |
//! | the oldest `xact_start` in `pg_stat_activity` | older than some minutes, in that database |
//! | `age(datfrozenxid)` | above `autovacuum_freeze_max_age` |
//!
//! # By configuration
//!
//! With the package `tower-sluice-config`, and the feature `file` of `tower-sluice-postgres`, a file has the server,
//! and its policies name it. Those without `store` are on the only server of the file.
//!
//! ```toml
//! [store.postgres]
//! url = "postgres://limits@10.0.0.7/limits"
//! pool-size = 8
//! ```
//!
//! A program
//! [registers](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.ConfigReader.html#method.store)
//! it: `Config::reader().store("postgres", tower_sluice_postgres::file::open)`. The program `sluice` has it already,
//! and prints the statements that create the tables: `sluice migration limits.toml`.
//!
//! # What is shared
//!
//! Used units, debts, bans (also their number, if they [grow](crate::Penalty::growing)), and bans and allowances by
//! hand, references of charges by hand, bought units, queues, requests in flight, free retries, and the list of who is
//! rejected most are shared by all processes that use the same table and the same names. Metrics and changes at run
//! time are each process's own. The whole table: [which processes share what](super::sharing).
//!
//! Next: [share limits on DynamoDB](super::dynamodb).
