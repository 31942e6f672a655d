//! Checks the model, and that the guide's page has its tables.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tower_sluice::testing::Random;

use crate::model::load::{Arguments, Leasing, Load, Server};
use crate::model::needs::{self, NAME, STATES};
use crate::model::server::Kind;
use crate::model::simulation::estimate;
use crate::model::tables::tables;
use crate::model::traffic::Traffic;

#[test]
fn the_page_has_the_printed_tables() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/capacity.md")).unwrap();
    for line in tables().concat() {
        let line = format!("{line}\n");
        assert!(
            page.contains(&line),
            "cargo run --release -p tower-sluice-capacity -- --tables   prints another line:\n{line}"
        );
    }
}

#[test]
fn the_page_quotes_a_hot_keys_cost() {
    let calls = |kind| {
        let base = Load { kind, keys: 1, rate: 20_000, rejected: 0, ..Load::new(Server::Redis) };
        [0, 50, 1_000].map(|most| {
            let lease = lease(most).filter(|lease| lease.most > 0);
            needs::short(estimate(&Load { lease, ..base }, 1).all.calls)
        })
    };
    // The page has 17,200 for the first.
    assert_eq!(calls(Kind::Bucket), ["17.2k", "392", "165"]);
    assert_eq!(calls(Kind::FixedWindow), ["17.2k", "619", "385"]);
}

/// Simulates all requests for all keys, for processes whose tables are unbounded and whose calls take no time. Returns
/// the calls per request.
fn naive(load: &Load, seed: u64) -> f64 {
    let (traffic, mut random) = (Traffic::of(load), Random::new(seed));
    let limit = traffic.limit(load);
    let rates = (1..=load.keys).map(|rank| traffic.rate_of(rank));
    let sums: Vec<f64> = rates.scan(0.0, |sum, rate| (*sum += rate, Some(*sum)).1).collect();
    let full = |rank: u64| if traffic.rate_of(rank + 1) * limit.interval as f64 > 1e9 { limit.period() } else { 0 };
    let mut paid_at: Vec<u64> = (0..load.keys).map(full).collect();
    let mut rejected: HashMap<(u64, usize), (u64, u64)> = HashMap::new();
    let (mut calls, step) = (0, 1_000_000_000 / load.rate);
    let (warm, all) = (10 * load.rate, 40 * load.rate);
    for number in 0..all {
        let now = number * step;
        let process = random.below(load.processes.into());
        let chosen = random.below(1 << 53) as f64 / (1_u64 << 53) as f64 * load.rate as f64;
        let key = sums.partition_point(|sum| *sum < chosen).min(sums.len() - 1);
        let is_known = rejected
            .get(&(process, key))
            .is_some_and(|(until, verified)| now < *until && now <= verified + 500_000_000);
        if is_known {
            continue;
        }
        calls += u64::from(number >= warm);
        let next = paid_at[key].max(now) + limit.interval;
        if next <= now + limit.period() {
            paid_at[key] = next;
        }
        // When there is room for one more.
        rejected.insert((process, key), ((paid_at[key] + limit.interval).saturating_sub(limit.period()), now));
    }
    calls as f64 / (all - warm) as f64
}

#[test]
fn a_sample_costs_what_all_keys_do() {
    let base = Load { round_trip: Duration::ZERO, processes: 4, ..Load::new(Server::Redis) };
    for (keys, rate, rejected, zipf) in
        [(500, 2_000, 300, 1_000), (3_000, 5_000, 100, 700), (3_000, 500, 600, 1_200), (200, 200, 200, 0)]
    {
        let load = Load { keys, rate, rejected, zipf, ..base };
        let (sampled, all) = (estimate(&load, 7).all.calls_per_request(), naive(&load, 8));
        assert!((sampled / all - 1.0).abs() < 0.04, "{keys} {rate} {rejected} {zipf}: {sampled} instead of {all}");
    }
}

