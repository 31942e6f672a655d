//! [`Fault`]: why a server gave no decision.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::backend::GaveUp;
use crate::values::LimiterError;

/// Why a server gave no decision. Never a rejection. The [source](Error::source) of a [`LimiterError`].
///
/// Each store has its own kinds: see [`KindOfFault`].
#[derive(Clone, PartialEq, Eq)]
pub struct Fault<K> {
    kind: K,
    detail: Option<Arc<str>>,
}

/// What can go wrong with a server. [`Display`](fmt::Display) is the message for people, with the cure.
///
/// The constants are the kinds of calls that this process gave up: see [`GaveUp`].
pub trait KindOfFault: Copy + Eq + fmt::Display + Send + Sync + 'static {
    /// No answer came in time.
    const TIMED_OUT: Self;
    /// The task that made the call was cancelled, or panicked.
    const CANCELLED: Self;
    /// No call was made, because the server kept failing.
    const BREAKER_OPEN: Self;
    /// No call was made, because too many were in flight.
    const TOO_MANY_IN_FLIGHT: Self;
    /// The call was made from outside of a Tokio runtime.
    const NO_RUNTIME: Self;
    /// The answer contradicts itself, or cannot be read.
    const UNINTELLIGIBLE: Self;
    /// Other processes changed the key each time before it was written.
    const CONTENTION: Self;

    /// Whether a fault of this kind counts against the server in its circuit breaker: it says something of the server,
    /// and not of one key or of this process.
    fn blames_server(self) -> bool;

    /// Writes the message of a fault that has a detail.
    ///
    /// # Errors
    ///
    /// Those of the formatter.
    fn write_with(self, detail: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}: {detail}")
    }
}

impl<K: KindOfFault> Fault<K> {
    /// A fault with a detail, such as the text that the server sent. It must not contain a key of a client.
    pub fn new(kind: K, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: Some(detail.into()) }
    }

    /// Returns what went wrong.
    #[must_use]
    pub const fn kind(&self) -> K {
        self.kind
    }

    /// Returns what else is known of it.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Whether it counts against the server: see [`KindOfFault::blames_server`].
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

/// The fault of a call that this process gave up.
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

/// The fault is the source of the error.
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

// A `main` that returns the fault prints it by `Debug`: users should read the message there, too, and not its fields.
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
    fn a_limiter_error_has_its_fault_as_source() {
        let error = LimiterError::from(Fault::new(Kind::Unreadable, "row 3"));
        let fault = error.source().and_then(|source| source.downcast_ref::<Fault<Kind>>()).unwrap();
        assert_eq!(fault.to_string(), "the server gave no decision: row 3");
        assert_eq!(format!("{fault:?}"), fault.to_string());
    }
}
