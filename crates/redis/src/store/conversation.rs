//! The conversation with the server that makes a decision, about one key or several. Each call carries its keys'
//! quotas. It is made again while a key is kept under another quota, or our clock is wrong.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;
use tower_sluice::Quota;
use tower_sluice::internal::Lock;
use tower_sluice::internal::remote::{Observation, has_units_of};
use tower_sluice::limiter::Receipt;
use tower_sluice::store::SharingStats;
use tower_sluice::store::remote::{Applied, Standing, Target};
use tower_sluice::time::{Clock, Monotonic, Timestamp};

use crate::connection::Fault;
use crate::script::{
    BadReply, Charging, Key, OwnQuota, ScriptCall, ScriptCharge, ScriptReply, Scripted, Swap, TextUnder, rate_mark,
};

/// Whether a limiter's keys may have their own quotas, and how often keys were converted.
#[derive(Default)]
pub(crate) struct Quotas {
    /// Set once a caller gives a quota, or a key is found to have one. From then on, all calls carry their keys'
    /// quotas.
    are_carried: AtomicBool,
    /// The quotas of the limiter and of its predecessors, because a bucket's state names its rate by a mark.
    known: Lock<Vec<Quota>>,
    /// Whether two of these quotas have different marks. From then on, states with other marks are converted.
    converts_marks: AtomicBool,
    conversions: AtomicU64,
    lost: AtomicU64,
}

/// How many quotas are known. After more live changes than this, debts under the first ones are kept as times.
const MOST_KNOWN: usize = 32;

impl Quotas {
    /// Returns the quota that a call carries, if any. Read it once per call: another thread may note quotas meanwhile.
    pub(crate) fn carried<A: Scripted>(&self, target: &Target<'_, A>) -> Option<Quota> {
        if target.quota().is_some() {
            self.note();
        }
        self.are_carried.load(Ordering::Relaxed).then(|| target.algorithm().quota())
    }

    fn note(&self) {
        // Relaxed: a call without its key's quota is answered like a call with the wrong quota, and made once more.
        self.are_carried.store(true, Ordering::Relaxed);
    }

    /// Adds the quotas of this limiter and its predecessors.
    pub(crate) fn learn(&self, quotas: impl IntoIterator<Item = Quota>) {
        let mut known = self.known.lock();
        for quota in quotas {
            if known.len() < MOST_KNOWN && !known.iter().any(|other| rate_mark(other) == rate_mark(&quota)) {
                known.push(quota);
            }
        }
        // Relaxed: before the limiter is asked.
        self.converts_marks.fetch_or(known.len() > 1, Ordering::Relaxed);
    }

    pub(crate) fn known(&self) -> Vec<Quota> {
        self.known.lock().clone()
    }

    /// Returns the quota with this mark, if it is known.
    pub(crate) fn of_mark(&self, mark: u64) -> Option<Quota> {
        self.known.lock().iter().copied().find(|quota| rate_mark(quota) == mark)
    }

    fn converts_marks(&self) -> bool {
        self.converts_marks.load(Ordering::Relaxed)
    }

    /// Counts a conversion that a call was sent with. It is lost if the key has changed since it was read.
    pub(crate) fn count(&self, is_lost: bool) {
        let count = if is_lost { &self.lost } else { &self.conversions };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> SharingStats {
        let [conversions, lost_swaps] = [&self.conversions, &self.lost].map(|count| count.load(Ordering::Relaxed));
        let mut stats = SharingStats::default();
        stats.conversions = conversions;
        stats.lost_swaps = lost_swaps;
        stats
    }
}

/// The key that a part is about, and how its limiter keeps quotas.
pub(crate) trait Subject<A>: Send {
    fn target(&self) -> Target<'_, A>;

    fn quotas(&self) -> &Quotas;
}

impl<A: Scripted> Subject<A> for (Target<'_, A>, &Quotas) {
    fn target(&self) -> Target<'_, A> {
        self.0
    }

    fn quotas(&self) -> &Quotas {
        self.1
    }
}

