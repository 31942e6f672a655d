//! What scripts are called with: the keys and arguments of each. [`reply`](super::reply) reads what they reply.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::own_quota::{self, OwnQuota};
use super::{BEGIN_RECORD, EXACT, ONCE, RAISE_RECORD, REFUND, RESET, SEVERAL, Scripted, script_of};
use crate::store::redis::evalsha::Call;
use crate::store::redis::key::Key;
use crate::values::Receipt;
use crate::values::time::Timestamp;

/// Decides on `count` requests of `cost` each, in the order of arrival. Stops at the first that does not fit, since no
/// later one would. Only reads if the cost is zero, or can never be admitted. `asked` is the caller's estimate of the
/// server's time.
pub(crate) fn decide<A: Scripted>(algorithm: &A, key: Key, cost: u64, count: u32, asked: Timestamp) -> Call {
    let is_charge = (1..=algorithm.max_cost()).contains(&cost);
    let mut args = smallvec![if is_charge { count.into() } else { 0 }];
    // Zeros at the end may be left out.
    let numbers = algorithm.numbers(cost, asked);
    let length = numbers.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
    args.extend_from_slice(&numbers[..length]);
    Call { script: script_of::<A>(), keys: smallvec![key], args, texts: Vec::new() }
}

/// Whether a [`decide`] or a [`decide_all`] would charge the key at `index`, or only reads it.
pub(crate) fn is_charge(call: &Call, index: usize) -> bool {
    // The count, or the number of an algorithm.
    call.args[6 * index] > 0
}

/// What one of several keys is to be charged.
pub(crate) struct Charge {
    key: Key,
    /// [`NUMBER`](super::sealed::Steps::NUMBER), or 0 if the key is only read.
    algorithm: u64,
    numbers: [u64; 5],
    is_possible: bool,
    own: OwnQuota,
}

impl Charge {
    /// A charge of `cost`, as in [`decide`]; of 0, it only reads the key.
    pub(crate) fn new<A: Scripted>(algorithm: &A, key: Key, cost: u64, asked: Timestamp) -> Self {
        Self {
            key,
            algorithm: if cost == 0 { 0 } else { A::NUMBER },
            numbers: algorithm.numbers(cost, asked),
            is_possible: cost <= algorithm.max_cost(),
            own: OwnQuota::default(),
        }
    }

    /// The same charge, to a key with a quota of its own.
    pub(crate) fn under(self, own: OwnQuota) -> Self {
        Self { own, ..self }
    }
}

/// Charges all keys or none. No two charges may be on the same key.
pub(crate) fn decide_all(charges: impl IntoIterator<Item = Charge>) -> Call {
    let charges: SmallVec<[Charge; 4]> = charges.into_iter().collect();
    // A charge that can never be admitted makes the call read only.
    let are_possible = charges.iter().all(|charge| charge.is_possible);
    let mut call = Call { script: &SEVERAL, keys: SmallVec::new(), args: SmallVec::new(), texts: Vec::new() };
    let mut quotas: SmallVec<[OwnQuota; 4]> = SmallVec::new();
    for charge in charges {
        let algorithm = if are_possible { charge.algorithm } else { 0 };
        call.args.push(algorithm);
        call.args.extend_from_slice(&charge.numbers);
        call.keys.push(charge.key);
        // A key that is only read may have any quota.
        quotas.push(if algorithm > 0 { charge.own } else { OwnQuota::default() });
    }
    own_quota::add(&mut call, quotas);
    call
}

/// Decides on a request that may be a retry: charges the budget of free retries if the record has one left and the budget
/// admits it, and else the state.
pub(crate) fn decide_once(state: Charge, budget: Charge, record: Key) -> Call {
    let mut call = Call { script: &ONCE, keys: SmallVec::new(), args: SmallVec::new(), texts: Vec::new() };
    let mut quotas: SmallVec<[OwnQuota; 2]> = SmallVec::new();
    for charge in [state, budget] {
        call.args.push(if charge.is_possible { charge.algorithm } else { 0 });
        call.args.extend_from_slice(&charge.numbers);
        call.keys.push(charge.key);
        quotas.push(charge.own);
    }
    call.keys.push(record);
    own_quota::add(&mut call, quotas);
    call
}

/// Records that a request is over: so many retries are free for this time, rounded up to a millisecond.
pub(crate) fn begin_record(record: Key, free_retries: u32, within: Duration) -> Call {
    let millis = u64::try_from(within.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(EXACT - 1);
    Call {
        script: &BEGIN_RECORD,
        keys: smallvec![record],
        args: smallvec![free_retries.into(), millis],
        texts: Vec::new(),
    }
}

/// Returns a free retry to its record, which has `free_retries` at most after that.
pub(crate) fn raise_record(record: Key, free_retries: u32) -> Call {
    Call { script: &RAISE_RECORD, keys: smallvec![record], args: smallvec![free_retries.into()], texts: Vec::new() }
}

/// Refunds what is still owed for the charge of `cost` that `receipt` is for, which was made under the quota of `algorithm`,
/// to a state that is kept under that of `kept`: another perhaps, in the same units. `None` if nothing was charged.
pub(crate) fn refund<A: Scripted>(
    algorithm: &A,
    kept: &A,
    key: Key,
    cost: u64,
    receipt: Receipt,
    asked: Timestamp,
) -> Option<Call> {
    if receipt.is_none() || cost == 0 {
        return None;
    }
    let mut numbers = algorithm.numbers(cost, asked);
    // The price is that of the charge, but the capacity of the bucket and its rest, or the limit of the window, are those of
    // the state: if that has a greater burst, what it owes must not be cut.
    let state = kept.numbers(cost, asked);
    (numbers[1], numbers[3]) = (state[1], state[3]);
    let mut args = smallvec![A::NUMBER];
    args.extend_from_slice(&numbers);
    args.extend_from_slice(&algorithm.receipt_numbers(receipt));
    Some(Call { script: &REFUND, keys: smallvec![key], args, texts: Vec::new() })
}

/// Refunds a budget of free retries. It may have grown with the quota of its key: so what it owes is not cut to what this
/// budget admits.
pub(crate) fn refund_budget<A: Scripted>(
    budget: &A,
    key: Key,
    cost: u64,
    receipt: Receipt,
    asked: Timestamp,
) -> Option<Call> {
    /// More than any bucket holds in microseconds, or any window in units.
    const UNCUT: u64 = (1 << 51) - 1;
    let mut call = refund(budget, budget, key, cost, receipt, asked)?;
    // The capacity of a bucket, or the limit of a window, behind the number of the algorithm and the price or cost.
    call.args[2] = UNCUT;
    Some(call)
}

/// Forgets what a key owes; the reply is that of a [`decide`] on a key that holds nothing.
pub(crate) fn reset(key: Key) -> Call {
    Call { script: &RESET, keys: smallvec![key], args: SmallVec::new(), texts: Vec::new() }
}
