//! Script calls, with their keys and arguments. [`reply`](super::reply) reads the replies.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tower_sluice::Quota;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::{Alternatives, BanGrowth};
use tower_sluice::time::Timestamp;

use super::bucket::LEAVES_OTHER_MARKS;
use super::reply::ScriptReply;
use super::sealed::Steps;
use super::text::{Swap, parts};
use super::{BAN, BEGIN_RECORD, EXACT, ONCE, RAISE_RECORD, REFUND, RESET, SEVERAL, SWAP, Scripted, script_of};
use crate::script::{Key, Script, ScriptCall};

/// One key's charge or refund in a call.
pub(crate) struct ScriptCharge {
    key: Key,
    script: &'static Script,
    /// [`NUMBER`](super::sealed::Steps::NUMBER), or 0 if the key is only read.
    algorithm: u64,
    numbers: [u64; 5],
    /// The charge's receipt, if this is a refund.
    receipt: Option<[u64; 2]>,
    is_possible: bool,
    /// The number of requests, in a call for this key [alone](Self::alone).
    pub(crate) count: u32,
    own: OwnQuota,
}

/// The part of a call about one key's own quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnQuota {
    /// The caller's quota, which the script writes behind the state. `None` if the limiter has one quota for all keys.
    pub(crate) quota: Option<Quota>,
    /// Replaces a state under another quota, or with another mark, by the same state under this one.
    pub(crate) conversion: Option<Swap>,
}

impl ScriptCharge {
    /// A charge for `cost`. With a cost of 0, it only reads the key. `asked` is the caller's estimate of the server's
    /// time.
    pub(crate) fn new<A: Scripted>(algorithm: &A, key: Key, cost: u64, asked: Timestamp) -> Self {
        Self {
            key,
            script: script_of::<A>(),
            algorithm: if cost == 0 { 0 } else { A::NUMBER },
            numbers: algorithm.numbers(cost, asked),
            receipt: None,
            is_possible: cost <= algorithm.max_cost(),
            count: 1,
            own: OwnQuota::default(),
        }
    }

    /// Refunds a charge's remaining debt, with the charge's `cost` and `receipt`. The charge was made under the quota
    /// of `charged`, which may be another quota in the same units.
    pub(crate) fn refunding<A: Scripted>(mut self, charged: &A, cost: u64, receipt: Receipt, asked: Timestamp) -> Self {
        // The bucket's capacity and its rest, or the window's limit, come from the state's quota, because if that has a
        // greater burst, its debt must not be cut. The price comes from the charge.
        let price = charged.numbers(cost, asked);
        for index in [0, 2, 4] {
            self.numbers[index] = price[index];
        }
        self.receipt = Some(charged.receipt_numbers(receipt));
        self
    }

    /// Lets this charge leave a bucket's state with another mark to the caller.
    pub(crate) fn leaving_other_marks(mut self) -> Self {
        if self.numbers[0] > 0 && std::ptr::eq(self.script, script_of::<TokenBucket>()) {
            self.numbers[1] += LEAVES_OTHER_MARKS;
        }
        self
    }

    /// Sets the key's own quota for this charge.
    pub(crate) fn with_own_quota(self, own: OwnQuota) -> Self {
        Self { own, ..self }
    }

    /// Returns a read of the same key.
    fn reading(self) -> Self {
        Self { algorithm: 0, ..self }
    }

    const fn is_charge(&self) -> bool {
        self.algorithm > 0 && self.is_possible
    }

    /// Decides on [`count`](Self::count) requests, in the order of arrival. Stops at the first rejection, since all
    /// later requests would be rejected, too. Only reads if the cost is zero, or can never be admitted.
    pub(crate) fn alone(self) -> ScriptCall {
        let mut args: SmallVec<[u64; 8]> = smallvec![if self.is_charge() { self.count.into() } else { 0 }];
        args.extend_from_slice(&self.numbers);
        let script = match self.receipt {
            Some(receipt) => {
                args[0] = self.algorithm;
                args.extend_from_slice(&receipt);
                &REFUND
            }
            None if self.own.quota.is_some() || self.own.conversion.is_some() => {
                // A key may owe at most a full bucket.
                args.push(0);
                self.script
            }
            None => {
                // Zeros at the end are optional.
                let length = args.iter().rposition(|number| *number > 0).map_or(1, |last| last + 1);
                args.truncate(length);
                self.script
            }
        };
        let mut call = ScriptCall { script, keys: smallvec![self.key], args, texts: Vec::new() };
        add_quotas(&mut call, &mut [self.own]);
        call
    }
}

