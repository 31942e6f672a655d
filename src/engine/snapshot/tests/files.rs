//! The file is replaced as a whole, or stays as it was.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::algorithm::TokenBucket;
use crate::engine::snapshot::replace::{beside, replace};

/// A test's own folder, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-snapshot-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("limits.snapshot")
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(policy("p", TokenBucket::new(Quota::per_hour(5)), store(&clock_at(START))))
}

fn snapshots(layer: &RateLimitLayer) -> Snapshots {
    Snapshots::new().layer("", layer).with_wall(|| START)
}

/// The remaining units in a new layer with the file's contents.
fn left(path: &Path) -> u64 {
    let layer = layer();
    snapshots(&layer).load(path).expect("it is whole");
    charge(&layer, "p", 1, 0).remaining()
}

/// Writes a snapshot's first bytes, like a process that is killed.
struct Interrupted<'a> {
    to: &'a mut fs::File,
    left: usize,
}

impl Write for Interrupted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other("the disk is full"));
        }
        let length = bytes.len().min(self.left);
        self.left -= length;
        self.to.write_all(&bytes[..length])?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A write may be interrupted at any byte.
#[test]
fn interrupted_writes_leave_the_old_file() {
    let folder = Folder::new();
    let before = layer();
    let _ = charge(&before, "p", 1, 2);
    let size = snapshots(&before).save(folder.file()).unwrap().bytes();
    assert_eq!(left(&folder.file()), 3);
    let _ = charge(&before, "p", 1, 1);
    for length in 0..usize::try_from(size).unwrap() {
        // After a system error, the rest is removed.
        let failed = replace(&folder.file(), |file| snapshots(&before).write(Interrupted { to: file, left: length }));
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full", "{length} bytes");
        assert_eq!(folder.names(), ["limits.snapshot"]);
        // If the process was killed, the rest stays, but does not get in the way.
        fs::write(beside(&folder.file(), ".new"), &written(&before, START)[..length]).unwrap();
        assert_eq!(left(&folder.file()), 3, "{length} bytes");
    }
    snapshots(&before).save(folder.file()).unwrap();
    assert_eq!((left(&folder.file()), folder.names()), (2, vec!["limits.snapshot".to_owned()]));
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = Folder::new();
    let mode = || fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777;
    snapshots(&layer()).save(folder.file()).unwrap();
    assert_eq!(mode(), 0o600);
    fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o644)).unwrap();
    snapshots(&layer()).save(folder.file()).unwrap();
    assert_eq!(mode(), 0o600);
    // A link beside it is not followed and not replaced.
    let other = folder.0.join("other");
    fs::write(&other, "mine").unwrap();
    symlink(&other, beside(&folder.file(), ".new")).unwrap();
    assert!(snapshots(&layer()).save(folder.file()).unwrap_err().to_string().contains("limits.snapshot.new is a link"));
    assert_eq!(fs::read_to_string(other).unwrap(), "mine");
    assert_eq!(folder.names(), ["limits.snapshot", "limits.snapshot.new", "other"]);
}

#[test]
fn a_first_start_finds_no_file() {
    let folder = Folder::new();
    let restored = snapshots(&layer()).load(folder.file()).unwrap();
    assert_eq!(restored.to_string(), "restored nothing: there is no file yet");
    let missing = folder.0.join("missing").join("limits.snapshot");
    assert_eq!(snapshots(&layer()).save(missing).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// The next snapshot must not replace it, because a later version of the crate may read it.
#[test]
fn refused_snapshots_are_kept_beside() {
    let folder = Folder::new();
    let layer = layer();
    let mut later = written(&layer, START);
    later[16] = 99;
    for round in 0..2 {
        fs::write(folder.file(), &later).unwrap();
        let refused = snapshots(&layer).load(folder.file());
        assert!(matches!(refused, Err(SnapshotError::Version { version: 99 })), "{round}");
        snapshots(&layer).save(folder.file()).unwrap();
        assert_eq!(folder.names(), ["limits.snapshot", "limits.snapshot.refused"]);
        assert_eq!(fs::read(beside(&folder.file(), ".refused")).unwrap(), later);
    }
}

/// Regression: another file at the path, such as the configuration, was renamed, so that the next start did not find
/// it.
#[test]
fn foreign_files_are_never_touched() {
    let folder = Folder::new();
    let layer = layer();
    for foreign in ["[[route]]\npath = \"/api\"\n", "short", ""] {
        for suffix in ["", ".new", ".refused"] {
            // A snapshot's beginning may be left over from an interrupted write.
            if foreign.is_empty() && suffix == ".new" {
                continue;
            }
            fs::write(folder.file(), written(&layer, START).into_iter().take(40).collect::<Vec<_>>()).unwrap();
            let path = beside(&folder.file(), suffix);
            fs::write(&path, foreign).unwrap();
            let refused = snapshots(&layer).load(folder.file()).unwrap_err();
            assert_eq!(matches!(refused, SnapshotError::Foreign), suffix.is_empty(), "{refused}");
            let saved = snapshots(&layer).save(folder.file());
            if suffix != ".refused" {
                let problem = saved.unwrap_err().to_string();
                assert!(
                    problem.contains(path.to_str().unwrap()) && problem.contains("choose another path"),
                    "{problem}"
                );
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), foreign, "{suffix}");
            folder.names().iter().for_each(|name| fs::remove_file(folder.0.join(name)).unwrap());
        }
    }
}

/// Regression: opening a FIFO waits for its writer, so a server did not start, and said nothing.
#[cfg(unix)]
#[test]
fn only_a_regular_file_is_opened() {
    let folder = Folder::new();
    let made = std::process::Command::new("mkfifo").arg(folder.file()).status().unwrap();
    assert!(made.success());
    let socket = folder.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [folder.file(), socket, folder.0.clone(), PathBuf::from("/dev/null")] {
        let refused = [
            snapshots(&layer()).load(&path).unwrap_err().to_string(),
            snapshots(&layer()).save(&path).unwrap_err().to_string(),
        ];
        for problem in refused {
            let is_told = problem.contains(path.to_str().unwrap()) && problem.contains("choose another path");
            assert!(is_told && problem.contains("not a regular file"), "{problem}");
        }
        assert!(!fs::metadata(&path).unwrap().is_file());
    }
}

#[test]
#[should_panic(expected = "two layers have the name `api`")]
fn two_layers_need_two_names() {
    let _ = Snapshots::new().layer("api", &layer()).layer("api", &layer());
}

/// The layers are found by their names, in any order.
#[test]
fn several_layers_share_a_file() {
    let [one, other] = [layer(), layer()];
    let _ = (charge(&one, "p", 1, 1), charge(&other, "p", 1, 4));
    let mut bytes = Vec::new();
    Snapshots::new().layer("one", &one).layer("other", &other).write(&mut bytes).unwrap();
    let [one, other] = [layer(), layer()];
    let restored = Snapshots::new().layer("other", &other).layer("one", &one).read(&bytes[..]).unwrap();
    assert_eq!(restored.policies(), ["other p", "one p"]);
    assert_eq!([&one, &other].map(|layer| charge(layer, "p", 1, 0).remaining()), [4, 1]);
}
