//! What a limiter answers.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::values::Receipt;
use crate::values::{Shape, Terms};

/// The answer to one request: whether it passes, and the numbers that a client needs.
///
/// A rejection is an answer, not an error; errors are [`LimiterError`]s, for limiters that could not
/// decide at all.
///
/// 64 bytes. Times are kept in nanoseconds; those of more than 584 years in milliseconds, rounded up.
#[derive(Clone, Copy)]
#[must_use]
pub struct Decision {
    receipt: Receipt,
    /// Of a rejection, until the same request is admitted; of an admission, until one unit can be had, if that is known. In
    /// units of 1/`per` nanosecond, as `reset` is: the division is left to who asks for the time.
    wait: u64,
    /// Until the key is as good as new.
    reset: u64,
    per: NonZeroU64,
    /// In nanoseconds.
    delay: u64,
    limit: u32,
    remaining: u32,
    answer: Answer,
    /// Whether `wait` is in milliseconds.
    is_wait_coarse: bool,
    /// Whether `reset` is.
    is_reset_coarse: bool,
}

const _: () = assert!(size_of::<Decision>() == 64, "one line of a processor's cache");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allow,
    /// Until `wait` is over.
    Reject,
    Never,
}

/// A time that few ask for: the division is left to who does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Whole(Duration),
    /// `owed / per` nanoseconds, rounded up.
    Quotient {
        owed: u64,
        per: NonZeroU64,
    },
}

impl Span {
    /// In units of a part of a nanosecond, if so many can be told.
    #[inline(always)]
    const fn parts(self) -> Option<(u64, NonZeroU64)> {
        match self {
            Self::Quotient { owed, per } => Some((owed, per)),
            Self::Whole(span) if span.as_nanos() > u64::MAX as u128 => None,
            Self::Whole(span) => Some((narrow(span.as_nanos()), NonZeroU64::MIN)),
        }
    }

    pub(crate) const fn ceil(self) -> Duration {
        match self {
            Self::Whole(span) => span,
            Self::Quotient { owed, per } => Duration::from_nanos(owed.div_ceil(per.get())),
        }
    }
}

const NANOS_PER_MILLI: u128 = 1_000_000;

/// At most `u64::MAX`.
#[allow(clippy::cast_possible_truncation)]
const fn narrow(number: u128) -> u64 {
    if number > u64::MAX as u128 { u64::MAX } else { number as u64 }
}

const fn millis_ceil(span: Duration) -> u64 {
    narrow(span.as_nanos().div_ceil(NANOS_PER_MILLI))
}

/// Pass or not. Complete by definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)]
pub enum Outcome {
    /// The request passes and has been charged. (In a [peek](crate::Mode::Peek): it would. In the
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
    /// Of a refusal of `cost`: what could be had in its place, if anything.
    pub(crate) fn partial_cost(&self, cost: u32) -> Option<u32> {
        Some(self.remaining.min(cost)).filter(|left| *left > 0 && !self.is_allowed())
    }

