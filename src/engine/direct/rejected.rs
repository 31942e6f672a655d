//! [`Rejected`]: why a value is rejected.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::key::KeyError;
use crate::engine::reason::Reason;
use crate::engine::verdict::Verdict;
use crate::values::LimiterError;
use crate::values::time::seconds_ceil;

/// Why a value is rejected.
#[derive(Clone, Debug)]
pub struct Rejected {
    pub(crate) reason: Reason,
    /// Whether others' values caused the rejection, because all values share the key.
    pub(crate) is_due_to_others: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) may_retry: bool,
    pub(crate) verdict: Verdict,
    /// The failure, if no policy has rejected it.
    pub(crate) problem: Option<Problem>,
}

/// Why a value is rejected if no policy has rejected it.
#[derive(Clone, Debug)]
pub(crate) enum Problem {
    NoKey(KeyError),
    Failure { policy: Arc<str>, error: LimiterError },
}

impl Rejected {
    /// The reason.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The time after which it is admitted, unless others with its key are charged meanwhile. Exact, except for
    /// policies on servers, and while charges [are settled later](crate::Policy::settle_by_handler), when it is one
    /// second. `None` if no time helps, or if the time is not known. [`may_retry`](Self::may_retry) distinguishes the
    /// two.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the value may be admitted later, after [`retry_after`](Self::retry_after), or at an unknown time, such
    /// as when another value is over. `false` if the value costs more than is ever admitted at once, if its quota is
    /// suspended, if it does not have a key, or if its queue was [closed](crate::LimitsHandle::close).
    #[must_use]
    pub const fn may_retry(&self) -> bool {
        self.may_retry
    }

    /// The policies' decisions.
    #[must_use]
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

/// The alternate form (`{rejected:#}`) adds the [sources](Error::source).
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            None => {}
            Some(Problem::NoKey(problem)) => return write!(f, "it has no key: {problem}"),
            Some(Problem::Failure { policy, error }) => {
                let problem = if error.is_closed() { "has been closed" } else { "cannot be checked" };
                write!(f, "the limit `{policy}` {problem}")?;
                return if f.alternate() { write!(f, ": {error:#}") } else { Ok(()) };
            }
        }
        f.write_str("rejected by")?;
        for (index, policy) in self.verdict.violated().enumerate() {
            write!(f, "{} `{}`", if index == 0 { "" } else { "," }, policy.name())?;
        }
        match self.retry_after {
            Some(wait) => write!(f, "; retry in {:?}", rounded_up(wait)),
            None if self.may_retry => Ok(()),
            None => f.write_str(", and no wait helps"),
        }
    }
}

/// Rounds a wait up for people, to whole seconds, or below one second to whole milliseconds, with one at least.
fn rounded_up(wait: Duration) -> Duration {
    match wait.as_secs() {
        0 => Duration::from_millis(wait.subsec_nanos().div_ceil(1_000_000).max(1).into()),
        _ => Duration::from_secs(seconds_ceil(wait)),
    }
}

/// The source is the [`LimiterError`] of a limiter that failed, or was [closed](crate::Limiter::close).
impl Error for Rejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.problem {
            Some(Problem::Failure { error, .. }) => Some(error),
            Some(Problem::NoKey(_)) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (wait, shown) in [
            (Duration::ZERO, "1ms"),
            (Duration::from_nanos(1), "1ms"),
            (Duration::from_nanos(999_000_001), "1s"),
            (Duration::from_millis(59_999), "60s"),
            (Duration::from_secs(3_600), "3600s"),
            (Duration::MAX, "18446744073709551615s"),
        ] {
            assert_eq!(format!("{:?}", rounded_up(wait)), shown);
        }
    }
}
