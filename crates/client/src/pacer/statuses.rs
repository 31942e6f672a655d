//! `WaitStatuses`: which response statuses mean that the call was rejected because of a limit.

use http::StatusCode;

/// The statuses by which a partner says *wait*, for [`PacerLayer::wait_statuses`].
///
/// A response with such a status is a rejection: the partner has not carried the call out, the line pauses, and the
/// call is sent again.
///
/// | status | is a rejection | who sends it |
/// |---|---|---|
/// | 429 Too Many Requests | in any case | RFC 6585 |
/// | 420 | in any case | early APIs, before there was 429 |
/// | 503 Service Unavailable | if it states a wait | RFC 9110 |
/// | 403 Forbidden | if it states a wait | forges, for their limits on bursts |
/// | 418 | if it states a wait | exchanges, for an address that they have banned for a while |
/// | 509, 529 | if it states a wait | hosters, and AI services: overloaded |
///
/// A response *states a wait* if it has `Retry-After` or a related field, or if it reports that a quota is used up. In
/// gRPC, these settings do not apply: RESOURCE_EXHAUSTED is a rejection, and UNAVAILABLE if it has a pushback.
///
/// ```
/// use http::StatusCode;
/// use tower_sluice_client::{PacerLayer, WaitStatuses};
///
/// # type Body = http_body_util::Full<bytes::Bytes>;
/// // A storage service that answers 503 with no field when it is called too often; its 403 is about rights only.
/// let statuses = WaitStatuses::new().always(StatusCode::SERVICE_UNAVAILABLE).never(StatusCode::FORBIDDEN);
/// let layer = PacerLayer::<Body>::new().wait_statuses(statuses);
/// ```
///
/// [`PacerLayer::wait_statuses`]: crate::PacerLayer::wait_statuses
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct WaitStatuses {
    rules: Vec<(StatusCode, WaitRule)>,
}

/// When a response with a status is a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitRule {
    Always,
    IfStated,
    Never,
}

impl WaitStatuses {
    /// Creates the table above.
    pub fn new() -> Self {
        let always = [429, 420].map(|status| (status, WaitRule::Always));
        let if_stated = [503, 403, 418, 509, 529].map(|status| (status, WaitRule::IfStated));
        let rules = always.into_iter().chain(if_stated);
        let rules = rules.map(|(status, rule)| (StatusCode::from_u16(status).expect("three digits"), rule));
        Self { rules: rules.collect() }
    }

    /// Takes each response with this status for a rejection. Choose it only if the partner has not carried out the
    /// call, because the call is sent again.
    pub fn always(self, status: StatusCode) -> Self {
        self.with(status, WaitRule::Always)
    }

    /// Takes a response with this status for a rejection if it states a wait.
    pub fn if_stated(self, status: StatusCode) -> Self {
        self.with(status, WaitRule::IfStated)
    }

    /// Takes no response with this status for a rejection.
    pub fn never(self, status: StatusCode) -> Self {
        self.with(status, WaitRule::Never)
    }

    fn with(mut self, status: StatusCode, rule: WaitRule) -> Self {
        self.rules.retain(|(known, _)| *known != status);
        self.rules.push((status, rule));
        self
    }

    pub(super) fn rule(&self, status: StatusCode) -> WaitRule {
        self.rules.iter().find(|(known, _)| *known == status).map_or(WaitRule::Never, |(_, rule)| *rule)
    }
}

impl Default for WaitStatuses {
    fn default() -> Self {
        Self::new()
    }
}
