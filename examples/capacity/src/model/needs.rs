//! The needs of a load: memory, processors and nodes for Redis, disk, cores and connections for PostgreSQL, or write
//! units for DynamoDB.

use super::load::{Load, Server};
use super::server::Kind;
use super::simulation::Estimate;
use super::tally::Rates;

/// The main-thread time in which a Redis 7.0 runs a call's script, in nanoseconds.
const SCRIPT_NANOS: f64 = 5_600.0;

/// To read a call and to answer it.
const READ_NANOS: f64 = 4_600.0;

/// For each request that a call decides on, beyond its key's first.
const DECIDED_NANOS: f64 = 120.0;

/// For each key in a call beyond the first: a process that has many calls in flight makes them as one.
const KEY_NANOS: f64 = 2_900.0;

/// How busy a node's main thread should be at most. The rest is for peaks, and for a node that fails.
const BUSY: f64 = 0.5;

/// The bytes that a node keeps at most. A larger one takes longer to copy to a replica.
const NODE_BYTES: f64 = 16.0 * GIB;

/// The processor time that a PostgreSQL 15 takes for a statement, with its commit and its round trip, in nanoseconds.
const STATEMENT_NANOS: f64 = 155_000.0;

/// A primary with more cores is rare, and costs more than a Redis.
const CORES: f64 = 64.0;

/// Decisions on one key are made one after the other, since each has the row lock. Above this many per second, they
/// mostly wake up each other.
pub(crate) const ROW_CALLS: f64 = 2_000.0;

/// One in this many rows in a PostgreSQL table has expired, if new keys come at a steady rate.
const EXPIRED: f64 = 16.0;

/// PostgreSQL freezes all tables after this many transactions (`autovacuum_freeze_max_age`).
const FREEZE: f64 = 200e6;

/// A DynamoDB partition, and so any one key, takes this many write units per second.
pub(crate) const PARTITION_WRITES: f64 = 1_000.0;

/// A DynamoDB item, with the 100 bytes that are billed beside its attributes. Not measured.
const ITEM_BYTES: u64 = 200;

const HOUR: f64 = 3_600.0;
const HOURS_PER_MONTH: f64 = 730.0;
pub(crate) const GIB: f64 = 1_073_741_824.0;

/// The value that Redis keeps for an algorithm: how many characters it has, `None` if it is an integer.
pub(crate) const STATES: [(&str, Option<usize>); 4] = [
    ("token bucket, leaky bucket", None),
    ("fixed window", Some("-29397300:17".len())),
    ("sliding window", Some("-29397300:17:12".len())),
    ("calendar window", Some("-1767225600:17".len())),
];

/// The length of a key's name: prefix, hash, limiter, and state kind.
pub(crate) const NAME: usize = "sluice:{0123456789abcdefghijkl}:per-client:b".len();

/// How many bytes each of `keys` takes on a Redis 7.0 with the system's allocator.
pub(crate) fn redis_bytes(keys: u64, name: usize, value: Option<usize>) -> f64 {
    /// A table entry, for the key and for its expiry.
    const ENTRY: usize = 24;
    const OBJECT: usize = 16;
    let header = if name < 32 { 2 } else { 4 };
    let value = match value {
        None => allocated(OBJECT),
        Some(length) => allocated(OBJECT + 4 + length),
    };
    // Both tables grow by doubling.
    let places = 2 * 8 * u128::from(keys).next_power_of_two();
    (allocated(name + header) + value + 2 * allocated(ENTRY)) as f64 + places as f64 / keys as f64
}

/// The bytes that jemalloc takes for `bytes`: multiples of 16 up to 128, and then four steps to each power of two.
fn allocated(bytes: usize) -> usize {
    let step = if bytes <= 128 { 16 } else { bytes.next_power_of_two() / 8 };
    bytes.next_multiple_of(step)
}

