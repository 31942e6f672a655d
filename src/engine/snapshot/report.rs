//! A snapshot's results and errors.

use std::error::Error;
use std::fmt;
use std::io;

use super::format::VERSION;
use crate::values::snapshot::Unfit;

/// A snapshot's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub(super) keys: u64,
    pub(super) bytes: u64,
    pub(super) skipped: Vec<(String, String)>,
}

impl Saved {
    /// The number of states. A key counts once for each table that it is in.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// The snapshot's size.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The policies whose budgets are not in it (queues, limits on requests in flight, limits on a server, your own
    /// limiters and algorithms), each with the reason.
    #[must_use]
    pub fn skipped(&self) -> &[(String, String)] {
        &self.skipped
    }
}

/// The result of restoring a snapshot.
///
/// As a text, for a log: `restored 12 keys of api; login begins without: it is not in the snapshot`, or `restored
/// nothing: there is no file yet`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub(super) keys: u64,
    pub(super) policies: Vec<String>,
    pub(super) not_restored: Vec<(String, String)>,
    pub(super) left_over: Vec<String>,
}

impl Restored {
    /// The number of states in the tables that were restored, including states that have ended meanwhile.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// The names of the policies that have their whole state back, each behind its layer's name if it has one.
    #[must_use]
    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    /// The policies that begin without some or all of their state, each with the reason.
    #[must_use]
    pub fn not_restored(&self) -> &[(String, String)] {
        &self.not_restored
    }

    /// The policies in the snapshot that no layer has.
    #[must_use]
    pub fn left_over(&self) -> &[String] {
        &self.left_over
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.not_restored.first().map(|(_, reason)| reason);
        if self.policies.is_empty() {
            f.write_str("restored nothing")?;
            if let Some(reason) = reason.filter(|reason| self.not_restored.iter().all(|(_, other)| other == *reason)) {
                return write!(f, ": {reason}");
            }
        } else {
            let keys = if self.keys == 1 { "key" } else { "keys" };
            write!(f, "restored {} {keys} of {}", self.keys, self.policies.join(", "))?;
        }
        self.not_restored.iter().try_for_each(|(name, reason)| write!(f, "; {name} begins without: {reason}"))?;
        self.left_over.iter().try_for_each(|name| write!(f, "; no policy {name} is there any more"))
    }
}

/// Returns a policy's name with its layer's.
pub(super) fn full_name(layer: &str, policy: &str) -> String {
    if layer.is_empty() { policy.to_owned() } else { format!("{layer} {policy}") }
}

/// Why a snapshot is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It cannot be read.
    Io(io::Error),
    /// It is not a snapshot.
    Foreign,
    /// Another version of this crate has written it, in a format that this one does not know.
    #[non_exhaustive]
    Version {
        /// Its format version.
        version: u8,
    },
    /// It ends too early, because its writing was interrupted.
    Truncated,
    /// Its bytes have changed since they were written.
    #[non_exhaustive]
    Damaged {
        /// The part that was found to be damaged.
        part: &'static str,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the snapshot cannot be read: {error}"),
            Self::Foreign => f.write_str("the file is not a snapshot of this crate; check its path"),
            Self::Version { version } => write!(
                f,
                "the snapshot has version {version} of the format, and this crate knows version {VERSION}; start the \
                 version that wrote it, or delete the file"
            ),
            Self::Truncated => f.write_str("the snapshot ends too early; delete the file"),
            Self::Damaged { part } => {
                write!(f, "the snapshot is damaged: {part} is not as it was written; delete the file")
            }
        }
    }
}

impl Error for SnapshotError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Unfit> for SnapshotError {
    /// Only damage comes here, because a reason to skip one policy is not a snapshot error.
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Damaged(part) => Self::Damaged { part },
            Unfit::Skipped(_) => Self::Damaged { part: "a table" },
        }
    }
}
