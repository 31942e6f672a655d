//! The tables on the guide's page about capacity.

use std::time::Duration;

use super::load::{Leasing, Load, PRICE, Server};
use super::needs::{self, GIB, short};
use super::server::Kind;
use super::simulation::estimate;

/// Keys, requests per second, and processes. A PostgreSQL gets the first three, and others the last three.
const SIZES: [(u64, u64, u32); 4] =
    [(100_000, 1_000, 4), (1_000_000, 10_000, 8), (10_000_000, 100_000, 32), (100_000_000, 1_000_000, 128)];

/// A row's algorithm; the exponent in Zipf's law and the rejected requests, in thousandths; and the lease size.
const ROWS: [(&str, Kind, u32, u32, u32); 5] = [
    ("uniform, buckets", Kind::Bucket, 0, 0, 0),
    ("Zipf, buckets", Kind::Bucket, 1_000, 50, 0),
    ("Zipf, buckets, leases", Kind::Bucket, 1_000, 50, 50),
    ("Zipf, windows", Kind::FixedWindow, 1_000, 50, 0),
    ("Zipf, windows, leases", Kind::FixedWindow, 1_000, 50, 50),
];

/// The seed for the guide's tables.
const SEED: u64 = 1;

/// The tables, as Markdown lines.
pub(crate) fn tables() -> [Vec<String>; 3] {
    [Server::Redis, Server::Postgres, Server::DynamoDb].map(table)
}

fn table(server: Server) -> Vec<String> {
    let head = "| keys | requests per second | processes | traffic | calls per request | calls per second |";
    let (head, columns) = match server {
        Server::Redis => (format!("{head} memory | busy processors | nodes | hottest key, calls per second |"), 10),
        Server::Postgres => {
            (format!("{head} table | busy cores | cores | connections | hottest key, calls per second |"), 11)
        }
        Server::DynamoDb => {
            let head = "| keys | requests per second | processes | traffic | write units per request |";
            let rest = "write units per second | partitions | hottest key, units per second | dollars per hour |";
            (format!("{head} {rest} per million requests |"), 10)
        }
    };
    let sizes = if server == Server::Postgres { &SIZES[..3] } else { &SIZES[1..] };
    let rows = sizes.iter().flat_map(|size| ROWS.iter().map(move |row| (size, row)));
    let rows = rows.map(|(size, (name, kind, zipf, rejected, most))| {
        let (keys, rate, processes) = *size;
        let (kind, zipf, rejected, most) = (*kind, *zipf, *rejected, *most);
        let lease = (most > 0).then_some(Leasing { most, lifetime: Duration::from_secs(1) });
        let load = Load { kind, keys, rate, processes, zipf, rejected, lease, ..Load::new(server) };
        let [many, often] = [keys, rate].map(|number| short(number as f64).replace(".00", "").replace(".0", ""));
        format!("| {many} | {often} | {processes} | {name} | {} |", row(&load, server).join(" | "))
    });
    let rule = format!("|{}", "---|".repeat(columns));
    [head, rule].into_iter().chain(rows).collect()
}

fn row(load: &Load, server: Server) -> Vec<String> {
    let estimate = estimate(load, SEED);
    let (all, hottest) = (&estimate.all, &estimate.hottest);
    match server {
        Server::Redis => {
            let bytes = needs::redis_bytes(load.keys, needs::NAME, needs::STATES[0].1) * load.keys as f64;
            let nodes = needs::nodes(load, &estimate);
            vec![
                format!("{:.2}", all.calls_per_request()),
                short(all.calls),
                format!("{:.2} GiB", bytes / GIB),
                format!("{:.2}", needs::processors(all)),
                nodes.map_or("too hot".to_owned(), |nodes| nodes.to_string()),
                short(hottest.calls),
            ]
        }
        Server::Postgres => {
            let heat = if hottest.calls > needs::ROW_CALLS { " (too hot)" } else { "" };
            vec![
                format!("{:.2}", all.calls_per_request()),
                short(all.calls),
                format!("{:.2} GiB", needs::table_bytes(load.keys, true) / GIB),
                format!("{:.2}", needs::busy_cores(all)),
                needs::cores(all).map_or("too many".to_owned(), |cores| cores.to_string()),
                format!("{:.0}", (2.0 * needs::connections(load, all)).ceil()),
                format!("{}{heat}", short(hottest.calls)),
            ]
        }
        Server::DynamoDb => {
            let hour = needs::dollars_per_hour(all, PRICE);
            let heat = if hottest.writes > needs::PARTITION_WRITES { " (too hot)" } else { "" };
            vec![
                format!("{:.2}", all.writes / all.requests),
                short(all.writes),
                needs::partitions(all).to_string(),
                format!("{}{heat}", short(hottest.writes)),
                format!("{hour:.2}"),
                format!("{:.2}", hour / 3_600.0 * 1e6 / all.requests),
            ]
        }
    }
}
