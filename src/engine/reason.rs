//! [`Refusal`]: why policies reject a subject.

use std::time::Duration;

use crate::values::Decision;

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A policy's limit is used up, or its queue is full.
    LimitExceeded,
    /// The server is [overloaded](crate::Overload), and no other limit rejects the request.
    Overloaded,
    /// The client kept sending after being rejected, and is [banned](crate::Policy::penalty).
    Banned,
    /// An operator has [banned](crate::LimitsHandle::ban) the client.
    BannedByHand,
    /// The key's quota is [suspended](crate::Quota::suspended).
    Suspended,
    /// The request lacks a policy's key.
    MissingKey,
    /// The request has the key more than once.
    AmbiguousKey,
    /// The server is [misconfigured](crate::key::KeyError::Misconfigured). The log names the mistake and its cure.
    Misconfigured,
    /// A limiter could not decide and its policy fails closed, or it was [closed](crate::Limiter::close).
    LimiterFailed,
}

/// Why policies reject a subject, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    /// Whether the client may have done nothing wrong, since others share the budget.
    pub(crate) is_due_to_others: bool,
    pub(crate) wait: Wait,
}

/// A rejection's wait. Among policies that all have to admit a request, the longest counts, and among alternatives the
/// shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// An overloaded server's estimate. It does not lengthen a wait that is known.
    Estimate(Duration),
    /// An overloaded server that has no estimate.
    UnknownEstimate,
    After(Duration),
    /// Until another request has ended, at an unknown time.
    UntilReleased,
    /// No wait helps.
    Never,
}

impl Wait {
    /// The wait in a rejecting decision. `sheds` says whether the limiter sheds.
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

    /// Whether it is an overloaded server's wait, which is not a promise.
    pub(crate) fn is_estimate(self) -> bool {
        matches!(self, Self::Estimate(_) | Self::UnknownEstimate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unknown wait is greater than a known one, and less than `Never`.
    #[test]
    fn waits_are_ordered_by_certainty() {
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
        // If no wait helps, the request is not shed.
        assert_eq!(Wait::of(&Decision::reject(4, 0, None), true), Wait::Never);
    }
}
