//! `Rejection`: why a request was rejected, and the wait that is advertised.

use std::borrow::{Borrow, Cow};
use std::time::Duration;

use http::StatusCode;

use crate::engine::direct::{Problem, Rejected};
use crate::engine::key::KeyError;
use crate::engine::policy::{Policy, validate_name};
use crate::engine::reason::{Reason, Wait};
use crate::engine::verdict::{PolicyVerdict, Verdict};
use crate::http::grpc::GrpcRetry;
use crate::http::headers::{self, Jitter};
use crate::http::text::Text;
use crate::values::{Decision, LimiterError};

/// A rejected request: the reason, the status, the detail and the wait.
///
/// # In a handler
///
/// With [`unless_allowed`](Self::unless_allowed), a handler that asks a limiter itself answers as a layer would. With
/// axum (crate feature `axum`), a `Box<Rejection>` is a response, and a [`LimiterError`] converts to one, with status
/// 503.
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use std::sync::Arc;
///
/// use axum::{Router, extract::{Path, State}, http::HeaderMap, routing::post};
/// use tower_sluice::algorithm::SlidingWindow;
/// use tower_sluice::headers::{DecisionFields, RateLimitFields};
/// use tower_sluice::limiter::IntoLimiter;
/// use tower_sluice::{Limiter, LimiterExt, Quota, Rejection};
///
/// #[derive(Clone)]
/// struct Invitations {
///     limiter: Arc<dyn Limiter>,
///     fields: DecisionFields,
/// }
///
/// /// So many people as are invited are charged to the team.
/// async fn invite(
///     State(invitations): State<Invitations>,
///     Path((team, people)): Path<(String, u64)>,
/// ) -> Result<(HeaderMap, String), Box<Rejection>> {
///     let permit = invitations.limiter.acquire(&team.into(), people).await?;
///     let permit = Rejection::unless_allowed("invitations", permit)?;
///     Ok((invitations.fields.of(&permit), format!("{people} invited, {} left", permit.remaining())))
/// }
///
/// let limiter = SlidingWindow::new(Quota::per_day(50)).into_limiter();
/// let fields = DecisionFields::new(RateLimitFields::draft11(), "invitations", &*limiter);
/// let app: Router = Router::new()
///     .route("/teams/{team}/invitations/{people}", post(invite))
///     .with_state(Invitations { limiter, fields });
/// ```
#[derive(Clone, Debug)]
#[doc(alias("429", "too many requests", "Retry-After", "retry after"))]
pub struct Rejection {
    reason: Reason,
    status: StatusCode,
    detail: Detail,
    retry: GrpcRetry,
    verdict: Verdict,
}

/// The detail: a sentence that begins with a capital and ends with a full stop.
#[derive(Clone, Debug)]
enum Detail {
    /// `before`, and the wait. The text is made when it is read, because the jitter may lengthen the wait before that.
    Wait {
        before: &'static str,
    },
    Plain(Cow<'static, str>),
}

/// A detail's pieces. Written one after the other, they are the sentence.
pub(crate) struct Sentence<'a> {
    /// The sentence up to the wait. If there is no wait, the whole sentence. That may need escaping in JSON, because it
    /// can contain the name that a key extractor looks for.
    pub(crate) before: &'a str,
    /// The number of seconds to wait, if the wait is part of the sentence.
    pub(crate) seconds: Option<u64>,
    /// The sentence after the [wait](Self::wait).
    pub(crate) after: &'static str,
}

/// The details in rejections that advertise a wait, up to the wait.
pub(super) const EXCEEDED: &str = "The limit is used up; retry in ";
pub(super) const BANNED: &str = "Too many retries before the advertised wait was over; retry in ";
pub(super) const OVERLOADED: &str = "The server is overloaded; retry in ";
/// If no wait is known.
pub(super) const OVERLOADED_LATER: &str = "The server is overloaded; retry later.";
pub(super) const BANNED_BY_HAND: &str = "Access is suspended; retry in ";
/// Without a wait.
const SUSPENDED: &str = "The quota is suspended; do not retry.";

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

