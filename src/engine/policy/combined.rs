//! `Policies`: several policies, and how they decide together.

use std::fmt;

use crate::engine::domain::{Domain, Http};
use crate::engine::policy::definition::Policy;
use crate::values::Formula;

/// Policies that decide on a request together: all of them, or alternatives.
///
/// An array or a `Vec` of policies admits a request if *all of* them have room for it, and then charges all of them.
/// [`or_else`](Self::or_else) makes alternatives: the first that has room is charged, and the others are not.
///
/// ```
/// use tower_sluice::algorithm::{CalendarWindow, FixedWindow};
/// use tower_sluice::key::{HeaderKey, User};
/// use tower_sluice::{MissingKey, Policy, Quota, RateLimitLayer};
///
/// // Each member of a team has 1,000 units a month. Then they share the team's 50,000, of which one of them takes at
/// // most 5,000.
/// let own = Policy::new("own", CalendarWindow::monthly(1_000)).key(User::key());
/// let pool = Policy::new("pool", CalendarWindow::monthly(50_000))
///     .key(HeaderKey::from_static("x-team"))
///     .on_missing_key(MissingKey::Skip);
/// let of_pool = Policy::new("of-pool", CalendarWindow::monthly(5_000)).key(User::key());
///
/// // And nobody sends more than ten requests a second.
/// let rate = Policy::new("rate", Quota::per_second(10)).key(User::key());
/// let layer = RateLimitLayer::new(rate.and(own.or_else(pool.and(of_pool))));
/// ```
///
/// # Which members are charged
///
/// Members are tried in their order. A member that has no room is passed over for the next, and one that is charged
/// returns its units if a member that is charged with it turns out to have none. A request is charged to one
/// alternative as a whole: with four units left in the first, a request of ten takes all of them from the second.
///
/// A policy that does [not apply](Policy::when) to a request is no alternative for it: the request needs the others. If
/// none applies, it passes. So does a [shadow](Policy::shadow), which is charged for each request that passes, and
/// decides on none. If the limiter of a member fails, its [failure mode](Policy::on_failure) decides whether it has
/// room. A [ban](Policy::penalty), or one by hand, closes one member, and not its alternatives.
///
/// # What clients see
///
/// A request is rejected if each alternative rejects it, with the *shortest* of their waits: after that time it is
/// admitted. (Of policies that all have to admit it, with the longest.) `RateLimit` reports the members that were
/// charged, and of a rejected request those that reject it. A client that waits when `RateLimit` says that nothing is
/// left never comes to the next alternative.
///
/// The [verdict](crate::Verdict) has the members that were charged, and those that were
/// [passed over](crate::rejection::PolicyVerdict::is_passed_over).
///
/// # Cost
///
/// In memory, a peek and a charge of each member that is charged, and a peek at each that is passed over. On one Redis
/// server, one round trip, whichever member is charged; if the keys are on several nodes or stores, one call for each
/// that is asked.
#[must_use]
pub struct Policies<D: Domain = Http> {
    pub(crate) policies: Vec<Policy<D>>,
    /// Its members are the indices of the policies.
    pub(crate) formula: Formula,
}

impl<D: Domain> Policy<D> {
    /// Requires that the other policies have room, too: both are charged, or neither is. As in an array, and for the
    /// parts of [alternatives](Self::or_else).
    pub fn and(self, others: impl IntoPolicies<D>) -> Policies<D> {
        self.into_policies().and(others)
    }

    /// Charges other policies in place of this one if it has no room: an included quota, say, and then the overage. See
    /// [`Policies`].
    #[doc(alias("overage", "alternative", "any of"))]
    pub fn or_else(self, others: impl IntoPolicies<D>) -> Policies<D> {
        self.into_policies().or_else(others)
    }
}

impl<D: Domain> Policies<D> {
    fn all_of(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::join(parts, Formula::All)
    }

    /// Parts of the same kind become one: a chain of a thousand alternatives is not a thousand levels deep.
    fn join(parts: impl IntoIterator<Item = Self>, combine: fn(Vec<Formula>) -> Formula) -> Self {
        let mut policies: Vec<Policy<D>> = Vec::new();
        let mut formulas = Vec::new();
        let kind = std::mem::discriminant(&combine(Vec::new()));
        for part in parts {
            let before = policies.len();
            let formula = if before == 0 { part.formula } else { part.formula.renumbered(&|member| before + member) };
            let is_same = std::mem::discriminant(&formula) == kind;
            match formula {
                Formula::All(parts) | Formula::Any(parts) if is_same => formulas.extend(parts),
                formula => formulas.push(formula),
            }
            if before == 0 { policies = part.policies } else { policies.extend(part.policies) }
        }
        Self { policies, formula: combine(formulas) }
    }

    /// Requires that the others have room, too: both are charged, or neither is.
    pub fn and(self, others: impl IntoPolicies<D>) -> Self {
        Self::all_of([self, others.into_policies()])
    }

    /// Charges the others in place of these, if these have no room.
    #[doc(alias("or", "any", "fallback", "overage", "alternative"))]
    pub fn or_else(self, others: impl IntoPolicies<D>) -> Self {
        Self::join([self, others.into_policies()], Formula::Any)
    }
}

impl<D: Domain> fmt::Debug for Policies<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("policies", &self.policies).field("formula", &self.formula).finish()
    }
}

/// One policy, or several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a policy, and no array or `Vec` of policies",
    note = "a quota, an algorithm or a limiter becomes a policy by a name, and mostly a key: \
            `Policy::new(\"per-client\", limiter).key(PeerIp::new())`, or in short `RateLimitLayer::per_client(limiter)`"
)]
pub trait IntoPolicies<D: Domain = Http> {
    /// The policies. They are charged and reported in this order, with three exceptions: policies in memory come
    /// first, delaying policies after rejecting ones, and shadows last.
    fn into_policies(self) -> Policies<D>;
}

impl<D: Domain> IntoPolicies<D> for Policies<D> {
    fn into_policies(self) -> Self {
        self
    }
}

impl<D: Domain> IntoPolicies<D> for Policy<D> {
    fn into_policies(self) -> Policies<D> {
        Policies { policies: vec![self], formula: Formula::Member(0) }
    }
}

/// All of them.
impl<D: Domain, P: IntoPolicies<D>, const N: usize> IntoPolicies<D> for [P; N] {
    fn into_policies(self) -> Policies<D> {
        Policies::all_of(self.map(P::into_policies))
    }
}

/// All of them.
impl<D: Domain, P: IntoPolicies<D>> IntoPolicies<D> for Vec<P> {
    fn into_policies(self) -> Policies<D> {
        Policies::all_of(self.into_iter().map(P::into_policies))
    }
}