/// The part of a conversation about one key: the question, and the last answer.
pub(crate) struct KeyPart<A: Scripted, S> {
    pub(crate) subject: S,
    pub(crate) key: Key,
    pub(crate) cost: u64,
    /// How many requests there are, and how many wait: others are not charged under another quota.
    count: u32,
    waiting: u32,
    /// The charge's receipt, if this is a refund.
    receipt: Option<Receipt>,
    /// The last call's arguments: the time on our clock, the quota, and whether it had a conversion.
    asked: Timestamp,
    carried: Option<Quota>,
    is_converting: bool,
    /// Whether the last call has left a state with another mark as it was.
    leaves_other_marks: bool,
    /// How to convert the key with the next call.
    conversion: Option<Swap>,
    /// The quota behind the state, and the algorithm under it. Set if a call charges the key under this quota, because
    /// its conversion was lost, or refunds it under this quota.
    pub(crate) kept: Option<(Option<Quota>, A)>,
    /// The state that the last call has read.
    pub(crate) found: Applied<A::State>,
    /// Whether the key was only read, and stays under another quota.
    pub(crate) is_foreign: bool,
}

/// A call's charges, one for each key.
pub(crate) type Charges = SmallVec<[ScriptCharge; 4]>;

/// A [`KeyPart`] without its algorithm in the type.
pub(crate) trait ConversationPart: Send {
    fn key(&self) -> &Key;

    /// Returns the next call's charge.
    fn charge(&mut self, asked: Timestamp) -> ScriptCharge;

    /// Takes a call's answer about the key at `index`. Returns whether that is the outcome; if not, the call has
    /// charged nothing, and is made again.
    fn hear(&mut self, answer: &ScriptReply, index: usize, charging: &Charging) -> Result<bool, BadReply>;
}

impl<A: Scripted, S: Subject<A>> KeyPart<A, S> {
    /// A charge for `cost`. With a cost of 0, it only reads the key.
    pub(crate) fn charging(subject: S, key: Key, cost: u64) -> Self {
        let asked = Timestamp::ZERO;
        let found = Applied { now: asked, old: None, standing: Standing::default(), kept: None, charged: 0 };
        Self {
            subject,
            key,
            cost,
            count: 1,
            waiting: 1,
            receipt: None,
            asked,
            carried: None,
            is_converting: false,
            leaves_other_marks: false,
            conversion: None,
            kept: None,
            found,
            is_foreign: false,
        }
    }

    /// Makes this `count` charges. Requests wait for `waiting` of them.
    pub(crate) fn with_count(self, count: u32, waiting: u32) -> Self {
        Self { count, waiting: waiting.min(count), ..self }
    }

    /// Makes this a refund for such a charge.
    pub(crate) fn refunding(self, receipt: Receipt) -> Self {
        Self { receipt: Some(receipt), ..self }
    }
}

impl<A: Scripted, S: Subject<A>> ConversationPart for KeyPart<A, S> {
    fn key(&self) -> &Key {
        &self.key
    }

    fn charge(&mut self, asked: Timestamp) -> ScriptCharge {
        let target = self.subject.target();
        let (algorithm, quota) = match &self.kept {
            Some((quota, kept)) => (kept, *quota),
            None => (target.algorithm(), self.subject.quotas().carried(&target)),
        };
        let conversion = self.conversion.take();
        self.asked = asked;
        self.carried = quota;
        self.is_converting = conversion.is_some();
        let mut charge = ScriptCharge::new(algorithm, self.key.clone(), self.cost, asked);
        charge.count = if self.kept.is_some() { self.waiting } else { self.count };
        if let Some(receipt) = self.receipt {
            charge = charge.refunding(target.algorithm(), self.cost, receipt, asked);
        }
        // A key that keeps changing is charged under the mark that it had: its mark may not be known.
        self.leaves_other_marks =
            self.receipt.is_some() || (self.kept.is_none() && self.subject.quotas().converts_marks());
        if self.leaves_other_marks {
            charge = charge.leaving_other_marks();
        }
        charge.with_own_quota(OwnQuota { quota, conversion })
    }

