//! What the services of a layer go by, and how that is changed while they run.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::{ArcSwap, Guard};
use http::Extensions;

use crate::http::headers::{RateLimitFields, Writer};
use crate::http::mounting::Mounting;
use crate::http::policy::{IntoPolicies, Policy, PolicyError};
use crate::http::preflight::Exemption;
use crate::http::reject::Responder;
use crate::limiter::Limiter;
use crate::util::log;

/// How a layer is set up, but for its policies.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) fields: RateLimitFields,
    pub(crate) responder: Responder,
    /// Whether responses carry the verdict.
    pub(crate) adds_verdict: bool,
    /// Whether responses report how long their requests waited.
    pub(crate) adds_timing: bool,
    /// Which preflights of CORS pass uncounted, if any.
    pub(crate) exemption: Option<Exemption>,
    pub(crate) route: Option<Arc<str>>,
}

/// Policies that can be enforced together, in the order in which they are asked.
pub(crate) struct Enforceable(Vec<Policy>);

impl Enforceable {
    pub(crate) fn new(policies: impl IntoPolicies) -> Result<Self, PolicyError> {
        let mut policies = policies.into_policies();
        if policies.is_empty() {
            return Err(PolicyError::NoPolicy);
        }
        let mut names = HashSet::with_capacity(policies.len());
        for policy in &policies {
            policy.validate()?;
            if !names.insert(policy.name()) {
                return Err(PolicyError::DuplicateName { name: policy.name().to_owned() });
            }
        }
        policies.sort_by_key(Policy::rank);
        Ok(Self(policies))
    }
}

impl IntoPolicies for Enforceable {
    fn into_policies(self) -> Vec<Policy> {
        self.0
    }
}

/// What a layer, its clones and all their services share, by one pointer: how it is set up, which never changes, and the
/// policies that are in force. These are replaced as a whole: a request goes by what is in force when it comes, until it is
/// answered.
pub(crate) struct Limits {
    in_force: ArcSwap<InForce>,
    pub(crate) settings: Settings,
    /// Held by whoever replaces what is in force.
    past: Mutex<Past>,
    mounting: Mounting,
}

/// What was in force before.
#[derive(Default)]
struct Past {
    is_closed: bool,
    /// Those that are still in use: requests may wait in them.
    limiters: Vec<Weak<dyn Limiter>>,
}

/// Never changed, only replaced.
pub(crate) struct InForce {
    pub(crate) policies: Box<[Policy]>,
    /// Whether there is one policy, which decides by its limiter alone, and responses carry nothing but fields of it.
    pub(crate) is_plain: bool,
    /// Whether a policy may make a request wait.
    pub(crate) delays: bool,
    /// `None` if no response gets a field about what is left.
    pub(crate) writer: Option<Arc<Writer>>,
}

impl InForce {
    fn new(policies: Vec<Policy>, settings: &Settings) -> Arc<Self> {
        let announced = |policy: &Policy| policy.description().terms().filter(|_| !policy.is_shadow());
        let writer = Writer::new(&settings.fields, policies.iter().map(|policy| (policy.name(), announced(policy))));
        let writer = (!writer.is_silent()).then(|| Arc::new(writer));
        let is_plain = matches!(&*policies, [policy] if policy.is_plain()) && !settings.adds_verdict;
        let delays = policies.iter().any(Policy::delays);
        Arc::new(Self { policies: policies.into(), is_plain, delays, writer })
    }

    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name() == name)
    }
}

/// A policy that inherited from another, and is in force.
pub(crate) struct Successor {
    in_force: Arc<InForce>,
    index: usize,
}

impl Deref for Successor {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.in_force.policies[self.index]
    }
}

impl Limits {
    pub(crate) fn new(policies: Enforceable, settings: Settings) -> Arc<Self> {
        if let Some(route) = &settings.route {
            policies.0.iter().for_each(|policy| policy.meter().set_route(route));
        }
        let in_force = ArcSwap::new(InForce::new(policies.0, &settings));
        Arc::new(Self { in_force, settings, past: Mutex::default(), mounting: Mounting::new() })
    }

    /// Writes to nothing that another thread reads, unless it runs out of slots of its own.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// The policy that is in force and has inherited from `policy`, which was in force with others `before`. `None` if nothing has
    /// changed since, or if none has.
    pub(crate) fn successor(&self, before: &Arc<InForce>, policy: &Policy) -> Option<Successor> {
        let in_force = self.load();
        if Arc::ptr_eq(&in_force, before) {
            return None;
        }
        let index = in_force.policies.iter().position(|new| new.has_inherited_from(policy))?;
        Some(Successor { in_force: Arc::clone(&in_force), index })
    }

