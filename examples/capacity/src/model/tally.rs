//! Counts in the simulation, and per second for the whole load.

use std::ops::AddAssign;

/// Counts for one band of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) rejected: u64,
    /// Calls to the server, including those that refund a lease.
    pub(crate) calls: u64,
    /// Requests that these calls decided on, including leased ones.
    pub(crate) decided: u64,
    /// On DynamoDB: conditional updates, including those whose condition did not hold.
    pub(crate) writes: u64,
    /// On DynamoDB.
    pub(crate) reads: u64,
}

/// The counts per second, for the whole load or for one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) requests: f64,
    pub(crate) rejected: f64,
    pub(crate) calls: f64,
    pub(crate) decided: f64,
    pub(crate) writes: f64,
    pub(crate) reads: f64,
}

impl Tally {
    /// Adds all counts from another.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.rejected += other.rejected;
        self.calls += other.calls;
        self.decided += other.decided;
        self.writes += other.writes;
        self.reads += other.reads;
    }

    /// The rates for keys with `requests` requests per second, if these counts are a sample from them.
    pub(crate) fn scaled(&self, requests: f64) -> Rates {
        let scale = |count: u64| if self.requests == 0 { 0.0 } else { requests * count as f64 / self.requests as f64 };
        Rates {
            requests: scale(self.requests),
            rejected: scale(self.rejected),
            calls: scale(self.calls),
            decided: scale(self.decided),
            writes: scale(self.writes),
            reads: scale(self.reads),
        }
    }
}

impl Rates {
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            requests: self.requests * factor,
            rejected: self.rejected * factor,
            calls: self.calls * factor,
            decided: self.decided * factor,
            writes: self.writes * factor,
            reads: self.reads * factor,
        }
    }

    pub(crate) fn calls_per_request(&self) -> f64 {
        self.calls / self.requests
    }
}

impl AddAssign for Rates {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.rejected += other.rejected;
        self.calls += other.calls;
        self.decided += other.decided;
        self.writes += other.writes;
        self.reads += other.reads;
    }
}
