//! The limits of a domain, from the file of another service: one policy for each rule.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::{KeyCharge, KeyError, KeyExtractor, Mark};
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::policy::PolicyError;
use tower_sluice::store::MemoryStore;
use tower_sluice::{Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead};
use tower_sluice_config::ConfigError;
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use super::asked::{Asked, Selection};
use super::brought::{self, Brought, BroughtLimits};
use super::proto::{Code, DescriptorStatus};
use crate::rules::{self, BROUGHT, Charging, Descriptor, Limit, Rule, Select, Selected};

/// Selects the policies of a request.
pub(crate) struct Selector {
    pub(super) domain: String,
    pub(super) charging: Charging,
    select: Box<dyn Select>,
    rules: Vec<RulePolicy>,
    /// The periods of the policies whose limit is zero.
    zeros: HashMap<Arc<str>, Duration>,
    /// Whether requests may bring limits.
    takes_limits: bool,
    /// The limiter of brought limits in the layer of the domain, which decides on all descriptors together.
    first: Arc<dyn Limiter>,
    /// The limits that requests bring, in a domain that decides on each descriptor by itself.
    pub(super) brought: Arc<BroughtLimits>,
}

/// What a selection needs of a rule.
struct RulePolicy {
    policy: Arc<str>,
    /// The name that the file gives to its limit.
    label: Option<String>,
    limit: Limit,
    is_quota: bool,
    is_shadow: bool,
    /// Kept for the next version of the file: an unchanged limit keeps its table. `None` without a limit.
    limiter: Option<Arc<dyn Limiter>>,
    /// The limit that the limiter was made for. One that becomes zero goes on counting as before, so that nothing is
    /// forgotten until it is opened again.
    made_for: Limit,
}

impl Selector {
    /// Makes the limits of a domain. `before` is the domain before its file was edited.
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
                    let limiter = limiter_of(&name, &rule.name, made_for, store);
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
        // No request is charged to the smallest one.
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

    /// Makes the policies: one for each rule with a limit, and that of brought limits.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        let mut policies: Vec<_> = self.rules.iter().filter_map(|rule| rule.policy(self.charging)).collect();
        // A layer needs a policy, even if it decides on nothing.
        if self.takes_limits && self.charging == Charging::AllOrNone || policies.is_empty() {
            policies.push(brought::policy(Arc::clone(&self.first)));
        }
        policies
    }

    /// The period of a policy whose limit is zero.
    pub(super) fn period_of_zero(&self, policy: &str) -> Option<Duration> {
        self.zeros.get(policy).copied()
    }

    /// The names of the rules with a limit, in order.
    pub(crate) fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter(|rule| rule.limiter.is_some()).map(|rule| &*rule.policy)
    }

    /// The names that the file gives to the limits of policies.
    pub(crate) fn labels(&self) -> HashMap<&str, &str> {
        let labels = self.rules.iter().filter_map(|rule| Some((&*rule.policy, rule.label.as_deref()?)));
        labels.collect()
    }

    /// Returns the rules for these descriptors. A limit that the request brings replaces that of the file.
    pub(super) fn select(&self, descriptors: &[Descriptor], brought: &[Option<Brought>]) -> Selections {
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
        // Two descriptors with one key are charged in the order of the request.
        selections.all.sort_by_key(|selection| selection.descriptor);
        selections
    }
}

/// The rules for the descriptors of a request.
#[derive(Debug, Default)]
pub(crate) struct Selections {
    /// In the order of the descriptors.
    pub(crate) all: Vec<Selection>,
    /// The descriptors whose rule has no limit.
    pub(crate) unlimited: Vec<usize>,
    /// The descriptors whose rule rejects a request only together with all others of this kind. One that is a shadow,
    /// too, is never over.
    pub(crate) quotas: Vec<usize>,
}

impl Selections {
    /// Whether a limit is over, or all quotas are.
    pub(super) fn reject(&self, statuses: &[DescriptorStatus]) -> bool {
        let is_over = |descriptor: usize| statuses[descriptor].code() == Code::OverLimit;
        let mut limits = (0..statuses.len()).filter(|descriptor| !self.quotas.contains(descriptor));
        limits.any(is_over) || !self.quotas.is_empty() && self.quotas.iter().all(|quota| is_over(*quota))
    }

    /// The descriptors, of so many, that no rule counts.
    pub(super) fn without_rule(&self, count: usize) -> impl Iterator<Item = usize> {
        let has_rule = |descriptor: &usize| {
            self.unlimited.contains(descriptor) || self.all.iter().any(|it| it.descriptor == *descriptor)
        };
        (0..count).filter(move |descriptor| !has_rule(descriptor))
    }
}

