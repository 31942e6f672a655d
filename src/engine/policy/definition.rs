//! The definition of a policy: its fields, the setters of its options but for [charges](super::charges), and the
//! questions that a layer asks about them.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::engine::domain::{Domain, Http};
use crate::engine::key::{KeyCharge, KeyExtractor};
use crate::engine::policy::bans::Penalty;
use crate::engine::policy::billing::{Bill, Billing};
use crate::engine::policy::costs::Costs;
use crate::engine::policy::facts::{Fact, Options};
use crate::engine::policy::lineage::Lineage;
use crate::engine::policy::offender_record::{OffenderRecord, ShowKey, TrackedOffenders};
use crate::engine::policy::precedence::{Precedence, PrecedenceOf};
use crate::engine::policy::selector::{MissingKey, Selector};
use crate::engine::policy::shares::WatchedShares;
use crate::engine::policy::transitions::Hook;
use crate::limiter::{IntoLimiter, Limiter};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Description, FailureMode, PartitionKey, Quota, Terms};

/// A quota policy: a name, a limiter, a key, a cost and conditions.
///
/// ```
/// use tower_sluice::key::{HeaderKey, PeerIp};
/// use tower_sluice::{MissingKey, Policy, Quota, SlidingWindow};
///
/// let per_client = Policy::new("per-client", Quota::per_second(10).burst(20)).key(PeerIp::new());
///
/// let writes = Policy::new("writes", SlidingWindow::new(Quota::per_hour(1_000)))
///     .key(HeaderKey::from_static("x-api-key"))
///     .on_missing_key(MissingKey::Skip)
///     .when(|request| request.method() == http::Method::POST)
///     .cost_fn(|request| if request.uri().path() == "/import" { 50 } else { 1 });
/// ```
///
/// Without a [`key`](Self::key), all clients share one budget.
///
/// # What options read
///
/// A policy that [`new`](Self::new) makes decides on HTTP requests: `D` is [`Http`](crate::direct::Http), a subject is
/// a [`RequestHead`](crate::RequestHead), and an outcome is the [head of a response](crate::policy::ResponseHead). One
/// that [`on`](Self::on) makes decides on [values of the program's own](crate::direct::Limits).
///
/// # Combinations
///
/// The order of the options does not matter, and if a setter is called twice, the later call counts. Some options
/// exclude each other, or do not work with some limiters. For these,
/// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) returns an error that names the cure
/// ([`PolicyError::Conflict`](crate::policy::PolicyError::Conflict)). The repository has the
/// [table of all pairs](https://github.com/tower-sluice/tower-sluice/blob/main/docs/policy_options.md).
#[must_use]
#[doc(alias = "rule")]
pub struct Policy<D: Domain = Http> {
    pub(crate) name: Arc<str>,
    pub(crate) limiter: Arc<dyn Limiter>,
    /// The limiter's description of itself: the modes that it answers, and its terms.
    pub(crate) description: Description,
    /// Whether the policy is a shadow: it only reports, and rejects no request.
    pub(crate) shadow: bool,
    /// How a request is treated if the limiter fails.
    pub(crate) on_failure: FailureMode,
    /// The status of rejections, if it was set.
    pub(crate) status: Option<NonZeroU16>,
    /// The requests to which the policy applies, and their keys.
    pub(crate) selector: Selector<D>,
    /// The cost of a request when it comes, and the quota of its key.
    pub(super) costs: Costs<D>,
    /// The class of a request and the weight of its key, if its limiter sheds.
    pub(super) precedence: PrecedenceOf<D>,
    /// The final cost, debts, and free retries.
    pub(crate) billing: Billing<D>,
    /// The state that the next policy of the same name takes over: counts, metrics, bans.
    pub(crate) lineage: Lineage,
    /// The hook of the layer, once the policy is in one.
    pub(crate) hook: Option<Hook<Self>>,
    /// The shares of its limits at which it reports crossings.
    pub(super) watched: WatchedShares,
    /// The options that were set, for the rules about their combinations.
    pub(super) options: Options,
}

impl<D: Domain> Policy<D> {
    /// Makes a policy of any domain.
    pub(crate) fn make(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        let name = name.into();
        let limiter = limiter.into_limiter();
        let description = limiter.describe();
        Self {
            lineage: Lineage::new(Arc::clone(&name), description.delays()),
            name,
            limiter,
            description,
            shadow: false,
            on_failure: FailureMode::default(),
            status: None,
            selector: Selector::everybody(),
            costs: Costs::new(),
            precedence: PrecedenceOf::default(),
            billing: Billing::default(),
            hook: None,
            watched: WatchedShares::default(),
            options: Options::default(),
        }
    }

    /// Sets the extractor of the key: requests with the same key share a budget. If the first 1,000 requests have the
    /// same key, although the extractor [distinguishes clients](KeyExtractor::is_shared), a warning is logged once.
    pub fn key(mut self, key: impl KeyExtractor<D>) -> Self {
        self.selector.set_key(key);
        self
    }

