//! `PacerError`: why a call was not sent, or failed.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The error of a call through a [`Pacer`](crate::layer::Pacer).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PacerError<E> {
    /// The maximum number of calls ([`max_waiters`](crate::PacerLayer::max_waiters)) waits already. This one was not
    /// sent.
    #[non_exhaustive]
    LineFull {
        /// The bound.
        max_waiters: usize,
    },
    /// The wait for the partner would be, or was, longer than [`max_wait`](crate::PacerLayer::max_wait). The call was
    /// not sent, or it was sent and rejected, and could not be sent again in time.
    #[non_exhaustive]
    WaitTooLong {
        /// The time after which the partner may take a call, as far as that is known.
        retry_after: Option<Duration>,
    },
    /// The call was made outside of a tokio runtime, on whose timer a line waits.
    NoRuntime,
    /// The inner service failed.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for PacerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineFull { max_waiters } => {
                write!(f, "{max_waiters} calls wait for their turn already; send less, or raise `max_waiters`")
            }
            Self::WaitTooLong { retry_after: Some(wait) } => {
                write!(f, "the partner takes no call for {wait:?}, longer than `max_wait`; retry after that")
            }
            Self::WaitTooLong { retry_after: None } => {
                f.write_str("the turn did not come within `max_wait`; send less, or raise it")
            }
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

/// Why a line lets a call go no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineRejection {
    LineFull { max_waiters: usize },
    WaitTooLong { retry_after: Option<Duration> },
}

impl<E> From<LineRejection> for PacerError<E> {
    fn from(rejection: LineRejection) -> Self {
        match rejection {
            LineRejection::LineFull { max_waiters } => Self::LineFull { max_waiters },
            LineRejection::WaitTooLong { retry_after } => Self::WaitTooLong { retry_after },
        }
    }
}
