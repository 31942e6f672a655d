//! One request before all policies of a layer: they charge it all, or none does.
//!
//! 1. Every policy that applies makes its **bid**: a key and a cost.
//! 2. With several bids, all are **peeked** at first. If any policy would refuse, nothing is
//!    charged at all, and the refusal can name every policy that it offends.
//! 3. Each bid is **charged** in turn. Another request may have come in between and taken what the
//!    peek saw; then what was charged so far is given back, exactly.
//!
//! Policies that must be waited for are charged after those that need not: first those on a server elsewhere, which
//! decides on all of its own at once, then queues. Shadows come last of all: they see what is really served.
//!
//! A limiter that fails is no refusal. Its policy says who decides then.

#![allow(clippy::result_large_err, clippy::large_enum_variant, reason = "a box per request takes longer than a copy")]

use std::cmp::Ordering;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Method, Response};
use smallvec::SmallVec;

use crate::body::RejectionBody;
use crate::claim::{Answers, Claim};
use crate::decision::{Check, Decision, LimiterError, Pending};
use crate::grpc;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::{Reading, Writer};
use crate::key::KeyError;
use crate::meter::Fate;
use crate::partition::PartitionKey;
use crate::policy::{FailureMode, MissingKey, Policy};
use crate::rejection::Rejection;
use crate::responder::Responder;
use crate::time;
use crate::told::{OpenBill, Told};
use crate::verdict::Verdict;

/// What the services of a layer have in common.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) policies: Arc<[Policy]>,
    pub(crate) responder: Responder,
    /// `None` if no response gets a field about what is left.
    pub(crate) writer: Option<Arc<Writer>>,
    /// Whether responses carry the verdict.
    pub(crate) tells_verdict: bool,
    /// Whether responses tell how long their requests waited.
    pub(crate) tells_timing: bool,
    /// Whether the preflights of CORS count like other requests.
    pub(crate) counts_preflights: bool,
}

impl Shared {
    /// What a response is told of these decisions.
    #[inline]
    fn tell(&self, bids: &[Bid]) -> Told {
        let fields = self.writer.as_ref().and_then(|writer| {
            writer.fields(bids.iter().filter_map(|bid| {
                let decision = bid.decision.as_ref()?;
                let next_after = if writer.wants_next(bid.policy, decision) { self.next_after(bid) } else { None };
                Some(Reading { policy: bid.policy, decision, next_after, mark: writer.mark(&bid.key) })
            }))
        });
        let waited = if self.tells_timing { waited(&self.policies, bids) } else { None };
        Told {
            fields,
            waited,
            verdict: self.tells_verdict.then(|| Box::new(verdict(&self.policies, bids))),
            open: None,
        }
    }

    #[cold]
    fn leave_open(self: &Arc<Self>, bids: &mut Bids) -> Told {
        let bill = Charged { shared: Arc::clone(self), bids: std::mem::take(bids) };
        Told { open: Some(Box::new(bill)), ..Told::default() }
    }

    /// The time until the key of a bid has one unit.
    #[cold]
    fn next_after(&self, bid: &Bid) -> Option<Duration> {
        self.policies[bid.policy].limiter().peek(&bid.key, 1)?.retry_after()
    }

    /// The response to a request that does not pass.
    #[cold]
    pub(crate) fn respond(&self, refused: Refused, head: &RequestHead<'_>) -> Response<RejectionBody> {
        let Refused { rejection, told } = refused;
        let mut response = self.responder.respond(&rejection, head);
        told.tell(&mut response);
        response
    }
}

/// An admitted request comes with what its response is told.
pub(crate) type Judged = Result<Told, Refused>;

pub(crate) struct Refused {
    rejection: Rejection,
    told: Told,
}

/// Of a request that was not judged.
impl From<Rejection> for Refused {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, told: Told::default() }
    }
}

pub(crate) enum Judgement {
    Decided(Judged),
    Pending(Pin<Box<dyn Future<Output = Judged> + Send>>),
}

