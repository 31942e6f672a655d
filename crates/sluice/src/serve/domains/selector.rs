//! A domain's limits, from another service's file: one policy for each rule.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::direct::On;
use tower_sluice::{Limiter, Policy, Quota};
use tower_sluice_config::ConfigError;

use super::brought::{self, BroughtLimits};
use super::store::Store;
use crate::descriptors::{Asked, Brought, RuleKey, Selection};
use crate::rules::{self, BROUGHT, Charging, Descriptor, Limit, Rule, Select, Selected};

/// Selects a request's policies.
pub(crate) struct Selector {
    pub(crate) domain: String,
    pub(crate) charging: Charging,
    select: Box<dyn Select>,
    rules: Vec<RulePolicy>,
    /// The periods for policies whose limit is zero.
    zeros: HashMap<Arc<str>, Duration>,
    /// Whether requests may bring limits.
    takes_limits: bool,
    /// The limiter for brought limits in the domain's layer, which decides on all descriptors together.
    first: Arc<dyn Limiter>,
    /// The limits that requests bring, in a domain that decides on each descriptor by itself.
    pub(crate) brought: Arc<BroughtLimits>,
}

/// The parts of a rule that a selection needs.
struct RulePolicy {
    policy: Arc<str>,
    /// The name that the file gives to its limit.
    label: Option<String>,
    limit: Limit,
    is_quota: bool,
    is_shadow: bool,
    /// Kept for the file's next version, so an unchanged limit keeps its table. `None` if there is no limit.
    limiter: Option<Arc<dyn Limiter>>,
    /// The limit that the limiter was made for. If the limit becomes zero, the limiter goes on counting as before, so
    /// that nothing is forgotten until the limit is opened again.
    made_for: Limit,
}

impl Selector {
    /// Makes a domain's limits. `before` is the domain before its file was edited.
    ///
    /// # Errors
    ///
    /// If the store cannot keep a limit.
    pub(crate) fn new(domain: rules::Domain, store: &Store, before: Option<&Self>) -> Result<Self, ConfigError> {
        let rules::Domain { name, rules, select, charging, takes_limits, file, line } = domain;
        let error = |line: usize, problem: String| ConfigError::new(&file, line, problem);
        let kept = before.into_iter().flat_map(|before| &before.rules).map(|rule| (&*rule.policy, rule));
        let kept: HashMap<&str, &RulePolicy> = kept.collect();
        let mut selected = Vec::with_capacity(rules.len());
        for rule in rules {
            let kept = kept.get(&*rule.name);
            let made_for = match (kept, rule.limit) {
                (Some(kept), Limit::Zero { .. }) if kept.made_for != Limit::Unlimited => kept.made_for,
                (_, limit) => limit,
            };
            let limiter = match kept.filter(|kept| kept.limit == rule.limit) {
                Some(kept) => kept.limiter.clone(),
                None => {
                    let limiter = store.limiter_of(&name, &rule.name, made_for);
                    limiter.map_err(|problem| error(rule.line, problem))?
                }
            };
            let Rule { name, label, who: _, limit, is_shadow, is_quota, line: _ } = rule;
            selected.push(RulePolicy { policy: name.into(), label, limit, is_quota, is_shadow, limiter, made_for });
        }
        let brought = match before {
            None => Arc::new(BroughtLimits::new(name.clone(), store.clone())),
            Some(before) => Arc::clone(&before.brought),
        };
        // A table with one key suffices, because no request is charged to it.
        let is_small = !takes_limits || charging == Charging::Each;
        let store = if is_small { &Store::Memory { max_keys: 1 } } else { store };
        let zeros = selected.iter().filter_map(|rule| match rule.limit {
            Limit::Zero { period } => Some((Arc::clone(&rule.policy), period)),
            Limit::Unlimited | Limit::Rate { .. } => None,
        });
        let zeros = zeros.collect();
        let first = brought::limiter(&name, store).map_err(|problem| error(line, problem))?;
        Ok(Self { domain: name, charging, select, rules: selected, zeros, takes_limits, first, brought })
    }

    /// Makes the policies: one for each rule with a limit, and one for brought limits.
    pub(crate) fn policies(&self) -> Vec<Policy<On<Asked>>> {
        let mut policies: Vec<_> = self.rules.iter().filter_map(|rule| rule.policy(self.charging)).collect();
        // A layer needs a policy, even if it decides on nothing.
        if self.takes_limits && self.charging == Charging::AllOrNone || policies.is_empty() {
            policies.push(brought::policy(Arc::clone(&self.first)));
        }
        policies
    }

