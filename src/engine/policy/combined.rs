//! `Policies`: several policies, and how they decide together.

use std::fmt;

use crate::engine::domain::{Domain, Http};
use crate::engine::policy::definition::Policy;
use crate::values::Formula;

/// Policies that decide on a request together: all of them, or alternatives.
///
/// An array or a `Vec` of policies admits a request if *all* have room for it, and then charges them all.
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
/// Members are tried in order. A member without room is passed over for the next. If two members are charged together
/// and the second turns out to have no room, the first is refunded. A request is charged to one alternative as a whole:
/// with four units left in the first, a request that costs ten takes all ten from the second.
///
/// A policy that does [not apply](Policy::when) to a request is not an alternative for it, so the request needs the
/// others. If no member applies, the request passes. A [shadow](Policy::shadow) is not an alternative either: it is
/// charged for each request that passes, and never decides. If a member's limiter fails, its [failure
/// mode](Policy::on_failure) decides whether it has room. A [ban](Policy::penalty), or one by hand, closes one member,
/// and not its alternatives.
///
/// # What clients see
///
/// A request is rejected if each alternative rejects it, with their *shortest* wait, because after that time it is
/// admitted. (Policies that all have to admit it give the longest wait.) `RateLimit` reports the members that were
/// charged, or, if the request is rejected, the members that reject it. A client that waits when `RateLimit` says that
/// nothing is left never comes to the next alternative.
///
/// The [verdict](crate::Verdict) has the members that were charged, and those that were
/// [passed over](crate::rejection::PolicyVerdict::is_passed_over).
///
/// # Cost
///
/// In memory, each charged member takes a peek and a charge, and each member that is passed over takes a peek. On one
/// Redis server, all members take one round trip. If the keys are on several nodes or stores, each that is asked takes
/// one call.
#[must_use]
pub struct Policies<D: Domain = Http> {
    pub(crate) policies: Vec<Policy<D>>,
    /// Its members are the policies' indices.
    pub(crate) formula: Formula,
}

impl<D: Domain> Policy<D> {
    /// Requires that the other policies have room, too: either both are charged, or nothing is. This is how an array
    /// works, but [alternatives](Self::or_else) may have such parts, too.
    pub fn and(self, others: impl IntoPolicies<D>) -> Policies<D> {
        self.into_policies().and(others)
    }

    /// Charges other policies in place of this one if it has no room, for example an overage after an included quota.
    /// See [`Policies`].
    #[doc(alias("overage", "alternative", "any of"))]
    pub fn or_else(self, others: impl IntoPolicies<D>) -> Policies<D> {
        self.into_policies().or_else(others)
    }
}

impl<D: Domain> Policies<D> {
    fn all_of(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::join(parts, Formula::All)
    }

    /// Parts of the same kind become one, so that a chain of a thousand alternatives is not a thousand levels deep.
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

    /// Requires that the others have room, too: either both are charged, or nothing is.
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

/// All have to admit a request.
impl<D: Domain, P: IntoPolicies<D>, const N: usize> IntoPolicies<D> for [P; N] {
    fn into_policies(self) -> Policies<D> {
        Policies::all_of(self.map(P::into_policies))
    }
}

/// All have to admit a request.
impl<D: Domain, P: IntoPolicies<D>> IntoPolicies<D> for Vec<P> {
    fn into_policies(self) -> Policies<D> {
        Policies::all_of(self.into_iter().map(P::into_policies))
    }
}
