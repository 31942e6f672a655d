//! Look and act: a key's state, and an operator's acts on it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::key_of::Target;
use super::{InForce, KeyOf, LayerState, LimitsHandle, PolicyInForce};
use crate::engine::policy::Policy;
use crate::engine::translate::Translate;
use crate::values::{
    Adjusted, Credit, Debit, Decision, Exception, LimiterError, Override, OverrideReason, PartitionKey, Quota, Shape,
    Terms,
};

/// A key's state in a policy.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct KeyStatus {
    decision: Decision,
    terms: Option<Terms>,
    override_age: Option<Duration>,
    is_repeated: bool,
}

impl KeyStatus {
    fn of<D: Translate>(policy: &Policy<D>, key: &PartitionKey, decision: Decision) -> Self {
        let override_age = policy.override_age(key);
        Self { decision, terms: policy.description.terms(), override_age, is_repeated: false }
    }

    fn adjusted<D: Translate>(policy: &Policy<D>, key: &PartitionKey, adjusted: Adjusted) -> Self {
        Self { is_repeated: adjusted.is_repeated, ..Self::of(policy, key, adjusted.decision) }
    }

    /// The decision on a request with cost 0, which is rejected only if the key is banned. It has the limit, the
    /// remaining units, and the time until the key does not owe anything.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The key's ban, [by hand](LimitsHandle::ban), or due to a [penalty](crate::Policy::penalty).
    #[must_use]
    pub fn ban(&self) -> Option<Exception> {
        self.decision.ban()
    }

    /// The key's [allowance](LimitsHandle::allow).
    #[must_use]
    pub fn allowance(&self) -> Option<Exception> {
        self.decision.allowance()
    }

    /// The time since this process made the ban or the allowance by hand, or first saw it. `None` if it was not made by
    /// hand, or if the time is not known.
    #[must_use]
    pub fn by_hand_since(&self) -> Option<Duration> {
        let exception = self.ban().or_else(|| self.allowance())?;
        self.override_age.filter(|_| exception.is_by_hand())
    }

    /// Whether the [credit's](LimitsHandle::credit) or the [charge's](LimitsHandle::charge) reference was used before,
    /// so that this call has done nothing.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// The time until a request for one unit passes, if no other request with the key is charged until then. Zero if it
    /// passes now. For a banned key, the time until the ban is over and a unit is there. `None` if the time is not
    /// known, as for a limit on requests in flight, or for a [balance](crate::Balance) that is used up.
    #[must_use]
    pub fn passes_in(&self) -> Option<Duration> {
        let decision = &self.decision;
        if !decision.is_allowed() {
            return decision.retry_after();
        }
        if decision.remaining() > 0 {
            return Some(Duration::ZERO);
        }
        let terms = self.terms?;
        decision.next_after().or_else(|| match terms.shape()? {
            Shape::FixedWindow | Shape::CalendarWindow => Some(decision.reset_after()),
            Shape::Bucket => {
                // The key owes its burst and perhaps more. One unit is there when it owes a unit less than the burst.
                let quota = terms.quota().filter(|quota| quota.max_burst() == decision.limit())?;
                Some(decision.reset_after().saturating_sub(quota.time_of(quota.max_burst() - 1)))
            }
            Shape::SlidingWindow => None,
        })
    }
}