impl Sentence<'_> {
    /// The wait as people read it, rounded up: the number of seconds below an hour, `1 hour 2 minutes` below a day, and
    /// `7 days 9 hours` from there on. Empty if the sentence does not have a wait.
    #[inline]
    pub(crate) fn wait(&self) -> Text<24> {
        let mut text = Text::new();
        match self.seconds {
            None => {}
            Some(seconds @ ..HOUR) => text.push_number(seconds),
            Some(seconds) => push_long_wait(&mut text, seconds),
        }
        text
    }
}

/// Appends a wait from an hour on, in two units. The smaller one is rounded up, and left out if it is zero.
#[cold]
fn push_long_wait(text: &mut Text<24>, seconds: u64) {
    let minutes = seconds.div_ceil(MINUTE);
    // Rounded up to the minute, a day's last seconds become a whole day.
    let ((unit, large), (smaller_unit, small)) = if minutes < DAY / MINUTE {
        (("hour", minutes / 60), ("minute", minutes % 60))
    } else {
        let hours = seconds.div_ceil(HOUR);
        (("day", hours / 24), ("hour", hours % 24))
    };
    push_count(text, large, unit);
    if small > 0 {
        text.push(b" ");
        push_count(text, small, smaller_unit);
    }
}

/// Appends `1 hour`, `2 hours` and so on.
fn push_count(text: &mut Text<24>, count: u64, unit: &str) {
    text.push_number(count);
    text.push(b" ");
    text.push(unit.as_bytes());
    if count != 1 {
        text.push(b"s");
    }
}

/// The advertised wait when a limiter failed. It is a guess, because the outage's duration is unknown, and the shortest
/// wait that `Retry-After` can advertise, because a client that comes back too early is only rejected once more.
const RETRY_FAILED_AFTER: Duration = Duration::from_secs(1);

impl Rejection {
    /// Returns an answer that admits (a decision, or a permit), or a rejection with status 429 in the name of `policy`,
    /// boxed, because it is large. Use it in handlers that ask a limiter themselves. A layer does all this by itself.
    /// If the permit comes from a limiter that [sheds](crate::limiter::Description::shedding), such as
    /// [`Overload`](crate::Overload), the status is 503, and for a [suspended](crate::Quota::suspended) key, it is 403.
    ///
    /// # Errors
    ///
    /// If the request is rejected. The error's [response](Self::response) has `Retry-After`, `X-Rate-Limited-For`,
    /// `Cache-Control: no-store` and problem details; [`DecisionFields`](crate::headers::DecisionFields) makes the
    /// fields that report the remaining units.
    ///
    /// # Panics
    ///
    /// If `policy` is not a valid [`Policy`](crate::Policy::new) name, because bodies and fields show it.
    #[track_caller]
    pub fn unless_allowed<D: Borrow<Decision>>(policy: &str, answer: D) -> Result<D, Box<Self>> {
        if let Err(error) = validate_name(policy) {
            panic!("{error}");
        }
        if answer.borrow().is_allowed() {
            return Ok(answer);
        }
        let decision = answer.borrow();
        let is_shed = decision.receipt().is_shed() && decision.is_shed();
        let wait = Wait::of(decision, is_shed);
        let verdict = Verdict::new([PolicyVerdict::named(policy.into(), *decision)]);
        Err(Box::new(if decision.is_suspended() {
            Self::suspended(StatusCode::FORBIDDEN, verdict)
        } else if is_shed {
            Self::overloaded(StatusCode::SERVICE_UNAVAILABLE, wait, verdict)
        } else {
            Self::limit_exceeded(StatusCode::TOO_MANY_REQUESTS, wait, verdict)
        }))
    }

    #[inline(always)]
    pub(crate) fn limit_exceeded(status: StatusCode, wait: Wait, verdict: Verdict) -> Self {
        Self::by_policies(Reason::LimitExceeded, EXCEEDED, status, wait, verdict)
    }

    /// All policies that reject the request shed.
    pub(crate) fn overloaded(status: StatusCode, wait: Wait, verdict: Verdict) -> Self {
        Self::by_policies(Reason::Overloaded, OVERLOADED, status, wait, verdict)
    }

    pub(crate) fn banned(status: StatusCode, wait: Wait, verdict: Verdict) -> Self {
        Self::by_policies(Reason::Banned, BANNED, status, wait, verdict)
    }

