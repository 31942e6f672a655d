//! [`Parts`]: operations that a backend offers beyond single decisions.

use std::fmt;
use std::sync::Arc;

use super::backend::Backend;
use super::by_hand::{self, ChargeByHand};
use super::free_retries::{self, ChargeRetries};
use super::joint::{self, JointCharge};
use super::query::StoreInner;
use crate::algorithm::Algorithm;
use crate::values::Description;

/// The operations that a backend does in one call beyond [`Backend::apply`]. Each part has a trait, which the backend
/// implements.
///
/// A part that is not named here is not used. If no part is named, each process decides on one key at a time, and has
/// its own references; free retries are [records](super::RemoteStore::records), or each process has its own, too.
#[must_use]
pub struct Parts<A: Algorithm, B> {
    joint: Option<Describe<A, B>>,
    free_retries: Option<Describe<A, B>>,
    by_hand: Option<Describe<A, B>>,
}

/// Adds a part to a limiter's description.
type Describe<A, B> = fn(&Arc<StoreInner<<A as Algorithm>::State, B>>, &A, Description) -> Description;

impl<A: Algorithm, B> Parts<A, B> {
    /// Names no part.
    pub const fn none() -> Self {
        Self { joint: None, free_retries: None, by_hand: None }
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> Parts<A, B> {
    /// Decides on several limiters' keys. Otherwise, a layer makes a call for each policy.
    pub const fn joint(self) -> Self
    where
        B: JointCharge<A>,
    {
        Self { joint: Some(joint::describe), ..self }
    }

    /// Decides on retries in the call that charges.
    pub const fn free_retries(self) -> Self
    where
        B: ChargeRetries<A>,
    {
        Self { free_retries: Some(free_retries::describe), ..self }
    }

    /// Enters charges by hand with their references. Not used if the backend does not [keep
    /// standings](Backend::keeps_standing).
    pub const fn by_hand(self) -> Self
    where
        B: ChargeByHand<A>,
    {
        Self { by_hand: Some(by_hand::describe), ..self }
    }

    /// Describes a limiter with this backend.
    pub(super) fn describe(
        self,
        limiter: &Arc<StoreInner<A::State, B>>,
        algorithm: &A,
        description: Description,
    ) -> Description {
        let Self { joint, free_retries, by_hand } = self;
        let by_hand = by_hand.filter(|_| limiter.backend.keeps_standing(algorithm));
        let parts = [joint, free_retries, by_hand].into_iter().flatten();
        parts.fold(description, |description, part| part(limiter, algorithm, description))
    }
}

impl<A: Algorithm, B> fmt::Debug for Parts<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { joint, free_retries, by_hand } = self;
        f.debug_struct("Parts")
            .field("joint", &joint.is_some())
            .field("free_retries", &free_retries.is_some())
            .field("by_hand", &by_hand.is_some())
            .finish()
    }
}
