//! [`Refusal`]: why policies reject a subject.

use std::time::Duration;

use crate::values::Decision;

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The limit of a policy is used up, or its queue is full.
    LimitExceeded,
    /// The server is [overloaded](crate::Overload), and no other limit rejects the request.
    Overloaded,
    /// The client kept sending after being rejected, and is [banned](crate::Policy::penalty).
    Banned,
    /// An operator has [banned](crate::LimitsHandle::ban) the client.
    BannedByHand,
    /// The quota of the key is [suspended](crate::Quota::suspended).
    Suspended,
    /// The request lacks the key of a policy.
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
