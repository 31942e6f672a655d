//! Events for operators: transitions of a policy's keys and its limiter. `reports` reports them.

use std::fmt;
use std::sync::Arc;

use crate::engine::policy::selector::WritesKeys;
use crate::engine::policy::shares::Crossing;
use crate::values::{Decision, Exception, LimiterError, PartitionKey};

/// A change of state in a policy, for [`on_transition`](crate::layer::RateLimitLayerBuilder::on_transition).
#[derive(Clone, Copy)]
pub struct Event<'a> {
    pub(super) policy: &'a str,
    pub(super) route: Option<&'a str>,
    pub(super) shadow: bool,
    pub(super) selector: &'a dyn WritesKeys,
    pub(super) transition: Transition<'a>,
    pub(super) left_out: u64,
}

/// The change of state in an [`Event`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Transition<'a> {
    /// A key is rejected for the first time since its budget was full. If that is not known, as for units in flight and
    /// for a cost that never fits, it is the first rejection after a minute without any. A
    /// [shadow](crate::Policy::shadow) reports the rejections that it would make.
    #[non_exhaustive]
    Limited {
        /// The key.
        key: &'a PartitionKey,
        /// The decision that rejects it.
        decision: &'a Decision,
    },
    /// A key's use has passed a [share](crate::Policy::on_crossing) of its limit. [Shadows](crate::Policy::shadow)
    /// report this, too.
    #[non_exhaustive]
    Crossed {
        /// The key, the share, and the key's use.
        crossing: Crossing<'a>,
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
    /// An operator has [unbanned](crate::LimitsHandle::unban) a key. It has no ban and no allowance now, whether it had
    /// one or not.
    #[non_exhaustive]
    Lifted {
        /// The key.
        key: &'a PartitionKey,
    },
    /// An operator has [reset](crate::LimitsHandle::reset) a key. It gets its whole budget, and has no ban and no
    /// allowance now. Reported before the limiter is asked, which may fail.
    #[non_exhaustive]
    Reset {
        /// The key.
        key: &'a PartitionKey,
    },
    /// The limiter begins to fail, for example because its store does not answer.
    #[non_exhaustive]
    Failing {
        /// The first failure.
        error: &'a LimiterError,
    },
    /// The limiter works again.
    Recovered,
    /// The limiter begins to [shed](crate::limiter::Description::shedding), because the server is overloaded. A
    /// [shadow](crate::Policy::shadow) reports when it would. Shed requests are not [`Limited`](Self::Limited) events,
    /// since their keys may have done nothing wrong.
    Shedding,
    /// The limiter admits requests, and has not shed any for some seconds.
    SheddingEnded,
}

impl<'a> Event<'a> {
    /// The policy's name.
    #[must_use]
    pub const fn policy(&self) -> &'a str {
        self.policy
    }

    /// The layer's [route](crate::layer::RateLimitLayerBuilder::route), if it has one.
    #[must_use]
    pub const fn route(&self) -> Option<&'a str> {
        self.route
    }

    /// Whether the policy is a [shadow](crate::Policy::shadow), which never rejects requests.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// The change of state.
    #[must_use]
    pub const fn transition(&self) -> Transition<'a> {
        self.transition
    }

    /// The key [as an operator types it](crate::policy::KeyOf). `None` if the event is not about a key. Keys may be
    /// personal data.
    #[must_use]
    pub fn key_text(&self) -> Option<String> {
        match self.transition {
            Transition::Limited { key, .. }
            | Transition::Banned { key, .. }
            | Transition::Allowed { key, .. }
            | Transition::Lifted { key }
            | Transition::Reset { key } => Some(self.selector.text_of(key)),
            Transition::Crossed { crossing } => Some(crossing.key_text()),
            Transition::Failing { .. } | Transition::Recovered | Transition::Shedding | Transition::SheddingEnded => {
                None
            }
        }
    }

    /// The number of this policy's events that were not reported since the last one, because there were too many.
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
            Transition::Crossed { .. } => "Crossed",
            Transition::Banned { .. } => "Banned",
            Transition::Allowed { .. } => "Allowed",
            Transition::Lifted { .. } => "Lifted",
            Transition::Reset { .. } => "Reset",
            Transition::Failing { .. } => "Failing",
            Transition::Recovered => "Recovered",
            Transition::Shedding => "Shedding",
            Transition::SheddingEnded => "SheddingEnded",
        };
        f.debug_struct("Event").field("policy", &self.policy).field("transition", &name).finish_non_exhaustive()
    }
}

/// A layer's hook, where policies have type `P`.
pub(crate) struct Hook<P> {
    pub(super) tell: Arc<dyn Fn(&Event<'_>) + Send + Sync>,
    /// Notes a key's rejection, for the event at the first one. Only hooks need the keys that are limited.
    pub(super) note_limited: fn(&P, &PartitionKey, &Decision),
}

impl<P> Clone for Hook<P> {
    fn clone(&self) -> Self {
        Self { tell: Arc::clone(&self.tell), note_limited: self.note_limited }
    }
}