    /// Bans a key that keeps sending after being rejected. While it is banned, every request is rejected, regardless of
    /// remaining quota: with 429 unless a [`status`](Self::status) is set, and the problem type
    /// `#abnormal-usage-detected`. The advertised wait covers the ban and the limits of all policies.
    ///
    /// A [shadow](Self::shadow) bans no key. A key that clients share is never banned, since one of them could lock out
    /// the others: [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects a penalty on a policy without a
    /// [`key`](Self::key) or with [`MissingKey::Share`].
    #[doc(alias("ban", "block"))]
    pub fn penalty(self, penalty: Penalty) -> Self {
        self.with_option(Fact::Penalty, |policy| policy.lineage.penalty = Some(penalty))
    }

    /// Tracks the keys that are rejected most, for [`LimitsHandle::offenders`](crate::LimitsHandle::offenders). Off
    /// unless set, because it stores the names of clients. `show` decides how they may be shown. The
    /// [guide](crate::guide::monitoring#who-is-limited) has a complete example.
    ///
    /// ```
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::policy::ShowKey;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// let policy = Policy::new("api", Quota::per_second(10)).key(PeerIp::new()).track_offenders(ShowKey::hash());
    /// ```
    ///
    /// All rejections of a key by this policy count, also for a ban, for a debt, and by the local fallback. The
    /// rejections that a [shadow](Self::shadow) would make count, too. Counts survive live changes, unless the policy
    /// becomes a shadow or stops being one.
    ///
    /// # Accuracy
    ///
    /// The list covers the present hour and the one before, in UTC. It is a Space-Saving sketch (A. Metwally, D.
    /// Agrawal, A. El Abbadi, ICDT 2005) with 128 counters per hour. A count is never too low, and too high by its
    /// [error](crate::policy::Offender::error) at most, which is at most 1/128 of all rejections in the two hours.
    /// Every key with more rejections than that is listed.
    ///
    /// # Cost
    ///
    /// A rejection takes 35 to 50 ns more (4 to 6 %), or 100 ns in a flood of fresh keys, and never waits for another
    /// thread. Without the feature `fast-clock`, the system's clock adds 20 ns. An admitted request costs nothing.
    ///
    /// An hour takes 14 KiB of memory, and up to eight times as much if many threads reject requests. A key of more
    /// than 46 bytes adds its length, 256 bytes at most. Keys stay in this process's memory, and only the text that
    /// `show` makes of a key leaves it.
    ///
    /// # On several machines
    ///
    /// With a limiter on Redis, on PostgreSQL or in another store [with
    /// records](crate::store::remote::RemoteStore::records), all processes share the list. After rejections, each
    /// writes its counts there in the background, once a second at most. With other limiters, each process has its own
    /// list.
    #[doc(alias("top", "heavy hitters", "abuse"))]
    pub fn track_offenders(mut self, show: ShowKey) -> Self {
        self.lineage.offenders = Some(TrackedOffenders { show, record: Arc::new(OffenderRecord::new()) });
        self
    }

    /// Applies the policy only to requests for which `condition` holds.
    pub fn when(mut self, condition: impl Fn(&D::Subject<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.selector.when = Some(Box::new(condition));
        self
    }

    /// Makes the policy a shadow: it [counts](crate::RateLimitLayer::shadow_rejected) and reports the requests that it
    /// would reject if it were enforced, but never rejects or delays one. The [guide](crate::guide::shadow) tries out a
    /// limit with it.
    ///
    /// A shadow is charged for the requests that all enforced policies admit. A remote limiter is still called, and the
    /// request waits for its answer. While it fails, its local fallback counts, if the policy [falls
    /// back](crate::FailureMode::LocalFallback).
    #[doc(alias("dry run", "dry_run", "report only"))]
    pub fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }

    /// Sets how a request without a key is treated. Unless set, it is rejected with 400.
    pub fn on_missing_key(mut self, choice: MissingKey) -> Self {
        self.selector.on_missing_key = choice;
        self
    }

    /// Sets how a request is treated if the limiter fails. Unless set, the
    /// [local fallback](FailureMode::LocalFallback) decides.
    #[doc(alias("fail open", "fail closed"))]
    pub fn on_failure(self, choice: FailureMode) -> Self {
        Self { on_failure: choice, ..self }
    }

    /// Sets an option, and records that it was set: `rules` check the combinations of the options that are set.
    pub(super) fn with_option(mut self, option: Fact, set: impl FnOnce(&mut Self)) -> Self {
        self.options.set(option);
        set(&mut self);
        self
    }

    /// The clock by which the limiter decides in this process, or the monotonic one.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.description.clock().cloned().unwrap_or_else(|| Arc::new(Monotonic))
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the policy applies to a request.
    #[inline]
    pub(crate) fn applies_to(&self, head: &D::Subject<'_>) -> bool {
        self.selector.includes(&self.name, head)
    }

    #[inline]
    pub(crate) fn cost_of(&self, head: &D::Subject<'_>) -> u64 {
        self.costs.cost_of(head)
    }

