//! Helpers that the log lines in all modules share, and the lines that several modules log.
//!
//! Each module has its lines in a file `log.rs`, one function each: configuration mistakes, state changes, and
//! decisions at `debug`. No line contains a client's key. Above `debug`, nothing is logged per request, or clients
//! could flood the log.
//!
//! A line about a mistake links to its section in the guide (`see`). `tests/repository/misconfigured.rs` checks that
//! the section exists.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_macros, unused_variables))]

use std::fmt::{self, Display};
use std::sync::OnceLock;

use crate::util::keyed_hash::Secret;
use crate::values::PartitionKey;

/// Logs a line. Without the feature `tracing`, this does nothing, and evaluates no field.
macro_rules! event {
    ($level:ident: $($line:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_sluice", $($line)+);
    };
}

/// The address of a section on the guide's page about mistakes.
macro_rules! page {
    ($section:literal) => {
        concat!("https://docs.rs/tower-sluice/latest/tower_sluice/guide/misconfigured/#", $section)
    };
}

pub(crate) use {event, page};

/// A key's hash, by a secret that lasts until the process ends.
#[derive(Debug)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes a key.
    pub fn new(key: &PartitionKey) -> Self {
        static SECRET: OnceLock<Secret> = OnceLock::new();
        Self(SECRET.get_or_init(Secret::random).mark(key.as_bytes()))
    }
}

impl Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Logged by memory stores, and by policies' tables.
pub(crate) fn table_filling_up() {
    event!(warn: see = page!("a-memory-store-is-filling-up"), "a memory store is filling up and may lose keys: raise its capacity");
}
