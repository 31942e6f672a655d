//! One request before all policies of a layer: they charge it all, or none does.
//!
//! 1. Every policy that applies makes its **bid**: a key and a cost.
//! 2. With several bids, all are **peeked** at first. If any policy would refuse, nothing is
//!    charged at all, and the refusal can name every policy that it offends.
//! 3. Each bid is **charged** in turn. Another request may have come in between and taken what the
//!    peek saw; then what was charged so far is given back, exactly.
//!
//! Policies that make requests wait are charged after those that do not, and shadows last of all:
//! they see what is really served.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{Check, Decision, LimiterError, Pending};
use crate::head::RequestHead;
use crate::key::KeyError;
use crate::partition::PartitionKey;
use crate::policy::{FailureMode, MissingKey, Policy};
use crate::rejection::{Rejection, Responder};
use crate::time;
use crate::verdict::Verdict;

/// What the services of a layer have in common. Cloning costs two reference counts.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) policies: Arc<[Policy]>,
    pub(crate) responder: Arc<Responder>,
    /// Whether admitted responses carry the verdict.
    pub(crate) tells_verdict: bool,
}

/// Boxed, as it is rare and large.
/// An admitted request comes with its verdict, if that is to be told.
pub(crate) type Judged = Result<Option<Verdict>, Box<Rejection>>;

pub(crate) enum Judgement {
    Decided(Judged),
    Pending(Pin<Box<dyn Future<Output = Judged> + Send>>),
}

pub(crate) fn judge(shared: &Shared, head: &RequestHead<'_>) -> Judgement {
    let policies = &shared.policies;
    let mut bids = match collect_bids(policies, head) {
        Ok(bids) => bids,
        Err(rejection) => return Judgement::Decided(Err(rejection)),
    };
    // One reading of the clock for all policies, however often they are asked. Not across an await: the
    // guard is gone by then.
    let _held = (bids.len() > 1).then(time::hold);
    if let Some(rejection) = foresee_refusal(policies, &mut bids) {
        return Judgement::Decided(Err(rejection));
    }
    let mut charging = Charging { bids, next: 0, tells_verdict: shared.tells_verdict };
    match charging.proceed(policies) {
        Progress::Done(judged) => Judgement::Decided(judged),
        Progress::Waiting(mut pending) => {
            let policies = Arc::clone(policies);
            Judgement::Pending(Box::pin(async move {
                loop {
                    let answer = pending.await;
                    charging.settle(&policies, &answer)?;
                    match charging.proceed(&policies) {
                        Progress::Done(judged) => return judged,
                        Progress::Waiting(next) => pending = next,
                    }
                }
            }))
        }
    }
}

/// A policy's claim on one request, and what came of it.
struct Bid {
    policy: usize,
    key: PartitionKey,
    cost: u32,
    /// Whether everybody draws on this key.
    shared: bool,
    decision: Option<Decision>,
}

/// Room for two: a short limit and a long one, or one by client and one for all.
type Bids = SmallVec<[Bid; 2]>;

fn collect_bids(policies: &[Policy], head: &RequestHead<'_>) -> Result<Bids, Box<Rejection>> {
    let mut bids = Bids::new();
    for (index, policy) in policies.iter().enumerate() {
        if !policy.applies_to(head) {
            continue;
        }
        let (key, shared) = match policy.extractor().extract(head) {
            Ok(key) => (key, policy.extractor().is_shared()),
            Err(KeyError::Missing { .. }) if policy.missing_key() == MissingKey::Skip => continue,
            Err(KeyError::Missing { .. }) if policy.missing_key() == MissingKey::Share => (PartitionKey::SHARED, true),
            Err(error) => {
                if let KeyError::Misconfigured { problem } = &error {
                    policy.report_misconfigured(problem);
                }
                // Shadows never reject, so what they cannot count they skip.
                if policy.is_shadow() {
                    continue;
                }
                return Err(Box::new(Rejection::without_key(policy, error)));
            }
        };
        bids.push(Bid { policy: index, key, cost: policy.cost_of(head), shared, decision: None });
    }
    Ok(bids)
}