/// Look and act: each call is about one key in the policy with a name. You give the key [as you have it](KeyOf): as
/// text, as a request, or as a `PartitionKey`.
///
/// # On several machines
///
/// If a server keeps the policy's budgets and [keeps bans](crate::store::remote::Backend::keeps_standing), as Redis and
/// DynamoDB do, each call acts there, by one call. A ban or an allowance by hand takes two calls, and on Redis, an
/// allowance or the end of a ban takes three, because the key's number of bans is forgotten, too. All processes act
/// accordingly at the next request that they ask the server about. A process that has cached the key as used up or as
/// banned asks again after half a second. While its calls fail, it rejects a key that it has seen banned, for the rest
/// of the ban.
///
/// Otherwise (in memory, a queue, a limit on requests in flight, or a balance), each call acts in this process, but
/// crediting or charging a `SharedBalance` acts on the server.
///
/// # Errors
///
/// - There is no policy with this name ([`is_unknown_policy`](LimiterError::is_unknown_policy)).
/// - The policy cannot have this key ([`is_no_key`](LimiterError::is_no_key)). The message describes its keys.
/// - The limiter fails, or [cannot do this](LimiterError::is_unsupported).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_sluice::algorithm::SlidingWindow;
/// use tower_sluice::key::{PeerIp, User};
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let logins = Policy::new("logins", SlidingWindow::new(Quota::per_hour(5))).key((User::key(), PeerIp::new()));
/// let limits = RateLimitLayer::new(logins).handle();
///
/// assert_eq!(limits.peek("logins", "alice + 203.0.113.7").await?.decision().remaining(), 5);
/// let status = limits.ban("logins", "alice + 2001:db8::1", Duration::from_secs(3_600), "tries stolen passwords").await?;
/// assert_eq!(status.ban().unwrap().reason().as_str(), "tries stolen passwords");
///
/// let error = limits.peek("logins", "alice").await.unwrap_err();
/// assert!(error.is_no_key());
/// # Ok(())
/// # }
/// ```
impl<D: Translate> LimitsHandle<D> {
    /// Returns a key's state, without charging it.
    ///
    /// If you give the key by a request, it is shown under the quota that [this request has](crate::Policy::quota_fn).
    /// Any other key is shown under its last request's quota, if the limiter knows it.
    pub fn peek(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let found = self.find(policy, key);
        async move {
            let (policy, target) = found?;
            let decision = policy.peek_at_key(&target.key, target.quota).await?;
            Ok(KeyStatus::of(&policy, &target.key, decision))
        }
    }

    /// Returns the key that a policy makes from a request, or reads from a text. Does not ask a limiter, and does not
    /// look at exemptions.
    ///
    /// ```
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new(Policy::new("api", Quota::per_second(10)).key(PeerIp::new())).handle();
    /// let key = limits.key("api", "203.0.113.7")?;
    /// assert_eq!(limits.key_text("api", &key)?, "203.0.113.7");
    /// # Ok::<_, tower_sluice::LimiterError>(())
    /// ```
    pub fn key(&self, policy: &str, key: impl KeyOf<D>) -> Result<PartitionKey, LimiterError> {
        // Do not use `find`, because a program may ask for each request's key, and nothing else from the policy is
        // needed.
        let in_force = self.layer.load();
        let policy = in_force.policy(policy).ok_or_else(|| LimiterError::unknown_policy(policy))?;
        key.find(policy).map(|target| target.key)
    }

    /// Returns a key [as an operator writes it](KeyOf), such as `203.0.113.7`. Each key has a text, no two keys in a
    /// policy have the same, and the text stands for this key wherever a text is read.
    pub fn key_text(&self, policy: &str, key: impl KeyOf<D>) -> Result<String, LimiterError> {
        self.find(policy, key).map(|(policy, target)| policy.selector.text_of(&target.key))
    }

    /// Resets a key: gives it back its whole budget, and lifts its ban, its allowance and its
    /// [debt](crate::Policy::owe_shortfalls). Returns the key's state afterwards. A concurrent decision may still
    /// reject it.
    ///
    /// # Errors
    ///
    /// The common errors, and an error if the limiter cannot reset keys, such as a queue. A ban and a debt that this
    /// process keeps are lifted even then, and if the limiter fails.
    #[doc(alias("unblock"))]
    pub fn reset(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let found = self.find(policy, key);
        async move {
            let (policy, target) = found?;
            let decision = policy.reset(&target.key).await?;
            Ok(KeyStatus::of(&policy, &target.key, decision))
        }
    }

    /// Adds units to a key of a [`Balance`](crate::Balance), such as units that a customer has bought. Returns its
    /// state afterwards.
    ///
    /// With a [reference](Credit::reference), such as a payment number, the call is idempotent in all processes that
    /// share the balance, and [`is_repeated`](KeyStatus::is_repeated) says whether it was done before. So repeat a
    /// credit that has failed. See [the guide](crate::guide::top_ups).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_sluice::key::User;
    /// use tower_sluice::limiter::Credit;
    /// use tower_sluice::{Balance, Policy, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new(Policy::new("bought", Balance::new()).key(User::key())).handle();
    /// let payment = || Credit::units(500).reference("invoice-17");
    /// assert!(!limits.credit("bought", "alice", payment()).await?.is_repeated());
    /// assert!(limits.credit("bought", "alice", payment()).await?.is_repeated());
    /// assert_eq!(limits.peek("bought", "alice").await?.decision().remaining(), 500);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The common errors, and an error if the limiter is not a `Balance`
    /// ([`is_unsupported`](LimiterError::is_unsupported)), if it has no room for the units, if they are zero or have
    /// expired already, or if the reference is invalid.
    #[doc(alias("top up", "buy"))]
    pub fn credit(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
        credit: Credit,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let found = self.find(policy, key);
        async move {
            let (policy, target) = found?;
            let adjusted = policy.credit_by_hand(&target.key, &credit).await?;
            Ok(KeyStatus::adjusted(&policy, &target.key, adjusted))
        }
    }

