//! A request's final cost, once its response is known.

use crate::engine::domain::{Domain, ReadsOutcome};
use crate::engine::policy::retries::{Attempt, Retries};
use crate::values::Ask;

/// A policy's settings for the time after the decision, until the response is over.
pub(crate) struct Billing<D: Domain> {
    pub(super) bill: Option<Bill<D>>,
    pub(super) retries: Option<Box<Retries<D>>>,
    /// Whether the units that a request holds are released when its response begins, and not when it has ended.
    pub(crate) releases_at_head: bool,
    pub(crate) owes_shortfalls: bool,
}

/// The source of a request's final cost.
pub(super) enum Bill<D: Domain> {
    /// The response's head decides between the full charge and nothing.
    When(ReadsOutcome<D, bool>),
    /// The response's head determines the cost.
    Cost(ReadsOutcome<D, u64>),
    /// The handler reports the cost until the response's body has ended.
    ByHandler,
    /// The cost is the number of bytes in the response's body.
    ContentBytes,
}

/// By hand, because a derived `Default` would require `D: Default`.
impl<D: Domain> Default for Billing<D> {
    fn default() -> Self {
        Self { bill: None, retries: None, releases_at_head: false, owes_shortfalls: false }
    }
}

impl<D: Domain> Billing<D> {
    /// Makes a request's attempt, if it is charged once with its retries.
    pub(crate) fn attempt(&self, charge: &Ask<'_>, head: &D::Subject<'_>) -> Option<Attempt> {
        self.retries.as_ref()?.attempt(charge, head)
    }

    /// Whether a request's final cost depends on its response.
    pub(crate) const fn settles_later(&self) -> bool {
        self.bill.is_some()
    }

    /// The final cost for a request that was charged `charged` units, if the response's head decides.
    pub(crate) fn cost_by_head(&self, charged: u64, response: &D::Outcome<'_>) -> Option<u64> {
        match self.bill.as_ref()? {
            Bill::When(condition) if condition(response) => Some(charged),
            Bill::When(_) => Some(0),
            Bill::Cost(cost) => Some(cost(response)),
            Bill::ByHandler | Bill::ContentBytes => None,
        }
    }

    /// Whether the response's head decides the final cost.
    pub(crate) const fn is_settled_by_head(&self) -> bool {
        matches!(self.bill, Some(Bill::When(_) | Bill::Cost(_)))
    }

    /// Whether the handler reports the final cost.
    pub(crate) const fn is_settled_by_handler(&self) -> bool {
        matches!(self.bill, Some(Bill::ByHandler))
    }

    /// Whether the final cost is the size of the response.
    pub(crate) const fn is_charged_by_content(&self) -> bool {
        matches!(self.bill, Some(Bill::ContentBytes))
    }

    /// Whether the final cost measures the service's work, so that it is 0 if the service was not called.
    pub(crate) const fn is_charged_by_use(&self) -> bool {
        self.is_settled_by_handler() || self.is_charged_by_content()
    }

    /// Whether a request is charged in full in the end, or not at all.
    pub(crate) const fn is_all_or_nothing(&self) -> bool {
        matches!(self.bill, Some(Bill::When(_)))
    }
}
