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

mod bid;
mod charging;
mod unsettled;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;

use self::bid::{Bid, Bids};
use self::charging::Charging;
use self::unsettled::Unsettled;
use crate::body::RejectionBody;
use crate::decision::Check;
use crate::head::RequestHead;
use crate::headers::{Reading, Writer};
use crate::meter::Fate;
use crate::policy::{Choices, Policy};
use crate::preflight::Exemption;
use crate::rejection::Rejection;
use crate::responder::Responder;
use crate::time;
use crate::told::Told;
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
    /// Which preflights of CORS pass uncounted, if any.
    pub(crate) exemption: Option<Arc<Exemption>>,
}

impl Shared {
    /// What a response is told of these decisions.
    #[inline]
    fn tell(&self, bids: &[Bid]) -> Told {
        let fields = self.writer.as_ref().and_then(|writer| {
            let reading = |bid| self.reading(writer, bid);
            match bids {
                [bid] => writer.fields_of_one(reading(bid)?),
                _ => writer.fields(bids.iter().filter_map(reading)),
            }
        });
        let waited = if self.tells_timing { waited(&self.policies, bids) } else { None };
        Told {
            fields,
            waited,
            verdict: self.tells_verdict.then(|| Box::new(verdict(&self.policies, bids))),
            open: None,
        }
    }

    #[inline]
    fn reading<'a>(&self, writer: &Writer, bid: &'a Bid) -> Option<Reading<'a>> {
        let decision = bid.decision.as_ref()?;
        let next_after = if writer.wants_next(bid.policy, decision) { self.next_after(bid) } else { None };
        Some(Reading { policy: bid.policy, decision, next_after, mark: writer.mark(&bid.key) })
    }

    #[cold]
    fn leave_open(self: &Arc<Self>, bids: &mut Bids) -> Told {
        let bill = Unsettled::new(Arc::clone(self), std::mem::take(bids));
        Told { open: Some(Box::new(bill)), ..Told::default() }
    }

    /// The time until the key of a bid has one unit.
    #[cold]
    fn next_after(&self, bid: &Bid) -> Option<Duration> {
        self.policies[bid.policy].limiter().peek(&bid.key, 1)?.retry_after()
    }

    /// The response to a request that does not pass.
    #[cold]
    pub(crate) fn respond(&self, mut refused: Refused, head: &RequestHead<'_>) -> Response<RejectionBody> {
        let mut response = self.responder.respond(&mut refused.rejection, head);
        refused.told.tell(&mut response);
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
pub(crate) fn judge(shared: &Arc<Shared>, head: &RequestHead<'_>, has_no_body: impl FnOnce() -> bool) -> Judgement {
    if shared.exemption.as_ref().is_some_and(|exemption| exemption.exempts(&shared.policies, head, has_no_body)) {
        shared.policies.iter().for_each(|policy| policy.note(Fate::Skipped, None, None));
        return Judgement::Decided(Ok(Told::default()));
    }
    match &*shared.policies {
        [policy] if !policy.is_shadow() => judge_by_one(shared, policy, head),
        _ => judge_by_all(shared, head),
    }
}

/// By the only policy, as in most layers: there is nothing to foresee, and nothing to give back.
#[inline]
fn judge_by_one(shared: &Arc<Shared>, policy: &Policy, head: &RequestHead<'_>) -> Judgement {
    let mut bid = match bid::of(0, policy, head, &mut Choices::default()) {
        Ok(Some(bid)) => bid,
        Ok(None) => return Judgement::Decided(Ok(Told::default())),
        Err(rejection) => return Judgement::Decided(Err(rejection.into())),
    };
    if bid.ban.is_some() {
        bid.foresee(policy);
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
    let (mut bids, mut choices) = (Bids::new(), Choices::default());
    for (index, policy) in policies.iter().enumerate() {
        match bid::of(index, policy, head, &mut choices) {
            Ok(bid) => bids.extend(bid),
            Err(rejection) => return Judgement::Decided(Err(rejection.into())),
        }
    }
    // One reading of the clock for all policies, however often they are asked. Not across an await: the
    // guard is gone by then.
    let _held = time::hold();
    if let Some(refused) = foresee_refusal(shared, &mut bids) {
        return Judgement::Decided(Err(refused));
    }
    Charging::new(bids).run(shared)
}

/// The refusal that charging these bids would meet. A single one that is enforced is not peeked at: its
/// charge is all or none by itself. Beside a ban all are, since the wait is the longest of all policies.
fn foresee_refusal(shared: &Shared, bids: &mut Bids) -> Option<Refused> {
    let policies = &*shared.policies;
    let is_enforced = |bid: &Bid| !policies[bid.policy].is_shadow();
    let is_banned = bids.iter().any(|bid| bid.ban.is_some());
    if !is_banned && bids.iter().filter(|bid| is_enforced(bid)).count() < 2 {
        return None;
    }
    for bid in bids.iter_mut().filter(|bid| is_enforced(bid)) {
        bid.foresee(&policies[bid.policy]);
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
///
/// # Waits
///
/// The wait that is advertised is the longest of all policies that reject, their bans included, and none if no wait helps one
/// of them. A request that is sent again after it, alone on its keys, is admitted. It is noted with every penalty: whoever
/// comes sooner misbehaves, and nobody else.
#[cold]
fn refuse(shared: &Shared, bids: &mut [Bid]) -> Refused {
    let policies = &*shared.policies;
    let is_refused = |bid: &&mut Bid| bid.is_refused() && !policies[bid.policy].is_shadow();
    for bid in bids.iter_mut().filter(is_refused) {
        bid.note_rejection(&policies[bid.policy]);
    }
    note(policies, bids, false);
    // The policy that keeps the client out longest speaks for all; for ever, if no wait helps. Or one that has banned it,
    // which the client should know.
    let wait = |bid: &&Bid| {
        let wait = bid.decision.and_then(|decision| decision.retry_after()).unwrap_or(Duration::MAX);
        (bid.ban.is_some(), wait)
    };
    let refused = bids.iter().filter(|bid| bid.is_refused() && !policies[bid.policy].is_shadow());
    // Of equals the first one, which `max_by_key` would not return.
    let longest = refused.rev().max_by_key(wait).expect("one is refused");
    // What one client did to be banned is nobody else's fault.
    let banned = longest.ban.is_some();
    let status = policies[longest.policy].refusal_status(longest.shared && !banned);
    let verdict = verdict_at_rest(policies, bids);
    let rejection =
        if banned { Rejection::banned(status, verdict) } else { Rejection::limit_exceeded(status, verdict) };
    if let Some(wait) = rejection.retry_after() {
        for bid in bids.iter_mut().filter(is_refused) {
            if let Some(penalty) = policies[bid.policy].penalty_for(&bid.key) {
                penalty.advise(&bid.key, wait);
            }
        }
    }
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
