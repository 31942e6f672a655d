//! The final cost of a request, once its response is known.

use crate::engine::domain::{Domain, ReadsOutcome};
use crate::engine::policy::retries::{Attempt, Retries};
use crate::values::Ask;

/// The settings of a policy for the time after the decision, until the response is over.
pub(crate) struct Billing<D: Domain> {
    pub(super) bill: Option<Bill<D>>,
    pub(super) retries: Option<Box<Retries<D>>>,
    /// Whether the units that a request holds are released when its response begins, and not when that has ended.
    pub(crate) releases_at_head: bool,
    pub(crate) owes_shortfalls: bool,
}

/// The source of the final cost of a request.
pub(super) enum Bill<D: Domain> {
    /// The head of the response decides between the full charge and nothing.
    When(ReadsOutcome<D, bool>),
    /// The head of the response determines the cost.
    Cost(ReadsOutcome<D, u64>),
    /// The handler reports the cost until the body of the response has ended.
    ByHandler,
    /// The cost is the number of bytes of the body of the response.
    ContentBytes,
}

/// By hand, since a derived one would ask for `D: Default`.
impl<D: Domain> Default for Billing<D> {
    fn default() -> Self {
        Self { bill: None, retries: None, releases_at_head: false, owes_shortfalls: false }
    }
}

impl<D: Domain> Billing<D> {
    /// Makes the attempt of a request, if its retries are charged once.
    pub(crate) fn attempt(&self, charge: &Ask<'_>, head: &D::Subject<'_>) -> Option<Attempt> {
        self.retries.as_ref()?.attempt(charge, head)
    }

    /// Whether the final cost of a request depends on its response.
    pub(crate) const fn settles_later(&self) -> bool {
        self.bill.is_some()
    }

    /// The final cost of a request that was charged `charged` units, if the head of its response decides.
    pub(crate) fn cost_by_head(&self, charged: u64, response: &D::Outcome<'_>) -> Option<u64> {
        match self.bill.as_ref()? {
            Bill::When(condition) if condition(response) => Some(charged),
            Bill::When(_) => Some(0),
            Bill::Cost(cost) => Some(cost(response)),
            Bill::ByHandler | Bill::ContentBytes => None,
        }
    }

    /// Whether the head of the response decides the final cost.
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

    /// Whether the final cost measures the work of the service, so that it is nothing if the service was not called.
    pub(crate) const fn is_charged_by_use(&self) -> bool {
        self.is_settled_by_handler() || self.is_charged_by_content()
    }

    /// Whether a request is charged in full in the end, or not at all.
    pub(crate) const fn is_all_or_nothing(&self) -> bool {
        matches!(self.bill, Some(Bill::When(_)))
    }
}