    /// Charges units to a key, such as for work that was not a request. Remaining units are charged as by a request,
    /// and the key owes the others: its requests are rejected until time has paid them at the quota's rate, as with
    /// [`owe_shortfalls`](crate::Policy::owe_shortfalls), which the policy need not have. In a
    /// [`Balance`](crate::Balance), a key owes them until a [credit](Self::credit) has paid them. Returns the key's
    /// state afterwards.
    ///
    /// With a [reference](Debit::reference), the call is idempotent, as for a credit. This holds for all processes if
    /// Redis or PostgreSQL keeps the units, or another server that [enters both in one
    /// step](crate::store::remote::ChargeByHand), and otherwise for this process.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_sluice::key::User;
    /// use tower_sluice::limiter::Debit;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new(Policy::new("api", Quota::per_hour(10)).key(User::key())).handle();
    /// assert_eq!(limits.charge("api", "alice", 4).await?.decision().remaining(), 6);
    /// let job = Debit::units(20).reference("job-4711");
    /// assert_eq!(limits.charge("api", "alice", job).await?.decision().remaining(), 0);
    /// // In 1.4 hours, time will have paid the fourteen units that she owes.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The common errors, and an error if the limiter delays requests, lets them hold their units, or does not
    /// advertise a quota ([`is_unsupported`](LimiterError::is_unsupported)); if the policy has a
    /// [`quota_fn`](crate::Policy::quota_fn), and you do not give the key by a request, which determines its quota; if
    /// the key is [allowed](Self::allow) by hand, so that it is not charged; if the units are zero, or the reference is
    /// invalid.
    #[doc(alias("debit"))]
    pub fn charge(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
        units: impl Into<Debit>,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let layer = Arc::clone(&self.layer);
        let found = self.find(policy, key);
        let debit = units.into();
        async move {
            let (policy, target) = found?;
            // Debts are noted even if this future is dropped before its end.
            let _noted = DebtsNoted(layer);
            let adjusted = policy.charge_by_hand(&target.key, target.quota, &debit).await?;
            Ok(KeyStatus::adjusted(&policy, &target.key, adjusted))
        }
    }

    /// Bans a key for this time, from now on: all its requests are rejected, regardless of its budget. The ban replaces
    /// a ban that is in force, or an [allowance](Self::allow). Returns the key's state afterwards.
    ///
    /// The reason is for the log, for the [verdict](crate::rejection::PolicyVerdict::ban), and for the next operator:
    /// clients do not see it. Requests that wait in a queue already keep their turns. Banning the key that all requests
    /// share closes the policy for all.
    ///
    /// # Errors
    ///
    /// The common errors, and an error if the time is zero or longer than a [`Quota`]'s period may be, if the reason is
    /// not a valid [`OverrideReason`], if the policy is a [shadow](crate::Policy::shadow), which never rejects
    /// requests, or if it keeps 65,536 keys that are banned or allowed by hand in this process.
    #[doc(alias("block"))]
    pub fn ban(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
        span: Duration,
        reason: &str,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let by_hand = checked(span, reason).map(|reason| Override::Ban { span, reason });
        self.set_override(policy, key, by_hand)
    }

    /// Allows a key for this time, from now on: all its requests pass this policy, without a charge. The allowance
    /// replaces an allowance that is in force, or a [ban](Self::ban), also a penalty's. Returns the key's state
    /// afterwards. The layer's other policies are not affected.
    ///
    /// # Errors
    ///
    /// As for [`ban`](Self::ban).
    #[doc(alias("exempt", "allowlist"))]
    pub fn allow(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
        span: Duration,
        reason: &str,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let by_hand = checked(span, reason).map(|reason| Override::Allow { span, reason });
        self.set_override(policy, key, by_hand)
    }

    /// Ends a key's ban, by hand or due to a [penalty](crate::Policy::penalty), or its allowance. Its budget stays as
    /// it is. Returns the key's state afterwards.
    pub fn unban(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        self.set_override(policy, key, Ok(Override::Lift))
    }

