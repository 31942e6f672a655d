//! The limits of a domain, from the file of another service: one policy for each rule.

use std::borrow::Cow;
use std::sync::Arc;

use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::config::ConfigError;
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::{KeyCharge, KeyError, KeyExtractor};
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::policy::PolicyError;
use tower_sluice::store::MemoryStore;
use tower_sluice::store::redis::{Redis, RedisStore, Scripted};
use tower_sluice::{Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead};

use super::asked::{Asked, Selection};
use crate::rules::{self, Descriptor, Limit, Rule, Select, Unit};

/// Selects the policies of a request.
#[derive(Debug)]
pub(crate) struct Selector {
    select: Box<dyn Select>,
    rules: Vec<RulePolicy>,
}

/// What a selection needs of a rule.
#[derive(Debug)]
struct RulePolicy {
    policy: Arc<str>,
    /// The name that the file gives to its limit.
    label: Option<String>,
    is_unlimited: bool,
    /// Whether it rejects a request only together with all others of this kind.
    rejects_with_others: bool,
}

/// The policy for limits that requests bring. No rule has this name, since theirs are made of a key at least.
const BROUGHT: &str = "request.limit";

impl Selector {
    /// The name that the file gives to the limit of a policy.
    pub(crate) fn label(&self, policy: &str) -> Option<&str> {
        self.rules.iter().find(|rule| *rule.policy == *policy)?.label.as_deref()
    }

    /// Returns the rules for these descriptors. A limit that the request brings replaces that of the file.
    pub(crate) fn select(&self, descriptors: &[Descriptor], brought: &[Option<Quota>]) -> Selections {
        let mut selections = Selections::default();
        for selected in self.select.select(descriptors) {
            if brought[selected.descriptor].is_some() {
                continue;
            }
            let rule = &self.rules[selected.rule];
            if rule.is_unlimited {
                selections.unlimited.push(selected.descriptor);
                continue;
            }
            if rule.rejects_with_others {
                selections.quotas.push(selected.descriptor);
            }
            let policy = Arc::clone(&rule.policy);
            selections.all.push(Selection { descriptor: selected.descriptor, policy, key: selected.key, quota: None });
        }
        for (descriptor, quota) in brought.iter().enumerate().filter(|(_, quota)| quota.is_some()) {
            let key = descriptors[descriptor].key();
            selections.all.push(Selection { descriptor, policy: BROUGHT.into(), key, quota: *quota });
        }
        selections
    }
}

/// The rules for the descriptors of a request.
#[derive(Debug, Default)]
pub(crate) struct Selections {
    pub(crate) all: Vec<Selection>,
    /// The descriptors whose rule has no limit.
    pub(crate) unlimited: Vec<usize>,
    /// The descriptors whose rule rejects a request only together with all others of this kind.
    pub(crate) quotas: Vec<usize>,
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
    fn limiter<A: Scripted>(&self, algorithm: A, name: &str) -> Result<Arc<dyn Limiter>, String> {
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

/// Makes the policies of a domain, and what selects them.
///
/// # Errors
///
/// If the store cannot keep a limit.
pub(crate) fn policies(domain: rules::Domain, store: &Store) -> Result<(Vec<Policy>, Selector), ConfigError> {
    let of_line = |line: usize| {
        let file = domain.file.clone();
        move |problem: String| ConfigError::new(file, line, problem)
    };
    let brought = policy_of_brought_limits(&domain.name, store).map_err(of_line(domain.line))?;
    let mut policies = vec![brought];
    let mut rules = Vec::new();
    for rule in domain.rules {
        let is_unlimited = rule.limit == Limit::Unlimited;
        let policy: Arc<str> = rule.name.as_str().into();
        policies.extend(policy_of(&domain.name, &rule, store).map_err(of_line(rule.line))?);
        rules.push(RulePolicy {
            policy,
            label: rule.label,
            is_unlimited,
            rejects_with_others: rule.is_quota && !rule.is_shadow,
        });
    }
    Ok((policies, Selector { select: domain.select, rules }))
}

/// Sets up the layer of a domain. It sends no `RateLimit` fields: `RateLimit-Policy` would list all rules of the file.
pub(crate) fn layer(name: &str, policies: Vec<Policy>) -> Result<RateLimitLayer, PolicyError> {
    RateLimitLayer::builder(policies).route(name).fields(RateLimitFields::none()).verdict().try_build()
}

/// `None` for a rule without a limit.
fn policy_of(domain: &str, rule: &Rule, store: &Store) -> Result<Option<Policy>, String> {
    let name = format!("{}@{domain}", rule.name);
    let (limiter, is_closed) = match rule.limit {
        Limit::Unlimited => return Ok(None),
        Limit::Zero { period } => (store.limiter(FixedWindow::new(Quota::per(1, period)), &name)?, true),
        Limit::Rate { quota, algorithm } => (limiter(quota, algorithm, store, &name)?, false),
    };
    let policy = Policy::new(rule.name.as_str(), limiter).key(RuleKey(rule.name.as_str().into()));
    let policy = if is_closed { policy.quota_fn(|_| Some(Quota::suspended())) } else { policy };
    // A quota rule rejects nothing by itself.
    Ok(Some(if rule.is_shadow || rule.is_quota { policy.shadow() } else { policy }))
}

fn limiter(quota: Quota, algorithm: rules::Algorithm, store: &Store, name: &str) -> Result<Arc<dyn Limiter>, String> {
    match algorithm {
        rules::Algorithm::TokenBucket => store.limiter(TokenBucket::new(quota), name),
        rules::Algorithm::LeakyBucket => store.limiter(LeakyBucket::new(quota), name),
        rules::Algorithm::FixedWindow => store.limiter(FixedWindow::new(quota), name),
        rules::Algorithm::SlidingWindow => store.limiter(SlidingWindow::new(quota), name),
    }
}

/// Each key has the quota that its requests bring. As in the rules of the file, that is a fixed window.
fn policy_of_brought_limits(domain: &str, store: &Store) -> Result<Policy, String> {
    let limiter = store.limiter(FixedWindow::new(Quota::per_second(1)), &format!("{BROUGHT}@{domain}"))?;
    Ok(Policy::new(BROUGHT, limiter).key(RuleKey(BROUGHT.into())).quota_fn(|_| None))
}

/// The quota of a limit that a request brings; `None` if its unit is unknown.
pub(crate) fn brought_quota(requests_per_unit: u32, unit: i32) -> Option<Quota> {
    let unit = Unit::from_number(unit)?;
    Some(match requests_per_unit {
        0 => Quota::suspended(),
        limit => Quota::try_per(limit.into(), unit.period()).ok()?,
    })
}

/// Charges the descriptors that were selected for the policy of this name.
struct RuleKey(Arc<str>);

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
        Ok(asked.charge(&self.0, selected.map(|it| (it.descriptor, it.key.clone(), it.quota))))
    }
}
