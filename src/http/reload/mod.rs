//! The settings and policies of a layer, and the first step of a live change: new policies inherit from those of their
//! names, and replace them. `http/policy/inherit.rs` has the steps that follow.

mod handle;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::{ArcSwap, Guard};
use http::Extensions;

pub use self::handle::{LimitsHandle, Replaced};
use crate::http::headers::{Described, QuotaUnit, RateLimitFields, Writer};
use crate::http::mounting::Mounting;
use crate::http::policy::{InheritedBudgets, IntoPolicies, Policy, PolicyError};
use crate::http::preflight::Exemption;
use crate::http::reject::Responder;
use crate::limiter::Limiter;
use crate::util::log;
use crate::values::Finish;

/// The settings of a layer, which never change.
#[derive(Default)]
pub(crate) struct LayerSettings {
    pub(crate) fields: RateLimitFields,
    pub(crate) responder: Responder,
    /// Whether responses have the verdict in their extensions.
    pub(crate) adds_verdict: bool,
    /// Whether responses report the time that their requests waited.
    pub(crate) adds_timing: bool,
    /// The exemption of CORS preflights, if any.
    pub(crate) exemption: Option<Exemption>,
    pub(crate) route: Option<Arc<str>>,
}

/// Validated policies that can be enforced together, in the order in which they are charged.
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
        policies.sort_by_key(Policy::charge_order);
        Ok(Self(policies))
    }
}

impl IntoPolicies for Enforceable {
    fn into_policies(self) -> Vec<Policy> {
        self.0
    }
}

/// The state that a layer, its clones and all their services share by one pointer: the settings, which never change,
/// and the policies in force. These are replaced as a whole: a request uses the policies that were in force when it
/// came, until it is answered.
pub(crate) struct LayerState {
    in_force: ArcSwap<InForce>,
    pub(crate) settings: LayerSettings,
    /// Locked by a thread that replaces `in_force`: so replacements follow one another, and no inheritance is lost
    /// between two.
    past: Mutex<PastPolicies>,
    mounting: Mounting,
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
    fn remember(&mut self, policies: &[Policy]) {
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
pub(crate) struct InForce {
    pub(crate) policies: Box<[Policy]>,
    /// Whether there is one policy, its limiter alone decides, and responses have no annotations but its fields.
    pub(crate) is_plain: bool,
    /// Whether a policy may delay requests.
    pub(crate) delays: bool,
    /// Whether a request may be [open](Policy::is_open_ended) once it is admitted.
    pub(crate) is_open_ended: bool,
    /// `None` if no response has a field that reports quota.
    pub(crate) writer: Option<Arc<Writer>>,
}

impl InForce {
    fn new(policies: Vec<Policy>, settings: &LayerSettings) -> Arc<Self> {
        let advertised = |policy: &Policy| policy.description.terms().filter(|_| !policy.shadow);
        let unit = |policy: &Policy| {
            if policy.after.is_charged_by_content() { QuotaUnit::ContentBytes } else { QuotaUnit::Requests }
        };
        let described = policies.iter().map(|policy| Described {
            name: policy.name(),
            terms: advertised(policy),
            unit: unit(policy),
            is_conditional: policy.who.is_conditional(),
        });
        let writer = Writer::new(&settings.fields, described).map(Arc::new);
        let is_plain = matches!(&*policies, [policy] if policy.is_plain()) && !settings.adds_verdict;
        let delays = policies.iter().any(|policy| policy.description.delays());
        let is_open_ended = policies.iter().any(Policy::is_open_ended);
        Arc::new(Self { policies: policies.into(), is_plain, delays, is_open_ended, writer })
    }

    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name() == name)
    }
}

/// One of the policies in force. Keeps all of them in memory.
pub(crate) struct PolicyInForce {
    in_force: Arc<InForce>,
    index: usize,
}

impl PolicyInForce {
    pub(crate) fn find(in_force: &Arc<InForce>, is_wanted: impl Fn(&Policy) -> bool) -> Option<Self> {
        let index = in_force.policies.iter().position(is_wanted)?;
        Some(Self { in_force: Arc::clone(in_force), index })
    }
}

impl Deref for PolicyInForce {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.in_force.policies[self.index]
    }
}

impl LayerState {
    pub(crate) fn new(policies: Enforceable, settings: LayerSettings) -> Arc<Self> {
        if let Some(route) = &settings.route {
            policies.0.iter().for_each(|policy| policy.heritage.meter.set_route(route));
        }
        let in_force = ArcSwap::new(InForce::new(policies.0, &settings));
        Arc::new(Self { in_force, settings, past: Mutex::default(), mounting: Mounting::new() })
    }

