//! `plans`: separate limits for keys on some plans, by a request's key.

use std::sync::Arc;

use toml::Spanned;

#[cfg(feature = "calendar")]
use super::calendar;
use super::error::ConfigError;
use super::format::{AlgorithmName, RawPlan, RawPlans, RawPolicy};
use super::key::KeySpec;
use super::policy;
use super::precedence::KeyTable;
use super::source::SourceText;
use super::store::{self, RateSpec, StoreSpec};
use super::value::{number, quota, set_if_some};
#[cfg(feature = "calendar")]
use tower_sluice::CalendarWindow;
use tower_sluice::key::ClientIp;
use tower_sluice::{Limiter, Policy, Quota};

/// The limits for a policy's plans.
pub(crate) enum Plans {
    Quotas(KeyTable<Quota>),
    #[cfg(feature = "calendar")]
    Windows(KeyTable<CalendarWindow>),
    InFlight(KeyTable<u64>),
}

impl Plans {
    /// Sets these limits for a policy's keys.
    pub(crate) fn apply_to(self, policy: Policy) -> Policy {
        match self {
            Self::Quotas(table) => policy.quota_fn(move |head| table.find(head)),
            #[cfg(feature = "calendar")]
            Self::Windows(table) => policy.window_fn(move |head| table.find(head)),
            Self::InFlight(table) => policy.limit_fn(move |head| table.find(head)),
        }
    }
}

/// Reads the plans in a policy that is otherwise valid, and whose budgets are on `store`.
pub(crate) fn read(
    source: &SourceText<'_>,
    raw: &RawPolicy,
    plans: &Spanned<RawPlans>,
    client_ip: &ClientIp,
    store: &StoreSpec,
) -> Result<Plans, ConfigError> {
    let algorithm = raw.algorithm.value();
    let unfit = match algorithm {
        AlgorithmName::SlowDown => Some("slow-down delays all keys alike; choose a bucket, a window or leaky-queue"),
        AlgorithmName::Overload => Some("overload finds its limit itself; write priority or weight in its place"),
        AlgorithmName::Balance => Some("keys have what is credited to them; remove it, and credit more to some keys"),
        _ => None,
    };
    if let Some(problem) = unfit {
        return Err(source.error(&plans.span(), format_args!("plans: {problem}")));
    }
    let RawPlans { by, limits } = plans.get_ref();
    // Another request's limit does not forgive the units in flight.
    if algorithm != AlgorithmName::Concurrency {
        check_keys(raw, by.get_ref().as_slice()).map_err(|problem| source.error(&by.span(), problem))?;
    }
    let reader = Reader { source, raw, store };
    if algorithm == AlgorithmName::Concurrency {
        return KeyTable::read(source, by, "limits", limits, client_ip, |name, plan| reader.in_flight(name, plan))
            .map(Plans::InFlight);
    }
    #[cfg(feature = "calendar")]
    if let Some(unit) = calendar::unit(source, raw)? {
        return KeyTable::read(source, by, "limits", limits, client_ip, |name, plan| reader.window(unit, name, plan))
            .map(Plans::Windows);
    }
    KeyTable::read(source, by, "limits", limits, client_ip, |name, plan| reader.quota(name, plan)).map(Plans::Quotas)
}

/// Checks that the plan follows from the key, as far as the names show it. If two quotas apply to a key in turn, the
/// generous one forgives the units that the strict one has counted.
fn check_keys(raw: &RawPolicy, by: &[String]) -> Result<(), String> {
    let key = raw.key.as_ref().map_or(&[][..], |key| key.get_ref().as_slice());
    // A program's own key is not in the format.
    if key.is_empty() || KeySpec::parse(key).is_ok_and(|key| key.is_global()) {
        return Err("plans: without a key, requests of all plans share one budget; add a key, such as key = \
                    \"header:x-api-key\", or write a policy for each plan"
            .to_owned());
    }
    match by.iter().find(|part| matches!(part.as_str(), "path" | "method") && !key.contains(part)) {
        None => Ok(()),
        Some(part) => Err(format!(
            "plans: a key would have another limit with each {part}, and the generous one would forgive what the strict \
             one has counted; add {part} to key, or write a policy for each {part}"
        )),
    }
}

