//! `Verdict`: the decisions of all policies on one request.

use std::sync::Arc;

use http::Extensions;
use smallvec::SmallVec;

use crate::http::policy::Policy;
use crate::values::Decision;

/// The decisions of all policies that applied to a request. A layer with
/// [`verdict`](crate::RateLimitLayerBuilder::verdict) attaches it to the extensions of all responses; every
/// [`Rejection`](crate::Rejection) has it.
///
/// ```
/// # fn show<B>(response: &http::Response<B>) {
/// if let Some(verdict) = response.extensions().get::<tower_sluice::Verdict>() {
///     for policy in verdict.policies() {
///         println!("{}: {} left", policy.name(), policy.decision().remaining());
///     }
/// }
/// # }
/// ```
///
/// Policies appear in the order in which they are charged: as declared, but those in memory first, those that
/// delay after those that reject, and shadows last. Skipped policies do not appear.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    policies: SmallVec<[PolicyVerdict; 1]>,
}

/// The decision of one policy.
#[derive(Clone, Debug)]
pub struct PolicyVerdict {
    name: Arc<str>,
    decision: Decision,
    shadow: bool,
    fell_back: bool,
}

impl Verdict {
    /// The decision of each policy.
    #[must_use]
    pub fn policies(&self) -> &[PolicyVerdict] {
        &self.policies
    }

    /// The enforced policies that rejected the request.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyVerdict> {
        self.policies.iter().filter(|policy| !policy.shadow && !policy.decision.is_allowed())
    }

    /// Whether the request passed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.violated().next().is_none()
    }

    /// Attaches it to a response, in front of the verdict of an inner layer.
    pub(crate) fn insert_into(mut self, extensions: &mut Extensions) {
        if let Some(inner) = extensions.remove::<Self>() {
            self.policies.extend(inner.policies);
        }
        extensions.insert(self);
    }
}

/// Collects decisions. The flag says whether the local fallback decided.
impl<'a> FromIterator<(&'a Policy, Decision, bool)> for Verdict {
    fn from_iter<I: IntoIterator<Item = (&'a Policy, Decision, bool)>>(decided: I) -> Self {
        let of = |(policy, decision, fell_back): (&Policy, _, _)| PolicyVerdict {
            name: Arc::clone(policy.shared_name()),
            decision,
            shadow: policy.is_shadow(),
            fell_back,
        };
        Self { policies: decided.into_iter().map(of).collect() }
    }
}

impl PolicyVerdict {
    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its decision.
    pub const fn decision(&self) -> &Decision {
        &self.decision
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
