//! The program `sluice`: checks a configuration of [tower-sluice](https://docs.rs/tower-sluice), replays an access log
//! against it, and serves its limits to proxies. See `crates/sluice/README.md`.
//!
//! It exits with 0 if it has done what it was asked for, with 1 if it cannot read or write a file, and with 2 if its
//! arguments or a configuration have a mistake.

#[cfg(test)]
#[path = "../../../tests/support/cases.rs"]
mod cases;
mod check;
mod init;
mod log;
mod manual;
mod notes;
mod path;
mod replay;
mod report;
mod rules;
mod run;
mod serve;
mod stores;
mod table;
mod words;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tower_sluice_config::ConfigError;

use self::init::InitArguments;
use self::log::Format;
use self::manual::Shell;
use self::rules::toml_file;
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

#[derive(Args, Debug)]
struct ReplayArguments {
    /// The configuration in TOML. Policies on Redis are replayed in memory
    #[arg(long, value_name = "FILE", value_parser = toml_file)]
    config: PathBuf,
    /// The format of the log: auto, combined, common, vhost-combined, ingress-nginx, json, caddy, traefik, envoy, alb,
    /// cloudfront, w3c, haproxy; the string of nginx's log_format, of Apache's LogFormat or of Envoy; or fields of
    /// JSON, such as json:time=ts,client=ip
    #[arg(long, visible_alias = "format", value_name = "FORMAT", default_value = "auto")]
    log_format: Format,
    /// How far lines may be out of order, such as 5m or 1h: they are sorted within it
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    window: Duration,
    /// Another configuration, whose results are printed beside
    #[arg(long, value_name = "FILE2", value_parser = toml_file)]
    compare: Option<PathBuf>,
    /// Print the limits under which this percentage of clients, such as 99.9, is never rejected
    #[arg(long, value_name = "PERCENT", value_parser = per_100_000)]
    suggest: Option<u64>,
    /// Print the report in JSON, for programs
    #[arg(long)]
    json: bool,
    /// Draw admitted and rejected requests over time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Access logs, in any order; - is standard input. Those of gzip, zstd and xz are read as they are
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
}

/// Why the program ends early.
enum Failure {
    /// A file cannot be read or written.
    Io(String),
    /// A configuration has mistakes.
    Config(Vec<ConfigError>),
    /// The arguments have a mistake.
    Usage(String),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(vec![error])
    }
}

fn main() -> ExitCode {
    // Fails if there is one already, which would do as well.
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
        Command::Completions { shell } => Ok(manual::completions(shell)),
        Command::Man => manual::page(),
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

/// Reads a configuration. Returns its name for messages, too.
fn read_config(file: &Path) -> Result<(String, String), Failure> {
    let name = file.display().to_string();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok((name, text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Failure::Io(format!("{name} is not text in UTF-8; name a configuration")))
        }
        Err(error) => {
            let cure = match error.kind() {
                io::ErrorKind::NotFound => "; is the path right?",
                io::ErrorKind::IsADirectory => "; name a file in it",
                _ => "",
            };
            Err(Failure::Io(format!("{name} cannot be read: {error}{cure}")))
        }
    }
}

/// Reads a percentage, in thousandths.
fn per_100_000(text: &str) -> Result<u64, String> {
    let problem = || "write a percentage above 0 and at most 100, such as 99.9, with at most three decimals".to_owned();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || whole.len() > 3 || decimals.len() > 3 {
        return Err(problem());
    }
    let number: u64 = format!("{whole}{decimals:0<3}").parse().map_err(|_| problem())?;
    if (1..=100_000).contains(&number) { Ok(number) } else { Err(problem()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn percentages_are_read_exactly() {
        assert_eq!(per_100_000("99.9"), Ok(99_900));
        assert_eq!(per_100_000("100"), Ok(100_000));
        assert_eq!(per_100_000("0.001"), Ok(1));
        for text in ["", ".", "0", "100.001", "1e2", "-1", "99.9999", "99,9", "+5"] {
            assert!(per_100_000(text).is_err(), "{text}");
        }
    }
}
