//! A log's files, read as one log in the order of time.

use std::io;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use super::block::Block;
use super::neighbours::{Disorder, Neighbours};
use super::order::{Order, Turn};
use super::{Entry, Format, LONGEST_LINE, Line, Parser, Place, Source, Unreadable};

/// The memory for requests that wait for their turn. With more, the earliest leaves before the window is over.
const MOST_BYTES: usize = 128 << 20;

/// The earliest time in this many lines at the beginning is when the file begins.
const FIRST_LINES: usize = 100;

/// Which fields to read from each line, and in which order.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) format: Format,
    /// Whether any policy or report reads header fields.
    pub(crate) has_headers: bool,
    /// How far a line may be out of order, in nanoseconds.
    pub(crate) window: u64,
}

/// Several files that overlap or follow each other. Each is opened when its first time is reached.
pub(crate) struct Files {
    reading: Reading,
    most_bytes: usize,
    progress: ProgressBar,
    files: Vec<File>,
    order: Order,
    spare: Block,
    last: Option<Turn>,
    /// Requests before this time can no longer be read.
    safe: u64,
    disorder: Disorder,
    shortest_window: Option<u64>,
}

/// One file.
struct File {
    path: PathBuf,
    /// The file's earliest time, or zero if it cannot be read twice.
    begin: u64,
    times: Neighbours,
    lines: u64,
    state: State,
}

enum State {
    /// Not yet opened, unless it cannot be opened twice.
    Waiting(Option<Source>),
    Open(Box<(Source, Parser)>),
    Over,
}

/// A file that cannot be read.
#[derive(Debug)]
pub(crate) struct ReadError {
    pub(crate) file: PathBuf,
    pub(crate) error: io::Error,
}

/// Counters for the lines that are read.
pub(crate) trait Lines {
    fn note_line(&mut self);
    fn note_unreadable(&mut self, place: Place, problem: &Unreadable, line: &[u8]);
}

impl File {
    fn open(path: &Path, reading: &Reading, is_only: bool) -> Result<Self, ReadError> {
        let failed = |error| ReadError { file: path.to_owned(), error };
        let mut source = Source::open(path, &ProgressBar::hidden()).map_err(failed)?;
        let is_regular = path != Path::new("-") && path.metadata().is_ok_and(|file| file.is_file());
        // A pipe can be read once.
        if !is_regular {
            return Ok(Self::new(path, 0, reading, Some(source)));
        }
        let mut begin = u64::MAX;
        let mut parser = Parser::new(reading.format.clone()).with_headers(false);
        if !is_only {
            for _ in 0..FIRST_LINES {
                match source.next_line().map_err(failed)? {
                    None => break,
                    Some(Line::TooLong(_)) => {}
                    Some(Line::Whole(line)) => {
                        if let Ok(Some(entry)) = parser.parse(line) {
                            begin = begin.min(entry.nanos);
                        }
                    }
                }
            }
        }
        Ok(Self::new(path, if begin == u64::MAX { 0 } else { begin }, reading, None))
    }

    fn new(path: &Path, begin: u64, reading: &Reading, source: Option<Source>) -> Self {
        let times = Neighbours::new(reading.window);
        Self { path: path.to_owned(), begin, times, lines: 0, state: State::Waiting(source) }
    }

