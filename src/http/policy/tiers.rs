//! `Tiers`: one policy per plan of users.

use std::fmt;
use std::sync::Arc;

use super::choice::Choose;
use super::{IntoPolicies, Policy};
use crate::http::head::RequestHead;

/// Policies of which exactly one applies to each request, by the plan of its user.
///
/// `RateLimit-Policy` lists all of them, and `RateLimit` the one that applied.
///
/// Each policy has its own budgets: a user that moves to another plan starts there with a full budget. So a client that
/// can switch plans at will gets the budget of each of them. Take the plan from what the server knows about the user,
/// not from a field that the client sets.
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::{PeerIp, User};
/// use tower_sluice::{Policy, Quota, RateLimitLayer, Tiers};
///
/// /// An extension, which the authentication layer attaches to requests.
/// #[derive(Clone, PartialEq)]
/// enum Plan {
///     Free,
///     Paid,
/// }
///
/// let per_minute = |requests| TokenBucket::new(Quota::per_minute(requests));
/// let layer = RateLimitLayer::new(
///     Tiers::new(
///         |request| request.extensions().get::<Plan>().cloned(),
///         // Requests without a plan.
///         Policy::new("anonymous", per_minute(10)).key(PeerIp::new()),
///     )
///     .tier(Some(Plan::Free), Policy::new("free", per_minute(60)).key(User::key()))
///     .tier(Some(Plan::Paid), Policy::new("paid", per_minute(6_000)).key(User::key())),
/// );
/// ```
///
/// # Consistency
///
/// The plan is looked up once per request. So exactly one policy is chosen, even if the plan changes meanwhile.
///
/// # Cost
///
/// One call of the function that returns the plan per request, and at most one comparison per plan.
#[must_use]
pub struct Tiers<T> {
    plan_of: PlanOf<T>,
    plans: Vec<T>,
    policies: Vec<Policy>,
    otherwise: Policy,
}

type PlanOf<T> = Box<dyn Fn(&RequestHead<'_>) -> T + Send + Sync>;

impl<T: PartialEq + Send + Sync + 'static> Tiers<T> {
    /// Makes tiers. The policy of the [tier](Self::tier) that `plan_of` returns applies to a request, or `otherwise` if
    /// there is no such tier.
    pub fn new(plan_of: impl Fn(&RequestHead<'_>) -> T + Send + Sync + 'static, otherwise: Policy) -> Self {
        Self { plan_of: Box::new(plan_of), plans: Vec::new(), policies: Vec::new(), otherwise }
    }

    /// Adds the policy of a plan. If it has a [condition](Policy::when) that a request of this plan does not meet, no
    /// policy applies to that request.
    ///
    /// # Panics
    ///
    /// If the plan has a policy already.
    #[track_caller]
    pub fn tier(mut self, plan: T, policy: Policy) -> Self {
        assert!(
            self.plans.iter().all(|other| *other != plan),
            "policy `{}` is for a plan that has a policy already",
            policy.name()
        );
        self.plans.push(plan);
        self.policies.push(policy);
        self
    }
}

impl<T: PartialEq + Send + Sync + 'static> IntoPolicies for Tiers<T> {
    fn into_policies(self) -> Vec<Policy> {
        let Self { plan_of, plans, mut policies, otherwise } = self;
        policies.push(otherwise);
        let choose: Choose = Arc::new(move |head| {
            let plan = plan_of(head);
            // `otherwise` follows the last plan.
            plans.iter().position(|other| *other == plan).unwrap_or(plans.len())
        });
        policies.into_iter().enumerate().map(|(index, policy)| policy.chosen_by(&choose, index)).collect()
    }
}

// By hand, since closures have no `Debug`, and plans need none.
impl<T> fmt::Debug for Tiers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiers").field("policies", &self.policies).field("otherwise", &self.otherwise).finish()
    }
}
