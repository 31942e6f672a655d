//! A log's files: plain or compressed, or standard input.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

use indicatif::ProgressBar;
use lzma_rust2::XzReader;
use memchr::memchr;

use super::decompress::{Gzip, Zstd};

/// Longer lines are not buffered, and are unreadable.
pub(crate) const LONGEST_LINE: usize = 1 << 18;

/// The buffer for a file, unless its lines are longer. Many files may be open.
const LEAST_BUFFER: usize = 1 << 17;

/// How many bytes we keep from a longer line.
const SHOWN: usize = 256;

/// Reads one file's lines, in memory that does not grow.
pub(crate) struct Source {
    reader: Box<dyn Read>,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not returned.
    from: usize,
    until: usize,
    is_over: bool,
    /// Whether a byte was read.
    is_begun: bool,
    /// The beginning of the last line that was too long.
    begin: Vec<u8>,
}

/// A line without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    /// The beginning of a line that is longer than [`LONGEST_LINE`].
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

    /// Reads `file`, and decompresses it if it begins like a gzip, zstd or xz file.
    pub(crate) fn new(file: impl Read + 'static) -> io::Result<Self> {
        let mut file = file;
        let mut magic = [0; 6];
        let mut filled = 0;
        while filled < magic.len() {
            match file.read(&mut magic[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let whole = Cursor::new(magic[..filled].to_vec()).chain(file);
        let buffered = |whole| BufReader::with_capacity(LONGEST_LINE, whole);
        let reader: Box<dyn Read> = match magic {
            [0x1f, 0x8b, ..] => Box::new(Gzip::new(buffered(whole))),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(Zstd::new(buffered(whole))),
            [0xfd, b'7', b'z', b'X', b'Z', 0] => Box::new(XzReader::new(buffered(whole), true)),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
                return Err(io::Error::other("it is UTF-16; convert it, by `iconv -f UTF-16 -t UTF-8 FILE`"));
            }
            _ => Box::new(whole),
        };
        Ok(Self {
            reader,
            buffer: vec![0; LEAST_BUFFER],
            from: 0,
            until: 0,
            is_over: false,
            is_begun: false,
            begin: Vec::new(),
        })
    }

    /// Returns the next line, or `None` at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        if !self.is_begun {
            self.skip_mark()?;
        }
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

    /// Skips the byte order mark of a UTF-8 file.
    fn skip_mark(&mut self) -> io::Result<()> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        self.is_begun = true;
        while self.until < MARK.len() && !self.is_over {
            self.fill()?;
        }
        if self.buffer[..self.until].starts_with(MARK) {
            self.from = MARK.len();
        }
        Ok(())
    }

    /// The memory in the buffers.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity() + self.begin.capacity()
    }

    /// Reads more, behind the bytes that were not returned.
    fn fill(&mut self) -> io::Result<()> {
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.until, 0);
            self.until -= self.from;
            self.from = 0;
        }
        if self.until == self.buffer.len() {
            self.buffer.resize((2 * self.buffer.len()).min(2 * LONGEST_LINE), 0);
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
