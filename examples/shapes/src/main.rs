//! Draws how each algorithm decides on equal traffic, one SVG per traffic shape, and prints the figures.
//!
//! ```sh
//! cargo run -p tower-sluice-shapes                        # into target/shapes
//! cargo run -p tower-sluice-shapes -- docs/guide/shapes    # the pictures of the guide
//! ```
//!
//! One more picture shows an overloaded server's goodput, with protection and without: not computed, but measured by
//! `scripts/demo overload`. To measure again:
//!
//! ```sh
//! scripts/demo overload && cp target/demo/overload.csv examples/shapes/goodput.csv
//! ```
//!
//! The algorithms themselves decide, on a clock that only moves from request to request, so every run has equal output.

use std::path::PathBuf;
use std::{env, fs, io};

mod goodput;
mod picture;
mod simulation;
#[cfg(test)]
mod tests;
mod traffic;

use simulation::Run;
use traffic::Traffic;

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).unwrap_or_else(|| "target/shapes".into()));
    fs::create_dir_all(&folder)?;
    for traffic in Traffic::all() {
        let runs = simulation::run_all(&traffic);
        let file = folder.join(traffic.name).with_extension("svg");
        fs::write(&file, picture::draw(&traffic, &runs))?;
        println!("{}: {}\n", file.display(), traffic.title);
        println!("  {:16}{:>8}{:>10}{:>9}{:>14}", "", "offered", "admitted", "rejected", "longest wait");
        for run in &runs {
            let Run { name, .. } = run;
            let (admitted, rejected, wait) = (run.admitted(), run.rejected(), run.longest_wait());
            println!("  {name:16}{:>8}{admitted:>10}{rejected:>9}{wait:>11} ms", traffic.arrivals.len());
        }
        println!();
    }
    let file = folder.join("goodput.svg");
    fs::write(&file, goodput::draw(goodput::MEASURED))?;
    println!("{}: {}", file.display(), goodput::TITLE);
    Ok(())
}
