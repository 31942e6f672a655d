//! [`Admission`]: an admitted subject, until it is over.

use std::fmt;

use crate::engine::outcome::Admitted;
use crate::engine::settlement::{SettleError, Settlement};
use crate::engine::translate::Translate;
use crate::engine::verdict::Verdict;
use crate::values::RequestEnd;

/// An admitted subject. It holds the units of [limits in flight](crate::Concurrency) until it is over.
///
/// Call [`finish`](Self::finish), [`finish_with`](Self::finish_with) or [`fail`](Self::fail) when it was processed. If
/// you drop it, it counts as abandoned, like a request whose client has disconnected: units are released, and charges
/// stay. Costs that were reported are settled in each case.
#[must_use = "dropped, it releases the units that it holds"]
pub struct Admission<D: Translate> {
    admitted: Admitted<D>,
    verdict: Option<Verdict>,
    settlement: Option<Settlement>,
}

impl<D: Translate> Admission<D> {
    pub(crate) fn new(mut admitted: Admitted<D>) -> Self {
        let (verdict, settlement) = match &mut admitted {
            Admitted::Open(open) => D::look(open),
            known => (known.rare().and_then(|rare| rare.verdict.take()), None),
        };
        Self { admitted, verdict, settlement }
    }

    /// Returns the subject as the engine has admitted it.
    pub(crate) fn into_admitted(self) -> Admitted<D> {
        let Self { mut admitted, verdict, .. } = self;
        if let Some(rare) = admitted.rare() {
            rare.verdict = verdict;
        }
        admitted
    }

    /// The policies' decisions. A layer has them only if it [adds the
    /// verdict](crate::layer::RateLimitLayerBuilder::verdict).
    #[must_use]
    pub const fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Ends the subject as [`finish`](Self::finish) does, and returns its [verdict](Self::verdict).
    #[must_use]
    pub fn into_verdict(mut self) -> Option<Verdict> {
        let verdict = self.verdict.take();
        self.finish();
        verdict
    }

    /// Whether it holds units, or its charges depend on its outcome. If not, it does not matter how it ends.
    #[must_use]
    pub const fn awaits_end(&self) -> bool {
        !matches!(self.admitted, Admitted::Known { .. })
    }

    /// Reports the real cost to policies that are [settled](crate::Policy::settle_by_handler), until the subject is
    /// over. `None` if no such policy has charged it. Clones report to the same subject.
    #[must_use]
    pub const fn settlement(&self) -> Option<&Settlement> {
        self.settlement.as_ref()
    }

    /// Reports the total cost to each policy that is settled: see [`Settlement::settle_all`]. Returns how many got it.
    pub fn settle_all(&self, cost: u64) -> usize {
        self.settlement.as_ref().map_or(0, |settlement| settlement.settle_all(cost))
    }

    /// Reports the total cost to a policy: see [`Settlement::settle`].
    ///
    /// # Errors
    ///
    /// If no policy with this name awaits a report.
    pub fn settle(&self, policy: &str, cost: u64) -> Result<(), SettleError> {
        match &self.settlement {
            Some(settlement) => settlement.settle(policy, cost),
            None => Err(SettleError::UnknownPolicy { policy: policy.to_owned(), known: Vec::new() }),
        }
    }

    /// Ends it after it was processed. Charges that depend on its outcome stay.
    pub fn finish(self) {
        self.end(None, RequestEnd::Served);
    }

    /// Ends it after it was processed with this outcome, which [decides](crate::Policy::charge_when) on its charges.
    pub fn finish_with(self, outcome: &D::Outcome<'_>) {
        self.end(Some(outcome), RequestEnd::Served);
    }

    /// Ends it because it could not be processed. Charges stay, and an [`Overload`](crate::Overload) learns of it.
    pub fn fail(self) {
        self.end(None, RequestEnd::Failed);
    }

    fn end(self, outcome: Option<&D::Outcome<'_>>, end: RequestEnd) {
        match self.admitted {
            Admitted::Known { .. } => {}
            Admitted::Held { request, .. } => D::end_held(request, outcome, end),
            Admitted::Open(open) => D::end_open(open, outcome, end),
        }
    }
}

impl<D: Translate> fmt::Debug for Admission<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}
