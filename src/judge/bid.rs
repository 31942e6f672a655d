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
    /// Whether the key is banned, so that the limiter need not be asked.
    pub(super) banned: bool,
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
    let mut bid = Bid { policy: index, key, cost, patience, shared, guarded: false, banned: false, decision: None };
    if let Some(left) = policy.enforced_penalty().and_then(|penalty| penalty.left(&bid.key)) {
        bid.ban(policy, left);
    }
    Ok(Some(bid))
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

    /// Whoever is told of a shorter wait would come back to be refused.
    #[cold]
    pub(super) fn ban(&mut self, policy: &Policy, left: Duration) {
        let decision = self.decision.or_else(|| policy.limiter().peek(&self.key, 0));
        let unknown = || Decision::allow(policy.limiter().max_cost().unwrap_or(0), 0);
        self.decision = Some(decision.unwrap_or_else(unknown).banned_for(left));
        self.banned = true;
    }
}
