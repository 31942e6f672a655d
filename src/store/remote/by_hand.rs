//! Charges by hand, each reference once, on servers that enter both in one step.

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

/// A server that replaces the state of a key and remembers a reference in one step. So of
/// [charges by hand](crate::LimitsHandle::charge) with one [reference](crate::limiter::Debit::reference), however many
/// processes make them at once, and whichever of them are killed, one is entered.
///
/// It is a [`Backend`] first, which [keeps standings](Backend::keeps_standing).
/// [`Parts::by_hand`](super::Parts::by_hand) tells the store of it. Without it, each process has its own references.
///
/// # Contract
///
/// - [`read_key`](Self::read_key) returns the key and whether the reference is known, both as of one instant.
/// - [`replace_key`](Self::replace_key) is one atomic step, whichever process makes it: it replaces the key and
///   remembers the reference, or does nothing. It does nothing if the state or the standing are not those that were
///   read, or are gone, or were not there and are now.
/// - A reference belongs to one key of one limiter. It is known for as long as was said, also if the key is reset
///   meanwhile, and may be forgotten then.
/// - A failure is an error. A replacement that failed may have been made, and is not sent again.
/// - Both return before the deadline, also if the server does not answer: [`Calls`](super::Calls) sees to this.
///
/// `testing::check_charges_by_hand` (feature `test-util`) tests yours.
pub trait ChargeByHand<A: Algorithm>: Backend<A> {
    /// What shows whether a key has changed since it was read: a number that the server counts up, or all that it keeps
    /// of the key.
    type Version: Send;

    /// Reads a key, and whether a reference of it is known.
    ///
    /// # Errors
    ///
    /// If the server gives no answer, or one from which nothing can be concluded.
    fn read_key(
        &self,
        target: &Target<'_, A>,
        reference: Option<Reference>,
        limits: CallLimits,
    ) -> impl Future<Output = Result<KeyRead<A::State, Self::Version>, LimiterError>> + Send;

    /// Replaces the state and the standing of a key, and remembers the reference, if the key has not changed since it
    /// was read, and if the reference is not known. Returns whether it did.
    ///
    /// # Errors
    ///
    /// If the server gives no answer. Then the key may have been replaced.
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
    /// The state, as it counts under the quota of the [target](Target::algorithm); while the key owes something, as of
    /// the end of the debt. `None` if there is none.
    pub state: Option<S>,
    /// The standing, which may be over.
    pub standing: Standing,
    /// Whether the reference is known. `false` without one.
    pub is_known: bool,
    /// What shows whether the key has changed since.
    pub version: V,
}

/// What replaces the content of a key, unless that has changed.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server reads all of it")]
pub struct Replacement<S, V> {
    /// When the key was read, on the server's clock.
    pub read_at: Timestamp,
    /// The version that was read.
    pub version: V,
    /// The state under the quota of the [target](Target::algorithm); while the key owes something, as of the end of the
    /// debt.
    pub state: S,
    /// The standing.
    pub standing: Standing,
    /// What the units were used for.
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

/// Charges the keys of one limiter by hand.
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

    /// Two calls, and two more each time that another process changes the key in between. One if the reference is
    /// known. Charges of this process for one key take turns, since they would only be faster than each other.
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
            Ok(Adjusted { decision: query.note_change(&applied, seen), is_repeated })
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
        // If it fails, the key may have been charged: whoever repeats it with its reference finds out.
        if backend.replace_key(target, replacement, limits).await? {
            return Ok((Applied { old: Some(state), standing, ..unchanged }, false));
        }
        // Another process has changed the key, or has entered the reference. The next read tells which.
        attempts.lost().await.map_err(|reason| backend.gave_up(reason))?;
    }
}
