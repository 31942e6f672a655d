//! Conformance suites for custom algorithms and stores (crate feature `test-util`).
//!
//! The algorithms and stores of this crate pass the same suites. A suite panics at the step that breaks a contract. All
//! randomness comes from the given seed, so failures are reproducible.
//!
//! ```
//! use tower_sluice::algorithm::TokenBucket;
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::{Quota, testing};
//!
//! let bucket = TokenBucket::new(Quota::per_minute(7).burst(3));
//! testing::check_algorithm(&bucket, 42);
//! testing::check_store(&bucket, 42, |clock| MemoryStore::with_capacity(1_000).with_clock(clock));
//! ```

mod algorithm;
#[cfg(feature = "remote")]
mod backend;
mod interval;
mod random;
mod store;

pub use self::algorithm::check_algorithm;
#[cfg(feature = "remote")]
pub use self::backend::check_backend;
pub use self::interval::IntervalChecker;
pub use self::random::Random;
pub use self::store::{admitted_by_threads, check_store};