    fn hear(&mut self, answer: &ScriptReply, index: usize, charging: &Charging) -> Result<bool, BadReply> {
        let may_repeat = charging.may_charge(index, answer);
        let charged = charging.admitted(index, answer);
        let target = self.subject.target();
        let quotas = self.subject.quotas();
        let now = answer.now;
        let of_mark = |mark| quotas.of_mark(mark);
        let under = TextUnder::new(&target, &of_mark);
        let text = answer.text(index)?;
        let found = Applied { now, old: None, standing: Standing::default(), kept: None, charged };
        self.found = found;
        self.is_foreign = false;
        if text.standing.is_in_force(now) {
            // Among several keys, a key with an allowance passes, and is not charged.
            if may_repeat && !text.standing.is_allowed(now) && charged > 0 {
                return Err(BadReply::Disagreement);
            }
            self.found.charged = 0;
            self.found.standing = text.standing;
            self.found.old = under.state_at(&text, text.standing.until().max(now))?;
            return Ok(true);
        }
        let algorithm = self.kept.as_ref().map_or(target.algorithm(), |(_, kept)| kept);
        let mark = algorithm.mark();
        let is_here = text.is_under(self.carried, mark.filter(|_| self.leaves_other_marks));
        if self.is_converting {
            quotas.count(!is_here);
        }
        if is_here {
            self.found.old = text.state(algorithm, now)?;
            self.found.kept = self.kept.as_ref().map(|(_, kept)| kept.quota());
            // If our clock is so wrong that the call did not have the window at the server's time, the script charged
            // nothing, although there may be units left.
            let is_uncovered = may_repeat && answer.admitted == 0 && !algorithm.covers(self.asked, now);
            let is_refund = self.receipt.is_some();
            return Ok(is_refund || !is_uncovered || algorithm.decide(self.found.old, now, self.cost).1.is_none());
        }
        if text.quota.is_some() {
            quotas.note();
        }
        let kept = under.kept(&text)?;
        if self.receipt.is_some() {
            // The refund is made under the state's quota, if the two have the same units. Otherwise the charge stays.
            let has_rate = text.quota.is_some() || text.is_under(None, target.algorithm().mark());
            let is_refundable = has_rate && has_units_of(target.algorithm(), &kept.quota());
            self.kept = is_refundable.then_some((text.quota, kept));
            return Ok(!is_refundable);
        }
        let is_lost = self.is_converting || self.kept.is_some();
        if may_repeat && is_lost && self.cost <= kept.max_cost() {
            // On a hot key, conversions would be lost again and again. A charge under the key's present quota is not
            // lost.
            self.kept = Some((text.quota, kept));
            return Ok(false);
        }
        let quota = quotas.carried(&target);
        let (conversion, old) = under.convert(answer.old(index)?, now, quota)?;
        self.found.old = old;
        self.is_foreign = true;
        if may_repeat {
            // Once more, with the key's state under the caller's quota.
            self.conversion = Some(conversion).filter(|_| self.kept.is_none());
            self.kept = None;
        }
        Ok(!may_repeat)
    }
}

/// Makes calls until an answer holds. One call is enough, unless a key has another quota until now, or our clock is so
/// wrong that the call did not have the window at the server's time. If a key changes while it is converted, one more
/// call charges it under the key's quota. Returns the last answer.
///
/// Our clock shows `asked`. `compose` builds a call from its keys' charges, and `send` sends it.
pub(crate) async fn converse<P: ConversationPart + ?Sized, F: Future<Output = Result<ScriptReply, Fault>>>(
    mut asked: Timestamp,
    parts: &mut [&mut P],
    compose: impl Fn(Charges) -> ScriptCall,
    send: impl Fn(ScriptCall) -> F,
) -> Result<(ScriptReply, Observation), Fault> {
    loop {
        let call = compose(parts.iter_mut().map(|part| part.charge(asked)).collect());
        let charging = Charging::of(&call);
        let sent = Monotonic.now();
        let answer = send(call).await?;
        let seen = Observation { server: answer.now, sent, answered: Monotonic.now() };
        let mut holds = true;
        for (index, part) in parts.iter_mut().enumerate() {
            holds &= part.hear(&answer, index, &charging)?;
        }
        if holds {
            return Ok((answer, seen));
        }
        answer.charged(0)?;
        asked = answer.now;
    }
}
