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

use smallvec::SmallVec;

use crate::decision::{Check, Decision, LimiterError, Pending};
use crate::head::RequestHead;
use crate::key::KeyError;
use crate::partition::PartitionKey;
use crate::policy::{FailureMode, MissingKey, Policy};
use crate::rejection::Rejection;
use crate::verdict::Verdict;

/// Boxed, as it is rare and large.
pub(crate) type Judged = Result<Verdict, Box<Rejection>>;

pub(crate) enum Judgement {
    Decided(Judged),
    Pending(Pin<Box<dyn Future<Output = Judged> + Send>>),
}

pub(crate) fn judge(policies: &Arc<[Policy]>, head: &RequestHead<'_>) -> Judgement {
    let bids = match collect_bids(policies, head) {
        Ok(bids) => bids,
        Err(rejection) => return Judgement::Decided(Err(rejection)),
    };
    if let Some(rejection) = foresee_refusal(policies, &bids) {
        return Judgement::Decided(Err(rejection));
    }
    let mut charging = Charging { bids, next: 0, verdict: Verdict::default() };
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

/// A policy's claim on one request.
struct Bid {
    policy: usize,
    key: PartitionKey,
    cost: u32,
}

type Bids = SmallVec<[Bid; 1]>;

fn collect_bids(policies: &[Policy], head: &RequestHead<'_>) -> Result<Bids, Box<Rejection>> {
    let mut bids = Bids::new();
    for (index, policy) in policies.iter().enumerate() {
        if !policy.applies_to(head) {
            continue;
        }
        let key = match policy.extractor().extract(head) {
            Ok(key) => key,
            Err(KeyError::Missing { .. }) if policy.missing_key() == MissingKey::Skip => continue,
            Err(KeyError::Missing { .. }) if policy.missing_key() == MissingKey::Share => PartitionKey::SHARED,
            // Shadows never reject, so all that they cannot count they skip.
            Err(error) if policy.is_shadow() => {
                note_misconfiguration(policy, &error);
                continue;
            }
            Err(error) => {
                note_misconfiguration(policy, &error);
                return Err(Box::new(Rejection::without_key(policy, error)));
            }
        };
        bids.push(Bid { policy: index, key, cost: policy.cost_of(head) });
    }
    Ok(bids)
}

fn note_misconfiguration(policy: &Policy, error: &KeyError) {
    if let KeyError::Misconfigured { problem } = error {
        policy.report_misconfigured(problem);
    }
}

/// The refusal that charging these bids would meet. A single bid is not peeked at: its charge is
/// all or none by itself.
fn foresee_refusal(policies: &[Policy], bids: &Bids) -> Option<Box<Rejection>> {
    if bids.len() < 2 {
        return None;
    }
    let mut verdict = Verdict::default();
    for bid in bids {
        let policy = &policies[bid.policy];
        if let Some(decision) = policy.limiter().peek(&bid.key, bid.cost) {
            verdict.push(policy.shared_name(), decision, policy.is_shadow());
        }
    }
    if verdict.is_allowed() { None } else { Some(refuse(policies, bids, verdict)) }
}

fn refuse(policies: &[Policy], bids: &Bids, verdict: Verdict) -> Box<Rejection> {
    // Names are unique within a layer, so they find the policy again.
    let policy_of = |name: &str| bids.iter().map(|bid| &policies[bid.policy]).find(|policy| policy.name() == name);
    // The policy that keeps the client out longest speaks for all; for ever, if no wait helps.
    let longest = verdict
        .violated()
        .reduce(|a, b| if waits_longer(b.decision(), a.decision()) { b } else { a })
        .and_then(|violated| policy_of(violated.name()));
    let status = longest.map_or(http::StatusCode::TOO_MANY_REQUESTS, Policy::refusal_status);
    Box::new(Rejection::limit_exceeded(status, verdict))
}

fn waits_longer(a: &Decision, b: &Decision) -> bool {
    match (a.retry_after(), b.retry_after()) {
        (Some(a), Some(b)) => a > b,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

/// The bids, charged up to `next`. Dropped in the middle, it leaves them charged: a request that
/// was cancelled while it waited has cost what it cost.
struct Charging {
    bids: Bids,
    next: usize,
    verdict: Verdict,
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
        Progress::Done(Ok(std::mem::take(&mut self.verdict)))
    }

    /// Takes the answer to the bid whose turn it was.
    fn settle(&mut self, policies: &[Policy], answer: &Result<Decision, LimiterError>) -> Result<(), Box<Rejection>> {
        let policy = &policies[self.bids[self.next].policy];
        policy.report_health(answer.as_ref().err());
        match *answer {
            Ok(decision) => {
                self.verdict.push(policy.shared_name(), decision, policy.is_shadow());
                if !decision.is_allowed() && policy.is_shadow() {
                    policy.count_shadow_denial();
                } else if !decision.is_allowed() {
                    self.give_back(policies);
                    return Err(refuse(policies, &self.bids, std::mem::take(&mut self.verdict)));
                }
            }
            Err(_) if policy.is_shadow() || policy.failure_mode() == FailureMode::Allow => {}
            Err(_) => {
                self.give_back(policies);
                return Err(Box::new(Rejection::limiter_failed(policy, std::mem::take(&mut self.verdict))));
            }
        }
        self.next += 1;
        Ok(())
    }

    /// Undoes the charges made so far.
    fn give_back(&self, policies: &[Policy]) {
        for charged in self.verdict.policies().iter().filter(|charged| charged.decision().is_allowed()) {
            let bid = self.bids.iter().find(|bid| policies[bid.policy].name() == charged.name());
            if let Some(bid) = bid {
                policies[bid.policy].limiter().give_back(&bid.key, bid.cost, charged.decision().receipt());
            }
        }
    }
}
