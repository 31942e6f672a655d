//! The settings and policies of a layer, and the first step of a live change: [`LimitsHandle`] replaces policies by new
//! ones, which inherit from the policies of their names. `engine/policy/inherit.rs` has the steps that follow.

mod key_of;
mod look_and_act;
mod offenders;
mod operate;
mod policy_status;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

pub use self::key_of::KeyOf;
pub(crate) use self::key_of::{Target, sealed};
pub use self::look_and_act::KeyStatus;
pub use self::operate::Operate;
pub use self::policy_status::PolicyStatus;
use crate::engine::domain::Http;
use crate::engine::key::MarkIndex;
use crate::engine::outcome::Evaluation;
use crate::engine::policy::{Hook, IntoPolicies, Policies, Policy, PolicyError, Replaced};
use crate::engine::shed_replies::ShedReplies;
use crate::engine::translate::Translate;
use crate::limiter::Limiter;
use crate::util::idle_flag::IdleFlag;
use crate::util::lock::Lock;
use crate::util::order::sort_by_key;
use crate::values::{Answer, Decision, Formula, PartitionKey, Quota};

/// Replaces the policies of a layer at run time, shows them, and shows, resets, bans and allows single keys; made by
/// [`RateLimitLayer::handle`](crate::RateLimitLayer::handle).
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::policy::PolicyError;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let policy = |quota| Policy::new("api", TokenBucket::new(quota));
/// let layer = RateLimitLayer::new(policy(Quota::per_second(10)));
/// let limits = layer.handle();
///
/// // Later, from any thread: a client that has used five of ten has used five of fifty now.
/// limits.replace(policy(Quota::per_second(50)))?;
///
/// // Policies that `try_new` rejects change nothing.
/// let rejected = limits.replace(policy(Quota::per_second(50)).cost(51));
/// assert!(matches!(rejected, Err(PolicyError::CostAboveBurst { .. })));
/// # Ok::<_, PolicyError>(())
/// ```
///
/// # What is kept
///
/// A policy inherits from the predecessor of the same name. Policies with new names start with full budgets.
///
/// | inherited | if |
/// |---|---|
/// | what its keys have used | its limiter [can inherit](crate::Limiter::inherit) |
/// | bans, and advertised waits | both [penalties](crate::Policy::penalty) use clocks of one type. While a policy has no penalty, they are kept, but not enforced |
/// | premature retries, which count towards a ban | also, the predecessor itself has a penalty |
/// | counts of failures and of shadow rejections, metrics, expected refunds, and whether an outage of its limiter was logged | always |
///
/// - A lowered limit never grants more than its burst. A client that has used more waits until the excess is paid at
///   the new rate; the advertised wait is exact.
/// - A raised limit takes effect at once: a key gets the difference, and its debt is paid at the new rate.
/// - Waiters in a [`LeakyQueue`](crate::LeakyQueue) keep their order. Their turns follow the new rate. A waiter that
///   would wait too long then, or exceeds the new `max_queue`, is rejected.
///
/// In memory, [`WhenFull`](crate::store::WhenFull) is set by the new limiter, and so is the capacity, unless it [is
/// kept](Replaced::kept_capacity). [`replace`](Self::replace) returns the policies that could not inherit.
///
/// A limiter that several layers share (an `Arc` of it) is replaced in each layer separately: the others keep it,
/// undisturbed. If two layers replace it by the same new limiter, the first change counts, and they share the new
/// limiter from then on. A limiter that was used before, here or elsewhere, may be put in force again: in a
/// [`MemoryStore`](crate::store::MemoryStore), an equal new limiter then inherits, and the layer does not ask the one
/// in the given `Arc`; a [`LeakyQueue`](crate::LeakyQueue) that was used with a schedule of its own does not inherit.
///
/// # Accuracy
///
/// A request uses the policies that were in force when it came, until it is answered. Its later questions (a charge
/// after a wait, a refund, a settlement) go to the heir, and are converted. In memory, a concurrent decision at the
/// instant of the change may go uncounted: at most one per deciding thread. Queues count all.
///
/// Debts of a bucket are kept in tokens, and a change costs a key less than a nanosecond of the new rate, or one tick
/// if ticks become longer. The count of a window at the instant of the change stays, in the present window of the new
/// period: see [below](#the-period-of-a-window). A refund is lost after more than two changes of a queue, after more
/// than 256 of a bucket, and after any change of a window's period.
///
/// If a table is full at the change, and its heir at the next one, more is owed than is kept: then the keys that owe
/// least are forgotten, under every [`WhenFull`](crate::store::WhenFull), and counted in
/// [`evicted_live`](crate::RateLimiter::evicted_live), which goes on from the count of the previous table.
///
/// # The period of a window
///
/// A window counts in one period at a time. A count that comes into a shorter period ends with it, and is gone if the
/// period changes back: from 1,000 per day to 10 per second and back two seconds later, each key passes 1,000 more. A
/// bucket keeps the debt.
///
/// # Cost
///
/// For requests, one load of the policies in force, which writes to no memory that other threads use; and for the first
/// request of a key after a change, a lookup of its old debt, which takes some microseconds. In memory, no request
/// waits for the change, or for another request that copies the same debts. The thread that calls `replace` copies the
/// debts before it returns, while requests go on. Both tables are in memory until then, or until the last request from
/// before the change is answered, and the copy until its last debt is paid. It has 8 bytes for each key that owes
/// something (24 to 48 if the table has locks), and at most the size of the table that it was made from. However many
/// changes there are, the copies are of one table, or of one for each [capacity](Replaced::kept_capacity) that the
/// limiter had meanwhile.
///
/// After a burst of more than 2^18 units, a bucket with a much slower rate keeps its debts in a table with locks, of 98
/// bytes per key, until the next change: they would not fit into words.
///
/// Requests to a [`LeakyQueue`](crate::LeakyQueue) that has waiters do wait for its change, which holds its lock: 56 ms
/// with 65,536 waiters, 1.5 s with a million.
#[doc(alias("hot reload", "reload", "live change"))]
pub struct LimitsHandle<D: Translate = Http> {
    layer: Arc<LayerState<D>>,
}