    pub(crate) fn banned_by_hand(status: StatusCode, wait: Wait, verdict: Verdict) -> Self {
        Self::by_policies(Reason::BannedByHand, BANNED_BY_HAND, status, wait, verdict)
    }

    /// No wait helps, regardless of other policies.
    pub(crate) fn suspended(status: StatusCode, verdict: Verdict) -> Self {
        let suspended = Self::plain(Reason::Suspended, status, SUSPENDED.into(), GrpcRetry::Never);
        Self { verdict: verdict.rejected(), ..suspended }
    }

    /// Makes a rejection by at least one policy. `before` is the detail up to the number of seconds to wait, if a wait
    /// helps.
    #[inline]
    fn by_policies(reason: Reason, before: &'static str, status: StatusCode, wait: Wait, verdict: Verdict) -> Self {
        let retry = GrpcRetry::from(wait);
        let detail = match retry {
            GrpcRetry::After(_) => Detail::Wait { before },
            GrpcRetry::Never => {
                Detail::Plain("The request costs more than is ever admitted at once; do not retry it.".into())
            }
            GrpcRetry::Unknown if reason == Reason::Overloaded => Detail::Plain(OVERLOADED_LATER.into()),
            GrpcRetry::Unknown => {
                Detail::Plain("Too many requests are in flight; retry when one of them has ended.".into())
            }
        };
        Self { reason, status, detail, retry, verdict: verdict.rejected() }
    }

    pub(crate) fn without_key(error: &KeyError) -> Self {
        let (reason, detail) = match error {
            KeyError::Missing { .. } => (Reason::MissingKey, format!("The request has no key: {error}.")),
            KeyError::Ambiguous { .. } => (Reason::AmbiguousKey, format!("The request has several keys: {error}.")),
            KeyError::Misconfigured { .. } => return Self::misconfigured(),
        };
        Self::plain(reason, StatusCode::BAD_REQUEST, detail.into(), GrpcRetry::Never)
    }

    /// The mistake is the operator's, so the log describes it, and clients only learn that there is one.
    pub(crate) fn misconfigured() -> Self {
        let detail = "The server is misconfigured.".into();
        Self::plain(Reason::Misconfigured, StatusCode::INTERNAL_SERVER_ERROR, detail, GrpcRetry::Never)
    }

    fn plain(reason: Reason, status: StatusCode, detail: Cow<'static, str>, retry: GrpcRetry) -> Self {
        Self { reason, status, detail: Detail::Plain(detail), retry, verdict: Verdict::default().rejected() }
    }

    pub(crate) fn limiter_failed(policy: &Policy, error: &LimiterError, verdict: Verdict) -> Self {
        Self::failed(&format!("The rate limit `{}`", policy.name()), error, verdict)
    }

    /// `limit` begins the detail.
    fn failed(limit: &str, error: &LimiterError, verdict: Verdict) -> Self {
        let problem = if error.is_closed() {
            "has been closed and queues no more requests"
        } else {
            "cannot be checked at the moment"
        };
        let detail = format!("{limit} {problem}.");
        let retry = GrpcRetry::After(RETRY_FAILED_AFTER);
        let failed = Self::plain(Reason::LimiterFailed, StatusCode::SERVICE_UNAVAILABLE, detail.into(), retry);
        Self { verdict: verdict.rejected(), ..failed }
    }

    /// Lengthens the wait by a random time within the jitter, if a wait helps.
    #[inline]
    pub(crate) fn lengthen(&mut self, jitter: Jitter) {
        if let GrpcRetry::After(wait) = &mut self.retry {
            *wait = jitter.added_to(*wait);
        }
    }

