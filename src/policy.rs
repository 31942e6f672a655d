//! What is enforced on whom: a limiter under a name, with the conditions under which it counts.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;

use crate::decision::{Decision, LimiterError};
use crate::head::{RequestHead, ResponseHead};
use crate::health::{Health, Turn};
use crate::key::{Global, KeyExtractor, Sameness};
use crate::limiter::{IntoLimiter, Limiter};
use crate::meter::{Fate, Meter};
use crate::partition::PartitionKey;
use crate::penalty::Penalty;
use crate::telemetry;
use crate::time::{Clock, Monotonic};

/// A quota policy: a name, a limiter, and whom it counts, how much and when.
///
/// ```
/// use tower_sluice::algorithm::{SlidingWindow, TokenBucket};
/// use tower_sluice::key::{HeaderKey, PeerIp};
/// use tower_sluice::{MissingKey, Policy, Quota};
///
/// let per_client = Policy::new("per-client", TokenBucket::new(Quota::per_second(10).burst(20))).key(PeerIp::new());
///
/// let writes = Policy::new("writes", SlidingWindow::new(Quota::per_hour(1_000)))
///     .key(HeaderKey::from_static("x-api-key"))
///     .on_missing_key(MissingKey::Skip)
///     .when(|request| request.method() == http::Method::POST)
///     .cost_fn(|request| if request.uri().path() == "/import" { 50 } else { 1 });
/// ```
///
/// Without a [`key`](Self::key) everybody shares one budget.
#[must_use]
pub struct Policy {
    name: Arc<str>,
    limiter: Arc<dyn Limiter>,
    delays: bool,
    key: Box<dyn KeyExtractor>,
    cost: Cost,
    bill: Option<Bill>,
    penalty: Option<Penalty>,
    when: Option<Condition>,
    shadow: bool,
    on_missing_key: MissingKey,
    on_failure: FailureMode,
    status: Option<StatusCode>,
    record: Arc<Record>,
    sameness: Sameness,
    meter: Meter,
}

/// What is counted, and what was logged. Goes on when the policy is replaced by another of its name.
#[derive(Default)]
struct Record {
    shadow_denied: AtomicU64,
    failures: AtomicU64,
    reported: AtomicBool,
    health: Health,
}

type Condition = Box<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