/// Adds the quotas of its keys to a call, one for each key, if there are any.
fn add_quotas(call: &mut ScriptCall, quotas: &mut [OwnQuota]) {
    let are_converted = quotas.iter().any(|own| own.conversion.is_some());
    if !are_converted && quotas.iter().all(|own| own.quota.is_none()) {
        return;
    }
    for OwnQuota { quota, conversion } in quotas {
        call.args.extend(quota.map_or([0; 3], parts));
        call.args.push(conversion.as_ref().map_or(0, |conversion| conversion.expires));
        if are_converted {
            let Swap { read, written, .. } = conversion.take().unwrap_or_default();
            call.texts.extend([read, written].map(String::into_bytes));
        }
    }
}

/// Replaces the algorithm in a charge that can never be admitted. The script rejects it, unless the key is allowed.
const NEVER: u64 = 5;

/// In the first argument, which is the number of keys, each number that lists the [`Alternatives`] counts this much.
const LISTED: u64 = 1_000_000;

/// Makes a call with charges by any algorithms, with the quotas for the possible charges. An impossible charge has the
/// algorithm `impossible`.
fn several(
    script: &'static Script,
    charges: impl IntoIterator<Item = ScriptCharge>,
    impossible: u64,
    alternatives: &Alternatives,
) -> ScriptCall {
    let mut call = ScriptCall::new(script, [], [0]);
    let mut quotas = SmallVec::<[OwnQuota; 4]>::new();
    for charge in charges {
        let is_charge = charge.is_charge();
        call.args.push(if charge.is_possible { charge.algorithm } else { impossible });
        call.args.extend_from_slice(&charge.numbers);
        call.keys.push(charge.key);
        // A key that is only read may have any quota.
        quotas.push(if is_charge { charge.own } else { OwnQuota::default() });
    }
    let before = call.args.len();
    call.args.extend(listed(alternatives));
    call.args[0] = call.keys.len() as u64 + LISTED * (call.args.len() - before) as u64;
    add_quotas(&mut call, &mut quotas);
    call
}

/// Returns the numbers that list the alternatives in a call: the keys' numbers, from 1 on, with a zero behind each set.
pub(super) fn listed(alternatives: &Alternatives) -> impl Iterator<Item = u64> {
    alternatives.sets().flat_map(|set| set.iter().map(|index| *index as u64 + 1).chain([0]))
}

/// Which keys a call may charge, and which it has charged, according to its reply.
pub(crate) struct Charging {
    is_once: bool,
    may_charge: SmallVec<[bool; 4]>,
    /// See [`listed`].
    listed: SmallVec<[u64; 8]>,
}

impl Charging {
    pub(crate) fn of(call: &ScriptCall) -> Self {
        let is_once = std::ptr::eq(call.script, &ONCE);
        if !is_once && !std::ptr::eq(call.script, &SEVERAL) {
            // The count, or the number of an algorithm.
            return Self { is_once, may_charge: smallvec![call.args[0] > 0], listed: SmallVec::new() };
        }
        let keys = (call.args[0] % LISTED) as usize;
        let may_charge = (0..keys).map(|index| (1..NEVER).contains(&call.args[1 + 6 * index])).collect();
        let listed = &call.args[1 + 6 * keys..][..(call.args[0] / LISTED) as usize];
        Self { is_once, may_charge, listed: listed.into() }
    }

    /// Whether the call would have charged the key at `index`, if it had room.
    pub(crate) fn may_charge(&self, index: usize, answer: &ScriptReply) -> bool {
        // A free retry has charged the budget, in any state of the key.
        self.may_charge.get(index) == Some(&true) && !(self.is_once && answer.is_free_retry())
    }

    /// Returns how many requests were admitted by the key at `index`, and charged to it unless it is only read.
    pub(crate) fn admitted(&self, index: usize, answer: &ScriptReply) -> u32 {
        let Some(before) = (answer.admitted as usize).checked_sub(1).filter(|_| !self.listed.is_empty()) else {
            return answer.admitted;
        };
        let set = self.listed.split(|number| *number == 0).nth(before);
        set.is_some_and(|set| set.contains(&(index as u64 + 1))).into()
    }
}

/// Decides on one key, see [`ScriptCharge::alone`].
pub(crate) fn alone(charges: impl IntoIterator<Item = ScriptCharge>) -> ScriptCall {
    charges.into_iter().next().expect("there is one").alone()
}