    /// The kind of rejection.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The response's status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// One sentence for people, without the key or an address. It has the wait from `Retry-After`, from an hour on
    /// rounded up to two units: "retry in 7 days 9 hours".
    #[must_use]
    pub fn detail(&self) -> Cow<'_, str> {
        let pieces = self.pieces();
        if pieces.seconds.is_none() {
            return pieces.before.into();
        }
        format!("{}{}{}", pieces.before, String::from_utf8_lossy(&pieces.wait()), pieces.after).into()
    }

    /// The detail, in pieces.
    #[inline]
    pub(crate) fn pieces(&self) -> Sentence<'_> {
        match &self.detail {
            Detail::Plain(detail) => Sentence { before: detail, seconds: None, after: "" },
            Detail::Wait { before } => {
                let seconds = self.retry.wait().map(headers::retry_after_seconds);
                let after = match seconds {
                    Some(1) => " second.",
                    Some(HOUR..) => ".",
                    _ => " seconds.",
                };
                Sentence { before, seconds, after }
            }
        }
    }

    /// The wait that the response advertises. `None` if no wait is known to help.
    ///
    /// | reason | wait |
    /// |---|---|
    /// | [`LimitExceeded`](Reason::LimitExceeded), [`Banned`](Reason::Banned) | the time after which the same request is admitted, alone on its keys; `None` if it costs more than is ever admitted, or if it has to wait until [others have ended](crate::Concurrency). Exact, but for policies on Redis and [charges that may be refunded](crate::Policy::charge_when) |
    /// | [`Overloaded`](Reason::Overloaded) | an estimate, from the requests that wait and the rate at which they are served; `None` if it is not known. No promise: a retry may be rejected again |
    /// | [`LimiterFailed`](Reason::LimiterFailed) | one second: a guess, since the duration of the outage is unknown |
    /// | any other | `None` |
    ///
    /// If a rate limit rejects a request that an overloaded server would shed as well, the wait is the rate limit's,
    /// because an estimate does not lengthen a promise.
    ///
    /// The layer adds its [jitter](crate::layer::RateLimitLayerBuilder::retry_jitter), if it has one. Fields advertise
    /// at most [24.8 days](crate::headers::WaitFields).
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry.wait()
    }

    /// Whether the wait is exact, and not an estimate or a guess, which is advertised by `Retry-After` alone.
    pub(crate) const fn has_exact_wait(&self) -> bool {
        !matches!(self.reason, Reason::LimiterFailed | Reason::Overloaded)
    }

    pub(crate) const fn retry(&self) -> GrpcRetry {
        self.retry
    }

    /// The decisions by all policies that have decided. Empty if the request lacks a key.
    #[must_use]
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        self.verdict
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

/// For handlers whose policies decide on [their own values](crate::direct::Limits): `limits.decide(&job).await?` in a
/// handler that returns a `Box<Rejection>`. Works like [`From<Rejected>`](Rejection).
impl From<Box<Rejected>> for Box<Rejection> {
    fn from(rejected: Box<Rejected>) -> Self {
        Self::new((*rejected).into())
    }
}

