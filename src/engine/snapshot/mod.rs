//! Layer snapshots: the policies' state in a file, so that it outlives a restart.
//!
//! | file | concern |
//! |---|---|
//! | `format` | the records of a file, and its checksum |
//! | `ours` | which files are snapshots: no other is touched |
//! | `replace` | a file that is replaced as a whole |
//! | `report` | the results and the errors |
//! | `tests` | properties over random histories, hostile files, interrupted writes |
//!
//! The tables themselves are written and read where they are: `store/memory/snapshot.rs`, `engine/policy/snapshot.rs`.

mod format;
mod ours;
mod replace;
mod report;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use self::format::{FileWriter, SavedFile, read_file};
pub use self::report::{Restored, Saved, SnapshotError};
use crate::engine::domain::Http;
use crate::engine::reload::LayerState;
use crate::engine::translate::Translate;
use crate::values::snapshot::WallClock;
use crate::values::time::nanos_of;

/// Writes the layers' state to a file, and restores it after a restart.
///
/// ```
/// use tower_sluice::snapshot::Snapshots;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// # let folder = std::env::temp_dir().join(format!("sluice-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("limits.snapshot");
/// let layer = RateLimitLayer::new(Policy::new("api", Quota::per_hour(100)));
/// let snapshots = Snapshots::new().layer("api", &layer);
///
/// // When the server starts, before it serves. A first start finds no file, and begins with full budgets.
/// match snapshots.load(&path) {
///     Ok(restored) => println!("{restored}"),
///     Err(error) => eprintln!("{error}; all clients begin with full budgets"),
/// }
///
/// // Every ten seconds, on a thread that may block, and once more after the last request.
/// snapshots.save(&path)?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<_, std::io::Error>(())
/// ```
///
/// # What is in it
///
/// The keys' budgets in a [`MemoryStore`](crate::store::MemoryStore), by any algorithm in this crate, with the keys'
/// own quotas; bans and allowances by hand; penalty bans, advertised waits and the premature retries that count towards
/// a ban; debts; and [`charge_once`](crate::Policy::charge_once) records and budgets.
///
/// These are not in it: requests in flight (queues, permits, and charges that [may be
/// refunded](crate::Policy::charge_when), which stay charged); the units of a [`Balance`](crate::Balance); budgets that
/// a server keeps; a remote limiter's local fallback; and your own algorithms and limiters. [`Saved`] names the
/// policies that are left out.
///
/// A file has bits of the keys' hashes, and their secret, so a reader of the file can choose keys that share a budget.
/// It has the keys themselves only for bans and allowances by hand. So it is for its owner alone (mode 0600).
///
/// # To restore is to inherit
///
/// A policy takes over the state by its name and its layer's name, as after a [live change](crate::LimitsHandle):
/// another quota, another capacity and another table form are converted in the same way. A policy that was used already
/// is not restored, so restore before the first request. Another version of this crate with the same format version may
/// have written the file.
///
/// # Time
///
/// We measure the time between writing and restoring by the wall clock. If that was set back, nothing is forgiven:
/// debts and bans go on with the rest that they had when the file was written.
///
/// Windows go on as they are if both processes' clocks show the same time, as the default clock does. They also do if
/// the earlier clock was wrong by less than half a window, for example because the machine was suspended. If the wall
/// clock was set back, or a clock begins with its process, a count goes on in the window in which its own would have
/// ended. It then counts for its old time at least, and less than one period longer.
///
/// # Accuracy
///
/// A restored key is admitted at the instant at which it would have been admitted, to one tick of its bucket (see
/// [`MemoryStore`](crate::store::MemoryStore)). A bucket's debt is rounded up, so none is forgiven. Charges that are
/// made after their page was written are lost with the process, unless a later snapshot has them, so save once more
/// after the last request.
///
/// # Cost
///
/// Each key that owes something takes some 12 bytes in the file for a bucket, 7 for a fixed window, 8 for a sliding
/// one, and 8 more with its own quota. A million bucket keys take 0.3 s to write and 0.8 s to restore, and with their
/// own quotas, 0.6 s and 2 s (two busy cores). Decisions go on meanwhile without a lock that stops them, because words
/// are read one by one, and a table with locks is locked in sets of eight keys. Writing takes less than 100 KiB of
/// memory, and restoring takes the file's size, with any length that the file announces.
#[must_use]
#[doc(alias("persist", "restart", "dump"))]
pub struct Snapshots<D: Translate = Http> {
    layers: Vec<(String, Arc<LayerState<D>>)>,
    wall: WallClock,
}

impl<D: Translate> Default for Snapshots<D> {
    fn default() -> Self {
        Self { layers: Vec::new(), wall: Arc::new(wall_clock) }
    }
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos_of)
}

impl<D: Translate> Snapshots<D> {
    /// Adds a layer's policies.
    #[track_caller]
    pub(crate) fn with(mut self, name: String, layer: &Arc<LayerState<D>>) -> Self {
        assert!(self.layers.iter().all(|(other, _)| *other != name), "two layers have the name `{name}`");
        self.layers.push((name, Arc::clone(layer)));
        self
    }

