use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::bid::{Bid, Bids};
use super::{Judged, Judgement, Refused, Shared, note, pass, refuse, verdict_at_rest};
use crate::claim::{Answers, Claim};
use crate::decision::{Check, Decision, LimiterError, Pending};
use crate::meter::Fate;
use crate::policy::{FailureMode, Policy};
use crate::rejection::Rejection;

/// The bids, charged up to `next`. Dropped in the middle, it leaves them charged: a request that
/// was cancelled while it waited has cost what it cost.
pub(super) struct Charging {
    pub(super) bids: Bids,
    pub(super) next: usize,
    /// To the bids from `next` on, as far as they were decided together. In reverse, the first one last.
    pub(super) answers: Answers,
}

enum Progress {
    Done(Judged),
    One(Pending),
    /// Of several bids at once.
    Several(Pin<Box<dyn Future<Output = Answers> + Send>>),
}

impl Charging {
    pub(super) fn new(bids: Bids) -> Self {
        Self { bids, next: 0, answers: Answers::new() }
    }

    pub(super) fn of(bid: Bid) -> Self {
        Self::new(SmallVec::from_iter([bid]))
    }

    /// Goes on with the answer to the first bid.
    #[cold]
    pub(super) fn resume(mut self, shared: &Arc<Shared>, check: Check) -> Judgement {
        match check {
            Check::Pending(pending) => self.wait(shared, Progress::One(pending)),
            Check::Ready(answer) => {
                self.answers.push(answer);
                self.run(shared)
            }
        }
    }

    pub(super) fn run(mut self, shared: &Arc<Shared>) -> Judgement {
        match self.proceed(shared) {
            Progress::Done(judged) => Judgement::Decided(judged),
            progress => self.wait(shared, progress),
        }
    }

    fn wait(self, shared: &Arc<Shared>, mut progress: Progress) -> Judgement {
        // Made now, and not when it is first polled: some clients leave before that.
        let mut waiter = Waiter::new(self, Arc::clone(shared));
        Judgement::Pending(Box::pin(async move {
            loop {
                match progress {
                    Progress::Done(judged) => return judged,
                    Progress::One(pending) => {
                        let answer = pending.await;
                        waiter.is_answered(answer.as_ref().ok());
                        waiter.charging.answers.push(answer);
                    }
                    Progress::Several(pending) => {
                        let answers = pending.await;
                        waiter.is_answered(None);
                        waiter.charging.take_answers(answers);
                    }
                }
                progress = waiter.proceed();
            }
        }))
    }

    /// Up to what must be waited for, or to the end.
    fn proceed(&mut self, shared: &Arc<Shared>) -> Progress {
        let policies = &*shared.policies;
        while self.next < self.bids.len() {
            let answer = match self.answers.pop() {
                Some(answer) => answer,
                None => match self.ask(policies) {
                    Asked::Now(Check::Ready(answer)) => answer,
                    Asked::Now(Check::Pending(pending)) => return Progress::One(pending),
                    Asked::Several(pending) => return Progress::Several(pending),
                },
            };
            match self.settle(shared, &answer) {
                Ok(None) => {}
                Ok(Some(pending)) => return Progress::One(pending),
                Err(refused) => return Progress::Done(Err(refused)),
            }
        }
        Progress::Done(Ok(pass(shared, &mut self.bids)))
    }

    fn ask(&mut self, policies: &[Policy]) -> Asked {
        let bid = &self.bids[self.next];
        let policy = &policies[bid.policy];
        if policy.is_shadow() {
            return Asked::Now(policy.limiter().rehearse(&bid.key, bid.cost));
        }
        if let Some(pending) = self.ask_together(policies) {
            return Asked::Several(pending);
        }
        let bid = &self.bids[self.next];
        Asked::Now(policy.limiter().check_within(&bid.key, bid.cost, bid.patience))
    }

    /// Has the next bid decided together with those after it whose limiters are in the same store, and puts them
    /// right behind it; `None` if there are no others.
    fn ask_together(&mut self, policies: &[Policy]) -> Option<Pin<Box<dyn Future<Output = Answers> + Send>>> {
        if self.next + 1 == self.bids.len() {
            return None;
        }
        let claim = |bid: &Bid| -> Option<Claim> {
            let policy = &policies[bid.policy];
            if policy.is_shadow() { None } else { policy.limiter().enlist(&bid.key, bid.cost) }
        };
        let first = claim(&self.bids[self.next])?;
        let mut others = Vec::new();
        for index in self.next + 1..self.bids.len() {
            if let Some(other) = claim(&self.bids[index]).filter(|other| other.party() == first.party()) {
                others.push(other);
                self.bids[self.next + others.len()..=index].rotate_right(1);
            }
        }
        if others.is_empty() { None } else { Some(first.decide_all(others)) }
    }

