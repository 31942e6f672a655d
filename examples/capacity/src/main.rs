//! Estimates a limiter's needs on Redis, PostgreSQL or DynamoDB: memory, processors, nodes, connections, write units
//! and dollars, for any number of keys and requests. The guide's page on capacity is made with it.
//!
//! ```sh
//! cargo run --release -p tower-sluice-capacity -- --keys 1e8 --rate 1e6 --processes 128 --lease 50
//! cargo run --release -p tower-sluice-capacity -- --store postgres --keys 1e6 --rate 5_000 --processes 8
//! cargo run --release -p tower-sluice-capacity -- --store dynamodb --distribution zipf:1.1 --rejected 20
//! cargo run --release -p tower-sluice-capacity -- --tables     # those of the guide
//! cargo run --release -p tower-sluice-capacity -- --check      # measures a redis-server, and compares
//! ```
//!
//! The calls per request are simulated, with a seed, so equal arguments print equal figures.

// A model, which decides on no real request.
#![allow(clippy::float_arithmetic, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod check;
mod model;
#[cfg(test)]
mod tests;

use model::load::{Arguments, Command};
use model::{needs, simulation, tables};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { command, load, server, price, seed } = Arguments::parse(std::env::args().skip(1))?;
    match command {
        Command::Needs => {
            let estimate = simulation::estimate(&load, seed);
            println!("{}", needs::describe(&load, server, &estimate, price));
        }
        Command::Tables => tables::tables().iter().for_each(|table| println!("{}\n", table.join("\n"))),
        Command::Answer => check::check(seed)?,
    }
    Ok(())
}
