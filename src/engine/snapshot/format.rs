//! The format of a snapshot, version 1: a head, records, and a checksum.
//!
//! | content, in this order | bytes |
//! |---|---|
//! | `SLUICE-SNAPSHOT` and a line feed | 16 |
//! | the version: 1 | 1 |
//! | records, the last of which is `e` | |
//!
//! | record | payload |
//! |---|---|
//! | `p`, a policy | the name of its layer, its own name; each behind its length |
//! | `t`, a table of that policy | its role (`engine/policy/snapshot.rs`), and its head |
//! | `r`, a part of that table | its rows |
//! | `e`, the end | the SHA-256 of all bytes before this record |
//!
//! A record is its letter, the length of its payload in four bytes (the highest first), and the payload. Numbers are in
//! [LEB128](crate::values::snapshot), unless stated otherwise. No record is longer than [`MOST`], so that a reader
//! never allocates more for an announced length.

use std::io::{self, BufReader, BufWriter, Read, Write};

use sha2::{Digest, Sha256};

use super::report::SnapshotError;
use crate::engine::policy::{PolicySink, SavedPolicy};
use crate::values::snapshot::{Input, SavedTable, WallClock, put_number};

pub(super) const MAGIC: &[u8; 16] = b"SLUICE-SNAPSHOT\n";
pub(super) const VERSION: u8 = 1;

/// The longest payload, in bytes. Parts are cut at 32 KiB, and names may have the length of the longest path.
pub(super) const MOST: usize = 1 << 17;

/// Writes records.
pub(super) struct FileWriter<W: Write> {
    to: BufWriter<W>,
    digest: Sha256,
    wall: WallClock,
    keys: u64,
    bytes: u64,
}

impl<W: Write> FileWriter<W> {
    pub(super) fn new(to: W, wall: WallClock) -> io::Result<Self> {
        let mut file = Self { to: BufWriter::new(to), digest: Sha256::new(), wall, keys: 0, bytes: 0 };
        file.put(MAGIC)?;
        file.put(&[VERSION])?;
        Ok(file)
    }

    /// Begins a policy. Its tables follow.
    pub(super) fn policy(&mut self, layer: &str, name: &str) -> io::Result<()> {
        let mut names = Vec::new();
        for name in [layer, name] {
            put_number(&mut names, name.len() as u64);
            names.extend(name.as_bytes());
        }
        self.record(b'p', &[&names])
    }

    /// Ends the file. Returns the number of keys and of bytes.
    pub(super) fn end(mut self) -> io::Result<(u64, u64)> {
        let digest = self.digest.clone().finalize();
        self.record(b'e', &[&digest])?;
        self.to.flush()?;
        Ok((self.keys, self.bytes))
    }

    fn record(&mut self, letter: u8, payload: &[&[u8]]) -> io::Result<()> {
        let length = payload.iter().map(|piece| piece.len()).sum::<usize>();
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a name is too long for a snapshot");
        let length = u32::try_from(length).ok().filter(|length| *length as usize <= MOST).ok_or_else(too_long)?;
        self.put(&[letter])?;
        self.put(&length.to_be_bytes())?;
        payload.iter().try_for_each(|piece| self.put(piece))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

impl<W: Write> PolicySink for FileWriter<W> {
    fn wall(&self) -> u64 {
        (self.wall)()
    }

    fn begin(&mut self, role: u8, head: &[u8]) -> io::Result<()> {
        self.record(b't', &[&[role], head])
    }

    fn part(&mut self, bytes: &[u8], keys: u64) -> io::Result<()> {
        self.keys += keys;
        self.record(b'r', &[bytes])
    }
}

/// A file's policies, each with its layer's name and its own.
pub(super) type SavedFile = Vec<(String, String, SavedPolicy)>;

/// Reads a file to its end, and verifies its checksum. Takes memory for the bytes that are there, not for the lengths
/// that they announce.
pub(super) fn read_file(from: impl Read) -> Result<SavedFile, SnapshotError> {
    let mut from = Digested { from: BufReader::new(from), digest: Sha256::new() };
    let mut magic = [0; MAGIC.len()];
    from.fill(&mut magic).map_err(|error| match error {
        SnapshotError::Truncated => SnapshotError::Foreign,
        error => error,
    })?;
    if magic != *MAGIC {
        return Err(SnapshotError::Foreign);
    }
    let mut version = [0];
    from.fill(&mut version)?;
    if version != [VERSION] {
        return Err(SnapshotError::Version { version: version[0] });
    }
    let damaged = |part| SnapshotError::Damaged { part };
    let mut policies = SavedFile::new();
    loop {
        let before = from.digest.clone();
        let mut head = [0; 5];
        from.fill(&mut head)?;
        let [letter, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST {
            return Err(damaged("the length of a record"));
        }
        let mut payload = vec![0; length];
        from.fill(&mut payload)?;
        let tables = policies.last_mut().map(|(.., tables)| tables);
        match (letter, tables) {
            (b'p', _) => {
                let mut names = Input::new(&payload);
                let layer_and_name = names.text().zip(names.text()).filter(|_| names.is_empty());
                let (layer, name) = layer_and_name.ok_or_else(|| damaged("a name"))?;
                policies.push((layer.to_owned(), name.to_owned(), SavedPolicy::new()));
            }
            (b't', Some(tables)) if length > 0 => {
                tables.push((payload[0], SavedTable { head: payload[1..].to_vec(), parts: Vec::new() }));
            }
            (b'r', Some(tables)) => {
                let (_, table) = tables.last_mut().ok_or_else(|| damaged("the order of the records"))?;
                table.parts.push(payload.into());
            }
            (b'e', _) if payload == before.finalize()[..] => break,
            (b'e', _) => return Err(damaged("its checksum")),
            _ => return Err(damaged("the kind of a record")),
        }
    }
    if from.is_at_end()? { Ok(policies) } else { Err(damaged("its end")) }
}

/// A source, with a digest over all that was read.
struct Digested<R> {
    from: R,
    digest: Sha256,
}

impl<R: Read> Digested<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Truncated,
            _ => SnapshotError::Io(error),
        })?;
        self.digest.update(bytes);
        Ok(())
    }

    fn is_at_end(&mut self) -> Result<bool, SnapshotError> {
        match self.fill(&mut [0]) {
            Ok(()) => Ok(false),
            Err(SnapshotError::Truncated) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