impl<D: Translate> LimitsHandle<D> {
    pub(crate) const fn of(layer: Arc<LayerState<D>>) -> Self {
        Self { layer }
    }

    pub(crate) const fn layer(&self) -> &Arc<LayerState<D>> {
        &self.layer
    }

    /// Replaces all policies of the layer atomically. Other settings of the layer stay.
    ///
    /// Returns once the new policies are in force, with the policies that could not inherit.
    ///
    /// # Errors
    ///
    /// If [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) would reject the policies. Then nothing has
    /// changed.
    pub fn replace(&self, policies: impl IntoPolicies<D>) -> Result<Replaced, PolicyError> {
        Enforceable::new(policies).map(|policies| self.layer.replace(policies))
    }

    /// Updates the metrics that are not counted per request: the occupancy of tables, and the health of stores. Call it
    /// before the recorder is read. Takes some 10 to 50 µs per policy.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn observe(&self) {
        self.layer.load().policies.iter().for_each(Policy::observe);
    }

    /// Rejects, with 503, all waiters in the queues of this layer (a [`LeakyQueue`](crate::LeakyQueue), a
    /// [`SharedQueue`](crate::SharedQueue), or a custom limiter that implements [`Limiter::close`]), and all requests
    /// to these queues from now on. Call it when the server shuts down, before it waits for requests in flight:
    /// otherwise it waits for the whole queue.
    ///
    /// Other policies are not affected: a bucket decides as before. Closed queues stay closed, and queues of later
    /// changes are closed as well. A queue that several layers share is closed for all of them, even if it was replaced
    /// in this one before. A second call does nothing.
    ///
    /// Such a rejection is not counted or logged as a failure of the limiter, and [`FailureMode`](crate::FailureMode)
    /// does not apply.
    pub fn close(&self) {
        self.layer.close();
    }
}

impl<D: Translate> fmt::Debug for LimitsHandle<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsHandle").field("policies", &self.layer.load().policies).finish()
    }
}

/// By hand, since a derived one would ask for `D: Clone`.
impl<D: Translate> Clone for LimitsHandle<D> {
    fn clone(&self) -> Self {
        Self { layer: Arc::clone(&self.layer) }
    }
}