#[inline]
pub(crate) fn judge(shared: &Arc<Shared>, head: &RequestHead<'_>) -> Judgement {
    if !shared.counts_preflights && is_preflight(head) {
        shared.policies.iter().for_each(|policy| policy.note(Fate::Skipped, None, None));
        return Judgement::Decided(Ok(Told::default()));
    }
    match &*shared.policies {
        [policy] if !policy.is_shadow() => judge_by_one(shared, policy, head),
        _ => judge_by_all(shared, head),
    }
}

/// Whether a browser asks if it may ask (Fetch, "CORS-preflight request"). It does so without credentials, and takes
/// a refusal for a broken network.
#[inline]
fn is_preflight(head: &RequestHead<'_>) -> bool {
    *head.method() == Method::OPTIONS
        && head.headers().contains_key(ORIGIN)
        && head.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// By the only policy, as in most layers: there is nothing to foresee, and nothing to give back.
#[inline]
fn judge_by_one(shared: &Arc<Shared>, policy: &Policy, head: &RequestHead<'_>) -> Judgement {
    let mut bid = match bid(0, policy, head) {
        Ok(Some(bid)) => bid,
        Ok(None) => return Judgement::Decided(Ok(Told::default())),
        Err(rejection) => return Judgement::Decided(Err(rejection.into())),
    };
    if bid.banned {
        return Judgement::Decided(Err(refuse(shared, std::slice::from_mut(&mut bid))));
    }
    match policy.limiter().check_within(&bid.key, bid.cost, bid.patience) {
        Check::Ready(Ok(decision)) => {
            policy.report_health(None);
            bid.decision = Some(decision);
            if decision.is_allowed() && policy.is_billed_later() {
                return Judgement::Decided(Ok(pass(shared, &mut Bids::from_iter([bid]))));
            }
            let bids = std::slice::from_mut(&mut bid);
            if !decision.is_allowed() {
                return Judgement::Decided(Err(refuse(shared, bids)));
            }
            note(&shared.policies, bids, true);
            Judgement::Decided(Ok(shared.tell(bids)))
        }
        check => Charging::of(bid).resume(shared, check),
    }
}

#[inline(never)]
fn judge_by_all(shared: &Arc<Shared>, head: &RequestHead<'_>) -> Judgement {
    let policies = &*shared.policies;
    let mut bids = Bids::new();
    for (index, policy) in policies.iter().enumerate() {
        match bid(index, policy, head) {
            Ok(bid) => bids.extend(bid),
            Err(rejection) => return Judgement::Decided(Err(rejection.into())),
        }
    }
    if bids.iter().any(|bid| bid.banned) {
        return Judgement::Decided(Err(refuse(shared, &mut bids)));
    }
    // One reading of the clock for all policies, however often they are asked. Not across an await: the
    // guard is gone by then.
    let _held = time::hold();
    if let Some(refused) = foresee_refusal(shared, &mut bids) {
        return Judgement::Decided(Err(refused));
    }
    Charging { bids, next: 0, answers: Answers::new() }.run(shared)
}

/// A policy's claim on one request, and what came of it.
struct Bid {
    policy: usize,
    key: PartitionKey,
    cost: u32,
    /// How long the client waits, if it says so and may have to.
    patience: Option<Duration>,
    /// Whether everybody draws on this key.
    shared: bool,
    /// Whether the limiter failed, and what this process knows alone decides.
    guarded: bool,
    /// Whether the key is banned, so that the limiter need not be asked.
    banned: bool,
    decision: Option<Decision>,
}

/// Room for two: a short limit and a long one, or one by client and one for all.
type Bids = SmallVec<[Bid; 2]>;

/// What a policy claims, if it applies.
#[inline]
fn bid(index: usize, policy: &Policy, head: &RequestHead<'_>) -> Result<Option<Bid>, Rejection> {
    if !policy.applies_to(head) {
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

/// The refusal that charging these bids would meet. A single one that is enforced is not peeked at: its
/// charge is all or none by itself.
fn foresee_refusal(shared: &Shared, bids: &mut Bids) -> Option<Refused> {
    let policies = &*shared.policies;
    let is_enforced = |bid: &Bid| !policies[bid.policy].is_shadow();
    if bids.iter().filter(|bid| is_enforced(bid)).count() < 2 {
        return None;
    }
    for bid in bids.iter_mut().filter(|bid| is_enforced(bid)) {
        bid.decision = policies[bid.policy].limiter().peek_within(&bid.key, bid.cost, bid.patience);
    }
    if bids.iter().any(Bid::is_refused) {
        return Some(refuse(shared, bids));
    }
    // Those that must be waited for are charged after those that need not: little has to be given back then.
    bids.sort_by_key(|bid| (policies[bid.policy].rank(), bid.decision.is_none()));
    for bid in bids {
        bid.decision = None;
    }
    None
}

impl Bid {
    fn is_refused(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }

    /// Whoever is told of a shorter wait would come back to be refused.
    #[cold]
    fn ban(&mut self, policy: &Policy, left: Duration) {
        let decision = self.decision.or_else(|| policy.limiter().peek(&self.key, 0));
        let unknown = || Decision::allow(policy.limiter().max_cost().unwrap_or(0), 0);
        self.decision = Some(decision.unwrap_or_else(unknown).banned_for(left));
        self.banned = true;
    }
}

/// What the response to a request is told that all policies have admitted and charged.
#[inline]
fn pass(shared: &Arc<Shared>, bids: &mut Bids) -> Told {
    note(&shared.policies, bids, true);
    if bids.iter().any(|bid| shared.policies[bid.policy].is_billed_later()) {
        return shared.leave_open(bids);
    }
    shared.tell(bids)
}

/// Counts what was decided. What would have admitted a request that another refuses was not charged, and is not counted.
#[inline]
fn note(policies: &[Policy], bids: &[Bid], has_passed: bool) {
    for bid in bids {
        let (policy, Some(decision)) = (&policies[bid.policy], &bid.decision) else { continue };
        let fate = match (decision.is_allowed(), policy.is_shadow()) {
            (false, false) => Fate::Denied,
            _ if !has_passed => continue,
            (false, true) => Fate::ShadowDenied,
            (true, _) if decision.delay().is_zero() => Fate::Allowed,
            (true, _) => Fate::Delayed,
        };
        policy.note(fate, Some(&bid.key), Some(decision));
    }
}

/// The rejection of bids of which at least one is refused, and none is charged (any more).
#[cold]
fn refuse(shared: &Shared, bids: &mut [Bid]) -> Refused {
    let policies = &*shared.policies;
    for bid in bids.iter_mut().filter(|bid| bid.is_refused() && !bid.banned) {
        let policy = &policies[bid.policy];
        if let Some(ban) = policy.enforced_penalty().and_then(|penalty| penalty.note_refusal(&bid.key)) {
            bid.ban(policy, ban);
        }
    }
    note(policies, bids, false);
    // The policy that keeps the client out longest speaks for all; for ever, if no wait helps.
    let wait = |bid: &&Bid| bid.decision.and_then(|decision| decision.retry_after()).unwrap_or(Duration::MAX);
    let refused = bids.iter().filter(|bid| bid.is_refused() && !policies[bid.policy].is_shadow());
    // Of equals the first one, which `max_by_key` would not return.
    let longest = refused.rev().max_by_key(wait).expect("one is refused");
    // What one client did to be banned is nobody else's fault.
    let banned = longest.banned;
    let status = policies[longest.policy].refusal_status(longest.shared && !banned);
    let verdict = verdict_at_rest(policies, bids);
    let rejection =
        if banned { Rejection::banned(status, verdict) } else { Rejection::limit_exceeded(status, verdict) };
    Refused { rejection, told: shared.tell(bids) }
}

/// What the policies say of a request that was not charged: those that would have admitted it tell
/// what is left without it.
fn verdict_at_rest(policies: &[Policy], bids: &mut [Bid]) -> Verdict {
    for bid in bids.iter_mut().filter(|bid| !bid.is_refused()) {
        let peek = || policies[bid.policy].limiter().peek(&bid.key, 0);
        bid.decision = bid.decision.map(|decision| peek().unwrap_or_else(|| decision.uncharged(bid.cost)));
    }
    verdict(policies, bids)
}

/// In one queue after the other; `None` for a request that did not wait at all.
fn waited(policies: &[Policy], bids: &[Bid]) -> Option<Duration> {
    // Shadows delay nobody, and the refused have not waited.
    let has_waited = |bid: &&Bid| !policies[bid.policy].is_shadow() && !bid.is_refused();
    let delays = bids.iter().filter(has_waited).filter_map(|bid| bid.decision).map(|decision| decision.delay());
    Some(delays.fold(Duration::ZERO, Duration::saturating_add)).filter(|waited| !waited.is_zero())
}

fn verdict(policies: &[Policy], bids: &[Bid]) -> Verdict {
    bids.iter().filter_map(|bid| bid.decision.map(|decision| (&policies[bid.policy], decision, bid.guarded))).collect()
}

/// The bids, charged up to `next`. Dropped in the middle, it leaves them charged: a request that
/// was cancelled while it waited has cost what it cost.
struct Charging {
    bids: Bids,
    next: usize,
    /// To the bids from `next` on, as far as they were decided together. In reverse, the first one last.
    answers: Answers,
}

enum Progress {
    Done(Judged),
    One(Pending),
    /// Of several bids at once.
    Several(Pin<Box<dyn Future<Output = Answers> + Send>>),
}

impl Charging {
    fn of(bid: Bid) -> Self {
        Self { bids: SmallVec::from_iter([bid]), next: 0, answers: Answers::new() }
    }

    /// Goes on with the answer to the first bid.
    #[cold]
    fn resume(mut self, shared: &Arc<Shared>, check: Check) -> Judgement {
        match check {
            Check::Pending(pending) => self.wait(shared, Progress::One(pending)),
            Check::Ready(answer) => {
                self.answers.push(answer);
                self.run(shared)
            }
        }
    }

    fn run(mut self, shared: &Arc<Shared>) -> Judgement {
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
        if !bid.guarded {
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
            Err(_) if policy.is_shadow() || policy.failure_mode() == FailureMode::Allow => {
                policy.note(Fate::StoreError, Some(&bid.key), None);
            }
            Err(_) if policy.failure_mode() == FailureMode::LocalGuard && !bid.guarded => {
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
                let rejection = Rejection::limiter_failed(policy, verdict);
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
                policies[bid.policy].limiter().give_back(&bid.key, bid.cost, decision.receipt());
            }
        }
    }
}

/// Bids that were charged before it was known what their request costs.
struct Charged {
    shared: Arc<Shared>,
    bids: Bids,
}

impl OpenBill for Charged {
    /// In the reverse order of the charges: see [`Receipt`](crate::decision::Receipt).
    fn settle(mut self: Box<Self>, response: &ResponseHead<'_>) -> Told {
        for bid in self.bids.iter_mut().rev() {
            let policy = &self.shared.policies[bid.policy];
            let Some(decision) = bid.decision.filter(|decision| policy.is_billed_later() && decision.is_allowed())
            else {
                continue;
            };
            let cost = policy.final_cost(bid.cost, response);
            match cost.cmp(&bid.cost) {
                Ordering::Less => policy.limiter().give_back(&bid.key, bid.cost - cost, decision.receipt()),
                Ordering::Greater => policy.limiter().surcharge(&bid.key, cost - bid.cost),
                Ordering::Equal => continue,
            }
            let estimate = || decision.recharged(bid.cost, cost);
            bid.decision =
                Some(policy.limiter().peek(&bid.key, 0).unwrap_or_else(estimate).with_delay(decision.delay()));
        }
        self.shared.tell(&self.bids)
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
