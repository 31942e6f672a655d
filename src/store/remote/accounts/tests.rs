//! Accounts over records.

mod bytes;
mod interleavings;