/// The settings of a layer, which never change.
pub(crate) struct LayerSettings<D: Translate> {
    /// Whether the verdict on a subject is kept for whoever serves it.
    pub(crate) adds_verdict: bool,
    /// Whether the time that a subject waited is reported.
    pub(crate) adds_timing: bool,
    pub(crate) route: Option<Arc<str>>,
    /// Learns of the transitions of all policies.
    pub(crate) hook: Option<Hook<Policy<D>>>,
    /// Fields that only the translation reads.
    pub(crate) own: D::Settings,
}

/// By hand, since a derived one would ask for `D: Default`.
impl<D: Translate> Default for LayerSettings<D> {
    fn default() -> Self {
        Self { adds_verdict: false, adds_timing: false, route: None, hook: None, own: D::Settings::default() }
    }
}

/// Validated policies that can be enforced together, in the order in which they are charged.
pub(crate) struct Enforceable<D: Translate> {
    policies: Vec<Policy<D>>,
    /// How they decide together, by their indices; `None` if all of them have to admit a request.
    formula: Option<Formula>,
}

impl<D: Translate> Enforceable<D> {
    pub(crate) fn new(policies: impl IntoPolicies<D>) -> Result<Self, PolicyError> {
        let policies = policies.into_policies();
        policies.validate()?;
        let Policies { policies, formula } = policies;
        let policies: Vec<(usize, Policy<D>)> = policies.into_iter().enumerate().collect();
        let policies = sort_by_key(policies, |(_, policy)| [0, 0, policy.charge_order() as u64]);
        let place = |member| policies.iter().position(|(index, _)| *index == member).expect("each is a member");
        let formula = formula.has_choices().then(|| formula.renumbered(&place));
        Ok(Self { policies: policies.into_iter().map(|(_, policy)| policy).collect(), formula })
    }

    /// Enforces one policy of a valid name, without options and with one key per request: nothing has to be combined.
    pub(crate) fn one(policy: Policy<D>) -> Result<Self, PolicyError> {
        policy.validate_numbers()?;
        Ok(Self { policies: vec![policy], formula: None })
    }
}

/// The state that a layer, its clones and all their services share by one pointer: the settings, which never change,
/// and the policies in force. These are replaced as a whole: a request uses the policies that were in force when it
/// came, until it is answered.
pub(crate) struct LayerState<D: Translate> {
    in_force: ArcSwap<InForce<D>>,
    pub(crate) settings: LayerSettings<D>,
    /// Locked by a thread that replaces `in_force`: so replacements follow one another, and no inheritance is lost
    /// between two.
    past: Lock<PastPolicies>,
    longer_path: OnceLock<&'static LongerPath<D>>,
}

