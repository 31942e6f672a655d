use smallvec::{SmallVec, smallvec};

use super::{REFUND, RESET, SEVERAL, Scripted, script_of};
use crate::store::redis::call::Call;
use crate::store::redis::key::Key;
use crate::values::Receipt;

/// Decides on `count` requests of `cost` each, in the order in which they came. The first that does not fit is the
/// last that is looked at, for none after it would.
pub(crate) fn decide<A: Scripted>(algorithm: &A, key: Key, cost: u32, count: u32) -> Call {
    let is_charge = (1..=algorithm.max_cost()).contains(&cost);
    let mut args = smallvec![if is_charge { count.into() } else { 0 }];
    let numbers = algorithm.numbers(cost);
    let length = numbers.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
    args.extend_from_slice(&numbers[..length]);
    Call { script: script_of::<A>(), keys: smallvec![key], args }
}

/// What one of several keys is to be charged.
pub(crate) struct Charge {
    key: Key,
    algorithm: u64,
    numbers: [u64; 5],
    is_possible: bool,
}

impl Charge {
    pub(crate) fn new<A: Scripted>(algorithm: &A, key: Key, cost: u32) -> Self {
        Self {
            key,
            algorithm: if cost == 0 { 0 } else { A::NUMBER },
            numbers: algorithm.numbers(cost),
            is_possible: cost <= algorithm.max_cost(),
        }
    }
}

/// Decides on all or none. No two charges may be on the same key.
pub(crate) fn decide_all(charges: impl IntoIterator<Item = Charge>) -> Call {
    let charges: SmallVec<[Charge; 4]> = charges.into_iter().collect();
    // One that never fits makes questions of all.
    let are_possible = charges.iter().all(|charge| charge.is_possible);
    let mut call = Call { script: &SEVERAL, keys: SmallVec::new(), args: SmallVec::new() };
    for charge in charges {
        call.args.push(if are_possible { charge.algorithm } else { 0 });
        call.args.extend_from_slice(&charge.numbers);
        call.keys.push(charge.key);
    }
    call
}

/// Gives back what is still owed for a charge. `None` if nothing was charged.
pub(crate) fn refund<A: Scripted>(algorithm: &A, key: Key, cost: u32, receipt: Receipt) -> Option<Call> {
    if receipt.is_none() || cost == 0 {
        return None;
    }
    let mut args = smallvec![A::NUMBER];
    args.extend_from_slice(&algorithm.numbers(cost));
    args.extend_from_slice(&algorithm.receipt_numbers(receipt));
    Some(Call { script: &REFUND, keys: smallvec![key], args })
}

/// Forgets what a key owes; answered as a [`decide`] on nothing.
pub(crate) fn reset(key: Key) -> Call {
    Call { script: &RESET, keys: smallvec![key], args: SmallVec::new() }
}
