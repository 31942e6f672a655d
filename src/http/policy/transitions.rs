//! Transitions: a key begins to be limited, is banned, or is let in again; a limiter fails, or works again. They are
//! logged, and reported to the hook of the layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::http::policy::definition::Policy;
use crate::http::policy::expiring::{CAPACITY, ExpiringTable};
use crate::util::lock::Lock;
use crate::util::log;
use crate::values::time::{Clock, Timestamp};
use crate::values::{Decision, Exception, LimiterError, Override, PartitionKey};

/// A change of state in a policy, for [`on_transition`](crate::layer::RateLimitLayerBuilder::on_transition).
#[derive(Clone, Copy)]
pub struct Event<'a> {
    policy: &'a Policy,
    transition: Transition<'a>,
    left_out: u64,
}

/// The change of state in an [`Event`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Transition<'a> {
    /// A key is rejected for the first time since its budget was full. Of a [shadow](crate::Policy::shadow): it would
    /// be.
    #[non_exhaustive]
    Limited {
        /// The key.
        key: &'a PartitionKey,
        /// The decision that rejects it.
        decision: &'a Decision,
    },
    /// A key is banned, by hand or for a [penalty](crate::Policy::penalty).
    #[non_exhaustive]
    Banned {
        /// The key.
        key: &'a PartitionKey,
        /// How long, and why.
        ban: Exception,
    },
    /// An operator has [allowed](crate::LimitsHandle::allow) a key.
    #[non_exhaustive]
    Allowed {
        /// The key.
        key: &'a PartitionKey,
        /// How long, and why.
        allowance: Exception,
    },
    /// An operator has ended the ban or the allowance of a key, or has [reset](crate::LimitsHandle::reset) it.
    #[non_exhaustive]
    Lifted {
        /// The key.
        key: &'a PartitionKey,
    },
    /// The limiter begins to fail: its store does not answer, for example.
    #[non_exhaustive]
    Failing {
        /// The first failure.
        error: &'a LimiterError,
    },
    /// The limiter works again.
    Recovered,
}

impl<'a> Event<'a> {
    /// The name of the policy.
    #[must_use]
    pub fn policy(&self) -> &'a str {
        self.policy.name()
    }

    /// The [route](crate::layer::RateLimitLayerBuilder::route) of the layer, if it has one.
    #[must_use]
    pub fn route(&self) -> Option<&'a str> {
        self.policy.heritage.meter.route().map(AsRef::as_ref)
    }

    /// Whether the policy is a [shadow](crate::Policy::shadow), which rejects no request.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.policy.shadow
    }

    /// The change of state.
    #[must_use]
    pub const fn transition(&self) -> Transition<'a> {
        self.transition
    }

    /// The key as an operator types it. `None` if the event is about no key, or only a hash of the key is kept. Keys
    /// may be personal data.
    #[must_use]
    pub fn key_text(&self) -> Option<String> {
        match self.transition {
            Transition::Limited { key, .. }
            | Transition::Banned { key, .. }
            | Transition::Allowed { key, .. }
            | Transition::Lifted { key } => self.policy.text_of(key),
            Transition::Failing { .. } | Transition::Recovered => None,
        }
    }

    /// The number of events of this policy that were not reported since the last one, since there were too many.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Without the key.
impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.transition {
            Transition::Limited { .. } => "Limited",
            Transition::Banned { .. } => "Banned",
            Transition::Allowed { .. } => "Allowed",
            Transition::Lifted { .. } => "Lifted",
            Transition::Failing { .. } => "Failing",
            Transition::Recovered => "Recovered",
        };
        f.debug_struct("Event").field("policy", &self.policy.name).field("transition", &name).finish_non_exhaustive()
    }
}

/// The hook of a layer.
pub(crate) type Hook = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// The keys of one policy that are limited at present, and the events of this second.
pub(crate) struct TransitionRecord {
    /// When the budget of a key that was rejected is full again.
    limited: ExpiringTable<Timestamp>,
    recent: Lock<Recent>,
}

/// The events that were reported in the last second that had one.
#[derive(Default)]
struct Recent {
    second: u64,
    reported: u32,
    left_out: u64,
}

/// The number of events that clients can cause in a second, per policy: more are counted, and not reported.
const MOST_PER_SECOND: u32 = 10;