    /// The period for a policy whose limit is zero.
    pub(super) fn period_of_zero(&self, policy: &str) -> Option<Duration> {
        self.zeros.get(policy).copied()
    }

    /// The names of rules that have a limit, in order.
    pub(crate) fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter(|rule| rule.limiter.is_some()).map(|rule| &*rule.policy)
    }

    /// The names that the file gives to the policies' limits.
    pub(crate) fn labels(&self) -> HashMap<&str, &str> {
        let labels = self.rules.iter().filter_map(|rule| Some((&*rule.policy, rule.label.as_deref()?)));
        labels.collect()
    }

    /// Returns the rules for these descriptors. A limit that the request brings replaces the file's.
    pub(crate) fn select(&self, descriptors: &[Descriptor], brought: &[Option<Brought>]) -> Selections {
        let brought = |descriptor: usize| brought[descriptor].filter(|_| self.takes_limits);
        let mut selections = Selections::default();
        for Selected { descriptor, rule, key } in self.select.select(descriptors) {
            if brought(descriptor).is_some() {
                continue;
            }
            let rule = &self.rules[rule];
            if rule.limit == Limit::Unlimited {
                selections.unlimited.push(descriptor);
                continue;
            }
            if rule.is_quota {
                selections.quotas.push(descriptor);
            }
            selections.all.push(Selection {
                descriptor,
                policy: Arc::clone(&rule.policy),
                key,
                is_quota: rule.is_quota && !rule.is_shadow,
                is_fixed_window: matches!(
                    rule.limit,
                    Limit::Zero { .. } | Limit::Rate { algorithm: rules::Algorithm::FixedWindow, .. }
                ),
                brought: None,
            });
        }
        for (index, descriptor) in descriptors.iter().enumerate() {
            if let Some(brought) = brought(index) {
                selections.all.push(Selection {
                    descriptor: index,
                    policy: BROUGHT.into(),
                    key: descriptor.key(),
                    is_quota: false,
                    is_fixed_window: true,
                    brought: Some(brought),
                });
            }
        }
        // Two descriptors with one key are charged in the request's order.
        selections.all.sort_by_key(|selection| selection.descriptor);
        selections
    }
}

/// The rules for a request's descriptors.
#[derive(Debug, Default)]
pub(crate) struct Selections {
    /// In the descriptors' order.
    pub(crate) all: Vec<Selection>,
    /// The descriptors whose rule has no limit.
    pub(crate) unlimited: Vec<usize>,
    /// The descriptors whose rule is a quota: it rejects a request only if all such rules do. A quota that is a shadow,
    /// too, is never over.
    pub(crate) quotas: Vec<usize>,
}

impl Selections {
    /// Whether a limit is over, or all quotas are. There are `count` descriptors.
    pub(crate) fn reject(&self, count: usize, is_over: impl Fn(usize) -> bool) -> bool {
        let mut limits = (0..count).filter(|descriptor| !self.quotas.contains(descriptor));
        limits.any(&is_over) || !self.quotas.is_empty() && self.quotas.iter().all(|quota| is_over(*quota))
    }

    /// Returns which of the first `count` descriptors no rule counts.
    pub(crate) fn without_rule(&self, count: usize) -> impl Iterator<Item = usize> {
        let has_rule = |descriptor: &usize| {
            self.unlimited.contains(descriptor) || self.all.iter().any(|it| it.descriptor == *descriptor)
        };
        (0..count).filter(move |descriptor| !has_rule(descriptor))
    }
}

impl RulePolicy {
    /// `None` for a rule without a limit.
    fn policy(&self, charging: Charging) -> Option<Policy<On<Asked>>> {
        let policy = Policy::on(&*self.policy, Arc::clone(self.limiter.as_ref()?));
        let policy = policy.key(RuleKey(Arc::clone(&self.policy)));
        let is_closed = matches!(self.limit, Limit::Zero { .. });
        let policy = if is_closed { policy.quota_fn(|_| Some(Quota::suspended())) } else { policy };
        // A quota alone rejects nothing, so it must not keep others from being charged.
        let is_shadow = self.is_shadow || self.is_quota && charging == Charging::AllOrNone;
        Some(if is_shadow { policy.shadow() } else { policy })
    }
}
