//! Balances: [`Balance`] admits the requests of a key as long as it has units that were credited to it.
//!
//! `values::account` is the account of one key: its lots, and what it owes. `accounts` keeps those of all keys in
//! memory, by maps with locks; `shared` keeps them on a store that processes share. Both answer by the functions below.

mod accounts;
mod limiter;
mod shared;
#[cfg(all(test, not(sluice_loom)))]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;

pub use self::limiter::Balance;
pub use self::shared::SharedBalance;

use std::time::Duration;

use crate::values::time::Timestamp;
use crate::values::{Decision, Expiry, Paid, Receipt};

/// The units of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitsLeft {
    left: u64,
    /// The time until units expire, so that the others do not pay for the request any more: zero if enough of them
    /// never expire, or if they do not pay for it now.
    suffice_for: Duration,
}

impl UnitsLeft {
    /// The units of a key whose lots suffice until then.
    pub(crate) fn new(left: u64, suffice_until: Expiry, now: Timestamp) -> Self {
        let expires = suffice_until != Expiry::NEVER;
        Self { left, suffice_for: if expires { suffice_until.instant().saturating_since(now) } else { Duration::ZERO } }
    }
}

/// The decision on a request that was charged `units`. `rest` are the units that the key has afterwards, and for how
/// long those before would have sufficed.
pub(crate) fn admitted(units: u64, rest: UnitsLeft, paid: Option<Paid>) -> Decision {
    let decision = Decision::allow(rest.left.saturating_add(units), rest.left).with_reset_after(rest.suffice_for);
    paid.map_or(decision, |paid| decision.with_receipt(Receipt::from_proof(paid)))
}

/// The decision, without a charge, on a request of a key with these units. No wait helps: nothing is restored.
pub(crate) fn judged(cost: u64, UnitsLeft { left, suffice_for }: UnitsLeft) -> Decision {
    match left.checked_sub(cost) {
        Some(rest) => Decision::allow(left, rest).with_reset_after(suffice_for),
        // A request of cost 0 is always admitted.
        None => Decision::reject(left, left, None),
    }
}