/// For a service over HTTP whose policies decide on [its own values](crate::direct::Limits). The status is 429, or 503
/// if all values share the key, if the server is overloaded, or if a limiter fails. It is 403 for a suspended key, and
/// 400 for a value without the key that it must have. The response has `Retry-After` and a body, but no `RateLimit`
/// fields, which only layers have.
impl From<Rejected> for Rejection {
    fn from(rejected: Rejected) -> Self {
        let Rejected { reason, is_due_to_others, retry_after, may_retry, verdict, problem } = rejected;
        match problem {
            Some(Problem::Failure { policy, error }) => {
                return Self::failed(&format!("The rate limit `{policy}`"), &error, verdict);
            }
            Some(Problem::NoKey(error)) => return Self::without_key(&error),
            None => {}
        }
        let status = if is_due_to_others { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
        let wait = match retry_after {
            Some(wait) => Wait::After(wait),
            None if may_retry => Wait::UntilReleased,
            None => Wait::Never,
        };
        match reason {
            Reason::Suspended => Self::suspended(StatusCode::FORBIDDEN, verdict),
            Reason::Overloaded => Self::overloaded(StatusCode::SERVICE_UNAVAILABLE, wait, verdict),
            Reason::BannedByHand => Self::banned_by_hand(status, wait, verdict),
            Reason::Banned => Self::banned(status, wait, verdict),
            _ => Self::limit_exceeded(status, wait, verdict),
        }
    }
}

/// Status 503, for handlers that ask a limiter themselves. The response and the log do not have the error itself, so
/// log it first if you need it.
impl From<LimiterError> for Box<Rejection> {
    fn from(error: LimiterError) -> Self {
        Self::new(Rejection::failed("The rate limit", &error, Verdict::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::values::Quota;

    fn policy(name: &'static str) -> Policy {
        Policy::new(name, TokenBucket::new(Quota::per_second(1)))
    }

    fn seconds(seconds: u64) -> Wait {
        Wait::After(Duration::from_secs(seconds))
    }

    /// Regression: a response said "retry in 633743 seconds".
    #[test]
    fn long_waits_are_rounded_up_for_people() {
        let status = StatusCode::TOO_MANY_REQUESTS;
        for (seconds, expected) in [
            (2, "2 seconds"),
            (3_599, "3599 seconds"),
            (3_600, "1 hour"),
            (3_601, "1 hour 1 minute"),
            (3_660, "1 hour 1 minute"),
            (3_661, "1 hour 2 minutes"),
            (7_140, "1 hour 59 minutes"),
            (7_141, "2 hours"),
            (86_340, "23 hours 59 minutes"),
            (86_341, "1 day"),
            (86_400, "1 day"),
            (86_401, "1 day 1 hour"),
            (90_001, "1 day 2 hours"),
            (172_799, "2 days"),
            // This is 7 days, 8 hours and 143 seconds, so after "7 days 8 hours", a retry would be too early.
            (633_743, "7 days 9 hours"),
            // The longest wait that is advertised.
            (9_999_999, "24 days 21 hours"),
        ] {
            let rejection =
                Rejection::limit_exceeded(status, Wait::After(Duration::from_secs(seconds)), Verdict::default());
            assert_eq!(rejection.detail(), format!("The limit is used up; retry in {expected}."));
            let json = String::from_utf8(crate::http::reject::problem::Problem::new(None).json(&rejection)).unwrap();
            assert!(json.contains(&format!("retry in {expected}.\"")), "{json}");
            let text = String::from_utf8(crate::http::reject::problem::sentence(&rejection)).unwrap();
            assert_eq!(text, format!("The limit is used up; retry in {expected}.\n"));
        }
    }

    /// No rejection counts as admitted.
    #[test]
    fn every_detail_is_a_sentence() {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let without_key = |error| Rejection::without_key(&error);
        let exceeded = |wait| Rejection::limit_exceeded(status, wait, Verdict::default());
        let overloaded = |wait| Rejection::overloaded(status, wait, Verdict::default());
        for (rejection, detail) in [
            (exceeded(seconds(1)), "The limit is used up; retry in 1 second."),
            (exceeded(seconds(0)), "The limit is used up; retry in 1 second."),
            (exceeded(seconds(9)), "The limit is used up; retry in 9 seconds."),
            (exceeded(Wait::Never), "The request costs more than is ever admitted at once; do not retry it."),
            (exceeded(Wait::UntilReleased), "Too many requests are in flight; retry when one of them has ended."),
            (overloaded(Wait::Estimate(Duration::from_secs(9))), "The server is overloaded; retry in 9 seconds."),
            (overloaded(Wait::UnknownEstimate), "The server is overloaded; retry later."),
            (
                Rejection::banned(status, seconds(600), Verdict::default()),
                "Too many retries before the advertised wait was over; retry in 600 seconds.",
            ),
            (
                without_key(KeyError::Missing { what: "header x-api-key".into() }),
                "The request has no key: header x-api-key is missing.",
            ),
            (
                without_key(KeyError::Ambiguous { what: "header x-api-key".into() }),
                "The request has several keys: header x-api-key was sent more than once.",
            ),
            // The cure is for the log, not for clients.
            (
                without_key(KeyError::Misconfigured { problem: "peer address unknown: serve the app with …".into() }),
                "The server is misconfigured.",
            ),
            (
                Rejection::limiter_failed(&policy("p"), &LimiterError::new("lost"), Verdict::default()),
                "The rate limit `p` cannot be checked at the moment.",
            ),
            (
                Rejection::limiter_failed(&policy("p"), &LimiterError::closed("closed"), Verdict::default()),
                "The rate limit `p` has been closed and queues no more requests.",
            ),
        ] {
            assert_eq!(rejection.detail(), detail);
            assert!(!rejection.verdict().is_allowed(), "{detail}");
        }
    }
}