    /// Loads the policies in force. `arc-swap` marks the pointer in a slot of this thread, and changes the shared
    /// reference count only if all slots of the thread are in use.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// The policy in force whose limiter has inherited from that of `policy`, which is one of `before`. `None` if no
    /// change was made since then, or if no limiter has inherited.
    pub(crate) fn heir_of(&self, before: &Arc<InForce>, policy: &Policy) -> Option<PolicyInForce> {
        let in_force = self.load();
        if Arc::ptr_eq(&in_force, before) {
            return None;
        }
        PolicyInForce::find(&in_force, |new| new.heritage.is_of_line(&policy.heritage))
    }

    /// Logs, once, that the layer is mounted around itself.
    #[inline]
    pub(crate) fn note_mounting(&self, request: &mut Extensions) {
        if self.mounting.mark(request) {
            log::mounted_twice(self.load().policies[0].name());
        }
    }

    /// Replaces the policies in force.
    pub(crate) fn replace(&self, policies: Enforceable) -> Replaced {
        let mut policies = policies.0;
        if let Some(route) = &self.settings.route {
            policies.iter().for_each(|policy| policy.heritage.meter.set_route(route));
        }
        // Foreign code runs under the lock, since custom limiters inherit. It must not change the same layer, which
        // would deadlock. The lock is needed: without it, two threads could both inherit from the same policies, and
        // the charges made under the first replacement would be lost in the second.
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Arc::clone(&self.load());
        let (replaced, finish) = inherit(&mut policies, &before);
        // Remembered for `close`: requests may still wait in them.
        past.remember(&before.policies);
        let after = InForce::new(policies, &self.settings);
        self.in_force.store(Arc::clone(&after));
        let is_closed = past.is_closed;
        // Released before the debts are copied, which takes its time. This thread copies them, so that no request waits
        // for it.
        drop(past);
        finish.into_iter().for_each(|finish| finish());
        observe_ends(&before.policies, &after.policies);
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
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            past.is_closed = true;
            let in_force = self.in_force.load();
            let present = in_force.policies.iter().map(|policy| Arc::clone(&policy.limiter));
            present.chain(past.limiters.iter().filter_map(Weak::upgrade)).collect()
        };
        // After the lock is released, since closing a queue runs wakers, which are foreign code.
        limiters.iter().for_each(|limiter| limiter.close());
    }
}

/// Lets policies inherit from those of their names in `before`. Returns the result, and the steps to run once the
/// policies are in force.
fn inherit(policies: &mut [Policy], before: &InForce) -> (Replaced, Vec<Finish>) {
    let (mut replaced, mut finish) = (Replaced::default(), Vec::new());
    for policy in &mut *policies {
        let Some(old) = before.policy(policy.name()) else { continue };
        match policy.inherit(old, &mut finish) {
            InheritedBudgets::Inherited => {}
            InheritedBudgets::InheritedWithCapacity => replaced.keeping_capacity.push(policy.name().to_owned()),
            InheritedBudgets::Lost => {
                log::not_inherited(policy.name());
                replaced.not_inherited.push(policy.name().to_owned());
            }
        }
    }
    let names: HashSet<_> = policies.iter().map(Policy::name).collect();
    let removed = before.policies.iter().map(Policy::name).filter(|name| !names.contains(name));
    replaced.removed = removed.map(str::to_owned).collect();
    (replaced, finish)
}

/// Updates the metrics of limiters that are no longer in force for the last time, and sets the gauges of removed
/// policies to zero.
fn observe_ends(before: &[Policy], after: &[Policy]) {
    for old in before {
        old.observe_end(after.iter().any(|new| new.name() == old.name()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::limiter::IntoLimiter;
    use crate::values::Quota;

    #[test]
    fn a_limiter_that_stays_in_force_is_remembered_once() {
        let shared = TokenBucket::new(Quota::per_second(1)).into_limiter();
        let policies = || {
            let policy = Policy::new("p", Arc::clone(&shared));
            Enforceable::new(policy).unwrap_or_else(|error| panic!("{error}"))
        };
        let layer = LayerState::new(policies(), LayerSettings::default());
        for _ in 0..3 {
            layer.replace(policies());
        }
        assert_eq!(layer.past.lock().unwrap().limiters.len(), 1);
    }
}
