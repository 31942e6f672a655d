//! The cost of a decision that many processes share: ours and its peers on one Redis, and bare commands as the floor.

mod report;
mod server;
mod subject;
mod work;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tower_sluice_redis::RedisStore;
use tower_sluice::SharedQueue;
use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::limiter::IntoLimiter;
use report::Report;
use server::Server;
use subject::{Make, Terms, limiter};
use work::{Plan, Sample};

use crate::load::{Cell, Cells};
use crate::steady;

/// Requests that are under way at a time.
const CONCURRENCY: [usize; 3] = [1, 64, 512];

/// A prime, as in other projects' tables.
const KEYS: u64 = 10_007;

/// So few that each is asked for often enough to be worth a lease.
const WARM: u64 = 1_000;

/// A measured row.
struct Row {
    name: &'static str,
    make: Make,
    keys: u64,
    terms: Terms,
}

const PING: &str = "`PING`";
const SINGLE: &str = "ours, single call";
const SINGLE_HOT: &str = "ours, single call, 1 key";
const LAYER: &str = "ours, layer, one policy";
const THREE_POLICIES: &str = "ours, layer, three policies in one call";
const QUEUE: &str = "ours, leaky queue, nobody waits";
const HOT: &str = "ours, coalesced, 1 key";
const FEW: &str = "ours, coalesced, 16 keys";
const SINGLE_WARM: &str = "ours, single call, 1,000 keys";
const LEASED: &str = "ours, leases of 10, 1,000 keys";
const TOWER: &str = "`tower-rate-limit-redis`";
const TRYPEMA: &str = "`trypema`";

fn rows() -> Vec<Row> {
    let admitted = |name, make| Row { name, make, keys: KEYS, terms: Terms::ADMITTED };
    let hot = |name, make, keys| Row { name, make, keys, terms: Terms::ADMITTED_HOT };
    let rejected = |name, make| Row { name, make, keys: KEYS, terms: Terms::exactly(1) };
    vec![
        admitted(PING, Make::Ping),
        admitted("`INCR`", Make::Incr),
        admitted(SINGLE, SINGLE_CALL),
        admitted(TOWER, Make::TowerRateLimitRedis),
        admitted(LAYER, Make::Layer(1)),
        admitted(THREE_POLICIES, Make::Layer(3)),
        admitted(TRYPEMA, Make::Trypema),
        admitted("ours, coalesced", COALESCED),
        hot(FEW, COALESCED, 16),
        hot(SINGLE_HOT, SINGLE_CALL, 1),
        hot(HOT, COALESCED, 1),
        hot(SINGLE_WARM, SINGLE_CALL, WARM),
        hot(LEASED, LEASING, WARM),
        admitted(
            "ours, leaky bucket",
            Make::Limiter(|redis, terms| {
                limiter(LeakyBucket::new(terms.bucket()), RedisStore::new(redis, "leaky").without_coalescing())
            }),
        ),
        admitted(
            "ours, fixed window",
            Make::Limiter(|redis, terms| {
                limiter(FixedWindow::new(terms.window()), RedisStore::new(redis, "fixed").without_coalescing())
            }),
        ),
        admitted(
            "ours, sliding window",
            Make::Limiter(|redis, terms| {
                limiter(SlidingWindow::new(terms.window()), RedisStore::new(redis, "sliding").without_coalescing())
            }),
        ),
        admitted(QUEUE, Make::Limiter(|redis, terms| SharedQueue::new(redis.clone(), "queue", terms.bucket()).into_limiter())),
        rejected("ours, single call, all rejected", SINGLE_CALL),
        rejected("`tower-rate-limit-redis`, all rejected", Make::TowerRateLimitRedis),
    ]
}

const SINGLE_CALL: Make = Make::Limiter(|redis, terms| {
    limiter(TokenBucket::new(terms.bucket()), RedisStore::new(redis, "single").without_coalescing())
});

const COALESCED: Make =
    Make::Limiter(|redis, terms| limiter(TokenBucket::new(terms.bucket()), RedisStore::new(redis, "coalesced")));