/// How many bytes a PostgreSQL row takes, with its index entry. For the algorithms in [`STATES`], a time takes eight
/// bytes more than a window's number.
pub(crate) fn row_bytes(limiter: usize, is_time: bool) -> f64 {
    const PAGE: usize = 8_192;
    const PAGE_HEADER: usize = 24;
    const POINTER: usize = 4;
    const INDEX: f64 = 44.7;
    // With a ten-byte name, 136 and 144.
    let row = (if is_time { 129 } else { 121 } + limiter + 1).next_multiple_of(8);
    let rows = (PAGE * 85 / 100 - PAGE_HEADER) / (row + POINTER);
    PAGE as f64 / rows as f64 + INDEX
}

/// A PostgreSQL table's bytes.
pub(crate) fn table_bytes(keys: u64, is_time: bool) -> f64 {
    keys as f64 * row_bytes("per-client".len(), is_time) * EXPIRED / (EXPIRED - 1.0)
}

/// How many cores PostgreSQL keeps busy.
pub(crate) fn busy_cores(rates: &Rates) -> f64 {
    rates.calls * STATEMENT_NANOS / 1e9
}

/// How many cores a primary needs, half busy at most; `None` if no usual one has them.
pub(crate) fn cores(rates: &Rates) -> Option<u64> {
    let cores = (busy_cores(rates) / BUSY).max(1.0).ceil();
    (cores <= CORES).then_some(cores as u64)
}

/// How many connections all processes together have in use on average, for each call's round trip.
pub(crate) fn connections(load: &Load, rates: &Rates) -> f64 {
    rates.calls * (load.round_trip.as_secs_f64() + STATEMENT_NANOS / 1e9)
}

/// The hours until all tables are frozen, with PostgreSQL's default.
fn hours_to_freeze(rates: &Rates) -> f64 {
    FREEZE / rates.calls / HOUR
}

/// The memory that a process takes beside its service: tables with fixed sizes for rejections, the fallback, and
/// leases.
pub(crate) const fn process_mib(has_leases: bool) -> f64 {
    if has_leases { 0.8 + 1.1 + 1.1 } else { 0.8 + 1.1 }
}

/// The main-thread time that a Redis takes for `calls` calls with `keys` keys that decide on `decided` requests, in
/// nanoseconds. `--check` measures it.
pub(crate) fn main_thread(calls: f64, keys: f64, decided: f64) -> f64 {
    let further = |one: f64, other: f64| (one - other).max(0.0);
    calls * (SCRIPT_NANOS + READ_NANOS) + further(keys, calls) * KEY_NANOS + further(decided, keys) * DECIDED_NANOS
}

/// How many processors the Redis main threads keep busy. In a cluster, and with few calls in flight, each call has one
/// key.
pub(crate) fn processors(rates: &Rates) -> f64 {
    main_thread(rates.calls, rates.calls, rates.decided) / 1e9
}

/// How many nodes a cluster needs; `None` if the hottest key alone is too much for one.
pub(crate) fn nodes(load: &Load, estimate: &Estimate) -> Option<u64> {
    let (all, hottest) = (processors(&estimate.all), processors(&estimate.hottest));
    // A key is on one node, with its share of the others.
    let for_calls = (hottest < BUSY).then(|| (all - hottest).max(0.0) / (BUSY - hottest))?;
    let for_keys = load.keys as f64 * redis_bytes(load.keys, NAME, STATES[0].1) / NODE_BYTES;
    Some(for_calls.max(for_keys).ceil().max(1.0) as u64)
}

/// Dollars per hour. A consistent read costs a fifth of a write.
pub(crate) fn dollars_per_hour(rates: &Rates, price: u64) -> f64 {
    (rates.writes + rates.reads / 5.0) * HOUR / 1e6 * price as f64 / 1_000.0
}

