#![doc = include_str!("../README.md")]
// Without a driver, no call can reach a server and fail.
#![cfg_attr(not(any(feature = "bb8", feature = "deadpool", feature = "sqlx")), allow(dead_code))]

mod backend;
mod by_hand;
mod fault;
#[cfg(feature = "file")]
pub mod file;
mod joint;
mod kept;
mod pool;
mod postgres;
mod records;
mod sessions;
mod sql;
mod store;
#[cfg(all(test, feature = "deadpool"))]
mod tests;
mod turns;

pub use self::fault::{FaultKind, PostgresFault};
pub use self::kept::{Kept, Unfit};
pub use self::pool::Pool;
pub use self::postgres::Postgres;
pub use self::records::PostgresRecords;
pub use self::store::{PostgresStore, PostgresTable};