    /// The cost of every request, if the policy charges all requests the same, under the limiter's quota.
    pub(crate) fn cost_of_every_request(&self) -> Option<u64> {
        let charges_alike = self.selector.includes_all() && self.costs.quota.is_none();
        self.costs.fixed_cost().filter(|_| charges_alike)
    }

    /// The quota of the key of a request, if it has one of its own.
    #[inline]
    pub(crate) fn quota_of(&self, head: &D::Subject<'_>, key: &PartitionKey) -> Option<Quota> {
        self.costs.quota_of(&self.name, &self.description, head, key, None)
    }

    /// The quota of one of a request's keys, if the key has one of its own. The extractor may name it.
    pub(crate) fn quota_of_charge(&self, head: &D::Subject<'_>, charge: &KeyCharge) -> Option<Quota> {
        self.costs.quota_of(&self.name, &self.description, head, &charge.key, charge.quota)
    }

    /// The precedence of a request among those that wait; `None` if all have the usual one.
    #[inline]
    pub(crate) fn precedence_of(&self, head: &D::Subject<'_>) -> Option<Precedence> {
        self.precedence.find(head)
    }

    /// The terms of a key under its own `quota`, or else under the limiter's.
    pub(crate) fn terms_under(&self, quota: Option<Quota>) -> Option<Terms> {
        let terms = self.description.terms()?;
        Some(quota.map_or(terms, |quota| terms.under(quota)))
    }

    /// The penalty that applies to a key. A shadow bans no key. The key that clients share is never banned: `rules`
    /// exclude a penalty with it, but a custom extractor may return it all the same.
    pub(crate) fn penalty_for(&self, key: &PartitionKey) -> Option<&Penalty> {
        self.lineage.penalty.as_ref().filter(|_| !self.shadow && *key != PartitionKey::SHARED)
    }

    /// Whether this policy has to act when an admitted request's response comes or ends, because only then the final
    /// cost is known, or because the request holds units until then.
    pub(crate) const fn ends_with_response(&self) -> bool {
        self.billing.settles_later() || self.description.holds()
    }

    /// Whether requests that the limiter sheds [regardless of the client](crate::values::ShedsAnybody) may be answered
    /// without their keys, because all have the same cost, and no keys are tracked.
    pub(crate) fn may_shed_anybody(&self) -> bool {
        self.costs.fixed_cost().is_some_and(|cost| cost > 0) && self.lineage.offenders.is_none()
    }

    /// Whether the policy is enforced, decides without waiting, and can be peeked at.
    #[inline]
    pub(crate) const fn answers_at_once(&self) -> bool {
        !self.shadow && self.description.answers_at_once()
    }

    /// The position of the policy in the order in which the policies of a layer are charged.
    pub(crate) fn charge_order(&self) -> ChargeOrder {
        if self.shadow {
            ChargeOrder::Shadow
        } else if self.description.delays() {
            ChargeOrder::Delaying
        } else if self.answers_at_once() {
            ChargeOrder::AtOnce
        } else {
            ChargeOrder::NotAtOnce
        }
    }
}

/// Options for HTTP alone. Other domains do not have a body in bytes, or a head that comes before it.
impl Policy {
    /// Charges the bytes of the response's body. The quota counts bytes, and is advertised with the unit
    /// `content-bytes`.
    ///
    /// The [`cost`](Self::cost), for example the size of a usual response, is charged when the request comes. Once the
    /// body has ended or was dropped, the bytes that the server has taken from it are charged instead, as
    /// [`cost_after`](Self::cost_after) describes. Trailers and the overhead of HTTP do not count. A request without a
    /// response keeps its first charge. Excludes [`charge_when`](Self::charge_when) and the other options for the final
    /// cost.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// // 10 MB per second, and 50 MB at once.
    /// let quota = Quota::per_second(10_000_000).burst(50_000_000);
    /// let downloads = Policy::new("downloads", TokenBucket::new(quota)).cost(20_000).settle_by_content_bytes();
    /// ```
    #[doc(alias = "bandwidth")]
    pub fn settle_by_content_bytes(self) -> Self {
        self.with_option(Fact::SettleByContentBytes, |policy| policy.billing.bill = Some(Bill::ContentBytes))
    }

    /// Releases the units that a request [holds](crate::Concurrency) when its response's head has come, and not only
    /// when the body has ended. Use it to limit the work of handlers, so that clients that read slowly do not count.
    pub fn release_at_head(self) -> Self {
        self.with_option(Fact::ReleaseAtHead, |policy| policy.billing.releases_at_head = true)
    }
}

/// The position of a policy in the order in which policies are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChargeOrder {
    /// Decides at once, and can be peeked at.
    AtOnce,
    /// Calls a server, or cannot be peeked at. Comes after `AtOnce`: a rejection there saves the call, and charges
    /// there are easier to refund.
    NotAtOnce,
    /// May delay the request. Comes after all others that may reject it, so that no request waits in vain.
    Delaying,
    /// Charged for requests that all others admit.
    Shadow,
}

// Written by hand, since limiters and closures have no `Debug`.
impl<D: Domain> fmt::Debug for Policy<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("name", &self.name).field("shadow", &self.shadow).finish_non_exhaustive()
    }
}
