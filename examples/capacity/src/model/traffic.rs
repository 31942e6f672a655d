//! How often each key is asked for, and which limit rejects the given share.

use super::load::Load;
use super::server::Limit;

/// The request rates for a load's keys, by rank: the first key is the hottest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    keys: u64,
    rate: f64,
    exponent: f64,
    /// The sum of all weights.
    total: f64,
}

/// Keys with similar weights: ranks from one power of two to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Band {
    pub(crate) first: u64,
    pub(crate) width: u64,
    /// Requests per second for all its keys.
    pub(crate) rate: f64,
}

impl Traffic {
    pub(crate) fn of(load: &Load) -> Self {
        let exponent = f64::from(load.zipf) / 1_000.0;
        let total = weights(1, load.keys, exponent);
        Self { keys: load.keys, rate: load.rate as f64, exponent, total }
    }

    /// The requests per second for the key with this rank.
    pub(crate) fn rate_of(&self, rank: u64) -> f64 {
        self.rate * weight(rank, self.exponent) / self.total
    }

    /// The greatest share first.
    pub(crate) fn bands(&self) -> Vec<Band> {
        let firsts = (0..u64::BITS).map(|power| 1_u64 << power).take_while(|first| *first <= self.keys);
        let band = |first: u64| {
            let width = first.min(self.keys - first + 1);
            let rate = self.rate * weights(first, first + width - 1, self.exponent) / self.total;
            Band { first, width, rate }
        };
        firsts.map(band).collect()
    }

    /// The limit that rejects the given number in a thousand requests. If none is rejected, it is twice the hottest
    /// key's rate. A bucket or a window is for a second, and for ten requests at least.
    pub(crate) fn limit(&self, load: &Load) -> Limit {
        let wanted = self.rate * f64::from(load.rejected) / 1_000.0;
        let (mut low, mut high) = (0.0, 2.0 * self.rate_of(1));
        // By bisection, since more is rejected under a lower limit.
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if self.excess(middle) > wanted { low = middle } else { high = middle }
        }
        let limit = if load.rejected == 0 { 2.0 * self.rate_of(1) } else { high };
        Limit { kind: load.kind, interval: (1e9 / limit).max(1.0) as u64, burst: limit.max(10.0) as u64 }
    }

    /// How many requests per second exceed this limit for each key.
    fn excess(&self, limit: f64) -> f64 {
        let above = if self.exponent > 0.0 {
            ((self.rate_of(1) / limit).powf(1.0 / self.exponent) as u64).min(self.keys)
        } else if self.rate_of(1) > limit {
            self.keys
        } else {
            0
        };
        self.rate * weights(1, above, self.exponent) / self.total - limit * above as f64
    }

    /// How likely a candidate is a request, if candidates come for each key in the band as often as for its first.
    pub(crate) fn thinning(&self, band: &Band, rank: u64) -> f64 {
        self.rate_of(rank) / self.rate_of(band.first)
    }
}

fn weight(rank: u64, exponent: f64) -> f64 {
    (rank as f64).powf(-exponent)
}

/// The sum of these ranks' weights: term by term at first, and then by the integral around the middles, which is off by
/// less than one part in a million.
fn weights(first: u64, last: u64, exponent: f64) -> f64 {
    const BY_TERM: u64 = 1_000;
    let by_term: f64 = (first..=last.min(BY_TERM)).map(|rank| weight(rank, exponent)).sum();
    let (from, to) = (first.max(BY_TERM + 1) as f64 - 0.5, last as f64 + 0.5);
    if to <= from {
        by_term
    } else if (exponent - 1.0).abs() < 1e-9 {
        by_term + (to / from).ln()
    } else {
        by_term + (to.powf(1.0 - exponent) - from.powf(1.0 - exponent)) / (1.0 - exponent)
    }
}
