//! The files of a log: plain or compressed, or standard input.

use std::fs::File;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;
use memchr::memchr;

/// Lines beyond this are not buffered, and are unreadable.
pub(crate) const LONGEST_LINE: usize = 1 << 18;

/// How many bytes are kept of a longer line.
const SHOWN: usize = 256;

/// Reads the lines of one file, in memory that does not grow.
pub(crate) struct Source {
    reader: Box<dyn Read>,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not returned.
    from: usize,
    until: usize,
    is_over: bool,
    /// The begin of the last line that was too long.
    begin: Vec<u8>,
}

/// A line without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    /// The begin of a line that is longer than [`LONGEST_LINE`].
    TooLong(&'a [u8]),
}

impl Source {
    /// Opens a file; `-` is standard input. `progress` counts the bytes that are read from it.
    pub(crate) fn open(path: &Path, progress: &ProgressBar) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::new(progress.wrap_read(io::stdin()));
        }
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::other("it is a folder; name the files in it"));
        }
        Self::new(progress.wrap_read(file))
    }

    /// Reads what `file` has, and decompresses it if it begins as gzip does.
    pub(crate) fn new(file: impl Read + 'static) -> io::Result<Self> {
        let mut file = file;
        let mut magic = [0; 2];
        let mut filled = 0;
        while filled < magic.len() {
            match file.read(&mut magic[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let whole: Chain<Cursor<Vec<u8>>, _> = Cursor::new(magic[..filled].to_vec()).chain(file);
        let reader: Box<dyn Read> = match magic {
            [0x1f, 0x8b] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(LONGEST_LINE, whole))),
            _ => Box::new(whole),
        };
        Ok(Self { reader, buffer: vec![0; 2 * LONGEST_LINE], from: 0, until: 0, is_over: false, begin: Vec::new() })
    }

    /// Returns the next line, or `None` at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = 0;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.from + searched..self.until]) {
                let begin = self.from;
                let end = begin + searched + at;
                self.from = end + 1;
                return Ok(Some(Line::Whole(without_return(&self.buffer[begin..end]))));
            }
            searched = self.until - self.from;
            if searched > LONGEST_LINE {
                self.begin = self.buffer[self.from..self.from + SHOWN].to_vec();
                self.skip_line()?;
                return Ok(Some(Line::TooLong(&self.begin)));
            }
            if self.is_over {
                let begin = self.from;
                self.from = self.until;
                return Ok((searched > 0).then(|| Line::Whole(without_return(&self.buffer[begin..self.until]))));
            }
            self.fill()?;
        }
    }

    /// The memory of the buffers.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity() + self.begin.capacity()
    }

    /// Reads on, behind what was not returned.
    fn fill(&mut self) -> io::Result<()> {
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.until, 0);
            self.until -= self.from;
            self.from = 0;
        }
        loop {
            match self.reader.read(&mut self.buffer[self.until..]) {
                Ok(0) => self.is_over = true,
                Ok(count) => self.until += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }

    /// Drops the rest of a line.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.from..self.until]) {
                self.from += at + 1;
                return Ok(());
            }
            (self.from, self.until) = (0, 0);
            if self.is_over {
                return Ok(());
            }
            self.fill()?;
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
