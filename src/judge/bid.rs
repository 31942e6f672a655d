use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::grpc;
use crate::head::RequestHead;
use crate::key::KeyError;
use crate::meter::Fate;
use crate::partition::PartitionKey;
use crate::policy::{Choices, MissingKey, Policy};
use crate::rejection::Rejection;
use crate::time::{Clock, Monotonic};

/// A policy's claim on one request, and what came of it.
pub(super) struct Bid {
    pub(super) policy: usize,
    pub(super) key: PartitionKey,
    pub(super) cost: u32,
    /// How long the client waits, if it says so and may have to.
    pub(super) patience: Option<Duration>,
    /// Whether everybody draws on this key.
    pub(super) shared: bool,
    /// Whether the limiter failed, and what this process knows alone decides.
    pub(super) guarded: bool,
    /// For how much longer the key is banned, if it is.
    pub(super) ban: Option<Duration>,
    /// Whether its charge awaits the response.
    pub(super) is_open: bool,
    pub(super) decision: Option<Decision>,
}

/// Room for two: a short limit and a long one, or one by client and one for all.
pub(super) type Bids = SmallVec<[Bid; 2]>;

/// What a policy claims, if it applies.
#[inline]
pub(super) fn of(
    index: usize,
    policy: &Policy,
    head: &RequestHead<'_>,
    choices: &mut Choices,
) -> Result<Option<Bid>, Rejection> {
    if !policy.applies_to(head, choices) {
        policy.note(Fate::Skipped, None, None);
        return Ok(None);
    }
    let (key, shared) = match policy.extractor().extract(head) {
        Ok(key) => {
            policy.note_key(&key);
            (key, policy.extractor().is_shared())
        }
        Err(error) => match without_key(policy, error) {
            Ok(Some(key)) => (key, true),
            Ok(None) => {
                policy.note(Fate::Skipped, None, None);
                return Ok(None);
            }
            Err(rejection) => {
                policy.note(Fate::NoKey, None, None);
                return Err(rejection);
            }
        },
    };
    let patience = if policy.delays() { grpc::deadline(head) } else { None };
    let cost = policy.cost_of(head);
    let ban = policy.penalty_for(&key).and_then(|penalty| penalty.banned_for(&key));
    Ok(Some(Bid { policy: index, key, cost, patience, shared, guarded: false, ban, is_open: false, decision: None }))
}

/// The key of requests without a key; or none, if they are not counted.
#[cold]
fn without_key(policy: &Policy, error: KeyError) -> Result<Option<PartitionKey>, Rejection> {
    match (&error, policy.missing_key()) {
        (KeyError::Missing { .. }, MissingKey::Skip) => return Ok(None),
        (KeyError::Missing { .. }, MissingKey::Share) => return Ok(Some(PartitionKey::SHARED)),
        (KeyError::Misconfigured { problem }, _) => policy.report_misconfigured(problem),
        _ => {}
    }
    // Shadows never reject, so what they cannot count they skip.
    if policy.is_shadow() { Ok(None) } else { Err(Rejection::without_key(policy, error)) }
}

impl Bid {
    pub(super) fn is_refused(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }

    /// Decides without charging, as far as that can be known at once.
    pub(super) fn foresee(&mut self, policy: &Policy) {
        self.decision = policy.limiter().peek_within(&self.key, self.cost, self.patience);
        if let Some(ban) = self.ban {
            self.impose(policy, ban);
        }
    }

    /// Has a ban decide, beside the limiter.
    #[cold]
    fn impose(&mut self, policy: &Policy, ban: Duration) {
        // A limiter that cannot be peeked at has told its wait with an earlier rejection.
        let advised = || policy.penalty_for(&self.key)?.advised_for(&self.key);
        let unknown = || Decision::deny(policy.limiter().max_cost().unwrap_or(0), 0, advised().or(Some(ban)));
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
        if policy.is_billed_later()
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
