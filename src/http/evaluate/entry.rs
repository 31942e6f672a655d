use std::time::Duration;

use smallvec::SmallVec;

use crate::http::head::RequestHead;
use crate::http::key::KeyError;
use crate::http::policy::Fate;
use crate::http::policy::{Choices, MissingKey, Policy};
use crate::http::reject::Rejection;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Ask, Decision, Now, PartitionKey, Receipt};

/// A policy's part of one request: whom it charges, how much, and what its limiter said.
pub(super) struct Entry {
    pub(super) key: PartitionKey,
    /// For how much longer the key is banned, if it is.
    pub(super) ban: Option<Duration>,
    pub(super) decision: Option<Decision>,
    /// The policy's index.
    pub(super) policy: u32,
    pub(super) cost: u32,
    /// Whether the limiter failed, and what this process knows alone decides.
    pub(super) fell_back: bool,
    /// Whether its charge awaits the response.
    pub(super) is_open: bool,
    /// Whether the decision was made as if the entry were charged, and it is not.
    pub(super) is_preview: bool,
}

/// Room for two: a short limit and a long one, or one by client and one for all.
pub(super) type Entries = SmallVec<[Entry; 2]>;

/// What all entries of a request have in common when their limiters are asked.
#[derive(Default)]
pub(super) struct Moment {
    pub(super) now: Now,
    /// How long the client waits, if it says so and may have to.
    pub(super) patience: Option<Duration>,
}

/// Why a policy charges nobody for a request.
pub(super) enum NoKey {
    /// The policy does not apply.
    Skipped,
    /// The request lacks the key.
    Rejected(Box<Rejection>),
}

/// Whom a policy charges, if it applies.
#[inline]
pub(super) fn key(policy: &Policy, head: &RequestHead<'_>, choices: &mut Choices) -> Result<PartitionKey, NoKey> {
    if !policy.applies_to(head, choices) {
        return Err(skip(policy));
    }
    let key = policy.extractor().extract(head).or_else(|error| without_key(policy, error))?;
    policy.note_key(&key);
    Ok(key)
}

#[cold]
fn skip(policy: &Policy) -> NoKey {
    policy.note(Fate::Skipped, None, None);
    NoKey::Skipped
}

/// The key of requests without a key; or none, if they are not counted.
#[cold]
fn without_key(policy: &Policy, error: KeyError) -> Result<PartitionKey, NoKey> {
    match (&error, policy.missing_key()) {
        (KeyError::Missing { .. }, MissingKey::Skip) => return Err(skip(policy)),
        (KeyError::Missing { .. }, MissingKey::Share) => return Ok(PartitionKey::SHARED),
        (KeyError::Misconfigured { problem }, _) => policy.report_misconfigured(problem),
        _ => {}
    }
    // Shadows never reject, so what they cannot count they skip.
    if policy.is_shadow() {
        return Err(skip(policy));
    }
    policy.note(Fate::NoKey, None, None);
    Err(NoKey::Rejected(Box::new(Rejection::without_key(policy, error))))
}

impl Entry {
    /// Of a policy that bans nobody.
    #[inline]
    pub(super) const fn new(policy: u32, key: PartitionKey, cost: u32) -> Self {
        Self { key, ban: None, decision: None, policy, cost, fell_back: false, is_open: false, is_preview: false }
    }

    #[inline]
    pub(super) fn policy_of<'a>(&self, policies: &'a [Policy]) -> &'a Policy {
        &policies[self.policy as usize]
    }

    /// To charge it.
    #[inline]
    pub(super) const fn ask<'a>(&'a self, moment: &'a Moment) -> Ask<'a> {
        Ask::charge(&self.key, self.cost).within(moment.patience).at(&moment.now)
    }

    pub(super) fn is_rejected(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }

    /// The decision, if the entry was charged.
    pub(super) fn charged(&self) -> Option<&Decision> {
        self.decision.as_ref().filter(|decision| decision.is_allowed())
    }

    /// Has the decision read as if the entry had been charged `cost` in the first place.
    pub(super) fn recharge(&mut self, policy: &Policy, cost: u32) {
        let terms = policy.description().terms();
        self.decision = self.decision.map(|decision| decision.recharged(self.cost, cost, terms));
    }

    /// Has the decision read as if the entry had not been charged, nor will be.
    pub(super) fn uncharge(&mut self, policy: &Policy) {
        if self.charged().is_some_and(|decision| self.is_preview || decision.receipt() != Receipt::NONE) {
            self.recharge(policy, 0);
        }
    }

    /// Decides without charging, as far as that can be known at once.
    pub(super) fn precheck(&mut self, policy: &Policy, moment: &Moment) {
        self.decision = policy.peek(&self.ask(moment));
        self.is_preview = true;
        if let Some(ban) = self.ban {
            self.impose(policy, ban);
        }
    }

    /// Has a ban decide, beside the limiter.
    #[cold]
    fn impose(&mut self, policy: &Policy, ban: Duration) {
        // A limiter that cannot be peeked at has advertised its wait with an earlier rejection.
        let advised = || policy.penalty_for(&self.key)?.advised_for(&self.key);
        let unknown = || Decision::deny(policy.description().max_cost().unwrap_or(0), 0, advised().or(Some(ban)));
        self.decision = Some(self.decision.unwrap_or_else(unknown).banned_for(ban));
        self.ban = Some(ban);
    }

    /// Notes that the limiter rejects this request: which may be one too many, or be caused by charges that are about to
    /// be refunded.
    #[cold]
    pub(super) fn note_rejection(&mut self, policy: &Policy) {
        if self.ban.is_some() {
            return;
        }
        if policy.settles_later()
            && let Some((refundable, soon)) = policy.open_charges().expected(&self.key, Monotonic.now())
        {
            self.decision = self.decision.map(|decision| {
                let fits = u64::from(decision.remaining()).saturating_add(refundable) >= self.cost.into();
                // What the final cost will be is not known, unless it is all or nothing; nor does a queue take back more than
                // its last place.
                let is_known = policy.is_all_or_nothing() && !policy.delays();
                if fits && is_known { decision.wait_at_most(soon) } else { decision }
            });
            return;
        }
        if let Some(ban) = policy.penalty_for(&self.key).and_then(|penalty| penalty.note_rejection(&self.key)) {
            self.impose(policy, ban);
        }
    }
}
