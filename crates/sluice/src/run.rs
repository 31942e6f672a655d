//! `sluice replay`: reads the logs, and prints the report.

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::input::read_config;
use crate::log::{Files, Format, Lines, ReadError, Reading};
use crate::replay::{LogClock, Replay, Session};
use crate::report::{self, Options};
use crate::rules::toml_file;

#[derive(Args, Debug)]
pub(crate) struct ReplayArguments {
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

pub(crate) fn run(arguments: &ReplayArguments) -> Result<String, Failure> {
    if let Some(file) = &arguments.plot {
        check_plot(file)?;
    }
    let clock = LogClock::default();
    let mut replays = Vec::new();
    for file in std::iter::once(&arguments.config).chain(&arguments.compare) {
        let (file, text) = read_config(file)?;
        replays.push(Replay::new(&file, &text, &clock)?);
    }
    let session = Session::new(clock, replays);
    let session = session.map_err(|error| Failure::Io(format!("the runtime does not start: {error}")))?;
    let session = replay(session, arguments)?;

    if let Some(file) = &arguments.plot {
        let written = fs::write(file, report::to_svg(&session.replays));
        written.map_err(|error| Failure::Io(format!("{} cannot be written: {error}", file.display())))?;
    }
    let options = Options { suggest: arguments.suggest };
    if arguments.json {
        // Programs read the report, and people read this.
        session.log.warnings().iter().for_each(|warning| eprintln!("sluice: WARNING: {warning}"));
        return Ok(format!("{:#}\n", report::to_json(&session.log, &session.replays, options)));
    }
    Ok(report::print(&session.log, &session.replays, options))
}

fn replay(mut session: Session, arguments: &ReplayArguments) -> Result<Session, Failure> {
    let runtime = session.runtime();
    let _entered = runtime.enter();
    let progress = progress(&arguments.logs);
    let window = u64::try_from(arguments.window.as_nanos()).unwrap_or(u64::MAX);
    let reading = Reading { format: arguments.log_format.clone(), has_headers: session.reads_headers(), window };
    let mut files = Files::open(&arguments.logs, reading, progress.clone()).map_err(unreadable_file)?;
    replay_files(&mut session, &mut files).map_err(unreadable_file)?;
    session.log.window = window;
    progress.finish_and_clear();
    if session.log.requests == 0 && session.log.unreadable > 0 {
        let format = "describe it by --log-format, with a name such as combined, or with the string of its server's \
                      configuration; crates/sluice/README.md has the formats";
        let first = session.log.first_unreadable.as_ref();
        let problem = first.map(|first| {
            let (file, line) = (session.log.file(first.place), first.place.line);
            format!("\n{file}:{line}: {}\n  {}", first.problem, first.text)
        });
        return Err(Failure::Io(format!("no line of the log can be read; {format}{}", problem.unwrap_or_default())));
    }
    Ok(session)
}

/// Replays all requests in the files.
pub(crate) fn replay_files(session: &mut Session, files: &mut Files) -> Result<(), ReadError> {
    session.log.files = files.names().collect();
    while let Some((entry, place)) = files.next(&mut session.log)? {
        if let Err(problem) = session.replay(&entry, place) {
            let request = [&*entry.method, &*entry.target].join(&b' ');
            session.log.note_unreadable(place, &problem, &request);
        }
    }
    let (late, disorder) = (session.log.disorder.late, *files.disorder());
    session.log.disorder = disorder;
    session.log.disorder.late.add(late);
    session.log.shortest_window = files.shortest_window();
    session.finish();
    Ok(())
}

fn unreadable_file(ReadError { file, error }: ReadError) -> Failure {
    let cure = match error.kind() {
        // Compressed files mark their own end.
        io::ErrorKind::UnexpectedEof => "; the file is cut off: copy it again, or pipe what is there, by `zcat`",
        _ => "",
    };
    Failure::Io(format!("{} cannot be read: {error}{cure}", file.display()))
}

/// Refuses a plot that cannot be written, before we read a log for an hour.
fn check_plot(file: &Path) -> Result<(), Failure> {
    let problem = |problem: &str| Err(Failure::Io(format!("{} cannot be written: {problem}", file.display())));
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return problem("its folder does not exist; make it");
    }
    if file.is_dir() {
        return problem("it is a folder; name a file in it");
    }
    Ok(())
}

/// Shows a bar on a terminal, if the files' sizes are known.
fn progress(logs: &[PathBuf]) -> ProgressBar {
    let sizes = logs.iter().map(|log| fs::metadata(log).ok().filter(fs::Metadata::is_file).map(|file| file.len()));
    let size: Option<u64> = sizes.sum();
    let Some(size) = size.filter(|_| io::stderr().is_terminal()) else { return ProgressBar::hidden() };
    let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Reads a percentage as a number per 100,000.
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
