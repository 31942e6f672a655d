//! The extras that policies do beside one limiter call per request, which decide the path that their requests take.
//!
//! Every options struct is destructured without `..`. So a new option does not compile before it is listed here, or
//! stated to need nothing. A path that does not know an option would ignore it.

use crate::engine::domain::Domain;
use crate::engine::policy::billing::Billing;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::lineage::Lineage;
use crate::engine::policy::precedence::PrecedenceOf;
use crate::values::Lasting;

/// Something that a policy does beside one limiter call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// Only reports.
    Shadow,
    /// Bans keys.
    Bans,
    /// Reports crossings.
    WatchesShares,
    /// Charges several keys per request.
    SeveralKeys,
    /// Learns a request's cost later.
    SettlesLater,
    /// Keeps a record per request, because retries are free.
    ChargesOnce,
    /// Its requests hold units until they are over.
    Holds,
    /// Releases the units when the response's head comes.
    ReleasesAtHead,
    /// Its limiter sheds, so that requests have a precedence.
    Sheds,
}

impl Extra {
    /// Whether a request may have something left to do after its decision.
    const fn outlasts_decision(self) -> bool {
        match self {
            Self::SettlesLater | Self::ChargesOnce | Self::Holds | Self::Sheds => true,
            Self::Shadow | Self::Bans | Self::WatchesShares | Self::SeveralKeys | Self::ReleasesAtHead => false,
        }
    }

    /// Whether the path for requests that hold units supports this.
    const fn is_of_held_requests(self) -> bool {
        match self {
            Self::Holds | Self::Sheds => true,
            Self::Shadow
            | Self::Bans
            | Self::WatchesShares
            | Self::SeveralKeys
            | Self::SettlesLater
            | Self::ChargesOnce
            | Self::ReleasesAtHead => false,
        }
    }
}

// These are asked when policies are put in force, and never by a request.
impl<D: Domain> Policy<D> {
    /// The policy's other work, beside one limiter call per request.
    pub(super) fn extras(&self) -> impl Iterator<Item = Extra> {
        let Self {
            shadow,
            description,
            selector,
            billing,
            lineage,
            watched,
            // These set how the call is made, which all paths ask.
            limiter: _,
            costs: _,
            precedence,
            // These set the consequences of a decision or a failure.
            on_failure: _,
            status: _,
            // Names and reports.
            name: _,
            hook: _,
            options: _,
        } = self;
        // Only limiters that shed use it.
        let PrecedenceOf { priority: _, weight: _ } = precedence;
        // All paths look for debts as soon as a key owes something: see `Policy::has_debts`.
        let Billing { bill, retries, releases_at_head, owes_shortfalls: _ } = billing;
        // A former penalty's bans are only kept for a successor. Rejections count offenders on all paths.
        let Lineage { penalty, line: _, record: _, meter: _, former_bans: _, offenders: _ } = lineage;
        let Lasting { holds, sheds } = description.lasting();
        [
            (*shadow, Extra::Shadow),
            (penalty.is_some(), Extra::Bans),
            (!watched.is_empty(), Extra::WatchesShares),
            (selector.asks_several_keys(), Extra::SeveralKeys),
            (bill.is_some(), Extra::SettlesLater),
            (retries.is_some(), Extra::ChargesOnce),
            (holds, Extra::Holds),
            (*releases_at_head, Extra::ReleasesAtHead),
            (sheds, Extra::Sheds),
        ]
        .into_iter()
        .filter_map(|(is_set, extra)| is_set.then_some(extra))
    }

    /// Whether one limiter call is all that the policy does for a request.
    pub(crate) fn is_plain(&self) -> bool {
        self.extras().next().is_none()
    }

    /// Whether requests hold the limiter's units until they are over, and the policy is [plain](Self::is_plain)
    /// otherwise.
    pub(crate) fn is_plainly_held(&self) -> bool {
        self.extras().any(|extra| extra == Extra::Holds) && self.extras().all(Extra::is_of_held_requests)
    }

    /// Whether this policy may have more to do for a request after its decision: if it [ends with the
    /// response](Self::ends_with_response), if it charges retries once and so keeps a record of each request, or if its
    /// limiter sheds and so requests have a precedence.
    pub(crate) fn is_open_ended(&self) -> bool {
        self.extras().any(Extra::outlasts_decision)
    }
}
