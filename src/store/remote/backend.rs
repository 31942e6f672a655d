//! [`Backend`]: the interface between a [`RemoteStore`](super::RemoteStore) and its server.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::calls::Calls;
use super::parts::Parts;
use super::standing::Standing;
use super::tag::KeyTag;
use crate::algorithm::Algorithm;
use crate::store::{NodeHealth, SharingStats};
use crate::values::time::Timestamp;
use crate::values::{BanGrowth, Decision, LimiterError, Override, Quota, Receipt};

/// The part of a [`RemoteStore`](super::RemoteStore) that knows its server: it applies one transition to one key.
///
/// The store does everything else: the local fallback, the rejection cache, calls that requests share, and leases.
///
/// # Contract
///
/// - [`apply`](Self::apply) is one atomic step over all processes: it reads the time and the key's state, and writes
///   the new state, or nothing. It returns the time and the state that it has read.
/// - A rejection writes nothing.
/// - A key is kept until the state in it has [expired](Algorithm::expires_at), and may be forgotten then.
/// - A failure is an error, and never a rejection. A transition that failed may have been applied. No transition is
///   applied twice, because a call that got no answer is not sent again.
/// - It returns before the deadline, even if the server does not answer. [`Calls`] ensures this, and stops calling a
///   server that keeps failing.
pub trait Backend<A: Algorithm>: Send + Sync + 'static {
    /// Applies a transition to a key.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or if its answer is inconclusive.
    fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> impl Future<Output = Result<Applied<A::State>, LimiterError>> + Send;

    /// Returns how long a decision may take in total: a call and the wait for it.
    fn timeout(&self) -> Duration;

    /// Returns whether both keep the same keys, so that a store with this backend inherits from one with the other.
    fn shares_keys_with(&self, other: &Self) -> bool;

    /// Notes the limiter's quota, for states that do not say under which quota they were written. Called before the
    /// limiter is asked: when it is made, and when it inherits from a limiter over `predecessor`, which [has the same
    /// keys](Self::shares_keys_with). Then it may also meet states under a quota that `predecessor` knows, whose used
    /// units still count. By default it does nothing, for states that name their quotas.
    fn note_quotas(&self, limiter: Quota, predecessor: Option<&Self>) {
        let _ = (limiter, predecessor);
    }

    /// Checks whether the server can keep this algorithm's states. By default it can.
    ///
    /// # Errors
    ///
    /// If it cannot. The error says why, and how to fix it.
    fn check_fit(&self, algorithm: &A) -> Result<(), Box<dyn Error + Send + Sync>> {
        let _ = algorithm;
        Ok(())
    }

    /// Returns whether calls for this key are failing, so that no request should wait for another one's call. By
    /// default they are not.
    fn is_failing(&self, target: &Target<'_, A>) -> bool {
        let _ = target;
        false
    }

    /// Whether a read costs less than a rejected charge. If it does, the store reads a key that this process knows to
    /// be used up, and charges it only if it is not used up any more. By default it does not.
    fn reads_are_cheaper(&self) -> bool {
        false
    }

    /// Whether it keeps the keys' [standing](Standing): their bans, allowances and debts, beside their states. By
    /// default it does not, and each process has its own.
    ///
    /// If it does, then while a standing is [in force](Standing::is_in_force), charges and refunds change nothing; and
    /// [`Transition::Ban`], [`Transition::Override`], [`Transition::Owe`] and [`Transition::Reset`] change it.
    fn keeps_standing(&self, algorithm: &A) -> bool {
        let _ = algorithm;
        false
    }

    /// Returns how often it interfered with other processes since it was made, for metrics. By default never.
    fn stats(&self) -> SharingStats {
        SharingStats::default()
    }

    /// Returns the operations that it does in one call beyond [`apply`](Self::apply). By default there are none.
    fn parts(&self) -> Parts<A, Self>
    where
        Self: Sized,
    {
        Parts::none()
    }

    /// Returns the state of each server node, for metrics: circuit breaker and calls in flight. By default it reports
    /// no node.
    ///
    /// Called when metrics are collected, and never on the path of a request. It reports from this process's memory,
    /// and makes no call. Nodes have distinct names. [`Calls::health`](super::Calls::health) returns one node's state.
    fn health(&self) -> Vec<NodeHealth> {
        Vec::new()
    }

    /// Returns the error for a request that this process gave up. By default it has the reason as its source.
    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        LimiterError::new(reason.to_string()).with_source(reason)
    }
}

/// The key in one limiter that a [`Transition`] is for.
#[derive(Debug)]
pub struct Target<'a, A> {
    algorithm: &'a A,
    quota: Option<Quota>,
    limiter: Quota,
    tag: KeyTag,
}

impl<'a, A> Target<'a, A> {
    /// The key with this [tag](Self::tag), in a limiter with the quota `limiter`. Use it for a value that outlives its
    /// question, such as a call's [part](super::JointCharge::part). `algorithm` has the key's quota.
    #[must_use]
    pub const fn new(algorithm: &'a A, quota: Option<Quota>, limiter: Quota, tag: KeyTag) -> Self {
        Self { algorithm, quota, limiter, tag }
    }

    /// The algorithm, with the key's quota.
    #[must_use]
    pub const fn algorithm(&self) -> &'a A {
        self.algorithm
    }

    /// The key's quota. `None` without a quota [of its own](crate::limiter::Ask::under).
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// The limiter's quota, which all keys without their own have.
    pub const fn limiter_quota(&self) -> Quota {
        self.limiter
    }

    /// Returns the name that stands for the key: 22 characters of base64url, which encode 128 bits from a SHA-256 over
    /// the [secret](super::RemoteStore::secret) and the key. So no text from a client ever reaches the server.
    #[must_use]
    pub fn name(&self) -> String {
        self.tag.to_string()
    }

    /// The hash that the [name](Self::name) encodes as text.
    #[must_use]
    pub const fn tag(&self) -> KeyTag {
        self.tag
    }
}