    /// Reads the wall clock from a function.
    #[cfg(test)]
    pub(crate) fn with_wall(self, wall: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { wall: Arc::new(wall), ..self }
    }

    /// Writes a snapshot, in parts of some 32 KiB. Does not stop decisions.
    ///
    /// # Errors
    ///
    /// If `to` fails.
    pub fn write(&self, to: impl io::Write) -> io::Result<Saved> {
        let mut file = FileWriter::new(to, Arc::clone(&self.wall))?;
        let mut skipped = Vec::new();
        for (layer, state) in &self.layers {
            let in_force = Arc::clone(&state.load());
            for policy in &in_force.policies {
                file.policy(layer, policy.name())?;
                if let Some(reason) = policy.save(&mut file)? {
                    skipped.push((report::full_name(layer, policy.name()), reason));
                }
            }
        }
        let (keys, bytes) = file.end()?;
        Ok(Saved { keys, bytes, skipped })
    }

    /// Restores a snapshot. Reads and checks all of it first, so that nothing has changed if it is refused.
    ///
    /// # Errors
    ///
    /// If `from` fails, or does not have a whole and undamaged snapshot in a version that this crate knows.
    pub fn read(&self, from: impl io::Read) -> Result<Restored, SnapshotError> {
        let mut saved = read_file(from)?;
        let mut limiters = Vec::new();
        let mut prepared = Vec::new();
        let mut restored = Restored::default();
        for (layer, state) in &self.layers {
            for policy in &state.load().policies {
                let name = report::full_name(layer, policy.name());
                match take(&mut saved, layer, policy.name()) {
                    Some(tables) => prepared.push((name, policy.prepare(tables, &self.wall, &mut limiters)?)),
                    None => restored.not_restored.push((name, "it is not in the snapshot".to_owned())),
                }
            }
        }
        restored.left_over = saved.iter().map(|(layer, policy, _)| report::full_name(layer, policy)).collect();
        for (name, policy) in prepared {
            let (keys, reasons) = policy.commit();
            restored.keys += keys;
            if reasons.is_empty() {
                restored.policies.push(name);
            } else {
                restored.not_restored.extend(reasons.into_iter().map(|reason| (name.clone(), reason)));
            }
        }
        self.layers.iter().for_each(|(_, state)| state.note_overrides());
        Ok(restored)
    }

    /// Writes a snapshot to a file atomically: the new file is written beside it (with `.new` behind its name), and
    /// renamed once it is on the disk. If the process is killed meanwhile, or on an error, the file stays as it was. On
    /// Unix, only the owner may read it. This call blocks, so make it on a thread that may.
    ///
    /// Each file is for one process.
    ///
    /// # Errors
    ///
    /// If a file cannot be written or renamed. If either name stands for a file that is not a snapshot, or not a
    /// regular file, that file stays as it is, and nothing is written. The error names the file.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<Saved> {
        let path = path.as_ref();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        replace::replace(path, |file| self.write(file)).map_err(named)
    }

    /// Restores a snapshot from a file. If there is no file, nothing is restored, which is not an error. Blocks.
    ///
    /// A snapshot that is refused is renamed, with `.refused` behind its name, so that the next [`save`](Self::save)
    /// does not replace it. A file that is not a snapshot, such as a configuration, keeps its name, and `save` refuses
    /// to replace it.
    ///
    /// # Errors
    ///
    /// The errors from [`read`](Self::read), and an error if the path does not stand for a regular file, such as for a
    /// FIFO. Nothing has changed in these cases, and all keys begin with full budgets.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Restored, SnapshotError> {
        let path = path.as_ref();
        let Some(file) = ours::open(path).map_err(SnapshotError::Io)? else {
            return Ok(self.nothing("there is no file yet"));
        };
        let restored = self.read(file);
        if restored.as_ref().is_err_and(|error| !matches!(error, SnapshotError::Io(_) | SnapshotError::Foreign)) {
            set_aside(path);
        }
        restored
    }

    /// The result if there is nothing to restore.
    fn nothing(&self, reason: &str) -> Restored {
        let mut restored = Restored::default();
        for (layer, state) in &self.layers {
            let names =
                state.load().policies.iter().map(|policy| report::full_name(layer, policy.name())).collect::<Vec<_>>();
            restored.not_restored.extend(names.into_iter().map(|name| (name, reason.to_owned())));
        }
        restored
    }
}

/// Renames a snapshot that was refused. If it cannot be renamed, it can hardly be replaced either. If the new name
/// exists, it must stand for an earlier snapshot.
fn set_aside(path: &Path) {
    let refused = replace::beside(path, ".refused");
    if ours::check_snapshot(&refused).is_ok() {
        let _ = std::fs::rename(path, refused);
    }
}

/// Takes a policy out of a file.
fn take(saved: &mut SavedFile, layer: &str, policy: &str) -> Option<crate::engine::policy::SavedPolicy> {
    let index = saved.iter().position(|(of_layer, name, _)| of_layer == layer && name == policy)?;
    Some(saved.swap_remove(index).2)
}

impl<D: Translate> fmt::Debug for Snapshots<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.layers.iter().map(|(name, _)| name).collect::<Vec<_>>();
        f.debug_struct("Snapshots").field("layers", &names).finish_non_exhaustive()
    }
}