    /// Returns the time that the file has reached.
    fn reached(&self) -> u64 {
        self.times.reached().unwrap_or(self.begin)
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Reads the next block of requests. It is full, unless the file is over.
    fn fill(
        &mut self,
        block: &mut Block,
        number: usize,
        reading: &Reading,
        progress: &ProgressBar,
        lines: &mut impl Lines,
    ) -> io::Result<()> {
        if let State::Waiting(source) = &mut self.state {
            let source = match source.take() {
                Some(source) => source,
                None => Source::open(&self.path, progress)?,
            };
            let parser = Parser::new(reading.format.clone()).with_headers(reading.has_headers);
            self.state = State::Open(Box::new((source, parser)));
        }
        let State::Open(open) = &mut self.state else { return Ok(()) };
        let (source, parser) = &mut **open;
        while !block.is_full() {
            let Some(line) = source.next_line()? else {
                self.state = State::Over;
                return Ok(());
            };
            self.lines += 1;
            lines.note_line();
            let place = Place { file: number, line: self.lines };
            match line {
                Line::Whole(line) if line.trim_ascii().is_empty() => {}
                Line::Whole(line) => match parser.parse(line) {
                    Ok(Some(entry)) => block.push(&entry, self.lines),
                    Ok(None) => {}
                    Err(problem) => lines.note_unreadable(place, &problem, line),
                },
                Line::TooLong(begin) => {
                    let problem = Unreadable::new(format!("it is longer than {LONGEST_LINE} bytes"));
                    lines.note_unreadable(place, &problem, begin);
                }
            }
        }
        Ok(())
    }
}

impl Files {
    /// Opens the files, and sorts them by their beginning.
    ///
    /// # Errors
    ///
    /// If one cannot be read.
    pub(crate) fn open(paths: &[PathBuf], reading: Reading, progress: ProgressBar) -> Result<Self, ReadError> {
        let files = paths.iter().map(|path| File::open(path, &reading, paths.len() == 1));
        let mut files = files.collect::<Result<Vec<_>, _>>()?;
        files.sort_by(|one, other| one.begin.cmp(&other.begin).then_with(|| one.path.cmp(&other.path)));
        Ok(Self::new(files, reading, progress))
    }

    fn new(files: Vec<File>, reading: Reading, progress: ProgressBar) -> Self {
        Self {
            reading,
            most_bytes: MOST_BYTES,
            progress,
            files,
            order: Order::default(),
            spare: Block::default(),
            last: None,
            safe: 0,
            disorder: Disorder::default(),
            shortest_window: None,
        }
    }

    /// Files without a name, in this order.
    #[cfg(test)]
    pub(crate) fn of_sources(sources: Vec<Source>, reading: Reading, progress: ProgressBar) -> Self {
        let files = sources.into_iter().map(|source| File::new(Path::new("-"), 0, &reading, Some(source))).collect();
        Self::new(files, reading, progress)
    }

    #[cfg(test)]
    pub(crate) fn with_most_bytes(self, most_bytes: usize) -> Self {
        Self { most_bytes, ..self }
    }

    /// The files' names. A [`Place`] indexes them.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|file| file.path.display().to_string())
    }

    pub(crate) const fn disorder(&self) -> &Disorder {
        &self.disorder
    }

    /// The shortest window that remained when memory was short, if it was.
    pub(crate) const fn shortest_window(&self) -> Option<u64> {
        self.shortest_window
    }

    /// Returns the next request in the order of time, or `None` at the end.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn next(&mut self, lines: &mut impl Lines) -> Result<Option<(Entry<'_>, Place)>, ReadError> {
        if let Some(last) = self.last.take() {
            self.order.release(last);
        }
        loop {
            let is_short = self.order.bytes() > self.most_bytes;
            let turn = self.order.next_before(if is_short { u64::MAX } else { self.safe });
            if let Some(turn) = turn {
                if turn.nanos() >= self.safe {
                    let window = self.safe.saturating_add(self.reading.window).saturating_sub(turn.nanos());
                    self.shortest_window = Some(self.shortest_window.unwrap_or(window).min(window));
                }
                self.last = Some(turn);
                let entry = Entry { nanos: turn.nanos(), ..self.order.entry(turn) };
                return Ok(Some((entry, turn.place())));
            }
            if !self.read_block(lines)? {
                return Ok(None);
            }
        }
    }

    /// Reads on in the file that is furthest behind. Returns `false` at the end.
    fn read_block(&mut self, lines: &mut impl Lines) -> Result<bool, ReadError> {
        let open = self.files.iter_mut().enumerate().filter(|(_, file)| !file.is_over());
        let Some((number, file)) = open.min_by_key(|(number, file)| (file.reached(), *number)) else {
            return Ok(false);
        };
        let mut block = std::mem::take(&mut self.spare);
        file.fill(&mut block, number, &self.reading, &self.progress, lines)
            .map_err(|error| ReadError { file: file.path.clone(), error })?;
        let (order, spare) = (&mut self.order, &mut self.spare);
        file.times.take(block, &mut self.disorder, |block| *spare = order.add(block, number));
        let reached = self.files.iter().filter(|file| !file.is_over()).map(File::reached).min();
        self.safe = reached.map_or(u64::MAX, |reached| reached.saturating_sub(self.reading.window));
        Ok(true)
    }
}