enum Cost {
    Fixed(u32),
    PerRequest(Box<dyn Fn(&RequestHead<'_>) -> u32 + Send + Sync>),
}

/// What a request costs in the end.
enum Bill {
    /// What was charged, or nothing.
    When(Box<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>),
    Cost(Box<dyn Fn(&ResponseHead<'_>) -> u32 + Send + Sync>),
}

/// What becomes of a request without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is refused with 400. The default: whoever leaves the key out gains nothing by it.
    #[default]
    Reject,
    /// The policy does not apply to it. Only sensible beside another policy that does.
    Skip,
    /// It draws on one budget with all others without a key.
    Share,
}

/// What becomes of a request whose limiter fails. Limiters in memory do not.
///
/// Whatever is chosen, a failure is never told as a refusal: the client did nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FailureMode {
    /// It is decided by what this process knows alone: the same quota, in this process's memory, where everything
    /// that the store admits is counted along. So *n* processes admit at most *n* times the quota while the store is
    /// out, and *n* + 1 times over the outage and the recovery, since the store grants its own quota beside: measured, 2, 3
    /// and 5 times the quota for 1, 2 and 4 processes. A client that was limited before stays so. The default. A limiter that
    /// knows nothing of its own (one that is no store's) denies instead.
    #[default]
    LocalGuard,
    /// It is answered 503.
    Deny,
    /// It passes, uncounted.
    Allow,
}

impl Policy {
    /// A policy that enforces `limiter`: an [`Algorithm`](crate::algorithm::Algorithm) in memory, a
    /// [`RateLimiter`](crate::RateLimiter), a [`LeakyQueue`](crate::LeakyQueue), or an `Arc` of any
    /// [`Limiter`].
    ///
    /// The name is what clients and dashboards see: letters, digits and ``!#$%&'*+-.^_`|~:/``, a
    /// letter or `*` first. [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) checks it.
    pub fn new(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        let (name, limiter) = (name.into(), limiter.into_limiter());
        Self {
            meter: Meter::new(Arc::clone(&name), limiter.delays()),
            name,
            delays: limiter.delays(),
            limiter,
            key: Box::new(Global),
            cost: Cost::Fixed(1),
            bill: None,
            penalty: None,
            when: None,
            shadow: false,
            on_missing_key: MissingKey::default(),
            on_failure: FailureMode::default(),
            status: None,
            record: Arc::default(),
            sameness: Sameness::new(Global.is_shared()),
        }
    }

    /// Gives each key a budget of its own. If the first thousand requests all have the same one, although it
    /// [tells clients apart](KeyExtractor::is_shared), that is logged once.
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.sameness = Sameness::new(key.is_shared());
        self.key = Box::new(key);
        self
    }

    /// What a request costs, in the quota's units; 1 unless set. Zero passes uncounted.
    pub fn cost(mut self, cost: u32) -> Self {
        self.cost = Cost::Fixed(cost);
        self
    }

    /// What a request costs, by its head. A cost above the burst is refused, with no retry time.
    pub fn cost_fn(mut self, cost: impl Fn(&RequestHead<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.cost = Cost::PerRequest(Box::new(cost));
        self
    }

    /// Charges only requests whose responses meet `condition`: failed logins, say, or answers that were not
    /// cached.
    ///
    /// A request is charged when it comes, and that is given back if its response does not meet the condition; so no more
    /// of them are under way at a time than the limit allows. What has no response, since the client went away or the
    /// service failed, stays charged. Replaces [`cost_after`](Self::cost_after).
    ///
    /// # Accuracy
    ///
    /// Exact with windows. A bucket may give back too much, by up to what it gave back before, when
    /// answers come in another order than their requests: see [`Receipt`](crate::Receipt). A queue takes back the place of
    /// the last one in line only.
    ///
    /// ```
    /// use tower_sluice::algorithm::SlidingWindow;
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// let guesses = Policy::new("failed-logins", SlidingWindow::new(Quota::per_hour(10)))
    ///     .key(PeerIp::new())
    ///     .charge_when(|response| response.status() == http::StatusCode::UNAUTHORIZED);
    /// ```
    pub fn charge_when(mut self, condition: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.bill = Some(Bill::When(Box::new(condition)));
        self
    }

    /// What a request has cost, by the head of its response: the handler may have put it into the extensions.
    ///
    /// The [`cost`](Self::cost) is charged when the request comes. What is too much of it is given back; what is
    /// missing is charged as far as there is something left, and the rest is forgiven, so nobody begins the next
    /// period with a debt. A request without a response stays charged as it is. Replaces
    /// [`charge_when`](Self::charge_when).
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// #[derive(Clone)]
    /// struct RowsRead(u32);
    ///
    /// let rows = Policy::new("rows", TokenBucket::new(Quota::per_minute(10_000)))
    ///     .cost(100)
    ///     .cost_after(|response| response.extensions().get::<RowsRead>().map_or(100, |rows| rows.0));
    /// ```
    pub fn cost_after(mut self, cost: impl Fn(&ResponseHead<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.bill = Some(Bill::Cost(Box::new(cost)));
        self
    }

    /// Bans keys that go on although they are refused. Who is banned is refused whatever is left of its budget, with the
    /// time at which the ban ends, and 429 with the type `#abnormal-usage-detected` unless a [`status`](Self::status) is
    /// set. A [shadow](Self::shadow) bans nobody.
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(penalty);
        self
    }

    /// Applies the policy only to requests for which `condition` holds.
    pub fn when(mut self, condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Box::new(condition));
        self
    }

    /// Adds a condition to the one that there may be.
    pub(crate) fn and_when(mut self, condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(match self.when.take() {
            Some(first) => Box::new(move |head| first(head) && condition(head)),
            None => Box::new(condition),
        });
        self
    }

    /// Counts and reports, but never rejects and makes nobody wait for a turn: what would happen if it were enforced. A
    /// limiter on a server elsewhere is asked all the same, which takes its time.
    ///
    /// It is charged for what all enforced policies admit. See
    /// [`RateLimitLayer::shadow_denied`](crate::RateLimitLayer::shadow_denied).
    pub const fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// What becomes of a request without a key; refused with 400 unless set.
    pub const fn on_missing_key(mut self, choice: MissingKey) -> Self {
        self.on_missing_key = choice;
        self
    }

    /// What becomes of a request whose limiter fails; the [local guard](FailureMode::LocalGuard) decides unless set.
    pub const fn on_failure(mut self, choice: FailureMode) -> Self {
        self.on_failure = choice;
        self
    }

    /// The status of a refusal, any 4xx or 5xx.
    ///
    /// Unless set it is 429 Too Many Requests (also for the [banned](Self::penalty)), or 503 Service Unavailable where everybody shares
    /// the budget and the client may have done nothing wrong.
    pub const fn status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn limiter(&self) -> &dyn Limiter {
        &*self.limiter
    }

    pub(crate) fn extractor(&self) -> &dyn KeyExtractor {
        &*self.key
    }

    /// Whether its limiter may make a request wait.
    pub(crate) const fn delays(&self) -> bool {
        self.delays
    }

    pub(crate) fn applies_to(&self, head: &RequestHead<'_>) -> bool {
        self.when.as_ref().is_none_or(|condition| condition(head))
    }

    pub(crate) fn cost_of(&self, head: &RequestHead<'_>) -> u32 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::PerRequest(cost) => cost(head),
        }
    }

