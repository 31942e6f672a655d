//! What scripts are called with: the keys and arguments of each. [`reply`](super::reply) reads what they reply.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::{BEGIN_RECORD, EXACT, ONCE, RAISE_RECORD, REFUND, RESET, SEVERAL, Scripted, script_of};
use crate::store::redis::evalsha::Call;
use crate::store::redis::key::Key;
use crate::values::Receipt;
use crate::values::time::Timestamp;

/// Decides on `count` requests of `cost` each, in the order of arrival. Stops at the first that does not fit, since no
/// later one would. Only reads if the cost is zero, or can never be admitted. `asked` is the caller's estimate of the
/// server's time.
pub(crate) fn decide<A: Scripted>(algorithm: &A, key: Key, cost: u32, count: u32, asked: Timestamp) -> Call {
    let is_charge = (1..=algorithm.max_cost()).contains(&cost);
    let mut args = smallvec![if is_charge { count.into() } else { 0 }];
    // Zeros at the end may be left out.
    let numbers = algorithm.numbers(cost, asked);
    let length = numbers.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
    args.extend_from_slice(&numbers[..length]);
    Call { script: script_of::<A>(), keys: smallvec![key], args }
}

/// What one of several keys is to be charged.
pub(crate) struct Charge {
    key: Key,
    /// [`NUMBER`](super::sealed::Steps::NUMBER), or 0 if the key is only read.
    algorithm: u64,
    numbers: [u64; 5],
    is_possible: bool,
}

impl Charge {
    /// A charge of `cost`, as in [`decide`]; of 0, it only reads the key.
    pub(crate) fn new<A: Scripted>(algorithm: &A, key: Key, cost: u32, asked: Timestamp) -> Self {
        Self {
            key,
            algorithm: if cost == 0 { 0 } else { A::NUMBER },
            numbers: algorithm.numbers(cost, asked),
            is_possible: cost <= algorithm.max_cost(),
        }
    }
}

/// Charges all keys or none. No two charges may be on the same key.
pub(crate) fn decide_all(charges: impl IntoIterator<Item = Charge>) -> Call {
    let charges: SmallVec<[Charge; 4]> = charges.into_iter().collect();
    // A charge that can never be admitted makes the call read only.
    let are_possible = charges.iter().all(|charge| charge.is_possible);
    let mut call = Call { script: &SEVERAL, keys: SmallVec::new(), args: SmallVec::new() };
    for charge in charges {
        call.args.push(if are_possible { charge.algorithm } else { 0 });
        call.args.extend_from_slice(&charge.numbers);
        call.keys.push(charge.key);
    }
    call
}

/// Decides on a request that may be a retry: charges the budget of free retries if the record has one left and the budget
/// admits it, and else the state.
pub(crate) fn decide_once(state: Charge, budget: Charge, record: Key) -> Call {
    let mut call = Call { script: &ONCE, keys: SmallVec::new(), args: SmallVec::new() };
    for charge in [state, budget] {
        call.args.push(if charge.is_possible { charge.algorithm } else { 0 });
        call.args.extend_from_slice(&charge.numbers);
        call.keys.push(charge.key);
    }
    call.keys.push(record);
    call
}

/// Records that a request is over: so many retries are free for this time, rounded up to a millisecond.
pub(crate) fn begin_record(record: Key, free_retries: u32, within: Duration) -> Call {
    let millis = u64::try_from(within.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(EXACT - 1);
    Call { script: &BEGIN_RECORD, keys: smallvec![record], args: smallvec![free_retries.into(), millis] }
}

/// Returns a free retry to its record, which has `free_retries` at most after that.
pub(crate) fn raise_record(record: Key, free_retries: u32) -> Call {
    Call { script: &RAISE_RECORD, keys: smallvec![record], args: smallvec![free_retries.into()] }
}

/// Refunds what is still owed for the charge of `cost` that `receipt` is for. `None` if nothing was charged.
pub(crate) fn refund<A: Scripted>(
    algorithm: &A,
    key: Key,
    cost: u32,
    receipt: Receipt,
    asked: Timestamp,
) -> Option<Call> {
    if receipt.is_none() || cost == 0 {
        return None;
    }
    let mut args = smallvec![A::NUMBER];
    args.extend_from_slice(&algorithm.numbers(cost, asked));
    args.extend_from_slice(&algorithm.receipt_numbers(receipt));
    Some(Call { script: &REFUND, keys: smallvec![key], args })
}

/// Does the same for a charge under a quota of the key's own. The key may have a greater one by now: so what it owes is
/// not cut to what this quota admits, as a decision would.
pub(crate) fn refund_under<A: Scripted>(
    algorithm: &A,
    key: Key,
    cost: u32,
    receipt: Receipt,
    asked: Timestamp,
) -> Option<Call> {
    let mut call = refund(algorithm, key, cost, receipt, asked)?;
    // The capacity of a bucket, or the limit of a window, behind the number of the algorithm and the price or cost.
    call.args[2] = algorithm.most();
    Some(call)
}

/// Forgets what a key owes; the reply is that of a [`decide`] on a key that holds nothing.
pub(crate) fn reset(key: Key) -> Call {
    Call { script: &RESET, keys: smallvec![key], args: SmallVec::new() }
}
