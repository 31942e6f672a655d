//! Decides which files are ours. A snapshot does not read, replace, rename or remove any other.

use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::path::Path;

use super::format::MAGIC;

/// Opens a regular file. `None` if there is no file.
///
/// # Errors
///
/// If the file cannot be opened, or the path leads to anything else, because opening a FIFO would wait for a writer,
/// and a rename would replace a device.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?.file_type(),
    };
    if found.is_file() { File::open(path).map(Some) } else { Err(no_file(path, found)) }
}

/// Checks that a snapshot may take this path, because nothing is there, or a snapshot.
pub(super) fn check_snapshot(path: &Path) -> io::Result<()> {
    let Some(file) = open(path)? else { return Ok(()) };
    if head(file)? == MAGIC { Ok(()) } else { Err(foreign(path)) }
}

/// Checks that an interrupted snapshot's rest may be removed, if there is one. It may have any length, because its
/// process was killed. A link does not count as such a rest.
pub(super) fn check_rest(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?.file_type(),
    };
    if !found.is_file() {
        return Err(no_file(path, found));
    }
    let head = head(File::open(path)?)?;
    // After a power failure, some file systems keep an interrupted file's length, but not its bytes.
    let is_lost = head.iter().all(|byte| *byte == 0);
    if is_lost || MAGIC.starts_with(&head) { Ok(()) } else { Err(foreign(path)) }
}

/// A file's first bytes, up to the length of the snapshot mark.
fn head(file: File) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn foreign(path: &Path) -> io::Error {
    let cure = "is not a snapshot of this crate, and stays; move it away, or choose another path for the snapshot";
    io::Error::new(io::ErrorKind::AlreadyExists, format!("{} {cure}", path.display()))
}

fn no_file(path: &Path, found: FileType) -> io::Error {
    let found = if found.is_dir() {
        "a folder"
    } else if found.is_symlink() {
        "a link"
    } else {
        "a FIFO, a socket or a device"
    };
    let problem = format!("{} is {found}, not a regular file; choose another path for the snapshot", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}
