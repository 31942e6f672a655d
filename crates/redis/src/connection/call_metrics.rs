//! The duration of calls, as a metric.

use tokio::time::Instant;
#[cfg(feature = "metrics")]
use {
    super::fault::FaultKind,
    metrics::{Histogram, Unit, describe_histogram, histogram},
    std::sync::OnceLock,
};

use super::fault::Fault;

#[cfg(feature = "metrics")]
const DURATION: &str = "tower_sluice.rate_limiting.store.call.duration";

/// One histogram for answered calls, and one for each kind of fault. Each is registered at its first use.
#[derive(Default)]
pub(super) struct CallMetrics {
    #[cfg(feature = "metrics")]
    answered: OnceLock<Histogram>,
    #[cfg(feature = "metrics")]
    failed: [OnceLock<Histogram>; FaultKind::COUNT],
}

impl CallMetrics {
    #[cfg(feature = "metrics")]
    pub(super) fn note(&self, start: Instant, fault: Option<&Fault>) {
        let (histogram, result) = match fault.map(Fault::kind) {
            None => (&self.answered, "ok"),
            Some(kind) => (&self.failed[kind as usize], kind.label()),
        };
        histogram.get_or_init(|| register(result)).record(start.elapsed());
    }

    #[cfg(not(feature = "metrics"))]
    #[allow(clippy::unused_self, reason = "the signature with the feature")]
    pub(super) const fn note(&self, _start: Instant, _fault: Option<&Fault>) {}
}

#[cfg(feature = "metrics")]
#[cold]
fn register(result: &'static str) -> Histogram {
    describe_histogram!(DURATION, Unit::Seconds, "Time that calls to a store took, with what came of them.");
    histogram!(DURATION, "result" => result)
}