    /// Whether the response has a say in what its request costs.
    pub(crate) const fn is_billed_later(&self) -> bool {
        self.bill.is_some()
    }

    /// What a request costs in the end that was charged so much.
    pub(crate) fn final_cost(&self, charged: u32, response: &ResponseHead<'_>) -> u32 {
        match &self.bill {
            Some(Bill::When(condition)) if !condition(response) => 0,
            Some(Bill::Cost(cost)) => cost(response),
            _ => charged,
        }
    }

    /// Bans nobody for what is only rehearsed.
    pub(crate) fn enforced_penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref().filter(|_| !self.shadow)
    }

    pub(crate) const fn is_shadow(&self) -> bool {
        self.shadow
    }

    pub(crate) const fn missing_key(&self) -> MissingKey {
        self.on_missing_key
    }

    pub(crate) const fn failure_mode(&self) -> FailureMode {
        self.on_failure
    }

    /// The status of a refusal, for a key that everybody draws on, or not.
    pub(crate) fn refusal_status(&self, shared: bool) -> StatusCode {
        match self.status {
            Some(status) => status,
            None if shared => StatusCode::SERVICE_UNAVAILABLE,
            None => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The order in which policies are asked: those that answer at once, then those that make a
    /// request wait (nobody should wait in vain), then those that only watch.
    pub(crate) fn rank(&self) -> u8 {
        match (self.shadow, self.delays) {
            (false, false) => 0,
            (false, true) => 1,
            (true, _) => 2,
        }
    }

    /// How a key stands.
    pub(crate) async fn peek(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        let decision = self.limiter.check(key, 0).decided().await?;
        Ok(match self.enforced_penalty().and_then(|penalty| penalty.left(key)) {
            Some(left) => decision.banned_for(left),
            None => decision,
        })
    }

    /// Lets a key owe nothing. Its ban is lifted in any case: that can be done here.
    pub(crate) async fn reset(&self, key: &PartitionKey) -> Result<Decision, LimiterError> {
        if let Some(penalty) = &self.penalty {
            penalty.lift(key);
        }
        let Some(check) = self.limiter.reset(key) else {
            return Err(LimiterError::new(format!(
                "the limiter of policy `{}` cannot forget what a key owes",
                self.name
            )));
        };
        check.decided().await
    }

    pub(crate) fn count_shadow_denial(&self) {
        self.record.shadow_denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shadow_denied(&self) -> u64 {
        self.record.shadow_denied.load(Ordering::Relaxed)
    }

    pub(crate) fn count_failure(&self) {
        self.record.failures.fetch_add(1, Ordering::Relaxed);
        self.meter.failed();
    }

    pub(crate) fn failures(&self) -> u64 {
        self.record.failures.load(Ordering::Relaxed)
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Counts what became of a request, and tells whoever listens at `debug`.
    #[inline]
    pub(crate) fn note(&self, fate: Fate, key: Option<&PartitionKey>, decision: Option<&Decision>) {
        self.meter.count(fate);
        let route = self.meter.route().map(AsRef::as_ref);
        telemetry::judged(route, &self.name, fate.as_str(), key, decision);
    }

    /// Logs a mistake in the set-up the first time that it shows.
    pub(crate) fn report_misconfigured(&self, problem: &str) {
        if !self.record.reported.swap(true, Ordering::Relaxed) {
            telemetry::misconfigured(&self.name, problem);
        }
    }

    /// Logs that the first thousand keys were one and the same. To be called with every key that was extracted;
    /// costs one relaxed load once it is settled.
    #[inline]
    pub(crate) fn note_key(&self, key: &PartitionKey) {
        if self.sameness.note(key) {
            telemetry::one_key_for_all(&self.name);
        }
    }

    /// Logs when the limiter begins to fail, and when it has not failed for a while.
    #[inline]
    pub(crate) fn report_health(&self, failure: Option<&LimiterError>) {
        let turn = match failure {
            Some(_) => self.record.health.failed(Monotonic.now()),
            None => self.record.health.worked(|| Monotonic.now()),
        };
        match (turn, failure) {
            (Some(Turn::Failed), Some(error)) => {
                let requests = match self.on_failure {
                    FailureMode::LocalGuard => "are decided by this process alone, or answered 503 where it cannot",
                    FailureMode::Allow => "pass uncounted",
                    FailureMode::Deny => "are answered 503",
                };
                telemetry::limiter_failed(&self.name, error, requests);
            }
            (Some(Turn::Recovered), _) => telemetry::limiter_recovered(&self.name),
            _ => {}
        }
    }

    /// Takes the place of the policy that had this name before; says whether what was used stays used.
    pub(crate) fn go_on_from(&mut self, old: &Self) -> bool {
        self.record = Arc::clone(&old.record);
        if let (Some(penalty), Some(old)) = (&self.penalty, &old.penalty) {
            penalty.go_on_from(old);
        }
        let is_same = std::ptr::addr_eq(Arc::as_ptr(&self.limiter), Arc::as_ptr(&old.limiter));
        is_same || self.limiter.take_over(&*old.limiter)
    }

    /// What [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) refuses.
    pub(crate) fn validate(&self) -> Result<(), PolicyError> {
        let name = || self.name.to_string();
        if !is_token(&self.name) {
            return Err(PolicyError::InvalidName { name: name() });
        }
        match (&self.cost, self.limiter.max_cost()) {
            (Cost::Fixed(cost), Some(max)) if *cost > max => {
                return Err(PolicyError::CostAboveBurst { name: name(), cost: *cost, burst: max });
            }
            _ => {}
        }
        match self.status {
            Some(status) if !(status.is_client_error() || status.is_server_error()) => {
                Err(PolicyError::InvalidStatus { name: name(), status: status.as_u16() })
            }
            _ => Ok(()),
        }
    }
}

/// A token of RFC 9651, section 3.3.4: a letter or `*`, then letters, digits and some punctuation.
/// Needs no escaping in any header or log.
fn is_token(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'*')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte))
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("name", &self.name).field("shadow", &self.shadow).finish_non_exhaustive()
    }
}

