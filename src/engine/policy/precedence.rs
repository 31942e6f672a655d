//! `Precedence`: the order in which waiting requests leave a limiter that sheds.

use std::num::NonZeroU32;

use crate::engine::domain::{Domain, Reads};
use crate::values::{Ask, Priority};

/// A request's class, and its key's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precedence {
    priority: Priority,
    weight: NonZeroU32,
}

/// The options that find a request's precedence.
pub(super) struct PrecedenceOf<D: Domain> {
    pub(super) priority: Option<Reads<D, Priority>>,
    pub(super) weight: Option<Reads<D, NonZeroU32>>,
}

/// By hand, because a derived `Default` would require `D: Default`.
impl<D: Domain> Default for PrecedenceOf<D> {
    fn default() -> Self {
        Self { priority: None, weight: None }
    }
}

impl<D: Domain> PrecedenceOf<D> {
    /// A request's precedence. `None` if all requests have the usual one.
    #[inline]
    pub(super) fn find(&self, head: &D::Subject<'_>) -> Option<Precedence> {
        if self.priority.is_none() && self.weight.is_none() {
            return None;
        }
        Some(Precedence {
            priority: self.priority.as_ref().map_or(Priority::default(), |priority| priority(head)),
            weight: self.weight.as_ref().map_or(NonZeroU32::MIN, |weight| weight(head)),
        })
    }
}

impl Precedence {
    pub(crate) const fn priority(self) -> Priority {
        self.priority
    }

    /// The question that asks with this precedence.
    pub(crate) const fn of(self, ask: Ask<'_>) -> Ask<'_> {
        ask.prioritized(self.priority).weighing(self.weight)
    }
}