impl TransitionRecord {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { limited: ExpiringTable::new(CAPACITY, clock), recent: Lock::default() }
    }

    /// Records a rejection. Returns whether it is the first one since the budget of the key was full.
    fn begins(&self, key: &PartitionKey, full_in: Duration) -> bool {
        self.limited.update(key, |end, now| {
            let is_first = end.is_none();
            *end = (*end).max(Some(now.saturating_add(full_in)));
            is_first
        })
    }

    /// Returns the number of events that were left out before this one; `None` if this one is left out, too.
    fn admit(&self) -> Option<u64> {
        let second = self.limited.now().as_nanos() / 1_000_000_000;
        let mut recent = self.recent.lock();
        if recent.second != second {
            (recent.second, recent.reported) = (second, 0);
        }
        if recent.reported >= MOST_PER_SECOND {
            recent.left_out += 1;
            return None;
        }
        recent.reported += 1;
        Some(std::mem::take(&mut recent.left_out))
    }
}

impl Policy {
    /// Notes a rejection by the limiter, if somebody wants to know of the first one of each key.
    #[cold]
    pub(super) fn note_limited(&self, key: &PartitionKey, decision: &Decision) {
        // A ban has an event of its own.
        if self.hook.is_none() || decision.ban().is_some() {
            return;
        }
        let record = self.transitions();
        if record.begins(key, decision.reset_after().max(decision.retry_after().unwrap_or_default())) {
            self.report_some(Transition::Limited { key, decision }, record);
        }
    }

    /// Notes that a penalty has banned a key.
    #[cold]
    pub(super) fn note_banned(&self, key: &PartitionKey, ban: Exception) {
        self.report_some(Transition::Banned { key, ban }, self.transitions());
    }

    /// Reports an event that clients can cause, unless there are too many.
    fn report_some(&self, transition: Transition<'_>, record: &TransitionRecord) {
        if let Some(left_out) = record.admit() {
            self.report(transition, left_out);
        }
    }

    /// Reports what an operator has done to a key.
    pub(crate) fn report_override(&self, key: &PartitionKey, by_hand: Override) {
        let exception = |is_ban, span, reason| Exception { is_ban, left: span, reason };
        let transition = match by_hand {
            Override::Ban { span, reason } => Transition::Banned { key, ban: exception(true, span, reason) },
            Override::Allow { span, reason } => Transition::Allowed { key, allowance: exception(false, span, reason) },
            Override::Lift => Transition::Lifted { key },
        };
        self.report(transition, 0);
    }

    /// Logs a transition, and reports it to the hook of the layer.
    pub(super) fn report(&self, transition: Transition<'_>, left_out: u64) {
        let event = Event { policy: self, transition, left_out };
        let line = |key| log::KeyLine { policy: event.policy(), route: event.route(), key, left_out };
        match transition {
            Transition::Limited { key, decision } => log::key_limited(line(key), self.shadow, decision.retry_after()),
            Transition::Banned { key, ban } => log::key_excepted(line(key), &ban),
            Transition::Allowed { key, allowance } => log::key_excepted(line(key), &allowance),
            Transition::Lifted { key } => log::key_let_in(line(key)),
            Transition::Failing { error } => log::limiter_failed(&self.name, error, self.fate_on_failure()),
            Transition::Recovered => log::limiter_recovered(&self.name),
        }
        if let Some(hook) = &self.hook {
            hook(&event);
        }
    }

    fn transitions(&self) -> &TransitionRecord {
        self.heritage.record.transitions_by(|| self.clock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Quota;

    #[test]
    fn the_end_of_an_outage_is_an_event() {
        let events = Arc::new(Lock::new(Vec::new()));
        let noted = Arc::clone(&events);
        let mut policy = Policy::new("p", Quota::per_second(1));
        policy.hook = Some(Arc::new(move |event| noted.lock().push(format!("{event:?}"))));
        policy.report_health(None);
        // Long ago.
        assert!(policy.heritage.record.health.failed(Timestamp::from_nanos(1)));
        policy.report_health(None);
        policy.report_health(None);
        assert_eq!(*events.lock(), ["Event { policy: \"p\", transition: \"Recovered\", .. }"]);
    }
}