/// The work that an evaluation does off the fast path. The fast path takes requests that a single plain limiter decides
/// on at once.
///
/// Pointers, and not calls, so that a program is linked with the transactions, and all that they can do, only if it
/// names something that may need them: policies with options, several of them, a handle, a snapshot. A program with one
/// [bucket per client](crate::RateLimitLayer::per_client) is far smaller so.
#[allow(clippy::type_complexity, reason = "each type is used once, and named by its field")]
pub(crate) struct LongerPath<D: Translate> {
    /// Evaluates a request by several plain policies.
    pub(crate) several: fn(&Arc<LayerState<D>>, &Arc<InForce<D>>, &[Policy<D>], &D::Subject<'_>) -> Evaluation<D>,
    /// Evaluates a request by one policy, whose units it holds.
    pub(crate) held: fn(&Arc<LayerState<D>>, &Arc<InForce<D>>, &Policy<D>, &D::Subject<'_>) -> Evaluation<D>,
    /// Evaluates any other request.
    pub(crate) transaction: fn(&Arc<LayerState<D>>, &Arc<InForce<D>>, &D::Subject<'_>) -> Evaluation<D>,
    /// Goes on from the answer of the only policy, a plain one, after which something else turned out to be needed.
    pub(crate) go_on: fn(&Arc<LayerState<D>>, &Arc<InForce<D>>, &D::Subject<'_>, AskedOnce) -> Evaluation<D>,
    /// Notes the key of a rejected request, if the policy tracks its offenders.
    pub(crate) note_offender: fn(&Arc<LayerState<D>>, &Policy<D>, &PartitionKey),
    /// Answers a request that the only policy sheds as another one with this wait was answered.
    pub(crate) respond_alike: fn(&Arc<LayerState<D>>, &Arc<InForce<D>>, Decided<'_>, &D::Subject<'_>) -> Evaluation<D>,
    /// Finds the policies of a request, if some have [marks](crate::key::Mark).
    pub(crate) index_marks: fn(&[Policy<D>]) -> Option<MarkIndex>,
}

/// The key of a request, its own quota, and the decision of the only policy.
pub(crate) type Decided<'a> = (&'a PartitionKey, Option<Quota>, &'a Decision);

/// A request whose only policy was asked already.
pub(crate) struct AskedOnce {
    pub(crate) key: PartitionKey,
    pub(crate) cost: u64,
    pub(crate) quota: Option<Quota>,
    pub(crate) patience: Option<Duration>,
    pub(crate) answer: Answer,
}

/// The limiters that were in force before.
#[derive(Default)]
struct PastPolicies {
    is_closed: bool,
    /// Limiters that are still in use, each once: requests may wait in them.
    limiters: Vec<Weak<dyn Limiter>>,
}

impl PastPolicies {
    /// Adds the limiters of policies that are about to be replaced, and forgets those that are no longer in use.
    fn remember<D: Translate>(&mut self, policies: &[Policy<D>]) {
        self.limiters.retain(|limiter| limiter.strong_count() > 0);
        for limiter in policies.iter().map(|policy| Arc::downgrade(&policy.limiter)) {
            // A limiter that stays in force through many changes would otherwise be added by each.
            if !self.limiters.iter().any(|known| known.ptr_eq(&limiter)) {
                self.limiters.push(limiter);
            }
        }
    }
}

/// The policies in force. Immutable: a change replaces it.
pub(crate) struct InForce<D: Translate> {
    pub(crate) policies: Box<[Policy<D>]>,
    /// How they decide together, by their indices; `None` if all of them have to admit a request.
    pub(crate) formula: Option<Formula>,
    /// Whether the limiters alone decide on each request ([`Policy::is_plain`]). If there are several policies, whether
    /// all of them also [answer at once](Policy::answers_at_once), and there are no alternatives.
    may_be_plain: bool,
    /// Likewise, and in this process, no key is banned or allowed by hand, or owes something.
    is_plain: IdleFlag,
    /// The policies' costs, if there are several policies, and all charge the same key, each a fixed cost
    /// under its limiter's quota. Then we read a request's key once.
    pub(crate) shared_key_costs: Option<Box<[u64]>>,
    /// Whether there is one policy, and requests [hold its units](Policy::is_plainly_held) until they are over.
    may_be_held: bool,
    /// Likewise, and in this process, no key is banned or allowed by hand, or owes something.
    is_held: IdleFlag,
    /// See [`LongerPath::index_marks`]. Made for the first request that takes the longer path.
    by_marks: OnceLock<Option<MarkIndex>>,
    /// The indices of the policies, by their names, once one is asked for.
    by_name: OnceLock<HashMap<Arc<str>, usize>>,
    /// Whether a policy may delay requests.
    pub(crate) delays: bool,
    /// Whether an enforced policy keeps units that expire.
    pub(crate) keeps_credits: bool,
    /// Whether a request may be [open](Policy::is_open_ended) once it is admitted, or its key may owe something.
    is_open_ended: AtomicBool,
    /// The translation's results.
    pub(crate) prepared: D::Prepared,
    /// The replies to subjects that the only policy sheds, if they differ in the wait alone.
    pub(crate) shed_replies: Option<ShedReplies<D>>,
    /// Likewise, and whether the only policy asks for nothing but the key of a request before that.
    pub(crate) sheds_anybody: bool,
}

impl<D: Translate> InForce<D> {
    fn new(enforceable: Enforceable<D>, settings: &LayerSettings<D>) -> Arc<Self> {
        let Enforceable { mut policies, formula } = enforceable;
        policies.iter_mut().for_each(|policy| policy.hook.clone_from(&settings.hook));
        if let Some(route) = &settings.route {
            policies.iter().for_each(|policy| policy.lineage.meter.set_route(route));
        }
        let prepared = D::prepare(&settings.own, &policies, formula.is_some());
        let is_one = policies.len() == 1;
        let is_plain = |policy: &Policy<D>| policy.is_plain() && (is_one || policy.answers_at_once());
        let may_be_plain = formula.is_none() && policies.iter().all(is_plain);
        let shared_key_costs = if may_be_plain && !is_one { costs_of_shared_key(&policies) } else { None };
        let delays = policies.iter().any(|policy| policy.description.delays());
        let keeps_credits = policies.iter().any(|policy| !policy.shadow && policy.description.keeps_credits());
        let is_open_ended = policies.iter().any(|policy| policy.is_open_ended() || policy.has_debts()).into();
        let may_be_held = formula.is_none() && is_one && policies.iter().all(Policy::is_plainly_held);
        let is_shed_alike = may_be_held && !settings.adds_verdict && D::replies_alike(&settings.own, &prepared);
        let sheds = is_shed_alike && policies.iter().all(|policy| policy.description.sheds());
        let sheds_anybody = sheds && policies.iter().all(Policy::may_shed_anybody);
        let in_force = Self {
            policies: policies.into(),
            formula,
            may_be_plain,
            is_plain: IdleFlag::new(),
            shared_key_costs,
            may_be_held,
            is_held: IdleFlag::new(),
            by_marks: OnceLock::new(),
            by_name: OnceLock::new(),
            delays,
            keeps_credits,
            is_open_ended,
            prepared,
            shed_replies: sheds.then(ShedReplies::new),
            sheds_anybody,
        };
        in_force.look_for_overrides();
        Arc::new(in_force)
    }

    /// Whether a request may be [open](Policy::is_open_ended) once it is admitted, or its key may owe something. The
    /// load is relaxed: a thread that misses a debt decides as if its request had come just before.
    #[inline]
    pub(crate) fn is_open_ended(&self) -> bool {
        self.is_open_ended.load(Ordering::Relaxed)
    }

    pub(crate) fn policy(&self, name: &str) -> Option<&Policy<D>> {
        // A few names are compared faster than one is hashed.
        if self.policies.len() <= 4 {
            return self.policies.iter().find(|policy| *policy.name == *name);
        }
        let by_name = || self.policies.iter().map(|policy| Arc::clone(&policy.name)).zip(0..).collect();
        self.by_name.get_or_init(by_name).get(name).map(|index| &self.policies[*index])
    }

    /// The index of marks, if some policies have marks.
    #[inline]
    pub(crate) fn by_marks(&self, longer_path: &LongerPath<D>) -> Option<&MarkIndex> {
        self.by_marks.get_or_init(|| (longer_path.index_marks)(&self.policies)).as_ref()
    }
}

/// The policies' charges for every request, if all of them charge the same key.
fn costs_of_shared_key<D: Translate>(policies: &[Policy<D>]) -> Option<Box<[u64]>> {
    let identity = policies.first()?.selector.key.identity()?;
    let cost_of = |policy: &Policy<D>| {
        let reads_same_key = policy.selector.key.identity().as_ref() == Some(&identity);
        policy.cost_of_every_request().filter(|_| reads_same_key)
    };
    policies.iter().map(cost_of).collect()
}

/// One of the policies in force. Keeps all of them in memory.
pub(crate) struct PolicyInForce<D: Translate> {
    in_force: Arc<InForce<D>>,
    index: usize,
}

impl<D: Translate> PolicyInForce<D> {
    pub(crate) fn find(in_force: &Arc<InForce<D>>, is_wanted: impl Fn(&Policy<D>) -> bool) -> Option<Self> {
        let index = in_force.policies.iter().position(is_wanted)?;
        Some(Self { in_force: Arc::clone(in_force), index })
    }
}

impl<D: Translate> Deref for PolicyInForce<D> {
    type Target = Policy<D>;

    fn deref(&self) -> &Policy<D> {
        &self.in_force.policies[self.index]
    }
}

impl<D: Translate> Drop for LayerState<D> {
    fn drop(&mut self) {
        D::note_end(&self.settings.own, &self.load().policies);
    }
}

impl<D: Translate> LayerState<D> {
    pub(crate) fn new(policies: Enforceable<D>, settings: LayerSettings<D>) -> Arc<Self> {
        let in_force = ArcSwap::new(InForce::new(policies, &settings));
        let longer_path = OnceLock::new();
        Arc::new(Self { in_force, settings, past: Lock::default(), longer_path })
    }

    /// Lets requests take a longer path. Before the first request that may need it; a second call does nothing.
    pub(crate) fn install(&self, longer_path: &'static LongerPath<D>) {
        self.longer_path.get_or_init(|| longer_path);
    }

    /// The longer path.
    ///
    /// # Panics
    ///
    /// If none was installed.
    #[inline]
    pub(crate) fn longer_path(&self) -> &'static LongerPath<D> {
        self.longer_path.get().expect("installed with whatever makes a request need it")
    }

    /// Loads the policies in force. `arc-swap` marks the pointer in a slot of this thread, and changes the shared
    /// reference count only if all slots of the thread are in use.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<InForce<D>>> {
        self.in_force.load()
    }

    /// The policy in force whose limiter has inherited from the limiter of `policy`, which is one of `before`. `None`
    /// if no change was made since then, or if no limiter has inherited.
    pub(crate) fn heir_of(&self, before: &Arc<InForce<D>>, policy: &Policy<D>) -> Option<PolicyInForce<D>> {
        let in_force = self.load();
        if Arc::ptr_eq(&in_force, before) {
            return None;
        }
        PolicyInForce::find(&in_force, |new| new.lineage.is_of_line(&policy.lineage))
    }

    /// Replaces the policies in force.
    pub(crate) fn replace(&self, mut enforceable: Enforceable<D>) -> Replaced {
        // Foreign code runs under the lock, since custom limiters inherit. It must not change the same layer, which
        // would deadlock. The lock is needed: without it, two threads could both inherit from the same policies, and
        // the charges made under the first replacement would be lost in the second.
        let mut past = self.past.lock();
        let before = Arc::clone(&self.load());
        let mut replaced = Replaced::default();
        let mut finish = Vec::new();
        for policy in &mut enforceable.policies {
            if let Some(old) = before.policy(policy.name()) {
                policy.inherit(old, &mut replaced, &mut finish);
            }
        }
        // Remembered for `close`: requests may still wait in them.
        past.remember(&before.policies);
        let after = InForce::new(enforceable, &self.settings);
        self.in_force.store(Arc::clone(&after));
        let is_closed = past.is_closed;
        // Released before the debts are copied, which takes its time. This thread copies them, so that no request waits
        // for it.
        drop(past);
        finish.into_iter().for_each(|finish| finish());
        for old in before.policies.iter() {
            let is_removed = after.policy(old.name()).is_none();
            old.observe_end(is_removed);
            replaced.removed.extend(is_removed.then(|| old.name().to_owned()));
        }
        // `close` ran before the lock was taken, and closed the limiters before this change only.
        if is_closed {
            self.close();
        }
        replaced
    }

    /// Closes all limiters that are in force, were, or will be.
    pub(crate) fn close(&self) {
        let limiters: Vec<_> = {
            // Under the lock, `close` is either before a replacement, which then closes its own limiters, or after it,
            // and finds them in force.
            let mut past = self.past.lock();
            past.is_closed = true;
            let in_force = self.in_force.load();
            let present = in_force.policies.iter().map(|policy| Arc::clone(&policy.limiter));
            present.chain(past.limiters.iter().filter_map(Weak::upgrade)).collect()
        };
        // After the lock is released, since closing a queue runs wakers, which are foreign code.
        limiters.iter().for_each(|limiter| limiter.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::limiter::IntoLimiter;
    use crate::values::Quota;

    #[test]
    fn a_lasting_limiter_is_remembered_once() {
        let shared = TokenBucket::new(Quota::per_second(1)).into_limiter();
        let policies = || {
            let policy = Policy::new("p", Arc::clone(&shared));
            Enforceable::new(policy).unwrap_or_else(|error| panic!("{error}"))
        };
        let layer = LayerState::new(policies(), LayerSettings::default());
        for _ in 0..3 {
            layer.replace(policies());
        }
        assert_eq!(layer.past.lock().limiters.len(), 1);
    }
}