/// Where the budgets are.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    /// In memory, with so many keys of each rule.
    Memory {
        max_keys: usize,
    },
    Redis(Redis),
}

impl Store {
    /// # Errors
    ///
    /// If Redis cannot keep the quota.
    pub(super) fn limiter<A: Scripted>(&self, algorithm: A, name: &str) -> Result<Arc<dyn Limiter>, String> {
        match self {
            Self::Memory { max_keys } => {
                Ok(RateLimiter::new(algorithm, MemoryStore::with_capacity(*max_keys)).into_limiter())
            }
            Self::Redis(redis) => {
                algorithm.fits().map_err(|problem| problem.to_string())?;
                Ok(RateLimiter::new(algorithm, RedisStore::new(redis, name)).into_limiter())
            }
        }
    }
}

/// Sets up the layer of a domain. It sends no `RateLimit` fields: `RateLimit-Policy` would list all rules of the file.
pub(crate) fn layer(name: &str, policies: Vec<Policy>) -> Result<RateLimitLayer, PolicyError> {
    RateLimitLayer::builder(policies).route(name).fields(RateLimitFields::none()).verdict().try_build()
}

/// `None` for a rule without a limit.
fn limiter_of(domain: &str, rule: &str, limit: Limit, store: &Store) -> Result<Option<Arc<dyn Limiter>>, String> {
    let name = format!("{rule}@{domain}");
    Ok(Some(match limit {
        Limit::Unlimited => return Ok(None),
        Limit::Zero { period } => store.limiter(FixedWindow::new(Quota::per(1, period)), &name)?,
        Limit::Rate { quota, algorithm } => match algorithm {
            rules::Algorithm::TokenBucket => store.limiter(TokenBucket::new(quota), &name)?,
            rules::Algorithm::LeakyBucket => store.limiter(LeakyBucket::new(quota), &name)?,
            rules::Algorithm::FixedWindow => store.limiter(FixedWindow::new(quota), &name)?,
            rules::Algorithm::SlidingWindow => store.limiter(SlidingWindow::new(quota), &name)?,
        },
    }))
}

impl RulePolicy {
    /// `None` for a rule without a limit.
    fn policy(&self, charging: Charging) -> Option<Policy> {
        let policy = Policy::new(&*self.policy, Arc::clone(self.limiter.as_ref()?));
        let policy = policy.key(RuleKey(Arc::clone(&self.policy)));
        let is_closed = matches!(self.limit, Limit::Zero { .. });
        let policy = if is_closed { policy.quota_fn(|_| Some(Quota::suspended())) } else { policy };
        // A quota rejects nothing by itself, so that it must not keep others from being charged with it.
        let is_shadow = self.is_shadow || self.is_quota && charging == Charging::AllOrNone;
        Some(if is_shadow { policy.shadow() } else { policy })
    }
}

/// Charges the descriptors that were selected for the policy of this name.
pub(super) struct RuleKey(pub(super) Arc<str>);

impl RuleKey {
    fn selected<'a>(&'a self, asked: &'a Asked) -> impl Iterator<Item = &'a Selection> {
        asked.selected.iter().filter(|selection| *selection.policy == *self.0)
    }
}

/// The error of a request that is none of Envoy's protocol.
pub(super) fn missing() -> KeyError {
    KeyError::Missing { what: Cow::Borrowed("a descriptor of Envoy's rate limit service") }
}

pub(super) fn asked<'a>(head: &'a RequestHead<'_>) -> Result<&'a Arc<Asked>, KeyError> {
    head.extensions().get::<Arc<Asked>>().ok_or_else(missing)
}

impl KeyExtractor for RuleKey {
    fn marks(&self) -> Vec<Mark> {
        vec![Mark::of(&*self.0)]
    }

    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        self.selected(asked(head)?).next().map(|selection| selection.key.clone()).ok_or_else(missing)
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, head: &RequestHead<'_>) -> Result<Vec<KeyCharge>, KeyError> {
        let asked = asked(head)?;
        let mut selected = self.selected(asked).peekable();
        if selected.peek().is_none() {
            return Ok(Vec::new());
        }
        Ok(asked.charge(
            &self.0,
            selected.map(|it| (it.descriptor, it.key.clone(), it.brought.map(|brought| brought.quota))),
        ))
    }
}
