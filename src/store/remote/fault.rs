//! [`Fault`]: why a server did not decide.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::backend::GaveUp;
use crate::values::LimiterError;

/// Why a server did not decide. A fault is never a rejection. It is the [source](Error::source) of a [`LimiterError`].
///
/// Each store has its own kinds, which implement [`KindOfFault`].
#[derive(Clone, PartialEq, Eq)]
pub struct Fault<K> {
    kind: K,
    detail: Option<Arc<str>>,
}

/// A kind of failure on a server. [`Display`](fmt::Display) is the message for people, with the remedy.
///
/// The constants are the kinds for calls that this process gave up, see [`GaveUp`].
pub trait KindOfFault: Copy + Eq + fmt::Display + Send + Sync + 'static {
    /// No answer came in time.
    const TIMED_OUT: Self;
    /// The task that made the call was cancelled, or panicked.
    const CANCELLED: Self;
    /// No call was made, because the server kept failing.
    const BREAKER_OPEN: Self;
    /// No call was made, because too many were in flight.
    const TOO_MANY_IN_FLIGHT: Self;
    /// The call was made from outside a Tokio runtime.
    const NO_RUNTIME: Self;
    /// The answer contradicts itself, or cannot be read.
    const UNINTELLIGIBLE: Self;
    /// Other processes changed the key each time before it was written.
    const CONTENTION: Self;

    /// Whether a fault of this kind counts against the server in its circuit breaker, that is, whether it concerns the
    /// server, and not one key or this process.
    fn blames_server(self) -> bool;

    /// Writes the message for a fault that has a detail.
    ///
    /// # Errors
    ///
    /// Returns the formatter's errors.
    fn write_with(self, detail: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}: {detail}")
    }
}

impl<K: KindOfFault> Fault<K> {
    /// A fault with a detail, such as the text that the server sent. It must not contain a client's key.
    pub fn new(kind: K, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: Some(detail.into()) }
    }

    /// Returns the kind of fault.
    #[must_use]
    pub const fn kind(&self) -> K {
        self.kind
    }

    /// Returns the detail, if it has one.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Whether it counts against the server, see [`KindOfFault::blames_server`].
    #[must_use]
    pub fn blames_server(&self) -> bool {
        self.kind.blames_server()
    }

    /// Returns the fault with another kind.
    #[must_use]
    pub fn with_kind(self, kind: K) -> Self {
        Self { kind, ..self }
    }
}

impl<K: KindOfFault> From<K> for Fault<K> {
    fn from(kind: K) -> Self {
        Self { kind, detail: None }
    }
}

/// Converts a call that this process gave up.
impl<K: KindOfFault> From<GaveUp> for Fault<K> {
    fn from(reason: GaveUp) -> Self {
        match reason {
            GaveUp::TimedOut => K::TIMED_OUT.into(),
            GaveUp::Cancelled => K::CANCELLED.into(),
            GaveUp::BreakerOpen => K::BREAKER_OPEN.into(),
            GaveUp::TooManyInFlight => K::TOO_MANY_IN_FLIGHT.into(),
            GaveUp::NoRuntime => K::NO_RUNTIME.into(),
            GaveUp::Contention => K::CONTENTION.into(),
            GaveUp::Disagreement => Self::new(K::UNINTELLIGIBLE, reason.to_string()),
        }
    }
}

/// The fault becomes the error's source.
impl<K: KindOfFault> From<Fault<K>> for LimiterError {
    fn from(fault: Fault<K>) -> Self {
        Self::new(fault.to_string()).with_source(fault)
    }
}

impl<K: KindOfFault> fmt::Display for Fault<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => self.kind.write_with(detail, f),
            None => self.kind.fmt(f),
        }
    }
}

// If `main` returns the fault, it is printed by `Debug`, and users should read the message there, too, in place of its
// fields.
impl<K: KindOfFault> fmt::Debug for Fault<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<K: KindOfFault> Error for Fault<K> {}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        GivenUp(GaveUp),
        Unreadable,
    }

    impl KindOfFault for Kind {
        const TIMED_OUT: Self = Self::GivenUp(GaveUp::TimedOut);
        const CANCELLED: Self = Self::GivenUp(GaveUp::Cancelled);
        const BREAKER_OPEN: Self = Self::GivenUp(GaveUp::BreakerOpen);
        const TOO_MANY_IN_FLIGHT: Self = Self::GivenUp(GaveUp::TooManyInFlight);
        const NO_RUNTIME: Self = Self::GivenUp(GaveUp::NoRuntime);
        const UNINTELLIGIBLE: Self = Self::Unreadable;
        const CONTENTION: Self = Self::GivenUp(GaveUp::Contention);

        fn blames_server(self) -> bool {
            self == Self::Unreadable
        }
    }

    impl fmt::Display for Kind {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the server gave no decision")
        }
    }

    #[test]
    fn calls_given_up_have_their_kinds() {
        use GaveUp::*;
        for reason in [TimedOut, Cancelled, BreakerOpen, TooManyInFlight, NoRuntime, Contention] {
            let fault = Fault::<Kind>::from(reason);
            assert_eq!((fault.kind(), fault.detail()), (Kind::GivenUp(reason), None));
        }
        let fault = Fault::<Kind>::from(Disagreement);
        assert!(fault.blames_server() && fault.detail().is_some_and(|detail| detail.contains("contradicts")));
    }

    #[test]
    fn the_fault_is_the_errors_source() {
        let error = LimiterError::from(Fault::new(Kind::Unreadable, "row 3"));
        let fault = error.source().and_then(|source| source.downcast_ref::<Fault<Kind>>()).unwrap();
        assert_eq!(fault.to_string(), "the server gave no decision: row 3");
        assert_eq!(format!("{fault:?}"), fault.to_string());
    }
}