    /// The decision for a key that is banned for so much longer: rejected until the ban ends, and as long as it would be
    /// anyway.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn banned_for(self, left: Duration) -> Self {
        let wait = match self.answer {
            Answer::Allow => Some(left),
            Answer::Reject => Some(left.max(self.waits())),
            Answer::Never => None,
        };
        Self::deny(self.limit, 0, wait).with_reset_after(self.reset_after().max(left))
    }

    /// A rejection with a shorter wait, if it has one.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn wait_at_most(self, most: Duration) -> Self {
        match self.answer {
            Answer::Reject => self.waiting(Span::Whole(self.waits().min(most))),
            Answer::Allow | Answer::Never => self,
        }
    }

    /// As it reads when `cost` is charged in place of `charged`, which is exact but for the reset of sliding windows: that stays
    /// on the cautious side.
    #[cfg_attr(not(any(feature = "http", feature = "redis")), allow(dead_code))]
    pub(crate) fn recharged(mut self, charged: u32, cost: u32, terms: Option<Terms>) -> Self {
        let remaining = u64::from(self.remaining) + u64::from(charged);
        let remaining = remaining.saturating_sub(cost.into()).min(self.limit.into());
        self.remaining = u32::try_from(remaining).unwrap_or(self.limit);
        if cost == 0 {
            self.receipt = Receipt::NONE;
        }
        let reset = match terms.filter(|terms| terms.shape() == Shape::Bucket) {
            _ if self.remaining == self.limit => Duration::ZERO,
            Some(terms) => {
                let paid_in = |units| terms.quota().time_of(units);
                (self.reset_after() + paid_in(cost)).saturating_sub(paid_in(charged))
            }
            None => self.reset_after(),
        };
        self.with_reset_after(reset)
    }

    /// Admits, with `remaining` of `limit` units left.
    pub const fn allow(limit: u32, remaining: u32) -> Self {
        Self::new(Answer::Allow, limit, remaining)
    }

    /// Rejects, with `remaining` of `limit` units left (fewer than were asked for).
    pub const fn deny(limit: u32, remaining: u32, retry_after: Option<Duration>) -> Self {
        match retry_after {
            Some(wait) => Self::reject(limit, remaining, Span::Whole(wait)),
            None => Self::new(Answer::Never, limit, remaining),
        }
    }

    /// Rejects for a time that may still have to be worked out.
    #[inline(always)]
    pub(crate) const fn reject(limit: u32, remaining: u32, wait: Span) -> Self {
        Self::new(Answer::Reject, limit, remaining).waiting(wait)
    }

    #[inline(always)]
    const fn new(answer: Answer, limit: u32, remaining: u32) -> Self {
        let (wait, reset, per, delay) = (0, 0, NonZeroU64::MIN, 0);
        let (is_wait_coarse, is_reset_coarse) = (false, false);
        let receipt = Receipt::NONE;
        Self { receipt, wait, reset, per, delay, limit, remaining, answer, is_wait_coarse, is_reset_coarse }
    }

    #[inline(always)]
    const fn waiting(self, wait: Span) -> Self {
        let (mut told, wait, is_coarse) = self.in_units(wait, if self.is_reset_coarse { 0 } else { self.reset });
        (told.wait, told.is_wait_coarse) = (wait, is_coarse);
        told
    }

    /// A time in units that suit the `other` one too, if that is not zero; and whether it is in milliseconds.
    #[inline(always)]
    const fn in_units(self, span: Span, other: u64) -> (Self, u64, bool) {
        match span.parts() {
            Some((owed, per)) => {
                let told = self.in_units_of(per, other);
                let owed = if told.per.get() == per.get() { owed } else { owed.div_ceil(per.get()) };
                (told, owed, false)
            }
            None => (self, millis_ceil(span.ceil()), true),
        }
    }

    /// Has times of both kinds told in the same units: in those of `per`, if `other` tells of none, and else in nanoseconds.
    #[inline(always)]
    const fn in_units_of(mut self, per: NonZeroU64, other: u64) -> Self {
        if other == 0 {
            self.per = per;
            self
        } else if self.per.get() == per.get() {
            self
        } else {
            self.in_nanos()
        }
    }

    #[cold]
    const fn in_nanos(mut self) -> Self {
        if !self.is_wait_coarse {
            self.wait = self.wait.div_ceil(self.per.get());
        }
        if !self.is_reset_coarse {
            self.reset = self.reset.div_ceil(self.per.get());
        }
        self.per = NonZeroU64::MIN;
        self
    }

    const fn waits(&self) -> Duration {
        self.span(self.wait, self.is_wait_coarse)
    }

    const fn span(&self, owed: u64, is_coarse: bool) -> Duration {
        if is_coarse { Duration::from_millis(owed) } else { Duration::from_nanos(owed.div_ceil(self.per.get())) }
    }

    /// Sets the time until the key is as good as new.
    pub const fn with_reset_after(self, reset_after: Duration) -> Self {
        self.with_reset_span(Span::Whole(reset_after))
    }

    #[inline(always)]
    pub(crate) const fn with_reset_span(self, reset: Span) -> Self {
        let (mut told, reset, is_coarse) = self.in_units(reset, if self.is_wait_coarse { 0 } else { self.wait });
        (told.reset, told.is_reset_coarse) = (reset, is_coarse);
        told
    }

    #[inline(always)]
    pub(crate) const fn with_next_span(self, next: Span) -> Self {
        match self.answer {
            Answer::Allow => self.waiting(next),
            Answer::Reject | Answer::Never => self,
        }
    }

    /// Of an admission that leaves nothing: sets the time until one unit can be had. For windows that move; of buckets and of
    /// windows that start anew it is known.
    pub const fn with_next_after(self, next_after: Duration) -> Self {
        self.with_next_span(Span::Whole(next_after))
    }

    /// Sets the time that the request spends, or would spend, in a queue.
    pub const fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = narrow(delay.as_nanos());
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
        match self.answer {
            Answer::Allow => Outcome::Allow,
            _ => Outcome::Deny { retry_after: self.retry_after() },
        }
    }

    /// Whether the request passes.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.answer, Answer::Allow)
    }

    /// The exact wait after which the same request is admitted, alone on its key. `None` if it is
    /// admitted now, or never will be.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.answer {
            Answer::Reject => Some(self.waits()),
            Answer::Allow | Answer::Never => None,
        }
    }

    /// The time until one unit can be had, if this is an admission that [says so](Self::with_next_after).
    #[must_use]
    pub const fn next_after(&self) -> Option<Duration> {
        if self.wait > 0 && self.is_allowed() { Some(self.waits()) } else { None }
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
    pub const fn reset_after(&self) -> Duration {
        self.span(self.reset, self.is_reset_coarse)
    }

    /// The time that the request spent in a queue; zero for limiters that do not queue.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// What [`Limiter::refund`](crate::Limiter::refund) needs to undo exactly this charge.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        self.receipt
    }
}

