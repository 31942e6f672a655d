//! A file that is replaced as a whole, or stays as it was.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::ours::{check_rest, check_snapshot};
use crate::util::lock::Lock;

/// Allows one writer at a time, because a last snapshot when a process ends may meet a regular one.
static WRITING: Lock<()> = Lock::new(());

/// Replaces a file with the bytes from `write`.
///
/// The new file is written beside the old one, and takes its name once all of it is on the disk. So the name always
/// stands for a whole file, the old or the new one. A process that is killed may leave the new file beside the old one,
/// and the next call replaces it. A file that is not a snapshot stays as it is, at both places.
pub(super) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let _writing = WRITING.lock();
    let new = beside(path, ".new");
    check_snapshot(path)?;
    check_rest(&new)?;
    let result = create(&new).and_then(|mut file| {
        let result = write(&mut file)?;
        // Sync before the rename. Otherwise the name could stand for a file whose bytes are lost with the power.
        file.sync_all()?;
        fs::rename(&new, path)?;
        Ok(result)
    });
    match &result {
        Ok(_) => sync_folder(path)?,
        // The old file stays. The rest of the new one is useless.
        Err(_) => drop(fs::remove_file(&new)),
    }
    result
}

/// Creates a file that only its owner may read. A file that is there already is removed.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes the rename durable. Systems other than Unix do not have such a call.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    let _ = path;
    Ok(())
}

/// Returns the path with this behind its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
