//! The program `sluice`: checks a configuration of [tower-sluice](https://docs.rs/tower-sluice), replays an access log
//! against it, and serves its limits to proxies. See `crates/sluice/README.md`.
//!
//! It exits with 0 if it has done what it was asked for, with 1 if it cannot read or write a file, and with 2 if its
//! arguments or a configuration have a mistake.

#[cfg(test)]
#[path = "../../../tests/support/cases.rs"]
mod cases;
mod check;
mod counts;
mod descriptors;
mod failure;
mod init;
mod input;
mod log;
mod manual;
mod notes;
mod path;
mod replay;
mod report;
mod routes;
mod rules;
mod run;
mod serve;
mod stores;
mod table;
mod words;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::failure::Failure;
use self::init::InitArguments;
use self::input::read_config;
use self::manual::Shell;
use self::rules::toml_file;
use self::run::ReplayArguments;
use self::serve::ServeArguments;

/// Checks rate limits, replays access logs against them, and serves them to proxies.
///
/// Exits with 0 if all went well, 1 if a file cannot be read or written, and 2 if the arguments or a configuration have
/// a mistake.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a first configuration for a task, with comments
    Init(InitArguments),
    /// Check a configuration, and print its routes and policies in words
    Check {
        /// The configuration in TOML, a file of envoyproxy/ratelimit or Limitador (.yaml, .yml), or a folder of files
        /// of envoyproxy/ratelimit
        file: PathBuf,
    },
    /// Replay an access log: what would the limits of a configuration have done?
    Replay(ReplayArguments),
    /// Serve the limits to proxies: Envoy's rate limit service, and HTTP for nginx, Traefik, Caddy and HAProxy
    Serve(ServeArguments),
    /// Print the statement that prepares the server of a configuration, such as the one that creates a table
    Migration {
        /// The configuration in TOML
        #[arg(value_parser = toml_file)]
        file: PathBuf,
        /// The store, if the configuration has several
        #[arg(long, value_name = "NAME")]
        store: Option<String>,
    },
    /// Print the completions of a shell: of options, tasks and formats
    Completions { shell: Shell },
    /// Print the manual page
    Man,
}

fn main() -> ExitCode {
    // Fails if a provider is installed already, which would do as well.
    #[cfg(feature = "redis-tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let output = match Arguments::parse().command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Check { file } if file.is_dir() => check_folder(&file),
        Command::Check { file } => {
            read_config(&file).and_then(|(file, text)| check::check(&file, &text).map_err(Failure::Config))
        }
        Command::Replay(arguments) => run::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments).map(|()| String::new()),
        Command::Migration { file, store } => {
            read_config(&file).and_then(|(file, text)| stores::migration(&file, &text, store.as_deref()))
        }
        Command::Completions { shell } => Ok(manual::completions(shell, Arguments::command())),
        Command::Man => manual::page(Arguments::command()),
    };
    match output.and_then(|output| print(&output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Io(problem)) => {
            eprintln!("sluice: {problem}");
            ExitCode::FAILURE
        }
        Err(Failure::Config(problems)) => {
            eprint!("{}", check::listed(&problems, "mistake"));
            ExitCode::from(2)
        }
        Err(Failure::Usage(problem)) => {
            eprintln!("sluice: {problem}");
            ExitCode::from(2)
        }
    }
}

fn print(output: &str) -> Result<(), Failure> {
    match io::stdout().write_all(output.as_bytes()) {
        // The reader has seen enough: `sluice … | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::Io(format!("the report cannot be written: {error}"))),
    }
}

fn check_folder(folder: &Path) -> Result<String, Failure> {
    let files = rules::files(folder).map_err(Failure::Io)?;
    let texts = files.iter().map(|file| read_config(file)).collect::<Result<Vec<_>, _>>()?;
    check::check_folder(&folder.display().to_string(), &texts).map_err(Failure::Config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
