//! What is counted in the simulation, and per second of the whole load.

use std::ops::AddAssign;

/// Counts of one band of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) rejected: u64,
    /// Calls to the server, with those that refund a lease.
    pub(crate) calls: u64,
    /// Requests that these calls decided on, leased ones included.
    pub(crate) decided: u64,
    /// On DynamoDB: conditional updates, those included whose condition did not hold.
    pub(crate) writes: u64,
    /// On DynamoDB.
    pub(crate) reads: u64,
}

/// The same per second, of the whole load or of one key.
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
    /// Adds all counts of another.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.rejected += other.rejected;
        self.calls += other.calls;
        self.decided += other.decided;
        self.writes += other.writes;
        self.reads += other.reads;
    }

    /// The rates of keys with so many requests per second, of which these are a sample.
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
