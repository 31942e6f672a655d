//! Processes that enter something until they are killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tower_sluice::testing::Random;

use super::server::PostgresServer;

/// Runs a test from this program in separate processes, two at a time and twenty in all, and kills each at any moment.
/// A variable gives the server's address to the test, which prints a line that begins with `entered` for each entry.
pub(crate) fn run_and_kill(server: &PostgresServer, test: &str, variable: &str, entries: u64) {
    let mut random = Random::of_trial(0);
    for _ in 0..10 {
        let mut processes = [(); 2].map(|()| start(server, test, variable));
        for process in &mut processes {
            let count = random.below(entries / 2);
            let lines = BufReader::new(process.stdout.take().unwrap()).lines();
            let entered = lines.map_while(Result::ok).filter(|line| line.starts_with("entered"));
            assert!(entered.take(usize::try_from(count).unwrap() + 1).count() > 0, "it has entered something");
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

fn start(server: &PostgresServer, test: &str, variable: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, server.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
