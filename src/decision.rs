//! What a limiter answers.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::time::Duration;

/// The answer to one request: whether it passes, and the numbers that a client needs.
///
/// A refusal is an answer, not an error; errors are [`LimiterError`]s, for limiters that could not
/// decide at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    outcome: Outcome,
    limit: u32,
    remaining: u32,
    reset: Reset,
    delay: Duration,
    receipt: Receipt,
}

/// The time until a key is as good as new. Most requests pass without anybody asking for it, so the
/// division is left to who does.
#[derive(Clone, Copy, Debug)]
enum Reset {
    After(Duration),
    /// `owed / per` nanoseconds, rounded up.
    Quotient {
        owed: u64,
        per: NonZeroU64,
    },
}

impl Reset {
    fn after(self) -> Duration {
        match self {
            Self::After(span) => span,
            Self::Quotient { owed, per } => Duration::from_nanos(owed.div_ceil(per.get())),
        }
    }
}

impl PartialEq for Reset {
    fn eq(&self, other: &Self) -> bool {
        self.after() == other.after()
    }
}

impl Eq for Reset {}

/// Pass or not. Complete by definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)]
pub enum Outcome {
    /// The request passes and has been charged. (In a [peek](crate::Limiter::peek): it would. In the
    /// verdict on a request that another policy refused: it would have, and was not charged.)
    Allow,
    /// The request does not pass and has cost nothing.
    Deny {
        /// The exact time after which the same request is admitted if nobody else takes from the
        /// key meanwhile; `None` when no wait would help, since it costs more than ever fits.
        retry_after: Option<Duration>,
    },
}

impl Decision {
    /// Admits, with `remaining` of `limit` units left.
    pub const fn allow(limit: u32, remaining: u32) -> Self {
        Self::new(Outcome::Allow, limit, remaining)
    }

    /// Refuses, with `remaining` of `limit` units left (fewer than were asked for).
    pub const fn deny(limit: u32, remaining: u32, retry_after: Option<Duration>) -> Self {
        Self::new(Outcome::Deny { retry_after }, limit, remaining)
    }

    const fn new(outcome: Outcome, limit: u32, remaining: u32) -> Self {
        Self {
            outcome,
            limit,
            remaining,
            reset: Reset::After(Duration::ZERO),
            delay: Duration::ZERO,
            receipt: Receipt::NONE,
        }
    }

    /// Sets the time until the key is as good as new.
    pub const fn with_reset_after(mut self, reset_after: Duration) -> Self {
        self.reset = Reset::After(reset_after);
        self
    }

    /// Sets the time until the key is as good as new to `owed / per` nanoseconds, rounded up.
    pub(crate) const fn with_reset_quotient(mut self, owed: u64, per: NonZeroU64) -> Self {
        self.reset = Reset::Quotient { owed, per };
        self
    }

    /// Sets the time that the request spends, or would spend, in a queue.
    pub const fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets the proof of payment that a later refund needs.
    pub const fn with_receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = receipt;
        self
    }

    /// Pass or not.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether the request passes.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }

    /// The exact wait after which the same request is admitted, alone on its key. `None` if it is
    /// admitted now, or never will be.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Allow => None,
            Outcome::Deny { retry_after } => retry_after,
        }
    }

    /// The most units that a fresh key can take at once.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The units that could be taken right now, after this decision. Never more than
    /// [`limit`](Self::limit).
    #[must_use]
    pub const fn remaining(&self) -> u32 {
        self.remaining
    }

    /// The time until the key is as if it had never been seen.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reset.after()
    }

    /// The time that the request spent in a queue; zero for limiters that do not queue.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        self.delay
    }

    /// What [`Limiter::give_back`](crate::Limiter::give_back) needs to undo exactly this charge.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        self.receipt
    }
}

/// Says when a charge was made, so that it can be undone without giving back more than is still owed
/// for it. Opaque: its meaning belongs to the algorithm that wrote it.
///
/// With a bucket, that is exact if the charges of a key are undone the last one first. If an earlier
/// one is undone and later ones as well, each of those may get back too much, by up to what was given
/// back for the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Receipt(u128);

impl Receipt {
    /// Nothing was charged, or it cannot be undone.
    pub const NONE: Self = Self(0);

    /// A receipt that means `value` to the algorithm that issues it.
    #[must_use]
    pub const fn new(value: u128) -> Self {
        Self(value)
    }

    /// The value given to [`Receipt::new`].
    #[must_use]
    pub const fn value(self) -> u128 {
        self.0
    }
}

/// A decision now, or the promise of one. Complete by definition.
///
/// A limiter that knows the answer returns it at once; nothing is allocated then. Only a queue or a
/// store on another machine returns a future.
#[allow(clippy::exhaustive_enums)]
#[must_use]
pub enum Check {
    /// Decided.
    Ready(Result<Decision, LimiterError>),
    /// To be awaited. Dropping the future withdraws the request: a queue frees its place, a remote
    /// store may already have charged it.
    Pending(Pending),
}

/// A decision that is still to come.
pub type Pending = Pin<Box<dyn Future<Output = Result<Decision, LimiterError>> + Send>>;

impl Check {
    /// The decision, waited for if need be.
    ///
    /// # Errors
    ///
    /// If the limiter could not decide.
    pub async fn decided(self) -> Result<Decision, LimiterError> {
        match self {
            Self::Ready(result) => result,
            Self::Pending(pending) => pending.await,
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

impl From<Decision> for Check {
    fn from(decision: Decision) -> Self {
        Self::Ready(Ok(decision))
    }
}

/// A limiter could not decide: its store is out of reach, or it was shut down. Never a refusal.
#[derive(Debug)]
pub struct LimiterError {
    reason: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl LimiterError {
    /// An error that says `reason`.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), source: None }
    }

    /// Adds what went wrong underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for LimiterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