// Not derived, since the algorithm need not be `Copy`.
impl<A> Clone for Target<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Target<'_, A> {}

/// A change to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transition {
    /// Reads the state, which stays under the quota that it is kept under.
    Read,
    /// Charges up to `count` requests of `cost` units each, in their order, and stops at the first that does not fit,
    /// since no later request would fit. The cost is at least 1 and at most [`Algorithm::max_cost`].
    Charge {
        /// The units for each request.
        cost: u64,
        /// How many requests there are.
        count: u32,
    },
    /// [Refunds](Algorithm::refund) the part of a charge that is still owed.
    Refund {
        /// The units to refund.
        cost: u64,
        /// The charge's receipt.
        receipt: Receipt,
    },
    /// Deletes the key's state and [standing](Standing).
    Reset,
    /// [Bans](Standing::ban) the key from now on. Only for backends that [keep standings](Backend::keeps_standing).
    Ban {
        /// How long, by the key's bans that this process knows.
        span: Duration,
        /// How bans grow, if they do. A backend that counts a key's bans for all processes uses this in place of
        /// `span`.
        growth: Option<BanGrowth>,
    },
    /// [Bans or allows](Standing::overridden) the key from now on, or lifts its ban and its allowance. Only for
    /// backends that [keep standings](Backend::keeps_standing).
    Override(Override),
    /// [Charges](Standing::charge) the units that are left; the key owes the others. Only for backends that [keep
    /// standings](Backend::keeps_standing).
    Owe {
        /// The units.
        units: u64,
    },
}

/// The outcome of a [`Transition`].
#[derive(Clone, Copy, Debug)]
pub struct Applied<S> {
    /// The time by which it was decided.
    pub now: Timestamp,
    /// The state before, as it counts under the [target](Target::algorithm)'s quota. While the key owes something, the
    /// state is the one at the end of the debt. `None` after a reset, and if there was no state or it is not known.
    pub old: Option<S>,
    /// The key's standing, after the transition.
    pub standing: Standing,
    /// The quota under which `old` is kept and counts, if it is not the target's quota. It is set only after a
    /// [read](Transition::Read), or if the key kept changing, so that the charge was made under the quota that the key
    /// had. Such a charge is for at most the requests that [wait](CallLimits::requests).
    pub kept: Option<Quota>,
    /// The number of requests that were charged. Zero if the transition is not a charge.
    pub charged: u32,
}

/// A charge's decisions, one for each request.
pub(crate) type Decisions = SmallVec<[Decision; 1]>;

impl<S: Copy> Applied<S> {
    /// Returns the decisions on a charge's requests, and the state after them.
    pub(crate) fn replay<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        cost: u64,
        count: u32,
    ) -> Result<(Decisions, Option<S>), GaveUp> {
        let mut state = self.old;
        let mut charged = 0;
        let decisions = (0..count).map(|_| {
            let (decision, next) = algorithm.decide(state, self.now, cost);
            state = next.or(state);
            charged += u32::from(next.is_some());
            decision
        });
        let decisions = decisions.collect();
        if charged == self.charged { Ok((decisions, state)) } else { Err(GaveUp::Disagreement) }
    }
}

/// A call's bounds.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CallLimits {
    /// When it must have returned.
    pub deadline: Instant,
    /// The number of requests that wait for the call. A failure counts for each of them.
    pub requests: u32,
}

impl CallLimits {
    /// The limits for a call on behalf of one request.
    #[must_use]
    pub const fn until(deadline: Instant) -> Self {
        Self { deadline, requests: 1 }
    }

    /// The limits for a call on behalf of one request, which begins now.
    pub(crate) fn within(timeout: Duration) -> Self {
        Self::until(deadline_in(timeout))
    }
}

/// The deadline for an action that begins now. A store may have any timeout, but here it is cut to [a
/// day](Calls::LONGEST_TIMEOUT).
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    deadline_after(Instant::now(), timeout)
}

/// The deadline for an action that began at an instant.
pub(crate) fn deadline_after(begun: Instant, timeout: Duration) -> Instant {
    begun + timeout.min(Calls::LONGEST_TIMEOUT)
}

/// Why this process gave up a request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GaveUp {
    /// The server did not answer in time. The call may have been carried out.
    TimedOut,
    /// The task that made the call was cancelled, because its runtime was shut down, or panicked. The call may have
    /// been carried out.
    Cancelled,
    /// No call was made, because the server kept failing and the circuit breaker is open.
    BreakerOpen,
    /// No call was made, because too many were in flight.
    TooManyInFlight,
    /// Called from outside a Tokio runtime.
    NoRuntime,
    /// The server's answer contradicts itself.
    Disagreement,
    /// Other processes changed the key each time before it was written, until too little time was left for another
    /// [attempt](super::Attempts). Nothing was charged.
    Contention,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "the server did not answer in time",
            Self::Cancelled => "the call to the server was cancelled",
            Self::BreakerOpen => "the server was not called, because it kept failing",
            Self::TooManyInFlight => "the server was not called, because too many calls were in flight",
            Self::NoRuntime => "the server can only be called from within a Tokio runtime",
            Self::Disagreement => "the server's decision contradicts the state in its reply",
            Self::Contention => "other processes changed the key each time before it was written",
        })
    }
}

impl Error for GaveUp {}
