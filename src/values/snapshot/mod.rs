//! A snapshot's parts: a table's bytes, and the time between writing and restoring them. The file around them is
//! `engine/snapshot`.

mod gap;
mod numbers;

use std::fmt;
use std::io;
use std::sync::Arc;

pub(crate) use self::gap::{Gap, Moment};
pub(crate) use self::numbers::{Input, put_number, put_quota};

/// Takes a snapshot's tables, in bounded pieces. The file writer implements this.
pub(crate) trait TableSink {
    /// The wall clock, in nanoseconds since the Unix epoch.
    fn wall(&self) -> u64;

    /// Begins a table with its head. Its parts follow.
    fn begin(&mut self, head: &[u8]) -> io::Result<()>;

    /// Adds a part with this number of keys.
    fn part(&mut self, bytes: &[u8], keys: u64) -> io::Result<()>;
}

/// A table as a snapshot has it, not decoded yet.
#[derive(Default)]
pub(crate) struct SavedTable {
    pub(crate) head: Vec<u8>,
    pub(crate) parts: Vec<Box<[u8]>>,
}

/// Reads the wall clock, in nanoseconds since the Unix epoch.
pub(crate) type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Puts a decoded and checked table into use. Returns its number of keys.
pub(crate) type Commit = Box<dyn FnOnce() -> Result<u64, Unfit> + Send>;

/// Why a table is not restored, or not saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The table's bytes are invalid in this part.
    Damaged(&'static str),
    /// The table begins without the state in the snapshot.
    Skipped(String),
}

impl Unfit {
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Self::Skipped(reason.into())
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(part) => write!(f, "{part} cannot be read"),
            Self::Skipped(reason) => f.write_str(reason),
        }
    }
}
