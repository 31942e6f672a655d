//! `Wait`: how long a policy rejects a request, in the order in which waits of several policies count.

use std::time::Duration;

use crate::http::grpc::GrpcRetry;
use crate::values::Decision;

/// The wait of a rejection. Of policies that all have to admit a request, the greatest counts, and of alternatives the
/// least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// The estimate of an overloaded server. It lengthens no wait that is known.
    Estimate(Duration),
    /// An overloaded server that has no estimate.
    UnknownEstimate,
    After(Duration),
    /// Until another request has ended, which nobody knows.
    UntilReleased,
    /// No wait helps.
    Never,
}

impl Wait {
    /// The wait of a decision that rejects, of a limiter that `sheds`, or does not.
    pub(crate) fn of(decision: &Decision, sheds: bool) -> Self {
        let is_shed = sheds && decision.is_shed();
        match decision.retry_after() {
            Some(wait) if is_shed => Self::Estimate(wait),
            Some(wait) => Self::After(wait),
            None if is_shed => Self::UnknownEstimate,
            None if decision.is_until_released() => Self::UntilReleased,
            None => Self::Never,
        }
    }

    /// Whether it is the wait of an overloaded server, and no promise.
    pub(crate) fn is_estimate(self) -> bool {
        matches!(self, Self::Estimate(_) | Self::UnknownEstimate)
    }
}

impl From<Wait> for GrpcRetry {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Estimate(wait) | Wait::After(wait) => Self::After(wait),
            Wait::UnknownEstimate | Wait::UntilReleased => Self::Unknown,
            Wait::Never => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_is_not_known_counts_more_than_one_that_is_and_less_than_none_that_helps() {
        let after = |seconds| Decision::reject(4, 0, Some(Duration::from_secs(seconds)));
        let in_order = [
            (after(9), true),
            (Decision::reject_until_released(4, 0), true),
            (after(2), false),
            (after(9), false),
            (Decision::reject_until_released(4, 0), false),
            (Decision::reject(4, 0, None), false),
        ];
        let waits = in_order.map(|(decision, sheds)| Wait::of(&decision, sheds));
        assert!(waits.is_sorted_by(|less, more| less < more), "{waits:?}");
        // What no wait helps is not shed.
        assert_eq!(Wait::of(&Decision::reject(4, 0, None), true), Wait::Never);
    }
}
