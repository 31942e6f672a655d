//! `sluice replay`: reads the logs, and prints the report.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::log::{LONGEST_LINE, Line, Parser, Source, Unreadable};
use crate::replay::{LogClock, Replay, Session};
use crate::report::{self, Options};
use crate::{Failure, ReplayArguments, read_config};

pub(crate) fn run(arguments: &ReplayArguments) -> Result<String, Failure> {
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
        return Ok(format!("{:#}\n", report::to_json(&session.log, &session.replays, options)));
    }
    Ok(report::print(&session.log, &session.replays, options))
}

fn replay(mut session: Session, arguments: &ReplayArguments) -> Result<Session, Failure> {
    let runtime = session.runtime();
    let _entered = runtime.enter();
    let progress = progress(&arguments.logs);
    let mut parser = Parser::new(arguments.format).with_headers(session.reads_headers());
    for log in &arguments.logs {
        let failed = |error: io::Error| {
            let cure = match error.kind() {
                // Only gzip has an end of its own.
                io::ErrorKind::UnexpectedEof => {
                    "; the file is cut off: copy it again, or pipe what is there, by `zcat`"
                }
                _ => "",
            };
            Failure::Io(format!("{} cannot be read: {error}{cure}", log.display()))
        };
        let mut source = Source::open(log, &progress).map_err(failed)?;
        session.log.note_file(log.display().to_string());
        while let Some(line) = source.next_line().map_err(failed)? {
            replay_line(&mut session, &mut parser, line);
        }
    }
    session.finish();
    progress.finish_and_clear();
    if session.log.requests == 0 && session.log.unreadable > 0 {
        let format = "write --format combined, common or json, or see sluice/README.md for the formats";
        let first = session.log.first_unreadable.as_ref();
        let problem = first.map(|first| {
            let (file, line) = session.log.place(first.line);
            format!("\n{file}:{line}: {}\n  {}", first.problem, first.text)
        });
        return Err(Failure::Io(format!("no line of the log can be read; {format}{}", problem.unwrap_or_default())));
    }
    Ok(session)
}

pub(crate) fn replay_line(session: &mut Session, parser: &mut Parser, line: Line<'_>) {
    session.log.lines += 1;
    let (text, problem) = match line {
        Line::Whole(line) if line.trim_ascii().is_empty() => return,
        Line::Whole(line) => match parser.parse(line) {
            Ok(entry) => match session.replay(&entry, session.log.lines) {
                Ok(()) => return,
                Err(problem) => (line, problem),
            },
            Err(problem) => (line, problem),
        },
        Line::TooLong(begin) => (begin, Unreadable::new(format!("it is longer than {LONGEST_LINE} bytes"))),
    };
    session.log.note_unreadable(&problem, text);
}

/// A bar on a terminal, if the files' sizes are known.
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
