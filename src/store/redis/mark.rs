//! Receipts of a guard.

use crate::decision::Receipt;

/// On the receipts of charges that are the guard's: what the server never charged is not given back there. No
/// algorithm's own receipts are that large.
const GUARDS: u128 = 1 << 127;

pub(crate) fn mark(receipt: Receipt) -> Receipt {
    if receipt == Receipt::NONE { receipt } else { Receipt::new(receipt.value() | GUARDS) }
}

pub(crate) fn of_guard(receipt: Receipt) -> Option<Receipt> {
    (receipt.value() & GUARDS != 0).then(|| Receipt::new(receipt.value() & !GUARDS))
}