/// One policy, or several.
pub trait IntoPolicies {
    /// The policies, in the order in which they are reported.
    fn into_policies(self) -> Vec<Policy>;
}

impl IntoPolicies for Policy {
    fn into_policies(self) -> Vec<Policy> {
        vec![self]
    }
}

impl<const N: usize> IntoPolicies for [Policy; N] {
    fn into_policies(self) -> Vec<Policy> {
        self.into()
    }
}

impl IntoPolicies for Vec<Policy> {
    fn into_policies(self) -> Vec<Policy> {
        self
    }
}

/// Why policies cannot be enforced as given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A layer without a policy would limit nothing.
    NoPolicy,
    /// Two policies of one layer have the same name.
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The name cannot be written into header fields.
    InvalidName {
        /// The name.
        name: String,
    },
    /// Every request would cost more than can ever be admitted.
    CostAboveBurst {
        /// The policy's name.
        name: String,
        /// What a request costs.
        cost: u32,
        /// The most that is ever admitted at once.
        burst: u32,
    },
    /// A refusal must have a status of 4xx or 5xx.
    InvalidStatus {
        /// The policy's name.
        name: String,
        /// The status.
        status: u16,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("no policy is given; a layer needs at least one"),
            Self::DuplicateName { name } => {
                write!(f, "two policies are named `{name}`; give each a name of its own")
            }
            Self::InvalidName { name } => write!(
                f,
                "`{name}` cannot be a policy's name; begin with a letter and write letters, digits and -_.:/ only"
            ),
            Self::CostAboveBurst { name, cost, burst } => write!(
                f,
                "policy `{name}`: a cost of {cost} never fits in a burst of {burst}; \
                 lower the cost or raise the burst"
            ),
            Self::InvalidStatus { name, status } => {
                write!(f, "policy `{name}`: {status} does not tell of a refusal; choose a status from 400 to 599")
            }
        }
    }
}

impl Error for PolicyError {}
