//! Compressed files.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Gzip members, one behind the other, perhaps followed by zeros, as on tapes and in copies with a fixed length.
/// Anything else behind them is an error, since it may be an appended log.
pub(super) struct Gzip<R: BufRead> {
    state: Option<State<R>>,
}

/// The first byte of gzip data.
const MAGIC: u8 = 0x1f;

enum State<R> {
    Between(R),
    Inside(GzDecoder<R>),
}

impl<R: Read> Gzip<BufReader<R>> {
    pub(super) fn new(file: BufReader<R>) -> Self {
        Self { state: Some(State::Inside(GzDecoder::new(file))) }
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.state.take() {
                Some(State::Inside(mut decoder)) => match decoder.read(buffer) {
                    Ok(0) if !buffer.is_empty() => self.state = Some(State::Between(decoder.into_inner())),
                    read => {
                        self.state = Some(State::Inside(decoder));
                        return read;
                    }
                },
                Some(State::Between(mut file)) => {
                    let filled = match file.fill_buf() {
                        Ok(filled) => filled,
                        Err(error) => {
                            self.state = Some(State::Between(file));
                            return Err(error);
                        }
                    };
                    if filled.is_empty() {
                        return Ok(0);
                    }
                    if filled.iter().find(|byte| **byte != 0).is_some_and(|byte| *byte != MAGIC) {
                        self.state = Some(State::Between(file));
                        let problem = "something follows its gzip data that is no gzip; if that is no log, read what is \
                                       before it, by `zcat FILE | sluice replay … -`";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
                    }
                    let zeros = filled.iter().take_while(|byte| **byte == 0).count();
                    let is_over = zeros == filled.len();
                    file.consume(zeros);
                    self.state = Some(if is_over { State::Between(file) } else { State::Inside(GzDecoder::new(file)) });
                }
                None => return Ok(0),
            }
        }
    }
}

/// Frames of zstd, one behind the other.
pub(super) struct Zstd<R: BufRead> {
    file: R,
    frame: FrameDecoder,
}

impl<R: BufRead> Zstd<R> {
    pub(super) fn new(file: R) -> Self {
        Self { file, frame: FrameDecoder::new() }
    }

    /// Begins the next frame, or skips a frame without data. Returns `false` at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        if self.file.fill_buf()?.is_empty() {
            return Ok(false);
        }
        match self.frame.init(&mut self.file) {
            Ok(()) => {}
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                io::copy(&mut self.file.by_ref().take(length.into()), &mut io::sink())?;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(true)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.frame.can_collect() == 0 {
            if !self.frame.is_finished() {
                let decoded = BlockDecodingStrategy::UptoBytes(buffer.len());
                self.frame.decode_blocks(&mut self.file, decoded).map_err(io::Error::other)?;
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
        self.frame.read(buffer)
    }
}
