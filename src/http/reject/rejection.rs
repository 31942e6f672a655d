//! `Rejection`: why a request was rejected, and the wait that is advertised.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;

use crate::http::headers::{self, Jitter};
use crate::http::key::KeyError;
use crate::http::policy::Policy;
use crate::http::verdict::Verdict;

/// A rejected request: the reason, the status, the detail and the wait.
#[derive(Clone, Debug)]
pub struct Rejection {
    reason: Reason,
    status: StatusCode,
    detail: Cow<'static, str>,
    wait: Option<Duration>,
    verdict: Verdict,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The limit of a policy is used up, or its queue is full.
    LimitExceeded,
    /// The client kept sending after being rejected, and is [banned](crate::Policy::penalty).
    Banned,
    /// The request lacks the key of a policy.
    MissingKey,
    /// The request has the key more than once.
    AmbiguousKey,
    /// The server is not configured to extract the key. The cause is in the log.
    Misconfigured,
    /// A limiter could not decide and its policy fails closed, or it was [closed](crate::Limiter::close).
    LimiterFailed,
}

/// The advertised wait when a limiter failed: a guess, since the duration of the outage is unknown.
const RETRY_FAILED_AFTER: Duration = Duration::from_secs(1);

impl Rejection {
    pub(crate) fn limit_exceeded(status: StatusCode, verdict: Verdict) -> Self {
        let wait = longest_wait(&verdict);
        let detail = match wait {
            // See `detail_of_wait`.
            Some(_) => "".into(),
            None => "The request costs more than is ever admitted at once; do not retry it.".into(),
        };
        Self { reason: Reason::LimitExceeded, status, detail, wait, verdict }
    }

    pub(crate) fn banned(status: StatusCode, verdict: Verdict) -> Self {
        Self { reason: Reason::Banned, ..Self::limit_exceeded(status, verdict) }
    }

    pub(crate) fn without_key(policy: &Policy, error: KeyError) -> Self {
        let (reason, status, detail) = match error {
            KeyError::Missing { .. } => (Reason::MissingKey, StatusCode::BAD_REQUEST, error.to_string().into()),
            KeyError::Ambiguous { .. } => (Reason::AmbiguousKey, StatusCode::BAD_REQUEST, error.to_string().into()),
            KeyError::Misconfigured { problem } => {
                let detail = format!("rate limit policy `{}`: {problem}", policy.name());
                (Reason::Misconfigured, StatusCode::INTERNAL_SERVER_ERROR, detail.into())
            }
        };
        Self { reason, status, detail, wait: None, verdict: Verdict::default() }
    }

    pub(crate) fn limiter_failed(policy: &Policy, is_closed: bool, verdict: Verdict) -> Self {
        let problem =
            if is_closed { "has been closed and queues no more requests" } else { "cannot be checked at the moment" };
        let detail = format!("The rate limit `{}` {problem}.", policy.name()).into();
        Self {
            reason: Reason::LimiterFailed,
            status: StatusCode::SERVICE_UNAVAILABLE,
            detail,
            wait: Some(RETRY_FAILED_AFTER),
            verdict,
        }
    }

    /// Lengthens the wait by a random part of the jitter, if a wait helps.
    #[inline]
    pub(crate) fn lengthen(&mut self, jitter: Jitter) {
        if let Some(wait) = &mut self.wait {
            *wait = jitter.added_to(*wait);
        }
    }

    /// The kind of rejection.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The status of the response.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// One sentence for people, without the key or an address.
    #[must_use]
    pub fn detail(&self) -> Cow<'_, str> {
        match (self.detail_of_wait(), self.wait) {
            (Some(before), Some(wait)) => {
                let seconds = headers::retry_after_seconds(wait);
                format!("{before}{seconds}{}", Self::after_seconds(seconds)).into()
            }
            _ => Cow::Borrowed(&self.detail),
        }
    }

    /// The part of the detail before the seconds to wait, if it has them. Needs no escaping in JSON.
    #[inline]
    pub(crate) fn detail_of_wait(&self) -> Option<&'static str> {
        self.wait?;
        match self.reason {
            Reason::LimitExceeded => Some("The limit is used up; retry in "),
            Reason::Banned => Some("Too many retries before the advertised wait was over; retry in "),
            _ => None,
        }
    }

    /// The part of the detail after the seconds to wait.
    #[inline]
    pub(crate) const fn after_seconds(seconds: u64) -> &'static str {
        if seconds == 1 { " second." } else { " seconds." }
    }

    /// The whole detail, if it has no seconds to wait.
    pub(crate) fn plain_detail(&self) -> &str {
        &self.detail
    }

    /// The exact wait after which the same request passes, alone on its keys, plus the
    /// [jitter](crate::RateLimitLayerBuilder::retry_jitter) of the layer, if it has one; `None` if no wait is known to
    /// help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.wait
    }

    /// The decisions of all policies.
    #[must_use]
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

/// The longest wait of all violated policies; `None` if no wait helps one of them.
fn longest_wait(verdict: &Verdict) -> Option<Duration> {
    verdict
        .violated()
        .map(|violated| violated.decision().retry_after())
        .try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}
