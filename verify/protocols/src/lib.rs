//! Models for the two server protocols in which processes hold units between their calls, checked in every reachable
//! state:
//!
//! - `permits`: requests in flight. Each process has a lease that it renews (`src/concurrency/shared`, with the steps
//!   in `src/store/remote/in_flight`);
//! - `units`: units that are taken in advance and spent without a call (`src/store/remote/leases.rs`).
//!
//! Processes crash, restart, stand still and go on. Calls and answers are late, lost, or run after their caller has
//! given up. The network does not duplicate messages, as TCP does not. Time passes in ticks, and a lease takes a few.
//!
//! If the code is plain transitions, the models run the code itself:
//! [`LocalEntry`](../../../src/concurrency/shared/local_counts/entry.rs) for permits, the token bucket for units. The
//! rest are transcriptions, and each names the function or script that it stands for. Each rule that a protocol needs
//! has a test that takes it away and asserts that the checker finds out, so we know that the states suffice. Each bound
//! has a test that a smaller one is exceeded.

#[cfg(test)]
mod permits;
#[cfg(test)]
mod units;

/// The paths that the crate's file imports.
#[cfg(test)]
mod values {
    pub(crate) mod time {
        pub(crate) use tower_sluice::time::Timestamp;
    }
}