/// Reads single plans' limits.
struct Reader<'a> {
    source: &'a SourceText<'a>,
    raw: &'a RawPolicy,
    store: &'a StoreSpec,
}

impl Reader<'_> {
    fn quota(&self, name: &str, plan: &RawPlan) -> Result<Quota, ConfigError> {
        let Self { source, raw, .. } = self;
        let algorithm = raw.algorithm.value();
        if matches!(algorithm, AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow) {
            self.check_no_burst(plan)?;
        }
        let per = raw.per.as_ref().expect("the policy has a quota");
        let limit = number(source, "plan.limit", &plan.limit)?;
        let burst = plan.burst.as_ref().map(|burst| number(source, "plan.burst", burst)).transpose()?;
        let quota = set_if_some(quota(source, limit, "per", per)?, burst, Quota::burst);
        let at = plan.burst.as_ref().unwrap_or(&plan.limit);
        if algorithm == AlgorithmName::LeakyQueue {
            let queue = policy::queue(source, raw, quota)?;
            self.check_cost(name, at, || most_at_once(&store::checked_queue(queue)))?;
        } else {
            self.check_rate(name, at, policy::rate(raw, quota))?;
        }
        Ok(quota)
    }

    #[cfg(feature = "calendar")]
    fn window(&self, unit: calendar::CalendarUnit, name: &str, plan: &RawPlan) -> Result<CalendarWindow, ConfigError> {
        self.check_no_burst(plan)?;
        let limit = number(self.source, "plan.limit", &plan.limit)?;
        let window = calendar::window(self.source, self.raw, unit, limit)?;
        self.check_rate(name, &plan.limit, RateSpec::CalendarWindow(window.clone()))?;
        Ok(window)
    }

    fn in_flight(&self, name: &str, plan: &RawPlan) -> Result<u64, ConfigError> {
        self.check_no_burst(plan)?;
        let limit = policy::in_flight(self.source, &plan.limit, self.store)?;
        self.check_cost(name, &plan.limit, || Some(limit))?;
        Ok(limit)
    }

    fn check_no_burst(&self, plan: &RawPlan) -> Result<(), ConfigError> {
        let problem = "burst is for token-bucket, leaky-bucket and leaky-queue; remove it or choose that algorithm";
        plan.burst.as_ref().map_or(Ok(()), |burst| Err(self.source.error(&burst.span(), problem)))
    }

    /// Checks that the store keeps a plan's limit, and that the limit admits requests.
    fn check_rate(&self, name: &str, at: &Spanned<i64>, rate: RateSpec) -> Result<(), ConfigError> {
        self.store.check_fit(self.source, &rate, &at.span())?;
        self.check_cost(name, at, || most_at_once(&store::checked_limiter(rate)))
    }

    /// Checks that a request with the policy's fixed cost ever fits into a plan's limit.
    fn check_cost(
        &self,
        name: &str,
        at: &Spanned<i64>,
        most_at_once: impl FnOnce() -> Option<u64>,
    ) -> Result<(), ConfigError> {
        // A cost that is out of range is a separate mistake.
        let cost = self.raw.cost.as_ref().and_then(|cost| u64::try_from(*cost.get_ref()).ok());
        let Some(cost) = cost.filter(|cost| *cost > 1) else { return Ok(()) };
        let Some(most) = most_at_once().filter(|most| cost > *most) else { return Ok(()) };
        let problem = format!(
            "limits: a cost of {cost} never fits {name:?}, since {most} is the most that is ever admitted at once; lower \
             the cost, or raise the limit or its burst"
        );
        Err(self.source.error(&at.span(), problem))
    }
}

/// The greatest cost that a limiter admits.
fn most_at_once(limiter: &Arc<dyn Limiter>) -> Option<u64> {
    limiter.describe().max_cost()
}