    /// A refusal is to name all that refuse, so all decisions are noted before the first is acted on. It is acted on
    /// first, so that who is refused by one policy is not told that another failed.
    fn take_answers(&mut self, mut answers: Answers) {
        let bids = &mut self.bids[self.next..];
        for (bid, answer) in bids.iter_mut().zip(&answers) {
            bid.decision = answer.as_ref().ok().copied();
        }
        if let Some(refused) = bids.iter().position(Bid::is_refused) {
            bids[..=refused].rotate_right(1);
            answers[..=refused].rotate_right(1);
        }
        answers.reverse();
        self.answers = answers;
    }

    /// Takes the answer to the bid whose turn it was. If that is an error, its guard may have to be waited for.
    fn settle(&mut self, shared: &Shared, answer: &Result<Decision, LimiterError>) -> Result<Option<Pending>, Refused> {
        let policies = &*shared.policies;
        let bid = &mut self.bids[self.next];
        let policy = &policies[bid.policy];
        let is_closed = answer.as_ref().is_err_and(LimiterError::is_closed);
        if !bid.guarded && !is_closed {
            policy.report_health(answer.as_ref().err());
            if answer.is_err() {
                policy.count_failure();
            }
        }
        match *answer {
            Ok(decision) => {
                bid.decision = Some(decision);
                if !decision.is_allowed() && policy.is_shadow() {
                    policy.count_shadow_denial();
                } else if !decision.is_allowed() {
                    self.give_back(policies);
                    return Err(refuse(shared, &mut self.bids));
                }
            }
            Err(_) if policy.is_shadow() || (policy.failure_mode() == FailureMode::Allow && !is_closed) => {
                policy.note(Fate::StoreError, Some(&bid.key), None);
            }
            Err(_) if policy.failure_mode() == FailureMode::LocalGuard && !bid.guarded && !is_closed => {
                bid.guarded = true;
                match policy.limiter().guard(&bid.key, bid.cost, bid.patience) {
                    Some(Check::Pending(pending)) => return Ok(Some(pending)),
                    Some(Check::Ready(answer)) => self.answers.push(answer),
                    None => self.answers.push(answer.clone()),
                }
                return Ok(None);
            }
            Err(_) => {
                policy.note(Fate::StoreError, Some(&bid.key), None);
                self.give_back(policies);
                let verdict = verdict_at_rest(policies, &mut self.bids);
                let rejection = Rejection::limiter_failed(policy, is_closed, verdict);
                return Err(Refused { rejection, told: shared.tell(&self.bids) });
            }
        }
        self.next += 1;
        Ok(None)
    }

    /// Undoes the charges made so far, the last one first: see [`Receipt`](crate::decision::Receipt).
    fn give_back(&self, policies: &[Policy]) {
        for bid in self.bids.iter().rev() {
            // Those decided together may have been charged, although their turn has not come.
            if let Some(decision) = bid.decision.filter(Decision::is_allowed) {
                policies[bid.policy].in_force(|limiter| limiter.give_back(&bid.key, bid.cost, decision.receipt()));
            }
        }
    }
}

/// A request that waits for the answer to the bid whose turn it is. Dropped meanwhile, its client has left.
struct Waiter {
    charging: Charging,
    shared: Arc<Shared>,
    /// `None` while it does not wait.
    since: Option<Instant>,
}

impl Waiter {
    fn new(charging: Charging, shared: Arc<Shared>) -> Self {
        let mut waiter = Self { charging, shared, since: None };
        waiter.begin();
        waiter
    }

    fn begin(&mut self) {
        self.since = Some(Instant::now());
        if let Some(policy) = self.in_line() {
            policy.meter().enter_queue();
        }
    }

    /// With the decision, if it was one.
    fn is_answered(&mut self, decision: Option<&Decision>) {
        self.since = None;
        if let Some(policy) = self.in_line() {
            policy.meter().leave_queue();
            let delay = decision.filter(|decision| decision.is_allowed()).map_or(Duration::ZERO, Decision::delay);
            if !delay.is_zero() {
                policy.meter().waited(Fate::Delayed, delay);
            }
        }
    }

    fn proceed(&mut self) -> Progress {
        let progress = self.charging.proceed(&self.shared);
        if !matches!(progress, Progress::Done(_)) {
            self.begin();
        }
        progress
    }

    fn bid(&self) -> &Bid {
        &self.charging.bids[self.charging.next]
    }

    /// The policy that makes it wait for a turn. Shadows do not.
    fn in_line(&self) -> Option<&Policy> {
        Some(&self.shared.policies[self.bid().policy]).filter(|policy| policy.delays() && !policy.is_shadow())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        if let Some(policy) = self.in_line() {
            policy.meter().leave_queue();
            policy.meter().waited(Fate::Cancelled, since.elapsed());
        }
        // What was charged stays so.
        note(&self.shared.policies, &self.charging.bids[..self.charging.next], true);
        let bid = self.bid();
        self.shared.policies[bid.policy].note(Fate::Cancelled, Some(&bid.key), None);
    }
}

enum Asked {
    Now(Check),
    Several(Pin<Box<dyn Future<Output = Answers> + Send>>),
}