impl Decision {
    fn facts(&self) -> (Answer, [u32; 2], [Duration; 2], u64, Receipt) {
        let times = [self.waits(), self.span(self.reset, self.is_reset_coarse)];
        (self.answer, [self.limit, self.remaining], times, self.delay, self.receipt)
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.facts() == other.facts()
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome())
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("reset_after", &self.reset_after())
            .field("delay", &self.delay())
            .field("receipt", &self.receipt)
            .finish()
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

impl Check {
    /// The decision, if it was made at once.
    #[must_use]
    pub fn at_once(self) -> Option<Decision> {
        match self {
            Self::Ready(Ok(decision)) => Some(decision),
            Self::Ready(Err(_)) | Self::Pending(_) => None,
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
#[derive(Clone)]
pub struct LimiterError(Arc<Failure>);

// Behind a pointer: a `Check` is returned by value, and seldom holds one.
struct Failure {
    reason: String,
    is_closed: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl LimiterError {
    /// An error that says `reason`.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(Arc::new(Failure { reason: reason.into(), is_closed: false, source: None }))
    }

    /// The answer of a limiter that was [closed](crate::Limiter::close), which says `reason`. It is no failure: a layer answers
    /// 503 whatever its policy does on failures, and neither counts it nor logs it as one.
    pub fn closed(reason: impl Into<String>) -> Self {
        Self(Arc::new(Failure { reason: reason.into(), is_closed: true, source: None }))
    }

    /// Whether the limiter was [closed](Self::closed).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed
    }

    /// Adds what went wrong underneath.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let Failure { reason, is_closed, .. } = &*self.0;
        Self(Arc::new(Failure { reason: reason.clone(), is_closed: *is_closed, source: Some(source.into()) }))
    }
}

impl fmt::Debug for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterError").field("reason", &self.0.reason).field("source", &self.0.source).finish()
    }
}

impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.reason)
    }
}

impl Error for LimiterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
