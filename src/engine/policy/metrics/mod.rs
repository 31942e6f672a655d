//! Policy metrics, counted per request in handles that are made once.
//!
//! No label contains a key, because each key would be a series, and clients could create any number of series.

mod labels;
#[cfg(feature = "metrics")]
mod observed;
#[cfg(feature = "metrics")]
mod series;
#[cfg(not(feature = "metrics"))]
#[path = "no_series.rs"]
mod series;

use std::sync::{Arc, OnceLock};

pub(crate) use self::labels::Fate;
use self::labels::Labels;
use self::series::Series;

/// One policy's meter. Two meters with the same labels update the same series. Once the last policy that shares a
/// meter's series is gone, its gauges are zero.
#[derive(Debug)]
pub(crate) struct PolicyMeter {
    labels: Labels,
    series: Series,
}

impl PolicyMeter {
    pub(crate) fn new(policy: Arc<str>, delays: bool) -> Self {
        Self { labels: Labels { policy, route: OnceLock::new(), delays }, series: Series::default() }
    }

    /// Inherits the series from the policy with this name that was in force before.
    pub(crate) fn inherit(&mut self, old: &Self) {
        self.series = old.series.clone();
    }

    pub(crate) fn route(&self) -> Option<&Arc<str>> {
        self.labels.route.get()
    }

    /// Sets the label `route`. Must be called before anything is counted.
    pub(crate) fn set_route(&self, route: &Arc<str>) {
        self.labels.route.get_or_init(|| Arc::clone(route));
    }
}