/// The program's output.
pub(crate) fn describe(load: &Load, server: Server, estimate: &Estimate, price: u64) -> String {
    let Estimate { all, hottest, limit, counted } = estimate;
    let per_second = short(1e9 / limit.interval as f64);
    let mut lines = vec![
        format!(
            "{counted} requests were simulated and counted, for limits of {per_second} per second and {} at once",
            { short(limit.burst as f64) }
        ),
        format!("rejected: {:.1} %", 100.0 * all.rejected / all.requests),
        format!("each process: {:.1} MiB, {} calls per second", process_mib(load.lease.is_some()), {
            short(all.calls / f64::from(load.processes))
        }),
        format!("calls: {:.3} per request, {} per second", all.calls_per_request(), short(all.calls)),
        format!("the hottest key: {} requests and {} calls per second", short(hottest.requests), short(hottest.calls)),
    ];
    match server {
        Server::Redis => {
            for (algorithm, value) in STATES {
                let bytes = redis_bytes(load.keys, NAME, value);
                let gib = bytes * load.keys as f64 / GIB;
                lines.push(format!(
                    "memory, if all keys owe something: {gib:.2} GiB, {bytes:.0} bytes per key ({algorithm})"
                ));
            }
            lines.push(format!("busy processors of Redis: {:.2}", processors(all)));
            lines.push(match nodes(load, estimate) {
                Some(nodes) => format!("nodes, half busy at most, of 16 GiB at most: {nodes}, and their replicas"),
                None => format!("the hottest key is too much for a node: {}", cure(load)),
            });
        }
        Server::Postgres => {
            for (algorithm, is_time) in [("bucket, window of the calendar", true), ("fixed or sliding window", false)] {
                let (gib, bytes) = (table_bytes(load.keys, is_time) / GIB, row_bytes("per-client".len(), is_time));
                lines.push(format!(
                    "table and index, if all keys owe something: {gib:.2} GiB, {bytes:.0} bytes per key ({algorithm})"
                ));
            }
            lines.push(format!("busy cores of PostgreSQL: {:.2}", busy_cores(all)));
            lines.push(match cores(all) {
                Some(cores) => format!("cores of the primary, half busy at most: {cores}"),
                None => "too much for a primary: take Redis".to_owned(),
            });
            let per_process = (2.0 * connections(load, all) / f64::from(load.processes)).ceil();
            lines.push(format!("connections: {per_process:.0} per process, half of them in use"));
            lines.push(format!("transaction ids: all tables are frozen every {:.1} hours", hours_to_freeze(all)));
            if hottest.calls > ROW_CALLS {
                lines.push(format!("the hottest key is too much for a row: {}", cure(load)));
            }
        }
        Server::DynamoDb => {
            let hour = dollars_per_hour(all, price);
            let per_million = hour / HOUR * 1e6 / all.requests;
            let gib = (load.keys * ITEM_BYTES) as f64 / GIB;
            lines.extend([
                format!("items: {gib:.2} GiB, if all keys owe something (estimated)"),
                format!("write units: {:.3} per request, {} per second", all.writes / all.requests, short(all.writes)),
                format!("read units: {} per second", short(all.reads)),
                format!("on demand: {hour:.2} dollars per hour, {:.0} per month", hour * HOURS_PER_MONTH),
                format!("  and {per_million:.3} per million requests"),
                format!("partitions: at least {}", partitions(all)),
            ]);
            let verdict = match hottest.writes {
                writes if writes > PARTITION_WRITES => format!("too much for a partition: {}", cure(load)),
                _ => "which a partition takes".to_owned(),
            };
            lines.push(format!("the hottest key: {} write units per second, {verdict}", short(hottest.writes)));
        }
    }
    lines.join("\n")
}

/// How one key could be asked for more often.
fn cure(load: &Load) -> &'static str {
    match (load.kind, load.lease) {
        (Kind::Bucket, _) => "a window with leases takes less",
        (Kind::FixedWindow, None) => "take leases",
        (Kind::FixedWindow, Some(_)) => "take larger leases, or have fewer processes",
    }
}

/// How many partitions take these writes, if the keys are spread evenly.
pub(crate) fn partitions(all: &Rates) -> u64 {
    (all.writes / PARTITION_WRITES).ceil().max(1.0) as u64
}

/// Three digits and a suffix: `12.3k`.
pub(crate) fn short(number: f64) -> String {
    let (number, suffix) = match number {
        _ if number >= 999.5e6 => (number / 1e9, "G"),
        _ if number >= 999.5e3 => (number / 1e6, "M"),
        _ if number >= 999.5 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    match number {
        _ if number >= 99.95 => format!("{number:.0}{suffix}"),
        _ if number >= 9.995 => format!("{number:.1}{suffix}"),
        _ => format!("{number:.2}{suffix}"),
    }
}
