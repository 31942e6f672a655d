//! `Answer`, a decision now or later, and `LimiterError`, for limiters that cannot decide.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::values::{Decision, Mode};

/// A decision, or a future that returns one. Complete by definition.
///
/// A limiter in memory decides at once and allocates nothing. Only a queue or a remote store returns a future.
#[allow(clippy::exhaustive_enums)]
#[must_use]
pub enum Answer {
    /// Decided.
    Ready(Result<Decision, LimiterError>),
    /// The decision must be awaited. Dropping the future withdraws the request: it leaves its queue; a remote
    /// store may already have charged it.
    Pending(Pending),
}

/// A future that returns a decision.
pub type Pending = Pin<Box<dyn Future<Output = Result<Decision, LimiterError>> + Send>>;

impl Answer {
    /// Waits for the decision, if it is pending.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide.
    pub async fn decided(self) -> Result<Decision, LimiterError> {
        match self {
            Self::Ready(result) => result,
            Self::Pending(pending) => pending.await,
        }
    }

    /// The decision, if it is ready and no error.
    #[must_use]
    pub fn at_once(self) -> Option<Decision> {
        match self {
            Self::Ready(Ok(decision)) => Some(decision),
            Self::Ready(Err(_)) | Self::Pending(_) => None,
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

impl From<LimiterError> for Answer {
    fn from(error: LimiterError) -> Self {
        Self::Ready(Err(error))
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        Self::Ready(Ok(decision))
    }
}

/// The error for a limiter that cannot decide: its store is unreachable, or it was closed. Never a rejection.
///
/// The reason is mostly in its [source](Error::source), so print the error with its sources, as error reports do.
#[derive(Clone)]
pub struct LimiterError(Arc<AnswerFailure>);

// Behind a pointer, because an `Answer` is returned by value and seldom holds an error.
struct AnswerFailure {
    reason: String,
    kind: AnswerKind,
    source: Option<Box<dyn Error + Send + Sync>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerKind {
    Failed,
    Closed,
    Unsupported,
    UnknownPolicy,
    NoKey,
}

impl LimiterError {
    fn with_kind(kind: AnswerKind, reason: impl Into<String>) -> Self {
        Self(Arc::new(AnswerFailure { reason: reason.into(), kind, source: None }))
    }

    /// An error with this message.
    pub fn new(reason: impl Into<String>) -> Self {
        Self::with_kind(AnswerKind::Failed, reason)
    }

    /// The error for a limiter that was [closed](crate::Limiter::close), with this message. It does not count as a
    /// failure: unless the policy is a shadow, a layer answers 503 in every [`FailureMode`](crate::FailureMode), and
    /// does not count or log that the limiter failed.
    pub fn closed(reason: impl Into<String>) -> Self {
        Self::with_kind(AnswerKind::Closed, reason)
    }

    /// The error for a limiter that does not answer this mode. It has changed nothing: see
    /// [`Description::answering`](crate::limiter::Description::answering).
    #[must_use]
    #[cold]
    pub fn unsupported(mode: Mode) -> Self {
        let does = match mode {
            Mode::Charge => "charges nothing",
            Mode::Peek => "cannot be peeked at",
            Mode::Shadow => "cannot charge a request that passes in any case",
            Mode::UpTo => "cannot charge a part of the cost",
            Mode::Fallback => "cannot decide in this process alone",
            Mode::Reset => "cannot be reset",
        };
        Self::with_kind(AnswerKind::Unsupported, format!("the limiter {does}: it does not answer `Mode::{mode:?}`"))
    }

    /// The error for a policy whose limiter does not answer this mode.
    pub(crate) fn unsupported_by(policy: &str, mode: Mode) -> Self {
        Self::with_kind(AnswerKind::Unsupported, format!("policy `{policy}`: {}", Self::unsupported(mode)))
    }

    /// The error for a limiter that does not support an operator's call, with this reason. It has changed nothing.
    pub(crate) fn cannot(reason: impl Into<String>) -> Self {
        Self::with_kind(AnswerKind::Unsupported, reason)
    }

    /// The error for a limiter that does not keep units that are credited to keys. `what` is the limiter.
    pub(crate) fn no_balance(what: &str) -> Self {
        let reason = format!(
            "{what} keeps no credits: bought units are in a `Balance`; add a policy with one, as the second member of an \
             alternative (`or_else`), and credit that"
        );
        Self::cannot(reason)
    }

    /// The error for a charge by hand to a key that an operator allows, because nothing is charged to such a key.
    pub(crate) fn allowed_by_hand() -> Self {
        Self::cannot("the key is allowed by hand, so that nothing is charged to it; end the allowance first")
    }

    /// The error for a charge by hand to a key whose policy has a quota for each key.
    pub(crate) fn quota_unknown(policy: &str) -> Self {
        Self::cannot(format!(
            "policy `{policy}` has a quota for each key (`quota_fn`), and no request says which one this key has; name the \
             key by a request in place of a text"
        ))
    }

    /// The error for a policy whose limiter cannot be charged by hand.
    pub(crate) fn not_charged_by_hand(policy: &str) -> Self {
        let reason = format!(
            "policy `{policy}` cannot be charged by hand: its limiter delays requests, or lets them hold their units, or \
             advertises no quota by which time would pay a debt"
        );
        Self::cannot(reason)
    }

    /// The error if the layer does not have a policy with this name.
    pub(crate) fn unknown_policy(name: &str) -> Self {
        Self::with_kind(AnswerKind::UnknownPolicy, format!("no policy of this layer is named `{name}`"))
    }

    /// The error for a policy that cannot have the key that it was asked for.
    pub(crate) fn no_key(policy: &str, problem: &dyn fmt::Display) -> Self {
        Self::with_kind(AnswerKind::NoKey, format!("policy `{policy}`: {problem}"))
    }

    /// Whether the limiter does not [answer](Self::unsupported) the mode in which it was asked, or does not support an
    /// operator's call, such as crediting a key.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.0.kind == AnswerKind::Unsupported
    }

    /// Whether the layer does not have a policy with the requested name.
    #[must_use]
    pub fn is_unknown_policy(&self) -> bool {
        self.0.kind == AnswerKind::UnknownPolicy
    }

    /// Whether the policy cannot have the key that it was asked for. The message describes its keys.
    #[must_use]
    pub fn is_no_key(&self) -> bool {
        self.0.kind == AnswerKind::NoKey
    }

    /// Whether the limiter was [closed](Self::closed).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.kind == AnswerKind::Closed
    }

    /// Sets the underlying error. If the message ends with that error's text, the text is cut off, because a report
    /// that prints an error with its sources would print it twice.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let (AnswerFailure { reason, kind, .. }, source) = (&*self.0, source.into());
        let reason = match reason.strip_suffix(&source.to_string()).map(|rest| rest.trim_end_matches([' ', ':'])) {
            Some("") => "the limiter cannot decide",
            Some(rest) => rest,
            None => reason,
        };
        Self(Arc::new(AnswerFailure { reason: reason.to_owned(), kind: *kind, source: Some(source) }))
    }
}

impl fmt::Debug for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterError").field("reason", &self.0.reason).field("source", &self.0.source).finish()
    }
}

/// The alternate form (`{error:#}`) adds the [sources](Error::source), such as the fault of a server.
impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.reason)?;
        let mut sources = std::iter::successors(self.source().filter(|_| f.alternate()), |&error| error.source());
        sources.try_for_each(|source| write!(f, ": {source}"))
    }
}

impl Error for LimiterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_do_not_repeat_their_sources() {
        let chain =
            |message: &str, source: &'static str| format!("{:#}", LimiterError::new(message).with_source(source));
        assert_eq!(chain("timed out", "timed out"), "the limiter cannot decide: timed out");
        assert_eq!(chain("the store failed: timed out", "timed out"), "the store failed: timed out");
        assert_eq!(chain("the store failed", "timed out"), "the store failed: timed out");
        assert_eq!(chain("the store failed", ""), "the store failed: ");
    }
}
