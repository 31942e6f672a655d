//! Charges by hand, each reference once, on servers that enter charge and reference in one step.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use super::accounts::Reference;
use super::attempts::Attempts;
use super::backend::{Applied, Backend, CallLimits, Target};
use super::negative_cache::Observation;
use super::query::{KeyQuery, StoreInner};
use super::records::Turns;
use super::standing::Standing;
use crate::algorithm::Algorithm;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{
    Adjusted, Adjusting, Ask, Credit, Description, LimiterError, PartitionKey, PendingAdjustment, REFERENCE_KEPT,
};

/// A server that replaces a key's state and remembers a reference in one step. So [charges by
/// hand](crate::LimitsHandle::charge) with one [reference](crate::limiter::Debit::reference) are idempotent: one is
/// entered, however many processes make them at once, even if some of them are killed.
///
/// It is first a [`Backend`] that [keeps standings](Backend::keeps_standing). [`Parts::by_hand`](super::Parts::by_hand)
/// announces it to the store. Without it, each process has its own references.
///
/// # Contract
///
/// - [`read_key`](Self::read_key) returns the key and whether the reference is known, both at one instant.
/// - [`replace_key`](Self::replace_key) is one atomic step over all processes: it replaces the key and remembers the
///   reference, or does nothing. It does nothing if the state or the standing differ from those that were read,
///   including when they appeared or disappeared.
/// - A reference belongs to one key in one limiter. It is known for the time that the replacement gives, even if the
///   key is reset meanwhile, and may be forgotten then.
/// - A failure is an error. A replacement that failed may have been made, and is not sent again.
/// - Both return before the deadline, even if the server does not answer. [`Calls`](super::Calls) ensures this.
///
/// `testing::check_charges_by_hand` (feature `test-util`) tests yours.
pub trait ChargeByHand<A: Algorithm>: Backend<A> {
    /// A value that shows whether a key has changed since it was read: a number that the server counts up, or
    /// everything that it keeps for the key.
    type Version: Send;

    /// Reads a key, and whether its reference is known.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or if its answer is inconclusive.
    fn read_key(
        &self,
        target: &Target<'_, A>,
        reference: Option<Reference>,
        limits: CallLimits,
    ) -> impl Future<Output = Result<KeyRead<A::State, Self::Version>, LimiterError>> + Send;

    /// Replaces a key's state and standing, and remembers the reference, if the key has not changed since it was read,
    /// and if the reference is not known. Returns whether it did.
    ///
    /// # Errors
    ///
    /// If the server does not answer. Then the key may have been replaced.
    fn replace_key(
        &self,
        target: &Target<'_, A>,
        replacement: Replacement<A::State, Self::Version>,
        limits: CallLimits,
    ) -> impl Future<Output = Result<bool, LimiterError>> + Send;
}

/// A key as it was read.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct KeyRead<S, V> {
    /// The time on the server's clock.
    pub now: Timestamp,
    /// The state, as it counts under the [target](Target::algorithm)'s quota. While the key owes something, it is the
    /// state at the end of the debt. `None` if there is no state.
    pub state: Option<S>,
    /// The standing, which may be over.
    pub standing: Standing,
    /// Whether the reference is known. `false` without one.
    pub is_known: bool,
    /// A value that shows whether the key has changed since.
    pub version: V,
}

/// The new content for a key, unless the key has changed.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server reads all of it")]
pub struct Replacement<S, V> {
    /// When the key was read, on the server's clock.
    pub read_at: Timestamp,
    /// The version that was read.
    pub version: V,
    /// The state under the [target](Target::algorithm)'s quota. While the key owes something, it is the state at the
    /// end of the debt.
    pub state: S,
    /// The standing.
    pub standing: Standing,
    /// The purpose for which the units were used.
    pub reference: Option<Reference>,
    /// For how long the reference is known from now on.
    pub known_for: Duration,
}

/// Lets a limiter enter charges by hand with their references on its server.
pub(super) fn describe<A: Algorithm + Clone, B: ChargeByHand<A>>(
    limiter: &Arc<StoreInner<A::State, B>>,
    algorithm: &A,
    description: Description,
) -> Description {
    let turns = Arc::default();
    description.adjusting(HandCharger { inner: Arc::clone(limiter), algorithm: algorithm.clone(), turns })
}

/// Charges one limiter's keys by hand.
struct HandCharger<A: Algorithm, B> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
    turns: Arc<Turns>,
}

impl<A: Algorithm + Clone, B: ChargeByHand<A>> Adjusting for HandCharger<A, B> {
    fn credit(&self, _: &PartitionKey, _: &Credit) -> Option<PendingAdjustment> {
        None
    }

    fn keeps_credits(&self) -> bool {
        false
    }

    /// Takes two calls, and two more each time that another process changes the key in between. Takes one if the
    /// reference is known. This process's charges for one key take turns, since otherwise they would only make each
    /// other's attempts fail.
    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment {
        let query = match KeyQuery::for_ask(&self.inner, &self.algorithm, ask) {
            Ok(query) => query,
            Err(error) => return Box::pin(ready(Err(error))),
        };
        let reference = reference.map(|reference| Reference::of_charge(&self.inner.tags, reference));
        let units = ask.cost();
        let turns = Arc::clone(&self.turns);
        Box::pin(async move {
            let limits = CallLimits::until(query.deadline());
            let turn = turns.take_in_half(&query.tag.to_string(), limits.deadline).await;
            let _turn = turn.map_err(|reason| query.inner.backend.gave_up(reason))?;
            let sent = Monotonic.now();
            let (applied, is_repeated) =
                charge_by_hand(&query.inner.backend, &query.target(), reference, units, limits).await?;
            if applied.standing.is_allowed(applied.now) {
                return Err(LimiterError::allowed_by_hand());
            }
            let seen = Observation { server: applied.now, sent, answered: Monotonic.now() };
            if !is_repeated {
                query.charge_fallback(units);
            }
            Ok(Adjusted { decision: query.record_change(&applied, seen), is_repeated })
        })
    }
}

/// Charges the units that are left, and lets the key owe the others, unless its reference is known or an operator
/// allows the key. Returns the outcome, and whether the reference is known.
pub(crate) async fn charge_by_hand<A: Algorithm, B: ChargeByHand<A>>(
    backend: &B,
    target: &Target<'_, A>,
    reference: Option<Reference>,
    units: u64,
    limits: CallLimits,
) -> Result<(Applied<A::State>, bool), LimiterError> {
    let mut attempts = Attempts::new(limits.deadline);
    loop {
        let KeyRead { now, state: old, standing, is_known, version } =
            backend.read_key(target, reference, limits).await?;
        let before = if standing.is_in_force(now) { standing } else { Standing::NONE };
        let unchanged = Applied { now, old, standing: before, kept: None, charged: 0 };
        if is_known {
            return Ok((unchanged, true));
        }
        let (standing, state) = before.charge(target.algorithm(), old, now, units);
        let Some(state) = state.filter(|_| units > 0 && !before.is_allowed(now)) else { return Ok((unchanged, false)) };
        let known_for = REFERENCE_KEPT;
        let replacement = Replacement { read_at: now, version, state, standing, reference, known_for };
        // If it fails, the key may have been charged. A caller that repeats it with its reference finds out.
        if backend.replace_key(target, replacement, limits).await? {
            return Ok((Applied { old: Some(state), standing, ..unchanged }, false));
        }
        // Another process has changed the key, or has entered the reference. The next read shows which.
        attempts.lost().await.map_err(|reason| backend.gave_up(reason))?;
    }
}
