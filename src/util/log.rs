//! What the log lines of all rooms share, and the lines that several rooms log.
//!
//! Each room has its lines in a file `log.rs`, one function each: mistakes in the configuration, changes of state, and
//! decisions at `debug`. No line contains a key of a client. Above `debug`, nothing is logged per request, or clients
//! could flood the log.
//!
//! The line of a mistake has the address of its section in the guide (`see`). `tests/repository/misconfigured.rs`
//! checks that it is there.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_macros, unused_variables))]

use std::fmt::{self, Display};
use std::sync::OnceLock;

use crate::util::keyed_hash::Secret;
use crate::values::PartitionKey;

/// Logs a line. Without the feature `tracing`, that is nothing, and no field is looked at.
macro_rules! event {
    ($level:ident: $($line:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_sluice", $($line)+);
    };
}

/// The address of a section of the guide's page on mistakes.
macro_rules! page {
    ($section:literal) => {
        concat!("https://docs.rs/tower-sluice/latest/tower_sluice/guide/misconfigured/#", $section)
    };
}

pub(crate) use {event, page};

/// The hash of a key, by a secret that lasts until the process ends.
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

/// Logged by memory stores, and by the tables of policies.
pub(crate) fn table_filling_up() {
    event!(warn: see = page!("a-memory-store-is-filling-up"), "a memory store is filling up and may lose keys: raise its capacity");
}
