//! `PacerError`: why a call was not sent, or failed.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use super::meter::CallResult;

/// The error of a call through a [`Pacer`](crate::Pacer).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PacerError<E> {
    /// The maximum number of calls ([`max_waiters`](crate::PacerLayer::max_waiters)) waits for this partner already.
    /// This one was not sent.
    #[non_exhaustive]
    LineFull {
        /// The bound.
        max_waiters: usize,
    },
    /// The wait for the partner would be, or was, longer than [`max_wait`](crate::PacerLayer::max_wait). The call was
    /// not sent, or it was sent and rejected, and could not be sent again in time.
    #[non_exhaustive]
    WaitTooLong {
        /// The time after which the partner may accept a call, if known.
        retry_after: Option<Duration>,
    },
    /// The partner accepts few calls or none at all, and the layer has a [`throttle`](crate::PacerLayer::throttle).
    /// This one was not sent. Do without it, or retry in some seconds. One call per second is sent in any case, to
    /// notice when the partner is back.
    #[non_exhaustive]
    Throttled {
        /// How many calls the partner has accepted within the window.
        accepted: u64,
        /// How many calls were sent within the window.
        sent: u64,
    },
    /// The call was made outside a tokio runtime, whose timer a line needs to wait.
    NoRuntime,
    /// The inner service failed.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for PacerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineFull { max_waiters } => {
                write!(f, "{max_waiters} calls wait for this partner already; send less, or raise `max_waiters`")
            }
            Self::WaitTooLong { retry_after: Some(wait) } => {
                write!(f, "the partner takes no call for {wait:?}, longer than `max_wait`; retry after that")
            }
            Self::WaitTooLong { retry_after: None } => {
                f.write_str("the turn did not come within `max_wait`; send less, or raise it")
            }
            Self::Throttled { accepted, sent } => write!(
                f,
                "the partner keeps failing: it accepted {accepted} of the last {sent} calls, and this one was not sent; do \
                 without it, or retry in some seconds"
            ),
            Self::NoRuntime => f.write_str("a line waits on tokio's timer: call it from within a tokio runtime"),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for PacerError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Service(error) => error.source(),
            _ => None,
        }
    }
}

impl<E: Error + 'static> PacerError<E> {
    /// Returns the first `PacerError` in an error and its causes: `error` itself, or a cause that another layer or
    /// middleware has wrapped. `E` is the inner service's error.
    ///
    /// ```
    /// use tower_sluice_client::PacerError;
    ///
    /// let wrapped = std::io::Error::other(PacerError::<std::fmt::Error>::NoRuntime);
    /// assert!(matches!(PacerError::<std::fmt::Error>::find(&wrapped), Some(PacerError::NoRuntime)));
    /// ```
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            // `io::Error::source` skips its own content.
            let content = error.downcast_ref().and_then(io::Error::get_ref);
            next = content.map(|error| error as &(dyn Error + 'static)).or_else(|| error.source());
        }
        None
    }
}

#[cfg(feature = "reqwest")]
impl<E> PacerError<E> {
    /// Returns the inner service's error, otherwise this error with another service's type.
    pub(super) fn into_service<F>(self) -> Result<E, PacerError<F>> {
        Err(match self {
            Self::Service(error) => return Ok(error),
            Self::LineFull { max_waiters } => PacerError::LineFull { max_waiters },
            Self::WaitTooLong { retry_after } => PacerError::WaitTooLong { retry_after },
            Self::Throttled { accepted, sent } => PacerError::Throttled { accepted, sent },
            Self::NoRuntime => PacerError::NoRuntime,
        })
    }
}

/// Why a line does not let a call continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineRejection {
    LineFull { max_waiters: usize },
    WaitTooLong { retry_after: Option<Duration> },
    Throttled { accepted: u64, sent: u64 },
}

impl LineRejection {
    pub(super) const fn result(self) -> CallResult {
        match self {
            Self::LineFull { .. } => CallResult::LineFull,
            Self::WaitTooLong { .. } => CallResult::WaitTooLong,
            Self::Throttled { .. } => CallResult::Throttled,
        }
    }
}

/// Why a call was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallRefusal {
    Line(LineRejection),
    NoRuntime,
}

impl From<LineRejection> for CallRefusal {
    fn from(rejection: LineRejection) -> Self {
        Self::Line(rejection)
    }
}

impl<E> From<CallRefusal> for PacerError<E> {
    fn from(refusal: CallRefusal) -> Self {
        match refusal {
            CallRefusal::Line(LineRejection::LineFull { max_waiters }) => Self::LineFull { max_waiters },
            CallRefusal::Line(LineRejection::WaitTooLong { retry_after }) => Self::WaitTooLong { retry_after },
            CallRefusal::Line(LineRejection::Throttled { accepted, sent }) => Self::Throttled { accepted, sent },
            CallRefusal::NoRuntime => Self::NoRuntime,
        }
    }
}