/// The refusal that charging these bids would meet. A single one that is enforced is not peeked at: its
/// charge is all or none by itself.
fn foresee_refusal(policies: &[Policy], bids: &mut Bids) -> Option<Box<Rejection>> {
    let is_enforced = |bid: &Bid| !policies[bid.policy].is_shadow();
    if bids.iter().filter(|bid| is_enforced(bid)).count() < 2 {
        return None;
    }
    for bid in bids.iter_mut().filter(|bid| is_enforced(bid)) {
        bid.decision = policies[bid.policy].limiter().peek(&bid.key, bid.cost);
    }
    if bids.iter().any(Bid::is_refused) {
        return Some(refuse(policies, bids));
    }
    for bid in bids {
        bid.decision = None;
    }
    None
}

impl Bid {
    fn is_refused(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }
}

/// The rejection of bids of which at least one is refused, and none is charged (any more).
fn refuse(policies: &[Policy], bids: &mut Bids) -> Box<Rejection> {
    // The policy that keeps the client out longest speaks for all; for ever, if no wait helps.
    let wait = |bid: &&Bid| bid.decision.and_then(|decision| decision.retry_after()).unwrap_or(Duration::MAX);
    let refused = bids.iter().filter(|bid| bid.is_refused() && !policies[bid.policy].is_shadow());
    // Of equals the first one, which `max_by_key` would not return.
    let longest = refused.rev().max_by_key(wait).expect("one is refused");
    let status = policies[longest.policy].refusal_status(longest.shared);
    Box::new(Rejection::limit_exceeded(status, verdict_at_rest(policies, bids)))
}

/// What the policies say of a request that was not charged: those that would have admitted it tell
/// what is left without it.
fn verdict_at_rest(policies: &[Policy], bids: &mut Bids) -> Verdict {
    for bid in bids.iter_mut().filter(|bid| !bid.is_refused()) {
        bid.decision = bid.decision.and_then(|_| policies[bid.policy].limiter().peek(&bid.key, 0));
    }
    verdict(policies, bids)
}

fn verdict(policies: &[Policy], bids: &Bids) -> Verdict {
    let mut verdict = Verdict::default();
    for bid in bids {
        if let Some(decision) = bid.decision {
            let policy = &policies[bid.policy];
            verdict.push(policy.shared_name(), decision, policy.is_shadow());
        }
    }
    verdict
}

/// The bids, charged up to `next`. Dropped in the middle, it leaves them charged: a request that
/// was cancelled while it waited has cost what it cost.
struct Charging {
    bids: Bids,
    next: usize,
    tells_verdict: bool,
}

enum Progress {
    Done(Judged),
    Waiting(Pending),
}

impl Charging {
    fn proceed(&mut self, policies: &[Policy]) -> Progress {
        while let Some(bid) = self.bids.get(self.next) {
            let policy = &policies[bid.policy];
            let check = if policy.is_shadow() {
                policy.limiter().rehearse(&bid.key, bid.cost)
            } else {
                policy.limiter().check(&bid.key, bid.cost)
            };
            match check {
                Check::Pending(pending) => return Progress::Waiting(pending),
                Check::Ready(answer) => {
                    if let Err(rejection) = self.settle(policies, &answer) {
                        return Progress::Done(Err(rejection));
                    }
                }
            }
        }
        Progress::Done(Ok(self.tells_verdict.then(|| verdict(policies, &self.bids))))
    }

    /// Takes the answer to the bid whose turn it was.
    fn settle(&mut self, policies: &[Policy], answer: &Result<Decision, LimiterError>) -> Result<(), Box<Rejection>> {
        let bid = &mut self.bids[self.next];
        let policy = &policies[bid.policy];
        policy.report_health(answer.as_ref().err());
        match *answer {
            Ok(decision) => {
                bid.decision = Some(decision);
                if !decision.is_allowed() && policy.is_shadow() {
                    policy.count_shadow_denial();
                } else if !decision.is_allowed() {
                    self.give_back(policies);
                    return Err(refuse(policies, &mut self.bids));
                }
            }
            Err(_) if policy.is_shadow() || policy.failure_mode() == FailureMode::Allow => {}
            Err(_) => {
                self.give_back(policies);
                let verdict = verdict_at_rest(policies, &mut self.bids);
                return Err(Box::new(Rejection::limiter_failed(policy, verdict)));
            }
        }
        self.next += 1;
        Ok(())
    }

    /// Undoes the charges made so far, the last one first: see [`Receipt`](crate::decision::Receipt).
    fn give_back(&self, policies: &[Policy]) {
        for bid in self.bids[..self.next].iter().rev() {
            if let Some(decision) = bid.decision {
                policies[bid.policy].limiter().give_back(&bid.key, bid.cost, decision.receipt());
            }
        }
    }
}
