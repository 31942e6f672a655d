//! A domain's limits, as responses report them.

use std::collections::HashMap;
use std::time::Duration;

use tower_sluice::policy::PolicyStatus;

use super::selector::Selector;
use crate::descriptors::Brought;
use crate::rules::Unit;

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportedLimit {
    pub(crate) requests: u32,
    /// The unit's number in Envoy's protocol, or 0 if the period is not a unit.
    pub(crate) unit: i32,
    /// The name in the file, otherwise the policy's name. It is empty if the request brings the limit.
    pub(crate) name: String,
}

/// The limits for a domain's policies.
#[derive(Debug, Default)]
pub(crate) struct ReportedLimits(HashMap<String, ReportedLimit>);

impl ReportedLimits {
    pub(super) fn new(policies: &[PolicyStatus], selector: Option<&Selector>) -> Self {
        let labels = selector.map(Selector::labels).unwrap_or_default();
        let limits = policies.iter().filter_map(|policy| {
            let quota = policy.terms()?.quota()?;
            let name = labels.get(policy.name()).copied().unwrap_or(policy.name()).to_owned();
            let (requests, period) = match selector.and_then(|selector| selector.period_of_zero(policy.name())) {
                // A quota cannot be zero, so the policy has a different one.
                Some(period) => (0, period),
                None => (u32::try_from(quota.limit()).unwrap_or(u32::MAX), quota.period()),
            };
            Some((policy.name().to_owned(), ReportedLimit { requests, unit: number_of(period), name }))
        });
        Self(limits.collect())
    }

    /// The limit for the policy with this name.
    pub(crate) fn of(&self, policy: &str) -> Option<&ReportedLimit> {
        self.0.get(policy)
    }
}

impl From<Brought> for ReportedLimit {
    fn from(Brought { requests, unit, .. }: Brought) -> Self {
        Self { requests, unit, name: String::new() }
    }
}

fn number_of(period: Duration) -> i32 {
    Unit::from_period(period).map_or(0, Unit::number)
}