    /// Returns the bans and allowances by hand that are in force in this process, ordered by their ends, each with its
    /// key [as text](KeyOf).
    ///
    /// If a server keeps them, the list has the ones that this process has made or seen.
    ///
    /// # Errors
    ///
    /// If there is no policy with this name.
    pub fn exceptions(&self, policy: &str) -> Result<Vec<(String, Exception)>, LimiterError> {
        Ok(self.policy(policy)?.overrides())
    }

    fn set_override(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
        by_hand: Result<Override, LimiterError>,
    ) -> impl Future<Output = Result<KeyStatus, LimiterError>> + Send {
        let layer = Arc::clone(&self.layer);
        let found = self.find(policy, key);
        async move {
            let (policy, target) = found?;
            let by_hand = by_hand?;
            if policy.shadow && by_hand != Override::Lift {
                let problem = format!(
                    "policy `{}` is a shadow: it rejects no request, and bans and allows no key",
                    policy.name()
                );
                return Err(LimiterError::new(problem));
            }
            let decision = match policy.override_on_server(&target.key, by_hand) {
                Some(pending) => pending.await?,
                None => {
                    layer.override_here(&policy, &target.key, by_hand)?;
                    policy.peek_at_key(&target.key, target.quota).await?
                }
            };
            policy.note_override(&target.key, by_hand);
            Ok(KeyStatus::of(&policy, &target.key, decision))
        }
    }

    pub(super) fn find(&self, name: &str, key: impl KeyOf<D>) -> Result<(PolicyInForce<D>, Target), LimiterError> {
        let policy = self.policy(name)?;
        let target = key.find(&policy)?;
        Ok((policy, target))
    }

    /// The policy in force with this name.
    pub(super) fn policy(&self, name: &str) -> Result<PolicyInForce<D>, LimiterError> {
        let policy = PolicyInForce::find(&self.layer.load(), |policy| policy.name() == name);
        policy.ok_or_else(|| LimiterError::unknown_policy(name))
    }
}

/// Checks an operator's numbers and text.
fn checked(span: Duration, reason: &str) -> Result<OverrideReason, LimiterError> {
    if let Err(error) = Quota::try_per(1, span) {
        return Err(LimiterError::new(format!("a ban or an allowance of {span:?}: {error}")));
    }
    OverrideReason::new(reason).map_err(|error| LimiterError::new(error.to_string()))
}

/// Makes requests look for debts, when it is dropped.
struct DebtsNoted<D: Translate>(Arc<LayerState<D>>);

impl<D: Translate> Drop for DebtsNoted<D> {
    fn drop(&mut self) {
        self.0.note_debts();
    }
}

impl<D: Translate> LayerState<D> {
    /// Bans or allows a key in this process.
    fn override_here(&self, policy: &Policy<D>, key: &PartitionKey, by_hand: Override) -> Result<(), LimiterError> {
        // Take the lock, so that no other policies are put in force between the two steps.
        let _past = self.past.lock();
        policy.override_here(key, by_hand)?;
        self.note_overrides();
        Ok(())
    }

    /// Makes requests look for bans and allowances by hand, and for debts. Called after some were made.
    pub(crate) fn note_overrides(&self) {
        let in_force = self.load();
        if in_force.policies.iter().any(Policy::has_debts) {
            in_force.is_open_ended.store(true, Ordering::Relaxed);
        }
        in_force.is_plain.clear();
        in_force.is_held.clear();
    }

    /// Makes requests look for debts. Called after some were made by hand.
    fn note_debts(&self) {
        // Take the lock, so that the policies here are in force now, and policies that are put in force afterwards find
        // the debts.
        let _past = self.past.lock();
        if self.load().policies.iter().any(Policy::has_debts) {
            self.note_overrides();
        }
    }
}

impl<D: Translate> InForce<D> {
    /// Whether the limiters alone decide on each request.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.is_set()
    }

    /// Whether the only limiter alone decides on each request, which then holds units.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.is_set()
    }

    /// Finds out whether the last ban or allowance by hand, and the last debt, is over. Called by each request that
    /// takes the longer path.
    #[inline]
    pub(crate) fn look_for_overrides(&self) {
        if self.may_be_plain {
            self.is_plain.set_if(|| !self.policies.iter().any(Policy::has_overrides));
        }
        if self.may_be_held {
            self.is_held.set_if(|| !self.policies.iter().any(Policy::has_overrides));
        }
    }
}
