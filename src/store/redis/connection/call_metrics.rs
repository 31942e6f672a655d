//! The duration of calls, as a metric.

use tokio::time::Instant;

use super::fault::Fault;

#[cfg(feature = "metrics")]
pub(super) use self::with_metrics::CallMetrics;
#[cfg(not(feature = "metrics"))]
pub(super) use self::without_metrics::CallMetrics;

#[cfg(feature = "metrics")]
mod with_metrics {
    use std::sync::OnceLock;

    use metrics::{Histogram, Unit, describe_histogram, histogram};

    use super::{Fault, Instant};
    use crate::store::redis::connection::FaultKind;

    const DURATION: &str = "tower_sluice.rate_limiting.store.call.duration";

    /// One histogram of answered calls, and one for each kind of fault. Each is registered when it is needed first.
    pub(in crate::store::redis::connection) struct CallMetrics {
        answered: OnceLock<Histogram>,
        failed: [OnceLock<Histogram>; FaultKind::ALL.len()],
    }

    impl CallMetrics {
        pub(in crate::store::redis::connection) const fn new() -> Self {
            Self { answered: OnceLock::new(), failed: [const { OnceLock::new() }; FaultKind::ALL.len()] }
        }

        pub(in crate::store::redis::connection) fn note(&self, start: Instant, fault: Option<&Fault>) {
            let (histogram, result) = match fault.map(Fault::kind) {
                None => (&self.answered, "ok"),
                Some(kind) => (&self.failed[kind as usize], kind.label()),
            };
            histogram.get_or_init(|| new(result)).record(start.elapsed());
        }
    }

    #[cold]
    fn new(result: &'static str) -> Histogram {
        describe_histogram!(DURATION, Unit::Seconds, "Time that calls to a store took, with what came of them.");
        histogram!(DURATION, "result" => result)
    }
}

#[cfg(not(feature = "metrics"))]
mod without_metrics {
    use super::{Fault, Instant};

    pub(in crate::store::redis::connection) struct CallMetrics;

    impl CallMetrics {
        pub(in crate::store::redis::connection) const fn new() -> Self {
            Self
        }

        #[allow(clippy::unused_self, reason = "the signature with the feature")]
        pub(in crate::store::redis::connection) const fn note(&self, _start: Instant, _fault: Option<&Fault>) {}
    }
}
