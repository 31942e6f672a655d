//! `FailureMode`: how requests are treated while a limiter fails.

/// How a policy treats a request whose limiter fails. Limiters in memory never do. Where a layer answers 503, a
/// [decision](crate::direct::Rejected) on another value has the reason
/// [`LimiterFailed`](crate::rejection::Reason::LimiterFailed).
///
/// In every mode, a failure is never reported as a rejection by the limit: the client did nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
#[doc(alias("fail open", "fail closed", "outage"))]
pub enum FailureMode {
    /// Decides by the same quota in this process's memory, where everything that the store admits is counted as well.
    ///
    /// During an outage, each of *n* processes grants the quota once, so together they admit at most *n* times the
    /// quota. When the store is back, it grants its own quota, too: counted over the outage and the recovery, they
    /// admit at most *n* + 1 times the quota. Measured: 2, 3 and 5 times the quota for 1, 2 and 4 processes.
    ///
    /// The default, because a client that was limited before stays limited until its reported wait is over. If a
    /// limiter has no local fallback (a custom one, say), the request is answered 503.
    #[default]
    LocalFallback,
    /// Fails closed: answers 503.
    Reject,
    /// Fails open: the request passes, uncounted.
    Allow,
}
