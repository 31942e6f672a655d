//! Models of the two protocols on a server in which processes hold units between their calls, checked in every
//! reachable state:
//!
//! - `permits`: requests in flight, of which each process has a lease that it renews (`src/concurrency/shared`, with
//!   the steps of `src/store/remote/in_flight`);
//! - `units`: units that are taken in advance and spent without a call (`src/store/remote/leases.rs`).
//!
//! Processes crash, restart, stand still and go on; calls and answers are late, lost, or run after their caller has
//! given up. The network duplicates nothing, as TCP does not. Time passes in ticks, of which a lease has a few.
//!
//! Where the code is plain transitions, the models run the code itself:
//! [`LocalEntry`](../../../src/concurrency/shared/local_counts/entry.rs) for permits, the token bucket for units. The
//! rest are transcriptions, and each names the function or script that it stands for. Each rule that a protocol needs
//! has a test that takes it away and asserts that the checker finds out, so no property holds for want of states. Each
//! bound has a test that a smaller one is exceeded.

#[cfg(test)]
mod permits;
#[cfg(test)]
mod units;

/// What the crate's file imports, by the path under which it does.
#[cfg(test)]
mod values {
    pub(crate) mod time {
        pub(crate) use tower_sluice::time::Timestamp;
    }
}