    /// Logs, once, that the layer is mounted around itself.
    #[inline]
    pub(crate) fn note_mounting(&self, request: &mut Extensions) {
        if self.mounting.is_found_in(request) {
            log::mounted_twice(self.load().policies[0].name());
        }
    }

    pub(crate) fn replace(&self, policies: Enforceable) -> Replaced {
        let mut policies = policies.0;
        // Foreign code is called with the lock: limiters inherit. It must not change the same layer.
        let (before, after, replaced, finish, is_closed) = {
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            let before = Arc::clone(&self.load());
            let (mut replaced, mut finish) = (Replaced::default(), Vec::new());
            for policy in &mut policies {
                if let Some(route) = &self.settings.route {
                    policy.meter().set_route(route);
                }
                let Some(old) = before.policy(policy.name()) else { continue };
                let inherited = policy.inherit(old);
                finish.extend(inherited.finish);
                if !inherited.inherits {
                    log::not_inherited(policy.name());
                    replaced.fresh.push(policy.name().to_owned());
                }
                if inherited.keeps_capacity {
                    replaced.keeping_capacity.push(policy.name().to_owned());
                }
            }
            let names: HashSet<_> = policies.iter().map(Policy::name).collect();
            let removed = before.policies.iter().map(Policy::name).filter(|name| !names.contains(name));
            replaced.removed = removed.map(str::to_owned).collect();
            drop(names);
            past.limiters.retain(|limiter| limiter.strong_count() > 0);
            past.limiters.extend(before.policies.iter().map(|policy| Arc::downgrade(policy.shared_limiter())));
            let after = InForce::new(policies, &self.settings);
            self.in_force.store(Arc::clone(&after));
            (before, after, replaced, finish, past.is_closed)
        };
        // Without the lock, and by this thread: copying what limiters inherit takes its time.
        finish.into_iter().for_each(|finish| finish());
        observe_ends(&before.policies, &after.policies);
        if is_closed {
            self.close();
        }
        replaced
    }

    /// Closes all limiters that are, were or will be in force.
    pub(crate) fn close(&self) {
        let limiters: Vec<_> = {
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            past.is_closed = true;
            let in_force = self.in_force.load();
            let present = in_force.policies.iter().map(|policy| Arc::clone(policy.shared_limiter()));
            present.chain(past.limiters.iter().filter_map(Weak::upgrade)).collect()
        };
        // Without the lock, since a limiter wakes tasks: foreign code.
        limiters.iter().for_each(|limiter| limiter.close());
    }
}

/// Has meters read the limiters that are in force no more for the last time, and sets to zero what is gone.
#[cfg(feature = "metrics")]
fn observe_ends(before: &[Policy], after: &[Policy]) {
    for old in before {
        old.observe_end(after.iter().any(|new| new.name() == old.name()));
    }
}

#[cfg(not(feature = "metrics"))]
const fn observe_ends(_: &[Policy], _: &[Policy]) {}

