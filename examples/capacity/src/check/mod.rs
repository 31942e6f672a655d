//! Measures a Redis that runs here, and prints the model's predictions beside it.

mod redis_server;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tower_sluice::algorithm::{CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::testing::Random;
use tower_sluice::{Limiter, PartitionKey, Quota, RateLimiter};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use self::redis_server::{RedisServer, Usage};
use crate::model::load::{Leasing, Load, Server};
use crate::model::needs::{NAME, STATES, main_thread, redis_bytes};
use crate::model::server::Kind;
use crate::model::simulation::estimate;
use crate::model::traffic::Traffic;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs all measurements in turn.
pub(crate) fn check(seed: u64) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = RedisServer::start()?;
    println!("{:58}{:>10}{:>10}{:>8}", "", "model", "measured", "ratio");
    runtime.block_on(async {
        bytes(&server).await?;
        processor(&server).await?;
        calls(&server, seed).await
    })
}

fn report(what: &str, model: f64, measured: f64) {
    let ratio = if model == measured { 1.0 } else { model / measured };
    println!("{what:58}{model:>10.2}{measured:>10.2}{ratio:>8.2}");
}

/// One process in a load: a client with its own connection.
fn limiter<A: Scripted>(server: &RedisServer, algorithm: A, lease: Option<Leasing>) -> Outcome<Arc<dyn Limiter>> {
    // Patient, so that a pause in the machine causes a late answer and not a failure.
    let redis = Redis::single(server.url()).timeout(Duration::from_secs(5)).max_in_flight(1_024).open()?;
    let store = RedisStore::new(&redis, "per-client");
    let store = match lease {
        Some(Leasing { most, lifetime }) => store.leasing(most, lifetime),
        None => store,
    };
    Ok(Arc::new(RateLimiter::new(algorithm, store)))
}

/// Whether a request is admitted.
async fn ask(limiter: &Arc<dyn Limiter>, key: &PartitionKey, cost: u64) -> Outcome<bool> {
    let decision = match limiter.decide(&Ask::charge(key, cost)) {
        Answer::Ready(decision) => decision,
        Answer::Pending(decision) => decision.await,
    };
    Ok(decision?.is_allowed())
}

fn key(rank: u64) -> PartitionKey {
    PartitionKey::from(format!("client {rank}"))
}