const LEASING: Make = Make::Limiter(|redis, terms| {
    let store = RedisStore::new(redis, "leased").leasing(10, Duration::from_secs(1));
    limiter(TokenBucket::new(terms.bucket()), store)
});

/// Runs everything, or the rows whose names contain one of `only` and their references, and prints the tables; `false`
/// if there is no server, or one of ours failed.
pub fn run(quick: bool, only: &[String]) -> bool {
    let begun = Instant::now();
    let outcome = Server::start().and_then(|server| Ok((server.version()?, Arc::new(server))));
    let (version, server) = match outcome {
        Ok(it) => it,
        Err(problem) => {
            eprintln!("bench: {problem}");
            return false;
        }
    };
    let pinned = crate::machine::pin_process(server.id(), 1);
    println!("# Redis\n\n{}.", crate::machine::describe());
    let versions =
        crate::pages::versions(crate::report::LOCK, &["redis", "tower-rate-limit-redis", "trypema", "tokio"]);
    println!("redis-server {version}, {versions}.");
    if quick {
        println!("\n{} a twentieth of a second each. Not to be quoted.**", crate::pages::QUICK);
    }
    let (repetitions, time) = if quick { (1, Duration::from_millis(50)) } else { (3, Duration::from_millis(900)) };
    let mut report = Report { pinned, cells: Cells(Vec::new()), again: BTreeSet::new(), hot: Vec::new() };
    let mut rows = rows();
    let is_reference = |name| [PING, SINGLE, SINGLE_WARM, TOWER].contains(&name);
    rows.retain(|row| only.is_empty() || is_reference(row.name) || only.iter().any(|text| row.name.contains(text)));
    let mut whole = exactness(&server, &rows);
    // All rows in turn, so that compared rows are close in time.
    let measure = |report: &mut Report, concurrency, repetition: usize| {
        let mut whole = true;
        for &Row { name, make, keys, terms } in &rows {
            let so_far = begun.elapsed().as_secs();
            crate::progress(&format!("{so_far:3} s  {}/{repetitions}  {concurrency}  {name}", repetition + 1));
            let sample = work::measure(Plan { server: Arc::clone(&server), make, terms, keys, concurrency, time });
            whole &= sample.is_ok() || !name.starts_with("ours");
            report.cells.0.push(Cell { name, concurrency, repetition, sample });
        }
        whole
    };
    for repetition in 0..repetitions {
        for concurrency in CONCURRENCY {
            whole &= measure(&mut report, concurrency, repetition);
        }
        let hot = work::rejected_hot_key(&server, SINGLE_CALL, if quick { 2_000 } else { 100_000 });
        whole &= hot.is_ok();
        report.hot.push(hot);
    }
    for repetition in repetitions..repetitions + steady::MORE_REPETITIONS {
        for concurrency in CONCURRENCY {
            if report.is_restless(concurrency) {
                whole &= measure(&mut report, concurrency, repetition);
                report.keep_quietest(concurrency, repetitions);
            }
        }
    }
    crate::progress("");
    println!("{report}");
    if !quick {
        print!("{}", report.targets());
    }
    println!("\nTook {} s; load at the end {}.", begun.elapsed().as_secs(), crate::machine::load());
    whole
}

/// Right before fast. A peer that documents its inexactness is not blamed for it.
fn exactness(server: &Arc<Server>, rows: &[Row]) -> bool {
    const BURST: u32 = 100;
    let limits = |row: &&Row| !matches!(row.make, Make::Ping | Make::Incr) && row.terms.burst > 1;
    let (mut whole, mut results) = (true, Vec::new());
    for row in rows.iter().filter(limits) {
        let admitted = work::admitted(server, row.make, BURST);
        whole &= admitted == Ok(BURST) || !row.name.starts_with("ours");
        if admitted != Ok(BURST) {
            results.push(format!(
                "{}: {}",
                row.name,
                admitted.map_or_else(|problem| problem, |count| count.to_string())
            ));
        }
    }
    let others = if results.is_empty() { "all admit just that".to_owned() } else { results.join("; ") };
    println!("\nOf {} requests for one key at the same time, {BURST} are to be admitted: {others}.", 2 * BURST);
    whole
}