/// A given seed always gives one estimate.
#[test]
fn seeds_give_similar_estimates() {
    let load = Load { kind: Kind::FixedWindow, lease: lease(50), ..Load::new(Server::DynamoDb) };
    let of = |seed| estimate(&load, seed).all;
    assert!(of(1).calls.to_bits() == of(1).calls.to_bits() && of(1).calls.to_bits() != of(2).calls.to_bits());
    for seed in 2..6 {
        for (one, other) in [(of(1).calls, of(seed).calls), (of(1).writes, of(seed).writes)] {
            assert!((one / other - 1.0).abs() < 0.02, "{one} and {other}");
        }
    }
}

#[test]
fn calls_depend_on_the_load() {
    let base = Load { keys: 100, rate: 10_000, rejected: 0, zipf: 0, processes: 4, ..Load::new(Server::Redis) };
    let calls = |load: Load| estimate(&load, 3).all.calls_per_request();
    // Nothing saves a call for keys that are hardly ever asked for, because the next request is a day away.
    let cold = Load { keys: 1_000_000_000, ..base };
    assert!((0.99..1.01).contains(&calls(cold)), "{}", calls(cold));
    // 25 requests per second and process for each key: a lease of 50 and those before it, of 1 to 32, last for a second
    // each; the hundred keys need a call per lease.
    let windows = Load { kind: Kind::FixedWindow, round_trip: Duration::ZERO, ..base };
    let leasing = Load { lease: lease(50), ..windows };
    assert!((0.99..1.01).contains(&calls(windows)) && calls(leasing) < 0.4, "{}", calls(leasing));
    // A rejection is known until the window ends: one call or two per half a second, key and process.
    let rejecting = Load { rejected: 900, ..windows };
    let (calls, admitted) = (calls(rejecting), 0.1);
    assert!((admitted..admitted + 4.0 * 100.0 * 4.0 / 10_000.0).contains(&calls), "{calls}");
}

fn lease(most: u32) -> Option<Leasing> {
    Some(Leasing { most, lifetime: Duration::from_secs(1) })
}

/// For 100,000 keys on a Redis 7.0.15: `--check`.
#[test]
fn a_keys_bytes_match_the_measurement() {
    for ((name, value), measured) in STATES.into_iter().zip([148.8, 164.6, 180.6, 180.6]) {
        let bytes = needs::redis_bytes(100_000, NAME, value);
        assert!((bytes / measured - 1.0).abs() < 0.01, "{name}: {bytes} instead of {measured}");
    }
}

/// For 100,000 rows in the migration's table on a PostgreSQL 15.18, with their index.
#[test]
fn a_rows_bytes_match_the_measurement() {
    for (is_time, measured) in [(true, 222.8), (false, 211.9)] {
        let bytes = needs::row_bytes("per-client".len(), is_time);
        assert!((bytes / measured - 1.0).abs() < 0.01, "{bytes} instead of {measured}");
    }
}

#[test]
fn a_senseless_argument_names_a_valid_one() {
    let parse = |line: &str| Arguments::parse(line.split_whitespace().map(str::to_owned));
    let load = parse("--keys 1e8 --rate 1_000_000 --distribution zipf:1.1 --lease 50 --rejected 2.5").unwrap().load;
    assert_eq!((load.keys, load.rate, load.zipf, load.rejected), (100_000_000, 1_000_000, 1_100, 25));
    for (line, error) in [
        ("--keys 0", "--keys 0: must be a whole number from 1 to 1000000000000"),
        ("--rejected -1", "--rejected -1: must be a number from 0 to 99, with up to three decimals"),
        ("--distribution zipf", "--distribution zipf: must be uniform, or zipf:S with S from 0 to 3"),
        ("--lease 2000", "--lease 2000: must be a whole number from 0 to 1024"),
        ("--store memory", "--store memory: must be redis, postgres or dynamodb"),
        ("--keys", "--keys needs a value"),
        ("--key 5", "--key is unknown"),
    ] {
        let message = parse(line).unwrap_err().to_string();
        assert!(message.starts_with(error), "{line}: {message}");
    }
}
