//! `Verdict`: all policies' decisions on one request.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::domain::Domain;
use crate::engine::policy::{Policy, Share};
use crate::values::{Decision, Exception, PartitionKey};

/// The decisions by all policies that applied to a request, and whether it was admitted. A layer with
/// [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) puts it into the extensions of admitted requests, for the
/// handler, and into those of all responses, for outer layers. Every [`Rejection`](crate::Rejection) has it.
///
/// With axum (crate feature `axum`), a handler takes it as an argument:
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use axum::{Router, routing::get};
/// use tower_sluice::algorithm::FixedWindow;
/// use tower_sluice::{Policy, Quota, RateLimitLayer, Verdict};
///
/// async fn usage(verdict: Verdict) -> String {
///     let left = verdict.policies().iter().map(|policy| (policy.name(), policy.decision().remaining()));
///     left.map(|(name, units)| format!("{name}: {units} left\n")).collect()
/// }
///
/// let policy = Policy::new("daily", FixedWindow::new(Quota::per_day(5_000)));
/// let layer = RateLimitLayer::builder(policy).verdict().build();
/// let app: Router = Router::new().route("/usage", get(usage)).layer(layer);
/// ```
///
/// If no layer adds it, such a request is answered 500, which is logged once; an `Option<Verdict>` is `None` then.
/// Without axum, take it from the extensions: `request.extensions().get::<Verdict>()`, or the same on the response.
///
/// The verdict in the request shows the decisions on arrival. If a charge is
/// [settled](crate::Policy::settle_by_handler) by the response, only the verdict in the response shows the settled
/// cost.
///
/// Policies appear in the order in which they are charged: as declared, except that policies in memory come first,
/// delaying policies after rejecting ones, and shadows last. Policies that one call to Redis decides are next to one
/// another, in any order. Only policies that have decided appear. A policy is missing if it was skipped, if its
/// limiter failed without a [local fallback](crate::FailureMode::LocalFallback), if it was not asked since the
/// request was rejected before, or if an [alternative](crate::policy::Policies) before it was charged. No policy
/// appears if the request lacks a key, or is an exempt CORS preflight.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    // One is stored inline, because most layers have one policy, and a verdict that waits for its response is behind a
    // pointer.
    policies: SmallVec<[PolicyVerdict; 1]>,
    is_rejected: bool,
}

/// One policy's decision.
#[derive(Clone, Debug)]
pub struct PolicyVerdict {
    name: Arc<str>,
    decision: Decision,
    shadow: bool,
    fell_back: bool,
    is_passed_over: bool,
    /// The key, if the request may have several for the policy.
    key: Option<Box<PartitionKey>>,
    /// The greatest share that the charge has crossed.
    crossed: Option<Share>,
}

impl Verdict {
    /// Each policy's decision, in the order in which they are charged, then the decisions by inner layers that attach
    /// their verdicts.
    #[must_use]
    pub fn policies(&self) -> &[PolicyVerdict] {
        &self.policies
    }

    pub(crate) fn new(policies: impl IntoIterator<Item = PolicyVerdict>) -> Self {
        let mut all = SmallVec::new();
        // Push one by one, because collecting into a `SmallVec` compiles to a large function for each iterator type.
        policies.into_iter().for_each(|policy| all.push(policy));
        Self { policies: all, is_rejected: false }
    }

    pub(crate) fn of_one(policy: PolicyVerdict) -> Self {
        Self { policies: SmallVec::from_buf([policy]), is_rejected: false }
    }

    /// Marks the request as rejected, by policies or for another reason.
    pub(crate) fn rejected(self) -> Self {
        Self { is_rejected: true, ..self }
    }

    /// The enforced policies that rejected the request. Empty if it was rejected for another
    /// [reason](crate::Rejection::reason), because it does not have a usable key, or a limiter could not decide.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyVerdict> {
        self.policies.iter().filter(|policy| !policy.shadow && !policy.is_passed_over && !policy.decision.is_allowed())
    }

    /// Whether the request was admitted, by this layer and by all inner layers that attach their verdicts. Otherwise a
    /// policy rejected it, it did not have a usable key, or a limiter could not decide and its policy fails closed.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        !self.is_rejected
    }

    /// Appends another verdict's decisions.
    pub(crate) fn append(&mut self, other: &Self) {
        self.policies.extend(other.policies.iter().cloned());
        self.is_rejected |= other.is_rejected;
    }
}

impl PolicyVerdict {
    /// `fell_back` says whether the local fallback made the decision.
    pub(crate) fn new<D: Domain>(policy: &Policy<D>, decision: Decision, fell_back: bool) -> Self {
        let name = Arc::clone(&policy.name);
        Self { name, decision, shadow: policy.shadow, fell_back, is_passed_over: false, key: None, crossed: None }
    }

    pub(crate) fn crossing(self, crossed: Option<Share>) -> Self {
        Self { crossed, ..self }
    }

    /// Sets the key, if the request has several.
    pub(crate) fn of_key(self, key: &PartitionKey) -> Self {
        Self { key: Some(Box::new(key.clone())), ..self }
    }

    /// The decision by a limiter that a handler has asked.
    pub(crate) const fn named(name: Arc<str>, decision: Decision) -> Self {
        Self { name, decision, shadow: false, fell_back: false, is_passed_over: false, key: None, crossed: None }
    }

    /// Marks the policy as [passed over](Self::is_passed_over).
    pub(crate) fn passed_over(self) -> Self {
        Self { is_passed_over: true, ..self }
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key on which it has decided, if a request may have [several](crate::key::KeyExtractor::extract_all) for the
    /// policy: there is a decision on each.
    #[must_use]
    pub fn key(&self) -> Option<&PartitionKey> {
        self.key.as_deref()
    }

    /// Its decision.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The key's ban, if it is banned: [by hand](crate::LimitsHandle::ban), with the operator's reason, or due to a
    /// [penalty](crate::Policy::penalty).
    #[must_use]
    pub fn ban(&self) -> Option<Exception> {
        self.decision.ban()
    }

    /// Whether it had no room, but an [alternative](crate::policy::Policies) has, so that it does not reject the
    /// request.
    #[must_use]
    pub const fn is_passed_over(&self) -> bool {
        self.is_passed_over
    }

    /// The greatest [share](crate::Policy::on_crossing) of its limit that the request's charge has crossed on arrival,
    /// whether or not that was reported. `None` if it has not crossed one, or the policy does not report crossings.
    #[must_use]
    pub fn crossed(&self) -> Option<f64> {
        self.crossed.map(Share::to_f64)
    }

    /// Whether its limiter failed, so that its [local fallback](crate::FailureMode::LocalFallback) decided.
    #[must_use]
    pub const fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Whether it is a [shadow](crate::Policy::shadow), which is not enforced.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }
}
