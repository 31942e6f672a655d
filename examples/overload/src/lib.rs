//! A simulated server under overload, behind our limiter and behind its peers: goodput, classes, tenants, recovery, and
//! the traps for limiters that find their limit themselves.
//!
//! ```sh
//! cargo run --release -p tower-sluice-overload                      # the table, in Markdown
//! cargo run --release -p tower-sluice-overload -- --only ours       # one column
//! cargo run --release -p tower-sluice-overload -- --pictures DIR    # curves, as SVG
//! cargo run --release -p tower-sluice-overload -- --guide DIR       # the pictures of the guide: docs/guide/overload
//! cargo run --release -p tower-sluice-overload -- --random 100      # random scenarios, against the best fixed limit
//! scripts/overload                                                  # with the crates of others
//! ```
//!
//! The server is a [tower service](Server) on tokio's paused clock, and the load is drawn with a seed, so each run
//! prints equal figures.
//!
//! # The server
//!
//! It has two workers and a run queue, first come, first served. A request takes 5 ms on a worker unless a row says
//! otherwise, so the capacity is 400 requests per second. A client gives up after a second, and drops its request: work
//! that has begun is finished, and a request in the run queue is skipped. (In two rows, the server works on it all the
//! same; in one of them, its handlers hold their permits until then.) The load is open: clients do not wait for one
//! another. One in five requests is in the top class. One tenant has 60 % of the offers, and nine others share the
//! rest.
//!
//! # The figures
//!
//! - *Goodput*: the share of the workers' time that went into good answers. An answer is good if it has the status 200,
//!   and its body ends within 100 ms after the arrival; if the work is to wait for another server, 100 ms after that.
//! - *Served*: the share of offers that got a good answer. *Shed*: the share that got no answer, not even a late one,
//!   because it was rejected, failed or given up.
//! - *Top class*: at ten times the capacity, a 20 % class alone offers twice the capacity, and no scheduler serves it.
//!   So there are three figures: how much of it is served at 4 ×, where it offers 0.8 of the capacity; how much of an 8
//!   % class is served at 10 ×; and the share of the capacity that a 20 % class gets at 10 ×.
//! - *Jain's index* over the nine tenants with equal offers. It is high for a limiter that rejects at random, too, so
//!   the table also has the greedy tenant's share of the goodput at 10 × (a fair one is 10 %), and the served share of
//!   the nine at 2 ×, where they offer 0.8 of the capacity.
//! - *Recovery*: the time from the end of a three-fold slowdown of ten seconds to the first second in which the goodput
//!   is 90 % of its earlier level.
//! - *In the server*: the mean number of requests that the server works on or has in its run queue, during the minute
//!   before and after. Under overload, it is the limit in force.
//! - *p50, p99*: latency percentiles over all requests that were answered.
//!
//! # The traps
//!
//! - *Exponential, bimodal*: service times vary, and single latencies say little.
//! - *Slow route*: one request in ten waits for 100 ms, and needs no worker. *Health checks*: half take 0.1 ms.
//! - *Stable timeout*: the server hangs for a minute, and answers each request with 504 after a second.
//! - *Idle hour*: at 0.1 ×, then 10 × at once. *Cold start*: 10 × from the first request on.
//! - *Long body*: the head is sent after a tenth of the work. A permit that is released there protects nothing.
//! - *Clients give up after 50 ms*: a limit of 20 answers after exactly that time, and a larger one too late.
//! - *2 workers become 16*, and *64 workers*: the limit has to grow.
//!
//! A figure in bold misses our limiter's target.

// A model, which decides on no real request.
#![allow(clippy::float_arithmetic, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

pub mod contenders;
mod draw;
mod figures;
mod guide;
mod job;
mod picture;
mod plan;
mod random;
mod run;
mod scenarios;
mod server;
mod table;
#[cfg(test)]
mod tests;
mod time;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

pub use self::job::Job;
pub use self::server::{Head, Server, ServerBody};
use contenders::Contender;

const USAGE: &str = "usage: overload [--only NAME] [--pictures DIR | --guide DIR | --random SEEDS]";

/// Runs the program: prints the table, or draws pictures.
///
/// # Errors
///
/// If the arguments make no sense, a picture cannot be written, or our limiter misses a target.
pub fn main(
    arguments: impl IntoIterator<Item = String>,
    mut contenders: Vec<Box<dyn Contender>>,
) -> Result<(), Box<dyn Error>> {
    let mut folder = None;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match argument.as_str() {
            "--only" => contenders.retain(|contender| contender.name().contains(&value)),
            "--random" => return random::report(&value),
            "--pictures" | "--guide" => folder = Some((PathBuf::from(value), argument == "--guide")),
            _ => return Err(USAGE.into()),
        }
    }
    let Some((folder, is_guide)) = folder else {
        let (table, missed) = table::table(&contenders, &scenarios::all());
        print!("{table}");
        return if missed.is_empty() { Ok(()) } else { Err(format!("ours misses its targets: {missed:?}").into()) };
    };
    fs::create_dir_all(&folder)?;
    let pictures = if is_guide { guide::draw() } else { picture::draw(&contenders) };
    for (name, svg) in pictures {
        let file = folder.join(name).with_extension("svg");
        fs::write(&file, svg)?;
        println!("{}", file.display());
    }
    Ok(())
}