/// Keeps this many requests in flight until there is no next key.
async fn keep_asking(
    limiters: &[Arc<dyn Limiter>],
    concurrency: usize,
    next: impl Fn() -> Option<u64> + Clone + Send + 'static,
) -> Outcome<()> {
    let mut tasks = JoinSet::new();
    for number in 0..concurrency {
        let (limiter, next) = (Arc::clone(&limiters[number % limiters.len()]), next.clone());
        tasks.spawn(async move {
            while let Some(rank) = next() {
                ask(&limiter, &key(rank), 1).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// The bytes that 100,000 keys take on the server.
async fn bytes(server: &RedisServer) -> Outcome<()> {
    const KEYS: u64 = 100_000;
    // The bucket owes for an hour. The windows' numbers have equally many digits, as for a minute.
    let (bucket, window) = (Quota::per_hour(1), Quota::per(1_000, Duration::from_secs(150)));
    let limiters = [
        limiter(server, TokenBucket::new(bucket), None)?,
        limiter(server, FixedWindow::new(window), None)?,
        limiter(server, SlidingWindow::new(window), None)?,
        limiter(server, CalendarWindow::monthly(1_000), None)?,
    ];
    for ((name, value), limiter) in STATES.into_iter().zip(limiters) {
        ask(&limiter, &key(0), 1).await?;
        let measured = loop {
            server.run::<()>(&["FLUSHALL"])?;
            let before = server.used_memory()?;
            let count = Arc::new(AtomicU64::new(1));
            let next = move || Some(count.fetch_add(1, Ordering::Relaxed)).filter(|rank| *rank <= KEYS);
            keep_asking(&[Arc::clone(&limiter)], 256, next).await?;
            // Until the server has moved its keys to larger tables.
            sleep(Duration::from_millis(300)).await;
            // A window may have ended meanwhile.
            if server.run::<u64>(&["DBSIZE"])? == KEYS {
                break (server.used_memory()? - before) as f64 / KEYS as f64;
            }
        };
        report(&format!("bytes per key: {name}"), redis_bytes(KEYS, NAME, value), measured);
    }
    Ok(())
}

/// The main-thread time that a call takes on the server, and how many decisions that allows per second.
async fn processor(server: &RedisServer) -> Outcome<()> {
    const TIME: Duration = Duration::from_secs(3);
    let quota = Quota::per_second(1).burst(1_000_000_000);
    let lease = Leasing { most: 1_024, lifetime: Duration::from_secs(60) };
    for (what, clients, lease, keys) in [
        ("64 on one connection", 1, None, 10_007),
        ("64 on a connection each", 64, None, 10_007),
        ("leases of 1,024", 1, Some(lease), 1),
    ] {
        server.run::<()>(&["FLUSHALL"])?;
        let limiters = (0..clients).map(|_| limiter(server, TokenBucket::new(quota), lease));
        let limiters = limiters.collect::<Outcome<Vec<_>>>()?;
        let count = Arc::new(AtomicU64::new(0));
        let ask_until = async |end| {
            let asked = Arc::clone(&count);
            let next = move || (Instant::now() < end).then(|| asked.fetch_add(1, Ordering::Relaxed) % keys);
            keep_asking(&limiters, 64, next).await
        };
        ask_until(Instant::now() + TIME / 4).await?;
        let (usage, asked, begun) = (server.usage()?, count.load(Ordering::Relaxed), Instant::now());
        ask_until(begun + TIME).await?;
        let usage: Usage = server.usage()?.since(usage);
        let requests = (count.load(Ordering::Relaxed) - asked) as f64;
        let nanos = usage.processor as f64 * 1e3 / requests;
        let (calls, rate) = (usage.calls as f64 / requests, requests / begun.elapsed().as_secs_f64());
        // For one key, or each for another.
        let model = main_thread(calls, if keys == 1 { calls } else { 1.0 }, 1.0);
        report(&format!("main thread per request, ns: {what}"), model, nanos);
        println!("    {rate:.0} requests per second, {:.0} bytes per call on the network", {
            usage.network as f64 / usage.calls as f64
        });
    }
    Ok(())
}

/// How many calls a load makes.
async fn calls(server: &RedisServer, seed: u64) -> Outcome<()> {
    const TRIES: u32 = 3;
    let lease = Some(Leasing { most: 50, lifetime: Duration::from_secs(1) });
    for kind in [Kind::Bucket, Kind::FixedWindow] {
        for (rejected, lease) in [(200, None), (200, lease), (0, lease)] {
            let base = Load::new(Server::Redis);
            let load = Load { kind, keys: 2_000, rate: 3_000, rejected, processes: 4, lease, ..base };
            let mut run = run(server, &load, seed).await?;
            for _ in 1..TRIES {
                if run.late * 50 > run.requests {
                    run = self::run(server, &load, seed).await?;
                }
            }
            let Run { requests, rejections, calls, late } = run;
            let model = estimate(&load, seed).all;
            let (kind, leases) = (format!("{kind:?}"), if lease.is_some() { "leases of 50" } else { "no leases" });
            let share = |count: u64| count as f64 / requests as f64;
            let what = format!("calls per request: {kind}, {leases}");
            report(&what, model.calls_per_request(), share(calls));
            report("    rejected, %", 100.0 * model.rejected / model.requests, 100.0 * share(rejections));
            if late * 50 > requests {
                println!("    not to be compared: other programs run, and {late} requests came late, many at once");
            }
        }
    }
    Ok(())
}

/// The counts for five seconds under a load.
struct Run {
    requests: u64,
    rejections: u64,
    calls: u64,
    /// Requests that were sent more than 10 ms after their time, because this program did not get a processor.
    late: u64,
}

/// Runs a load for real.
async fn run(server: &RedisServer, load: &Load, seed: u64) -> Outcome<Run> {
    server.run::<()>(&["FLUSHALL"])?;
    let traffic = Traffic::of(load);
    let limit = traffic.limit(load);
    let interval = Duration::from_nanos(limit.interval);
    // Redis has no shorter time than a microsecond.
    let period = Duration::from_micros(limit.period() / 1_000);
    let burst = limit.burst;
    let limiters = (0..load.processes).map(|_| match load.kind {
        Kind::Bucket => limiter(server, TokenBucket::new(Quota::try_per(1, interval)?.burst(burst)), load.lease),
        Kind::FixedWindow => limiter(server, FixedWindow::new(Quota::try_per(burst, period)?), load.lease),
    });
    let limiters = limiters.collect::<Outcome<Vec<_>>>()?;
    let mut sums = Vec::new();
    for rank in 1..=load.keys {
        let rate = traffic.rate_of(rank);
        sums.push(sums.last().unwrap_or(&0.0) + rate);
        // As if it had been over its limit for long.
        if load.kind == Kind::Bucket && rate * limit.interval as f64 > 1e9 {
            ask(&limiters[0], &key(rank), burst).await?;
        }
    }
    let mut random = Random::new(seed);
    let rejections = Arc::new(AtomicU64::new(0));
    let (begun, step) = (Instant::now(), Duration::from_secs(1) / u32::try_from(load.rate)?);
    let (warm, all) = (load.rate * 3, load.rate * 8);
    let (mut before, mut rejections_before, mut late) = (server.usage()?, 0, 0);
    for number in 0..all {
        if number == warm {
            (before, rejections_before, late) = (server.usage()?, rejections.load(Ordering::Relaxed), 0);
        }
        // Evenly, and for keys and processes by chance, so each key's requests come by chance, too.
        let due = begun + step * u32::try_from(number)?;
        sleep_until(due).await;
        late += u64::from(due.elapsed() > Duration::from_millis(10));
        let chosen = random.below(1 << 53) as f64 / (1_u64 << 53) as f64 * load.rate as f64;
        let rank = sums.partition_point(|sum| *sum < chosen) as u64 + 1;
        let process = usize::try_from(random.below(load.processes.into()))?;
        let (limiter, rejections) = (Arc::clone(&limiters[process]), Arc::clone(&rejections));
        tokio::spawn(async move {
            if let Ok(false) = ask(&limiter, &key(rank), 1).await {
                rejections.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    sleep(Duration::from_millis(100)).await;
    let calls = server.usage()?.since(before).calls;
    Ok(Run { requests: all - warm, rejections: rejections.load(Ordering::Relaxed) - rejections_before, calls, late })
}