/// Charges the keys of the first alternative that has room, or no key at all. Without alternatives, only reads the
/// keys. They must differ from each other.
pub(crate) fn decide_first(
    charges: impl IntoIterator<Item = ScriptCharge>,
    alternatives: Option<&Alternatives>,
) -> ScriptCall {
    match alternatives {
        Some(alternatives) => several(&SEVERAL, charges, NEVER, alternatives),
        None => several(&SEVERAL, charges.into_iter().map(ScriptCharge::reading), 0, &Alternatives::ALL),
    }
}

/// Decides on a request that may be a retry: charges the budget for free retries if the record has a free retry left
/// and the budget admits it, and otherwise the state.
pub(crate) fn decide_once(state: ScriptCharge, budget: ScriptCharge, record: Key) -> ScriptCall {
    let mut call = several(&ONCE, [state, budget], 0, &Alternatives::ALL);
    call.keys.push(record);
    call
}

/// Reads a key, or, with a cost above 0, decides on `count` requests, see [`ScriptCharge::alone`].
#[cfg(test)]
pub(crate) fn decide<A: Scripted>(algorithm: &A, key: Key, cost: u64, count: u32, asked: Timestamp) -> ScriptCall {
    ScriptCharge { count, ..ScriptCharge::new(algorithm, key, cost, asked) }.alone()
}

/// Records that a request is over: `free_retries` retries are free for the time `within`, rounded up to a millisecond.
pub(crate) fn begin_record(record: Key, free_retries: u32, within: Duration) -> ScriptCall {
    let millis = u64::try_from(within.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(EXACT - 1);
    ScriptCall::new(&BEGIN_RECORD, [record], [free_retries.into(), millis])
}

/// Returns a free retry to its record. The record then has at most `free_retries`.
pub(crate) fn raise_record(record: Key, free_retries: u32) -> ScriptCall {
    ScriptCall::new(&RAISE_RECORD, [record], [free_retries.into()])
}

/// Refunds a budget for free retries. It may have grown with its key's quota, so its debt is not cut to this budget's
/// size. `None` without a charge.
pub(crate) fn refund_budget<A: Scripted>(
    budget: &A,
    key: Key,
    cost: u64,
    receipt: Receipt,
    asked: Timestamp,
) -> Option<ScriptCall> {
    /// More than any bucket's capacity in microseconds, or any window's limit in units.
    const UNCUT: u64 = (1 << 51) - 1;
    if receipt.is_none() || cost == 0 {
        return None;
    }
    let mut refund = ScriptCharge::new(budget, key, cost, asked).refunding(budget, cost, receipt, asked);
    // The bucket's capacity, or the window's limit.
    refund.numbers[1] = if A::NUMBER == TokenBucket::NUMBER { (UNCUT + 1) * 10 } else { UNCUT };
    Some(refund.alone())
}

/// Deletes a key's debt. The reply is the same as for a charge to an empty key that only reads.
pub(crate) fn reset<const K: usize>(keys: [Key; K]) -> ScriptCall {
    ScriptCall::new(&RESET, keys, [])
}

/// Bans a key for this time, rounded up to a microsecond. The reply has the banned key's text.
pub(crate) fn ban(key: Key, span: Duration) -> ScriptCall {
    ScriptCall::new(&BAN, [key], [micros(span)])
}

/// Bans a key by the number of its bans, which the key `bans` holds. The reply has both texts.
pub(crate) fn growing_ban(key: Key, bans: Key, growth: &BanGrowth) -> ScriptCall {
    let [first, most, forgotten] = [growth.first(), growth.most(), growth.forgotten_after()].map(micros);
    ScriptCall::new(&BAN, [key, bans], [first, growth.factor().into(), most, forgotten])
}

/// Rounded up. The sum of this and any server time is exact.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX).min(EXACT / 2 - 1)
}

/// Replaces a key's text, unless it has changed; the reply has the new text then. If `swap` is `None`, the script only
/// reads.
pub(crate) fn swap(key: Key, swap: Option<Swap>) -> ScriptCall {
    let mut call = ScriptCall::new(&SWAP, [key], [0]);
    if let Some(Swap { read, written, expires }) = swap {
        call.args[0] = expires;
        call.texts = [read, written].map(String::into_bytes).into();
    }
    call
}

/// Like [`swap`], with a reference's key: if that key exists, nothing is replaced. Otherwise, the swap begins it, for
/// `known` milliseconds.
pub(crate) fn swap_once(key: Key, reference: Key, swap: Option<Swap>, known: u64) -> ScriptCall {
    let is_swap = swap.is_some();
    let mut call = self::swap(key, swap);
    call.keys.push(reference);
    call.texts.extend(is_swap.then(|| known.to_string().into_bytes()));
    call
}
