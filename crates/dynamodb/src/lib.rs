#![doc = include_str!("../README.md")]

mod backend;
mod clock_check;
mod create_table;
mod dynamo;
mod fault;
#[cfg(feature = "file")]
pub mod file;
mod hints;
mod items;
mod records;
mod store;
mod table;
#[cfg(test)]
mod tests;

pub use self::dynamo::Dynamo;
pub use self::fault::{DynamoFault, FaultKind};
pub use self::items::{Kept, Unfit};
pub use self::records::DynamoRecords;
pub use self::store::{DynamoStore, DynamoTable};
