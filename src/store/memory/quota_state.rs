//! [`QuotaState`]: a key's state always comes with its quota.

use std::any::{Any, TypeId};

use crate::values::Quota;

/// The state of a key, and the quota that it counts under. Tables keep both, or, for keys under the limiter's own
/// quota, a shorter form that stands for both: the state alone, or a word.
#[derive(Clone, Copy)]
pub(super) struct QuotaState<S> {
    pub(super) state: S,
    pub(super) quota: Quota,
}

/// Returns the same state, if the types are the same.
pub(super) fn cast<T: Copy + 'static, U: Copy + 'static>(state: T) -> Option<U> {
    (&state as &dyn Any).downcast_ref().copied()
}

pub(super) fn is_same<T: 'static, U: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<U>()
}