/// Changes the policies of a layer while its services run; by
/// [`RateLimitLayer::handle`](crate::RateLimitLayer::handle).
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::{Policy, PolicyError, Quota, RateLimitLayer};
///
/// let policy = |quota| Policy::new("api", TokenBucket::new(quota));
/// let layer = RateLimitLayer::new(policy(Quota::per_second(10)));
/// let limits = layer.handle();
///
/// // Later, from any thread: who has spent five of ten has spent five of fifty now.
/// limits.replace(policy(Quota::per_second(50)))?;
///
/// // What `try_new` would refuse changes nothing.
/// let refused = limits.replace(policy(Quota::per_second(50)).cost(51));
/// assert!(matches!(refused, Err(PolicyError::CostAboveBurst { .. })));
/// # Ok::<_, PolicyError>(())
/// ```
///
/// # What is kept
///
/// A policy goes on from the one of the same name: with what its keys have used, if its limiter [can
/// inherit](crate::Limiter::inherit), and with its counts of failures and of what it would have refused. Policies of other
/// names begin anew.
///
/// - A lowered limit never grants more than its burst. Who has used more than that waits until it is paid, at the new
///   rate, and is told so exactly.
/// - A raised limit helps at once: a key has the difference at its disposal, and what it owes is paid at the new rate.
/// - Requests that wait in a [`LeakyQueue`](crate::LeakyQueue) keep their order. Their turns follow the new rate; who
///   would have to wait too long then, or has no place any more, is refused.
///
/// In memory, capacity and [`WhenFull`](crate::store::WhenFull) are those of the new limiter. What cannot be inherited is
/// in what [`replace`](Self::replace) returns.
///
/// A limiter that is in several layers (an `Arc` of it) is replaced in each by itself: the others go on with it, undisturbed. Of
/// two layers that replace it by the same new limiter, the first one's change counts, and they share that one from then
/// on. A limiter that was used before, be it here or elsewhere, may be put in force again: in memory, another one that is like it
/// inherits then, and the `Arc` of the first is not what the layer asks.
///
/// # Accuracy
///
/// A request goes by the policies that were in force when it came, until it is answered. What it asks after the change (a
/// refund, a settlement) goes to the limiter that has inherited, and is converted. In memory, a request that was being judged
/// at the instant of the change may go uncounted: as many as threads were deciding, and no more. Queues count all.
///
/// Debts of a bucket are kept in tokens, and a change costs a key less than a nanosecond of the new rate, or a tick where
/// that becomes longer. Debts that are too long for the ticks of the new quota are cut: those of more than 2^18 tokens and of
/// more than four hours. Of a window, what counts at the instant of the change goes on to count. What is given back is lost to
/// the key after more than a second change of a queue, after more than 256 of a bucket, and after any change of a window's period.
///
/// # Cost
///
/// To requests, one look at what is in force, which writes to no memory that other threads use; and for a key that is seen
/// for the first time after a change, a look at what it owed before, of some microseconds. No request waits for what the change does, nor for
/// another request that copies the same. Whoever
/// replaces copies what is owed before `replace` returns, while requests go on. Both tables are in memory until
/// then, or until the last request of before is answered, and the copy (8 bytes per key for words) until its last debt is paid.
#[derive(Clone)]
pub struct LimitsHandle {
    limits: Arc<Limits>,
}

impl LimitsHandle {
    pub(crate) const fn new(limits: Arc<Limits>) -> Self {
        Self { limits }
    }

    /// Puts these policies in place of all that the layer has. Other settings of the layer stay.
    ///
    /// Returns when they are in force. Says of which policies the consumption could not be kept.
    ///
    /// # Errors
    ///
    /// What [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) would refuse; then nothing has changed.
    pub fn replace(&self, policies: impl IntoPolicies) -> Result<Replaced, PolicyError> {
        Enforceable::new(policies).map(|policies| self.limits.replace(policies))
    }

    /// Rejects, with 503, all requests that wait for a turn in a queue of this layer (a
    /// [`LeakyQueue`](crate::LeakyQueue), a `RedisQueue`, or a limiter of your own that implements
    /// [`Limiter::close`]), and all that come to one from now on. To be called when the server shuts down, before it waits for
    /// the requests that are under way: it would wait for the whole queue otherwise.
    ///
    /// Other policies go on: a bucket decides as before. What is closed stays closed, and so does each queue that comes by a
    /// later change. A queue that is in several layers is closed for all of them, also if it was replaced here meanwhile.
    /// A second call does nothing.
    ///
    /// A rejection for this reason is neither counted nor logged as a failure of the limiter, and
    /// [`FailureMode`](crate::FailureMode) has no say in it.
    pub fn close(&self) {
        self.limits.close();
    }

    #[cfg(feature = "config")]
    pub(crate) fn enforce(&self, policies: Enforceable) -> Replaced {
        self.limits.replace(policies)
    }
}

impl fmt::Debug for LimitsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsHandle").field("policies", &self.limits.load().policies).finish()
    }
}

/// What came of a change of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    fresh: Vec<String>,
    keeping_capacity: Vec<String>,
    removed: Vec<String>,
}

impl Replaced {
    /// The policies that were there before, and whose keys all start anew: their limiters are of another kind than they
    /// were, or keep nothing that they could hand on.
    #[must_use]
    pub fn not_inherited(&self) -> &[String] {
        &self.fresh
    }

    /// The policies whose limiters have the capacity that they had before, and not the one that was asked for: of several
    /// changes of the capacity, a fourth is only honoured once the debts of before the first are paid. The next change tries
    /// again.
    #[must_use]
    pub fn kept_capacity(&self) -> &[String] {
        &self.keeping_capacity
    }

    /// The policies that were there before, and are not any more.
    #[must_use]
    pub fn removed(&self) -> &[String] {
        &self.removed
    }
}
