//! [`QuotaState`]: a key's state always comes with its quota.

use std::any::{Any, TypeId};

use crate::values::Quota;

/// A key's state, and the quota that it counts under. Tables keep both, or, for keys under the limiter's own quota, a
/// shorter form that stands for both: the state alone, or a word.
#[derive(Clone, Copy)]
pub(super) struct QuotaState<S> {
    pub(super) state: S,
    pub(super) quota: Quota,
}

impl<S: Copy + 'static> QuotaState<S> {
    /// Returns a state with its quota, or with the limiter's `own` if it is alone.
    pub(super) fn from_any(state: &dyn Any, own: &Quota) -> Option<Self> {
        let alone = || state.downcast_ref().map(|state| Self { state: *state, quota: *own });
        state.downcast_ref().copied().or_else(alone)
    }
}

/// A state type, by its name alone.
#[derive(Clone, Copy)]
pub(super) struct StateType {
    pub(super) alone: TypeId,
    pub(super) with_quota: TypeId,
}

impl StateType {
    pub(super) fn is<T: 'static>(self) -> bool {
        self.alone == TypeId::of::<T>()
    }

    pub(super) fn of<T: 'static>() -> Self {
        Self { alone: TypeId::of::<T>(), with_quota: TypeId::of::<QuotaState<T>>() }
    }
}
